"""A file that was made of another one, made again from its receipt."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi.compress import quantizing
from llmi.compress.gguf_file import GgufSource
from llmi.compress.heads_of_files import PoolHeads
from llmi.compress.layers import DropLayers
from llmi.compress.pruning import Prune
from llmi.compress.rewriting import VERSION, Method, Source, write
from llmi.compress.rotation import Rotate
from llmi.errors import InvalidParamsError
from llmi.models import by_name
from llmi.models.catalogue import sha256_of_file

if TYPE_CHECKING:
    from collections.abc import Callable

METHODS: dict[str, Callable[[dict[str, Any]], Method]] = {
    "rotate": Rotate.of,
    "prune": Prune.of,
    "drop_layers": DropLayers.of,
    "pool_heads": PoolHeads.of,
}


def replay_file(
    path: Path, model: str | os.PathLike[str] | None = None, calibration: str | os.PathLike[str] | None = None
) -> tuple[bool, str]:
    """Makes a file again from its receipt: (whether all bytes are equal, a line that says so).

    calibration: the file that it was made with. Without it, one of that name beside `path` is read, or a calibration on the model's own
    text is made again.

    Raises
    ------
    InvalidParamsError
        It has no receipt, or one of another version; the source is another file than its receipt names.
    """
    text = GgufSource(path).text_of(quantizing.RECEIPT)
    try:
        receipt = json.loads(text or "{}")
        if not isinstance(receipt, dict) or receipt.get("made") not in METHODS:
            return quantizing.replay_file(path, model, calibration)
        if receipt["version"] != VERSION:
            raise InvalidParamsError(f"its receipt is of version {receipt['version']}, this llmi reads version {VERSION}")
        method = METHODS[receipt["made"]](receipt["settings"])
        origin = {key: receipt[key] for key in ("source", "model", "calibration") if key in receipt}
        digest, name = str(origin["source"]), str(origin["model"])
    except InvalidParamsError as error:
        raise InvalidParamsError(f"{path}: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidParamsError(f"{path}: its receipt cannot be read: {error!r:.200}") from None
    source = Source(by_name.resolve(path.parent / name if model is None else model))
    found = source.opened.digest()()
    if found != digest:
        raise InvalidParamsError(f"{source.path} is not the source of {path}: SHA-256 {found}, not {digest}")
    sums = None
    if "calibration" in origin:
        sums = quantizing.calibration_of(path, source.path, origin["calibration"], calibration)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        again = Path(folder) / path.name
        write(source, again, method, origin, sums)
        first, second = sha256_of_file(path), sha256_of_file(again)
    if first == second:
        return True, f"{path}: made again from {source.path.name} with the same bytes (SHA-256 {first})"
    return False, f"{path}: made again from {source.path.name} it has other bytes (SHA-256 {second}, not {first})"
