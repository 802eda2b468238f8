"""Tensors as a graph's bindings read them: matrices that are stored transposed, and rows of roles that share a tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from llmi.compress import cuts
from llmi.compress.gguf_file import NewTensor
from llmi.compress.made_files import Source
from llmi.compress.rewriting import float_tensor
from llmi.compress.stored_rows import rows_of, turned
from llmi.errors import ModelFileError
from llmi.families.spec import TensorBinding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    Rows = NDArray[np.int64]
else:
    from llmi.base.lazy_numpy import np


def matrix(source: Source, binding: TensorBinding) -> F32:
    """The whole tensor, with a row for each output; of a bias its values. Raises ModelFileError: it holds NaN or infinity."""
    return turned(source.values(binding.name), binding)


def num_rows(source: Source, binding: TensorBinding) -> int:
    """Of the whole tensor."""
    shape = _shape(source, binding)
    return shape[0 if binding.transposed or len(shape) == 1 else 1]


def num_columns(source: Source, binding: TensorBinding) -> int:
    """What a row reads."""
    return _shape(source, binding)[1 if binding.transposed else 0]


def with_columns(source: Source, binding: TensorBinding, kept: Sequence[int]) -> NewTensor:
    """The matrix with these columns alone: byte for byte if they are whole blocks, else as float."""
    return (cuts.with_rows if binding.transposed else cuts.with_columns)(source, binding.name, kept)


@dataclasses.dataclass
class Role:
    """What reads `count` rows of a tensor, and those of them that stay. `values` makes what these hold [rows, columns], if it is new."""

    binding: TensorBinding
    count: int
    kept: Sequence[int]
    values: Callable[[], F32] | None = None

    @property
    def rows(self) -> Rows:
        """The tensor's rows, in the role's order."""
        return rows_of(self.binding.order, self.count)


def with_roles(source: Source, method: str, roles: Sequence[Role]) -> dict[str, NewTensor]:
    """Name: the tensor with the rows that stay; those that no role reads stay, too. Bindings are changed to those of the new file. Raises
    UnsupportedModelError: no binding could say where the rows of a role are then."""
    made: dict[str, NewTensor] = {}
    by_name: dict[str, list[Role]] = {}
    for role in roles:
        by_name.setdefault(role.binding.name, []).append(role)
    for name, own in by_name.items():
        binding = own[0].binding
        if max(int(role.rows.max()) for role in own) >= num_rows(source, binding):
            raise source.refuse(method, f"whose {name} has no row for each output")
        gone = {row for role in own for row in np.delete(role.rows, role.kept).tolist()}
        kept = [row for row in range(num_rows(source, binding)) if row not in gone]
        new = [role for role in own if role.values is not None]
        made[name] = (cuts.with_columns if binding.transposed else cuts.with_rows)(source, name, kept)
        if new:
            filled = partial(_filled, source, [(role, role.rows[role.kept]) for role in new], kept)
            made[name] = float_tensor(name, made[name].shape, source.tensors[name].type, filled)
        for role in own:
            places = np.searchsorted(kept, role.rows[role.kept])
            role.binding.order = dataclasses.replace(role.binding.order, first_row=int(places.min()))
            if not np.array_equal(rows_of(role.binding.order, len(role.kept)), places):
                raise source.refuse(method, f"whose {name} has rows of several roles in an order that fewer heads do not have")
    return made


def _shape(source: Source, binding: TensorBinding) -> tuple[int, ...]:
    if binding.name not in source.tensors:
        raise ModelFileError(f"{source.path}: the tensor '{binding.name}' is missing", str(source.path))
    return source.tensors[binding.name].shape


def _filled(source: Source, new: Sequence[tuple[Role, Rows]], kept: Sequence[int]) -> F32:
    binding = new[0][0].binding
    values = matrix(source, binding).copy()
    for role, rows in new:
        assert role.values is not None
        values[rows] = role.values()
    return turned(values[kept], binding)
