"""Models of the hub, by way of huggingface_hub and its cache; imported when a model's name means one."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from llmi.base.log import log
from llmi.base.progress import interactive, say
from llmi.errors import ModelFileError
from llmi.models.hub_files import HubName, choose

_FOLDERS = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")


def cache_folder() -> Path | None:
    """huggingface_hub's cache; None where it has no place: no home, and no variable that names one."""
    try:
        for name in _FOLDERS:
            if value := os.environ.get(name):
                folder = {"HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}.get(name, "")
                return Path(os.path.expandvars(value)).expanduser() / folder
        return Path.home() / ".cache" / "huggingface" / "hub"
    except RuntimeError:
        return None


def fetch(name: HubName, revision: str | None) -> Path:
    """The local path of a model of the hub: a GGUF file, or a folder of safetensors. Fetched unless the cache has it.

    Raises
    ------
    ModelFileError
        The model cannot be had; the message says why, and what to do.
    """
    cache = cache_folder()
    if cache is None:
        raise ModelFileError(
            f"{name.repository}: there is no home directory for the hub's cache: set HF_HOME to a folder for it", name.repository
        )
    try:
        return _fetch(name, revision or "main", cache)
    except ModelFileError:
        raise
    except Exception as error:
        raise _explained(name, revision, error, cache) from None


def _fetch(name: HubName, revision: str, cache: Path) -> Path:
    import huggingface_hub as hub

    try:
        info = hub.HfApi().model_info(name.repository, revision=revision, files_metadata=True)
        sizes = {entry.rfilename: entry.size or 0 for entry in info.siblings or ()}
        commit = str(info.sha)
    except Exception as error:
        if _is_final(error):
            raise
        found = _cached(name, revision, cache)
        if found is None:
            raise
        log.info("%s: the hub does not answer (%s); its cache has the model", name.repository, _short(error))
        return found
    choice = choose(name, sizes)
    snapshot = _repository_folder(name, cache) / "snapshots" / commit
    log.info("%s@%s: takes %s (%s)", name.repository, commit[:12], choice.model or f"{len(choice.files)} files", choice.why)
    missing = [file for file in choice.files if not (snapshot / file).is_file()]
    if missing:
        num_bytes = sum(sizes[file] for file in missing)
        _check_room(name, cache, num_bytes)
        amount = f"{num_bytes / 1e6:,.0f} MB" if num_bytes else f"{len(missing)} files"
        say(f"llmi: fetching {choice.model or name.repository} from {name.repository} ({amount})")
        with _bars():
            for file in missing:
                hub.hf_hub_download(name.repository, file, revision=commit, cache_dir=str(cache))
            if revision != commit:  # notes which commit the branch or tag is, for the time without a network
                hub.hf_hub_download(name.repository, choice.files[0], revision=revision, cache_dir=str(cache))
        absent = [file for file in choice.files if not (snapshot / file).is_file()]
        if absent:
            raise ModelFileError(f"{name.repository}: {absent[0]} could not be fetched; try again, it goes on where it stopped", absent[0])
    return snapshot / choice.model


@contextlib.contextmanager
def _bars() -> Iterator[None]:
    """The hub's progress bars, off where nobody watches."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if interactive() or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _repository_folder(name: HubName, cache: Path) -> Path:
    return cache / f"models--{name.repository.replace('/', '--')}"


def _cached(name: HubName, revision: str, cache: Path) -> Path | None:
    """What the cache has of a revision, if it is all that the name means."""
    folder = _repository_folder(name, cache)
    reference = folder / "refs" / revision
    try:
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
        snapshot = folder / "snapshots" / commit
        if not snapshot.is_dir():
            return None
        files = [str(path.relative_to(snapshot)) for path in sorted(snapshot.rglob("*")) if path.is_file()]
        choice = choose(name, files)
    except (OSError, ModelFileError):
        return None
    log.info("%s@%s: takes %s of what is in the cache (%s)", name.repository, commit[:12], choice.model or "all files", choice.why)
    return snapshot / choice.model


def _is_final(error: Exception) -> bool:
    """Whether the hub answered, and said no: the cache then is not asked, as what it has may not be what is meant."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError | errors.HFValidationError):
        return True
    return isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)


