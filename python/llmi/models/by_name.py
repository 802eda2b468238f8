"""The sources of models: paths, the local cache, the hub, and wheels of the Python registry."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from llmi.base.log import log
from llmi.errors import InvalidParamsError, ModelFileError
from llmi.models.catalogue import DEFAULT_MODEL, NAMED_MODELS, cache_dir
from llmi.models.environment import check_environment


def _check_utf8(path: str) -> None:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise ModelFileError(f"{path!a}: the path is not UTF-8, which llmi needs: rename the file, or link to it", path) from None


def _name_of(model: str | os.PathLike[str] | None) -> str:
    if model is None:
        return DEFAULT_MODEL
    try:
        name = os.fsdecode(model)
    except TypeError:
        raise InvalidParamsError(f"model must be a path or a name, not {model!r:.100}", "model") from None
    _check_utf8(name)
    if not name.strip() or "\0" in name:
        raise InvalidParamsError(f"model must be a path or a name, not {name!r:.100}", "model")
    return name


def _local(name: str) -> Path | None:
    """The path itself if it exists; None if nothing is there."""
    path = Path(name)
    try:
        path = path.expanduser() if name.startswith("~") else path
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        shown = name if len(name) <= 200 else f"{name[:100]}...{name[-60:]}"
        raise ModelFileError(f"{shown}: {reason}", name) from None
    return path


def resolve(model: str | os.PathLike[str] | None, revision: str | None = None) -> Path:
    """The local path of a model: itself, from the cache, or fetched. A path that exists comes before a name.

    Raises
    ------
    ModelFileError
        Nothing of that name can be found or fetched; the message says what was tried.
    InvalidParamsError
        It is neither a path nor a name.
    """
    check_environment()
    path = _found(_name_of(model), revision)
    _check_utf8(str(path))
    return path


def _found(name: str, revision: str | None) -> Path:
    if revision is not None and (not isinstance(revision, str) or not revision):
        raise InvalidParamsError(f"revision must be None or the name of a branch, tag or commit, not {revision!r:.100}", "revision")
    path = _local(name)
    if path is None and name.lower() in NAMED_MODELS:
        path = fetch(name.lower())
    elif path is None:
        from llmi.models.hub_files import FORMS, HubName  # noqa: PLC0415 (loads what fetches files)

        hub_name = None if name.startswith((".", "/", "~")) else HubName.parse(name)
        if hub_name is None:
            known = ", ".join(sorted(NAMED_MODELS))
            raise ModelFileError(
                f"{name}: no such file or directory, no name on the hub ({FORMS}), and none that llmi knows ({known})", name
            )
        from llmi.models import hub  # noqa: PLC0415 (loads what fetches files)

        return hub.fetch(hub_name, revision)
    elif name.count("/") == 1 and not name.startswith((".", "/", "~")):
        log.info("%s is a path here, so the hub is not queried", name)
    if revision is not None:
        log.warning("revision = %r has no effect: %s is not of the hub", revision, path)
    return path


def fetch(name: str) -> Path:
    """The cached file of a named model, fetched first if need be; its SHA-256 is checked once."""
    model = NAMED_MODELS[name]
    target = cache_dir() / "models" / model.file_name
    try:
        if target.stat().st_size == model.num_bytes:
            return target
    except OSError:
        pass  # to be made; or it cannot be, which the attempt will tell
    from llmi.models import download  # noqa: PLC0415 (loads what fetches files)

    download.named_model(name, model, target)
    return target


def cached_models() -> list[tuple[str, Path, int]]:
    """(name, path, bytes) of the named models in the cache."""
    found = []
    for name, model in NAMED_MODELS.items():
        path = cache_dir() / "models" / model.file_name
        with contextlib.suppress(OSError):
            found.append((name, path, path.stat().st_size))
    return found


def remove_cached(name: str) -> Path:
    """Deletes a named model from the cache; returns what was deleted."""
    for found, path, _ in cached_models():
        if name.lower() in (found, path.name.lower()):
            try:
                path.unlink()
            except OSError as error:
                raise ModelFileError(f"{path} cannot be deleted: {error.strerror}", path) from None
            return path
    from llmi.models import hub  # noqa: PLC0415 (loads what fetches files)

    if any(name in (found, found.rpartition("/")[0]) for found, _, _ in hub.cached_models()):
        raise ModelFileError(f"{name} is in the hub's cache, which other programs use too: `hf cache rm` deletes from it", name)
    raise ModelFileError(f"{name} is not in the cache (llmi cache list shows what is)", name)
