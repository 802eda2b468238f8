"""GGUF files that are made of others: their metadata byte for byte, with some entries changed, and tensors in other types."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from llmi.base.gguf_entries import ARRAY, TEXT, file_start, named
from llmi.base.whole_file import whole_file
from llmi.errors import ModelFileError

#: Number of a type: (values of a block, bytes of a block); of all that a file may hold and llmi copies. Below 0: of safetensors alone.
SIZES = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84), 11: (256, 110), 12: (256, 144),
    13: (256, 176), 14: (256, 210), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36),
    -1: (1, 1), -2: (1, 1), -3: (1, 1), -4: (1, 4), -5: (1, 8), -6: (1, 1), -7: (1, 1),
}  # fmt: skip
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_ALIGNMENT = "general.alignment"


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file: shape as GGUF has it, the columns first; `offset` counts from the file's beginning."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def num_bytes(self) -> int:
        """In the file."""
        return num_bytes(self.shape, self.type)


def num_bytes(shape: Sequence[int], kind: int) -> int:
    """Bytes of a tensor of this type."""
    values, size = SIZES[kind]
    return math.prod(shape) // values * size


class GgufSource:
    """A file whose header was read.

    Attributes
    ----------
    entries : dict
        Name: the bytes of its type and value, in the file's order.
    tensors : list of StoredTensor
    """

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError: it is no little-endian GGUF file of version 2 or 3, or is cut short, or a part of a split one."""
        self.path = path
        try:
            self._read()
        except (struct.error, IndexError, UnicodeDecodeError, KeyError, ZeroDivisionError) as error:
            raise ModelFileError(f"{path}: its header cannot be read: {type(error).__name__}: {error}", str(path)) from None
        if "split.count" in self.entries:
            raise ModelFileError(f"{path}: a part of a split model: join the parts first (llama-gguf-split --merge)", str(path))

    def _read(self) -> None:
        with self.path.open("rb") as file:
            self._data = file.read(24)
            magic, version, num_tensors, num_entries = struct.unpack("<4sIQQ", self._data)
            if magic != b"GGUF" or version not in (2, 3):
                raise ModelFileError(f"{self.path}: no little-endian GGUF file of version 2 or 3", str(self.path))
            self._data = file.read(1 << 28)  # a header is smaller
        self._place = 0
        self.entries: dict[str, bytes] = {}
        for _ in range(num_entries):
            name = self._text()
            start = self._place
            self._skip(self._number("<I", 4))
            self.entries[name] = self._data[start : self._place]
        infos = []
        for _ in range(num_tensors):
            name = self._text()
            dimensions = self._number("<I", 4)
            shape = tuple(self._number("<Q", 8) for _ in range(dimensions))
            infos.append((name, shape, self._number("<I", 4), self._number("<Q", 8)))
        unknown = sorted({kind for _, _, kind, _ in infos if kind not in SIZES})
        if unknown:
            raise ModelFileError(f"{self.path}: types of tensors that llmi cannot copy: {unknown}", str(self.path))
        self.alignment = struct.unpack("<I", self.entries[_ALIGNMENT][4:])[0] if _ALIGNMENT in self.entries else 32
        begin = 24 + self._place + -(24 + self._place) % self.alignment
        self.tensors = [StoredTensor(name, shape, kind, begin + offset) for name, shape, kind, offset in infos]
        del self._data

    def _number(self, form: str, size: int) -> int:
        value: int = struct.unpack_from(form, self._data, self._place)[0]
        self._place += size
        return value

    def _text(self) -> str:
        length = self._number("<Q", 8)
        if self._place + length > len(self._data):
            raise IndexError(f"a text of {length:,} bytes")
        self._place += length
        return self._data[self._place - length : self._place].decode()

    def _skip(self, kind: int) -> None:
        if kind == TEXT:
            self._text()
        elif kind == ARRAY:
            inner, count = self._number("<I", 4), self._number("<Q", 8)
            if inner == TEXT:
                for _ in range(count):
                    self._text()
            else:
                self._place += count * _SCALARS[inner]
        else:
            self._place += _SCALARS[kind]
        if self._place > len(self._data):
            raise IndexError("it ends inside an entry")

    def bytes_of(self, tensor: StoredTensor) -> bytes:
        """As they are stored. Raises ModelFileError if the file ends before."""
        with self.path.open("rb") as file:
            file.seek(tensor.offset)
            data = file.read(tensor.num_bytes)
        if len(data) != tensor.num_bytes:
            raise ModelFileError(f"{self.path}: {tensor.name} is cut short", str(self.path))
        return data

    def text_of(self, name: str) -> str | None:
        """A text among the entries, or None."""
        entry = self.entries.get(name)
        return entry[12:].decode() if entry is not None and entry[:4] == struct.pack("<I", TEXT) else None