def _check_room(name: HubName, cache: Path, num_bytes: int) -> None:
    """Refuses before a download that the disk cannot hold."""
    place = cache
    while not place.is_dir() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    if num_bytes > free:
        raise _disk_full(name, cache, f"{num_bytes / 1e6:,.0f} MB are needed, {free / 1e6:,.0f} MB are free")


def _disk_full(name: HubName, cache: Path, arithmetic: str) -> ModelFileError:
    return ModelFileError(
        f"{name.repository}: the disk of {cache} is full ({arithmetic}): free some, or set HF_HOME to a folder elsewhere", cache
    )


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and those that it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        for inner in error.args:
            if isinstance(inner, BaseException):
                yield inner
        error = error.__cause__ or error.__context__


def _explained(name: HubName, revision: str | None, error: Exception, cache: Path) -> ModelFileError:
    """One sentence for an exception of huggingface_hub, and what to do."""
    from huggingface_hub import constants, errors

    repository, page = name.repository, f"{constants.ENDPOINT}/{name.repository}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    token = "HF_TOKEN (or `hf auth login`)"

    def refused(message: str) -> ModelFileError:
        return ModelFileError(f"{repository}: {message}", repository)

    for cause in _causes(error):
        code = getattr(cause, "errno", None)
        if code in (errno.ENOSPC, errno.EDQUOT):
            return _disk_full(name, cache, os.strerror(code))
        if isinstance(cause, OSError) and code in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG):
            return refused(f"the hub's cache {cache} cannot be written ({os.strerror(code)}): set HF_HOME to a folder that can be")
    if isinstance(error, errors.GatedRepoError):
        return refused(f"the repository is gated: accept its terms at {page}, and give a token of that account as {token}")
    if isinstance(error, errors.RevisionNotFoundError):
        return refused(f"the hub has no revision {revision or 'main'!r} of it: {page} lists branches, tags and commits")
    if status == 401 and "invalid credentials" in str(error).lower():
        return refused(f"the hub does not know the token given: correct or unset {token}")
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
        return refused(f"there is no such path here, and no such model on the hub, or it is private (then set {token})")
    if status == 403:
        return refused(f"the hub refuses access (403): look at {page}, and give a token of an account that may read it as {token}")
    if isinstance(error, errors.HFValidationError):
        return refused(f"there is no such path here, and it is no name of the hub ({_short(error)})")
    if constants.HF_HUB_OFFLINE or isinstance(error, errors.OfflineModeIsEnabled):
        return refused(
            f"there is no such path here, and HF_HUB_OFFLINE is set, and {cache} does not have what is meant: unset it once, or copy the"
            " model here"
        )
    if isinstance(error, errors.LocalEntryNotFoundError | ConnectionError) or status is None:
        return refused(
            f"there is no such path here, and the hub ({constants.ENDPOINT}) cannot be reached or the download broke off"
            f" ({_short(error)}): try again, a download goes on where it stopped; or give a local path"
        )
    return refused(f"the hub answers {status} ({_short(error)}): try again later, or give a local path")


def cached_models() -> list[tuple[str, Path, int]]:
    """(name, path, bytes) of the models in the hub's cache that llmi may read: GGUF files and folders of safetensors."""
    cache = cache_folder()
    found: list[tuple[str, Path, int]] = []
    try:
        if cache is None or not cache.is_dir():
            return []
        for folder in sorted(cache.glob("models--*--*")):
            repository = "/".join(folder.name.split("--")[1:3])
            for snapshot in sorted((folder / "snapshots").glob("*")):
                for file in sorted(snapshot.rglob("*.gguf")):
                    if file.is_file():
                        found.append((f"{repository}/{file.relative_to(snapshot)}", file, file.stat().st_size))
                weights = [file for file in snapshot.glob("*.safetensors") if file.is_file()]
                if weights and (snapshot / "config.json").is_file():
                    found.append((repository, snapshot, sum(file.stat().st_size for file in weights)))
    except OSError as error:
        log.info("the hub's cache %s cannot be read: %s", cache, error)
    return found
