"""What goes of a file: numbers of layers or heads, and rows or columns of tensors, whose other bytes stay where blocks allow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from llmi.base.kinds import Listed, Whole, parse
from llmi.compress.gguf_file import SIZES, NewTensor, StoredTensor
from llmi.compress.made_files import Source
from llmi.compress.rewriting import float_tensor
from llmi.errors import InvalidParamsError

if TYPE_CHECKING:
    import numpy as np
else:
    from llmi.base.lazy_numpy import np


_NUMBER, _COUNT = Whole(0, 1 << 16), Whole(1, 1 << 16)


def numbers_or_count(settings: Mapping[str, Any], things: str) -> tuple[list[int] | None, int | None]:
    """Of "layers" or "heads": those that go, in order, or how many; the other one is None. Raises InvalidParamsError."""
    numbers, count = settings[things], settings["count"]
    if (numbers is None) == (count is None):
        raise InvalidParamsError(f"give {things} or count, one of the two", things)
    if numbers is None:
        return None, parse(_COUNT, "count", count)
    named = parse(Listed(_NUMBER, f"a list of {things}, counted from 0", 1 << 16, min_len=1), things, numbers)
    twice = next((number for number in named if named.count(number) > 1), None)
    if twice is not None:
        raise InvalidParamsError(f"{things} names {things[:-1]} {twice} twice", things)
    return sorted(named), None


def places_of(groups: Sequence[int], size: int) -> list[int]:
    """The rows or columns of groups of this size."""
    return [group * size + place for group in groups for place in range(size)]


def with_rows(source: Source, name: str, kept: Sequence[int]) -> NewTensor:
    """A matrix with these rows alone, or of a bias these values, byte for byte."""
    tensor = source.tensors[name]
    return NewTensor(name, (*tensor.shape[:-1], len(kept)), tensor.type, partial(_rows, source, tensor, list(kept)))


def with_columns(source: Source, name: str, kept: Sequence[int]) -> NewTensor:
    """A matrix with these columns alone: byte for byte if they are whole blocks, else as float."""
    tensor = source.tensors[name]
    shape = (len(kept), *tensor.shape[1:])
    size = SIZES[tensor.type][0]
    blocks = [place // size for place in kept[::size]]
    if list(kept) == places_of(blocks, size):
        return NewTensor(name, shape, tensor.type, partial(_blocks, source, tensor, blocks))
    return float_tensor(name, shape, tensor.type, lambda: source.values(name)[:, kept])


def _rows(source: Source, tensor: StoredTensor, kept: list[int]) -> bytes:
    rows = np.frombuffer(source.bytes_of(tensor), np.uint8).reshape(tensor.shape[-1], -1)
    return rows[kept].tobytes()


def _blocks(source: Source, tensor: StoredTensor, kept: list[int]) -> bytes:
    values, size = SIZES[tensor.type]
    blocks = np.frombuffer(source.bytes_of(tensor), np.uint8).reshape(-1, tensor.shape[0] // values, size)
    return blocks[:, kept].tobytes()
