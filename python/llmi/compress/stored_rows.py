"""Tensors of one file as another one stores them: other rows, transposed, plus one, in one tensor or in several."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from functools import partial
from itertools import count, takewhile
from typing import TYPE_CHECKING

from llmi.compress.gguf_file import NewTensor
from llmi.compress.made_files import FLOATS, Source, float_bytes
from llmi.errors import UnsupportedModelError
from llmi.families.spec import RowOrder, TensorBinding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    I64 = NDArray[np.int64]
else:
    from llmi.base.lazy_numpy import np

#: Matrices that llama.cpp reads as F32 alone.
_EXACT = ("_norm.weight", ".bias", ".ffn_gate_inp.weight", ".ffn_gate_inp_shexp.weight", "position_embd.weight")


@dataclasses.dataclass(frozen=True)
class Part:
    """What a role reads of the source, and where the new file has it. `others`: first rows of all roles in the source's tensor."""

    old: TensorBinding
    new: TensorBinding
    others: Sequence[int] = (0,)

    def names(self, source: Source) -> list[str]:
        """Of the source's tensors: one, or one for each expert or head."""
        hole = re.search(r"\{\w+\}", self.old.name)
        if hole is None:
            return [self.old.name]
        return list(takewhile(source.tensors.__contains__, (self.old.name.replace(hole[0], str(number)) for number in count())))


def new_tensor(source: Source, name: str, parts: Sequence[Part]) -> NewTensor:
    """The new file's tensor that these roles read. Raises UnsupportedModelError: the source stores it in a way that llmi does not know."""
    shapes = [_shape(source, part) for part in parts]
    old = [source.tensors[each] for part in parts for each in part.names(source)]
    lead, columns = shapes[0][:-2], shapes[0][-1]
    places = [_places(part, shape) for part, shape in zip(parts, shapes, strict=True)]
    total = sum(len(rows) for rows, _ in places)
    taken = np.sort(np.concatenate([rows for _, rows in places]))
    if any(shape[:-2] != lead or shape[-1] != columns for shape in shapes) or not np.array_equal(taken, np.arange(total)):
        raise UnsupportedModelError(f"{source.path}: rows of {old[0].name} are not those of GGUF's {name}", str(source.path))
    kinds = {tensor.type for tensor in old}
    is_vector = _is_vector(source, parts[0])
    kind = FLOATS["F32"] if is_vector or name.endswith(_EXACT) or len(kinds) > 1 else kinds.pop()
    shape = tuple(reversed((*lead, total // math.prod(lead), *([] if is_vector else [columns]))))
    if old[0].type == kind and old[0].shape == shape and all(dataclasses.replace(part.old, name=name) == part.new for part in parts):
        return NewTensor(name, shape, kind, partial(source.bytes_of, old[0]))

    def data() -> bytes:
        made: F32 = np.empty((total, columns), np.float32)
        for part, (rows, new_rows) in zip(parts, places, strict=True):
            values = _values(source, part).reshape(-1, columns)[rows]
            is_changed = (part.old.times, part.old.plus) != (1, 0)  # if not, a -0 stays one
            made[new_rows] = values * np.float32(part.old.times) + np.float32(part.old.plus) if is_changed else values
        return float_bytes(made, kind, name, "model")

    return NewTensor(name, shape, kind, data)


def _is_vector(source: Source, part: Part) -> bool:
    return part.new.name.endswith(("_norm.weight", ".bias")) or len(source.tensors[part.names(source)[0]].shape) == 1


def _shape(source: Source, part: Part) -> tuple[int, ...]:
    """[.., rows, columns] of a role's source tensors; a vector has one column."""
    names = part.names(source)
    shape = tuple(reversed(source.tensors[names[0]].shape))
    shape = (len(names), *shape) if names[0] != part.old.name else shape
    if _is_vector(source, part):
        return (*shape, 1)
    return (*shape[:-2], shape[-1], shape[-2]) if part.old.transposed else shape


def _values(source: Source, part: Part) -> F32:
    names = part.names(source)
    values = source.values(names[0]) if names[0] == part.old.name else np.stack([source.values(name) for name in names])
    return turned(values, part.old)


def turned(values: F32, binding: TensorBinding) -> F32:
    """[.., rows, columns] of what the file has, or the other way round."""
    return values.swapaxes(-1, -2) if binding.transposed else values


def _places(part: Part, shape: Sequence[int]) -> tuple[I64, I64]:
    """(rows of the source, rows of the new tensor) of a role's rows."""
    total, order = math.prod(shape[:-1]), part.old.order
    if order.head_stride > order.head_rows:
        number = total // order.head_stride * order.head_rows
    else:
        number = min((first for first in part.others if first > order.first_row), default=total) - order.first_row
    return rows_of(order, number), rows_of(part.new.order, number)


def rows_of(order: RowOrder, count: int) -> I64:
    """The rows of a tensor that a role reads, in the role's order (csrc/model/spec.h). count: rows of the role."""
    rows = np.arange(count)
    if not order.head_rows:
        return order.first_row + rows
    head, within = np.divmod(rows, order.head_rows)
    half = order.adjacent_pairs // 2
    if half:
        within = np.where(within < 2 * half, 2 * (within % half) + within // half, within)
    return order.first_row + head * (order.head_stride or order.head_rows) + within
