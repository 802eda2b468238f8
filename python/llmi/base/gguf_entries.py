"""Values of a GGUF file's metadata as the bytes of their type and value."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

_U8, _U32, _I32, _F32, _FLAG, TEXT, ARRAY = 0, 4, 5, 6, 7, 8, 9


def text_entry(text: str) -> bytes:
    """Type and value of a text."""
    return struct.pack("<I", TEXT) + named(text)


def texts_entry(texts: Sequence[str]) -> bytes:
    """Type and value of a list of texts."""
    return struct.pack("<IIQ", ARRAY, TEXT, len(texts)) + b"".join(named(text) for text in texts)


def number_entry(value: int) -> bytes:
    """Type and value of a 32-bit number."""
    return struct.pack("<II", _U32, value)


def flag_entry(value: bool) -> bytes:
    """Type and value of true or false."""
    return struct.pack("<I?", _FLAG, value)


def float_entry(value: float) -> bytes:
    """Type and value of a 32-bit float."""
    return struct.pack("<If", _F32, value)


def flags_entry(values: Sequence[bool]) -> bytes:
    """Type and value of a list of true and false."""
    return struct.pack(f"<IIQ{len(values)}?", ARRAY, _FLAG, len(values), *values)


def numbers_entry(values: Sequence[int]) -> bytes:
    """Type and value of a list of signed 32-bit numbers."""
    return struct.pack(f"<IIQ{len(values)}i", ARRAY, _I32, len(values), *values)


def floats_entry(values: Sequence[float]) -> bytes:
    """Type and value of a list of 32-bit floats."""
    return struct.pack(f"<IIQ{len(values)}f", ARRAY, _F32, len(values), *values)


def bytes_entry(data: bytes) -> bytes:
    """Type and value of a list of bytes."""
    return struct.pack("<IIQ", ARRAY, _U8, len(data)) + data


def file_start(num_tensors: int, entries: Mapping[str, bytes]) -> bytes:
    """A file's beginning: its numbers and all entries."""
    start = struct.pack("<4sIQQ", b"GGUF", 3, num_tensors, len(entries))
    return start + b"".join(named(name) + entry for name, entry in entries.items())


def named(text: str) -> bytes:
    """A text as a file holds it: its length, then its bytes."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
