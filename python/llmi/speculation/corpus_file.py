"""Files of corpus tables: safetensors, which other tools read too, checked before anything is used."""

from __future__ import annotations

import dataclasses
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.errors import ModelFileError
from llmi.models.input_file import parse_json, read_bytes, what_it_is
from llmi.models.safetensors_file import write_safetensors

if TYPE_CHECKING:
    import numpy as np
else:
    from llmi.base.lazy_numpy import np

FORMAT, VERSION = "llmi.corpus_table", "1"
_MAX_FILE_BYTES = 256 << 20
_MAX_HEADER_BYTES = 1 << 16
_DTYPES = {"checks": "U16", "tokens": "U16", "high_tokens": "U8", "rates": "U8"}
_NUMPY = {"U16": "<u2", "U8": "|u1"}
_METADATA = {"format", "version", "vocab_size", "max_order", "tokenizer_digest"}


@dataclasses.dataclass(frozen=True, eq=False)
class StoredTable:
    """A table, and the digest of the vocabulary that its token ids are of; "" if it is not known."""

    table: _core.CorpusTable
    tokenizer_digest: str


def write_table(path: Path, stored: StoredTable) -> None:
    """Writes the file whole or not at all."""
    table = stored.table
    arrays = {name: array for name in _DTYPES if (array := getattr(table, name)).size or name != "high_tokens"}
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "vocab_size": str(table.vocab_size),
        "max_order": str(table.max_order),
        "tokenizer_digest": stored.tokenizer_digest,
    }
    write_safetensors(path, arrays, metadata)


def read_table(path: str | os.PathLike[str]) -> StoredTable:
    """The table in a file.

    Raises
    ------
    ModelFileError
        It cannot be read, is truncated or no corpus table, or holds token ids outside its vocabulary.
    """
    path = Path(path)
    data = memoryview(read_bytes(path, _MAX_FILE_BYTES))
    header, begin = _header(path, data)
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise ModelFileError(f"{path}: no corpus table: its metadata lacks format = {FORMAT!r}", path, "__metadata__")
    if metadata.get("version") != VERSION:
        raise ModelFileError(
            f"{path}: version {metadata.get('version')!r} of corpus tables; this llmi reads version {VERSION}. Make the table again",
            path,
            "version",
        )
    if set(metadata) != _METADATA or not all(isinstance(value, str) for value in metadata.values()):
        raise ModelFileError(f"{path}: the metadata must be {', '.join(sorted(_METADATA))}", path, "__metadata__")
    arrays = _arrays(path, header, data[begin:])
    numbers = {}
    for name in ("vocab_size", "max_order"):
        if not (metadata[name].isascii() and metadata[name].isdigit() and len(metadata[name]) < 10):
            raise ModelFileError(f"{path}: {name} = {metadata[name]!r:.60} is no whole number", path, name)
        numbers[name] = int(metadata[name])
    try:
        return StoredTable(_core.CorpusTable(numbers["vocab_size"], max_order=numbers["max_order"], **arrays), metadata["tokenizer_digest"])
    except _core.CoreError as error:
        raise ModelFileError(f"{path}: {error.message}", path) from None


def _header(path: Path, data: memoryview) -> tuple[dict[str, Any], int]:
    """The header, and where the arrays begin."""
    if len(data) < 8:
        raise ModelFileError(f"{path}: the file has {len(data)} bytes, too few for a corpus table", path)
    if kind := what_it_is(bytes(data[:4096])):
        raise ModelFileError(f"{path}: no corpus table: this is {kind}", path)
    (size,) = struct.unpack("<Q", data[:8])
    if size > min(_MAX_HEADER_BYTES, len(data) - 8):
        raise ModelFileError(f"{path}: a header of {size:,} bytes in a file of {len(data):,}: truncated, or no corpus table", path)
    try:
        text = bytes(data[8 : 8 + size]).decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: the header is no UTF-8: {error.reason}", path) from None
    header = parse_json(text, path, unique_keys=True)
    if not isinstance(header, dict):
        raise ModelFileError(f"{path}: the header is no JSON object", path)
    return header, 8 + int(size)


def _arrays(path: Path, header: dict[str, Any], data: memoryview) -> dict[str, Any]:
    """The arrays by name. They must follow each other and fill the file."""
    if set(header) | {"high_tokens"} != set(_DTYPES):
        raise ModelFileError(f"{path}: a corpus table has the tensors {', '.join(_DTYPES)}, not {', '.join(map(repr, header)):.200}", path)
    arrays: dict[str, Any] = {"high_tokens": np.empty(0, np.uint8)}
    end = 0
    for name in _DTYPES:
        if name not in header:
            continue
        dtype = np.dtype(_NUMPY[_DTYPES[name]])
        entry = header[name]
        shape = entry.get("shape") if isinstance(entry, dict) else None
        count = shape[0] if isinstance(shape, list) and len(shape) == 1 and type(shape[0]) is int and 0 <= shape[0] < 1 << 32 else -1
        begin, end = end, end + count * dtype.itemsize
        if count < 0 or entry != {"dtype": _DTYPES[name], "shape": [count], "data_offsets": [begin, end]}:
            raise ModelFileError(
                f"{path}: tensor {name!r} must be {_DTYPES[name]} of one dimension and begin at byte {begin:,}", path, name
            )
        if end > len(data):
            raise ModelFileError(f"{path}: truncated: {name!r} ends at byte {end:,} of {len(data):,}", path, name)
        arrays[name] = np.frombuffer(data[begin:end], dtype).astype(dtype.newbyteorder("="))
    if end != len(data):
        raise ModelFileError(f"{path}: {len(data) - end:,} bytes follow the last tensor", path)
    return arrays