def sliced_entry(entry: bytes, count: int, kept: Sequence[int]) -> bytes | None:
    """Of an array of so many numbers those at these places; None of any other entry."""
    if struct.unpack_from("<I", entry)[0] != ARRAY:
        return None
    inner, length = struct.unpack_from("<IQ", entry, 4)
    if length != count or inner not in _SCALARS:
        return None
    size = _SCALARS[inner]
    return struct.pack("<IIQ", ARRAY, inner, len(kept)) + b"".join(entry[16 + place * size : 16 + (place + 1) * size] for place in kept)


@dataclasses.dataclass(frozen=True)
class NewTensor:
    """A tensor to write; `make` gives its bytes when they are due."""

    name: str
    shape: tuple[int, ...]
    type: int
    make: Callable[[], bytes]


@contextlib.contextmanager
def made_ahead(tensors: Sequence[NewTensor]) -> Iterator[list[NewTensor]]:
    """The same tensors, to be written in their order: while one is written, those behind it are made on all cores."""
    most = len(os.sched_getaffinity(0))
    waiting = list(reversed(tensors))
    under_way: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(most) as pool:

        def next_bytes() -> bytes:
            while waiting and len(under_way) < most:
                under_way.append(pool.submit(waiting.pop().make))
            return under_way.popleft().result()

        try:
            yield [dataclasses.replace(tensor, make=next_bytes) for tensor in tensors]
        finally:
            pool.shutdown(cancel_futures=True)


def write_gguf(path: Path, entries: Mapping[str, bytes], tensors: Sequence[NewTensor], written: Callable[[], object]) -> None:
    """Writes a file, whole or not at all. written: called after each tensor. Raises OSError."""
    start, alignment, _ = _header(entries, tensors)
    with whole_file(path) as file:
        file.write(start)
        for data in checked_bytes(tensors):
            file.write(data + bytes(-len(data) % alignment))
            written()


def write_header(path: Path, entries: Mapping[str, bytes], tensors: Sequence[NewTensor]) -> None:
    """Writes the same file with nothing but zeros in its tensors, which take no room on the disk. Raises OSError."""
    start, _, size = _header(entries, tensors)
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + size)


def _header(entries: Mapping[str, bytes], tensors: Sequence[NewTensor]) -> tuple[bytes, int, int]:
    """(all bytes before the tensors, alignment, bytes of the tensors)."""
    alignment = struct.unpack("<I", entries[_ALIGNMENT][4:])[0] if _ALIGNMENT in entries else 32
    header = [file_start(len(tensors), entries)]
    offset = 0
    for tensor in tensors:
        header.append(named(tensor.name) + struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape))
        header.append(struct.pack("<IQ", tensor.type, offset))
        size = num_bytes(tensor.shape, tensor.type)
        offset += size + -size % alignment
    start = b"".join(header)
    return start + bytes(-len(start) % alignment), alignment, offset


def checked_bytes(tensors: Iterable[NewTensor]) -> Iterable[bytes]:
    """Of each tensor in turn, as many as its shape and type say."""
    for tensor in tensors:
        data = tensor.make()
        if len(data) != num_bytes(tensor.shape, tensor.type):
            raise AssertionError(f"{tensor.name}: {len(data)} bytes, not {num_bytes(tensor.shape, tensor.type)}")
        yield data
