"""A file or a folder that was made of another one, made again from its receipt."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmi.compress.calibration import Calibration
from llmi.compress.chosen_types import Settings
from llmi.compress.converting import in_form_of
from llmi.compress.fewer_columns import DropColumns
from llmi.compress.fewer_heads import DropHeads
from llmi.compress.folders import FolderSource, source_of
from llmi.compress.gguf_file import GgufSource
from llmi.compress.heads_of_files import PoolHeads
from llmi.compress.layers import DropLayers
from llmi.compress.made_files import RECEIPT, VERSION, Report, Source, calibration_of
from llmi.compress.packed_folders import Pack
from llmi.compress.preparing import rotated
from llmi.compress.pruning import Prune
from llmi.compress.quantizing import write_quantized
from llmi.compress.rewriting import Method, write
from llmi.compress.rotation import Rotate
from llmi.errors import InvalidParamsError
from llmi.models import by_name
from llmi.models.catalogue import sha256_of_file
from llmi.models.files import open_model
from llmi.models.layout import find

Write = Callable[[Source, Path, "dict[str, Any]", Calibration | None], Report]


def _quantized(settings: dict[str, Any]) -> Write:
    others = settings.get("like"), settings.get("rotate"), settings.get("awq", False), settings.get("budget_bytes")
    made = Settings.of(settings.get("type"), settings["method"], settings["tensors"], *others)
    return lambda source, target, origin, sums: write_quantized(source, target, made, sums, origin)


def _rewritten(of: Callable[[dict[str, Any]], Method]) -> Callable[[dict[str, Any]], Write]:
    def writes(settings: dict[str, Any]) -> Write:
        method = of(settings)
        return lambda source, target, origin, sums: write(source, target, method, origin, sums)

    return writes


METHODS: dict[str, Callable[[dict[str, Any]], Write]] = {
    "quantize": _quantized,
    "quantize_folder": _rewritten(Pack.of),
    "rotate": _rewritten(Rotate.of),
    "prune": _rewritten(Prune.of),
    "drop_layers": _rewritten(DropLayers.of),
    "drop_heads": _rewritten(DropHeads.of),
    "drop_columns": _rewritten(DropColumns.of),
    "pool_heads": _rewritten(PoolHeads.of),
}


def replay_file(
    path: Path, model: str | os.PathLike[str] | None = None, calibration: str | os.PathLike[str] | None = None
) -> tuple[bool, str]:
    """Makes a file or a folder again from its receipt: (whether all bytes are equal, a line that says so).

    calibration: the file that it was made with. Without it, one of that name beside `path` is read, or a calibration on the model's own
    text is made again.

    Raises
    ------
    InvalidParamsError
        It has no receipt, or one of another version; the source is another file than its receipt names.
    """
    if is_folder := find(path).config is not None:
        made_of = FolderSource(path)
        path, text = made_of.path, made_of.receipt
    else:
        text = GgufSource(path).text_of(RECEIPT)
    if text is None:
        raise InvalidParamsError(f"{path} has no receipt: llmi quantize writes one")
    try:
        receipt = json.loads(text)
        if receipt["version"] != VERSION:
            raise InvalidParamsError(f"its receipt is of version {receipt['version']}, this llmi reads version {VERSION}")
        writes = METHODS[receipt["made"]](receipt["settings"])
        origin = {key: receipt[key] for key in ("source", "model", "calibration") if key in receipt}
        digest, name = str(origin["source"]), str(origin["model"])
    except InvalidParamsError as error:
        raise InvalidParamsError(f"{path}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidParamsError(f"{path}: its receipt cannot be read: {error!r:.200}") from None
    source = source_of(by_name.resolve(path.parent / name if model is None else model))
    found = source.opened.digest()()
    if found != digest:
        raise InvalidParamsError(f"{source.path} is not the source of {path}: SHA-256 {found}, not {digest}")
    turn = receipt["settings"].get("rotate")
    with (
        tempfile.TemporaryDirectory(dir=path.parent) as folder,
        in_form_of(source, path, name) as (gguf, names),
        rotated(gguf, turn, {"source": digest, "model": name}) as ready,
    ):
        sums = None if "calibration" not in origin else calibration_of(path, source, ready, origin["calibration"], calibration)
        sums = sums and sums.of_tensors(names)
        again = Path(folder) / path.name
        writes(ready, again, origin, sums)
        first, second = (open_model(each).digest()() if is_folder else sha256_of_file(each) for each in (path, again))
    if first == second:
        return True, f"{path}: made again from {source.path.name} with the same bytes (SHA-256 {first})"
    return False, f"{path}: made again from {source.path.name} it has other bytes (SHA-256 {second}, not {first})"
