"""Files with narrower MLPs: the columns that add least to the stream go."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, ClassVar

from llmi.base.kinds import Whole, parse
from llmi.compress.calibration import Calibration, calibrate
from llmi.compress.least_squares import over_columns
from llmi.compress.made_files import Report, Source
from llmi.compress.rewriting import Edit, rewrite
from llmi.compress.stored_matrices import Role, matrix, num_columns, with_columns, with_roles
from llmi.errors import InvalidParamsError
from llmi.families.spec import MlpSpec, TensorBinding

if TYPE_CHECKING:
    import numpy as np
else:
    from llmi.base.lazy_numpy import np

_COUNT = Whole(1, 1 << 24)
_TOKENS = 4096  # of the model's own text, without a calibration


def drop_columns(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    count: int,
    calibration: Calibration | str | os.PathLike[str] | None = None,
) -> Report:
    """Writes a model with narrower MLPs: of each layer the `count` columns of the down projection go whose output is least, with their rows
    of the projections before it. The output of a column is the norm of what it reads times that of its weights.

    Parameters
    ----------
    model : path or name
        A GGUF file of one part, or a folder of float safetensors.
    out : path
        A new .gguf file, or of a folder a new one with the same files beside the weights; it is written whole or not at all. Down
        projections that were quantised become F16.
    count : int
        Columns that go, the same number in every layer.
    calibration : Calibration or path, optional
        Of `calibrate`; without it 4,096 tokens of the model's own text are read.

    Returns
    -------
    Report

    Raises
    ------
    InvalidParamsError
        A count that leaves no column, a calibration of another model, an `out` that exists or cannot be written.
    ModelFileError
        No GGUF file of one part, or a folder whose weights are quantised; UnsupportedModelError names what the method does not know of a
        graph.

    Examples
    --------
    >>> from llmi.compress import drop_columns
    >>> print(drop_columns("model.gguf", "narrow.gguf", count=256))  # doctest: +SKIP
    """
    return rewrite(model, out, DropColumns.of({"count": count}), calibration)


@dataclasses.dataclass(frozen=True)
class DropColumns:
    """`drop_columns`."""

    count: int
    made: ClassVar[str] = "drop_columns"

    @classmethod
    def of(cls, settings: dict[str, Any]) -> DropColumns:
        """From a caller or a receipt. Raises InvalidParamsError."""
        return cls(parse(_COUNT, "count", settings["count"]))

    def settings(self) -> dict[str, object]:
        """For the receipt."""
        return {"count": self.count}

    def edit(self, source: Source, calibration: Calibration | None) -> Edit:
        """Columns of down projections, rows of those before them, and the size of MLPs."""
        mlps = _mlps(source)
        size = mlps[0].size
        if self.count >= size:
            raise InvalidParamsError(f"count = {self.count}: a layer has {size} columns, and one must stay", "count")
        sums = calibrate(source.path, tokens=_TOKENS) if calibration is None else calibration
        new, roles = {}, []
        for mlp in mlps:
            down = mlp.down.weight
            kept = self._kept(source, sums, down)
            for linear in (mlp.gate, mlp.up):
                roles += [Role(each, size, kept) for each in (linear.weight, linear.bias) if each.name]
            new[down.name] = with_columns(source, down, kept)
            mlp.size = len(kept)
        new |= with_roles(source, self.made, roles)
        entries = source.with_numbers(self.made, {"intermediate_size": size - self.count})
        remarks = {"columns": f"{self.count} of {size} of each MLP left out"}
        return Edit(source.with_new(new), entries, source.spec, remarks)

    def _kept(self, source: Source, sums: Calibration, down: TensorBinding) -> list[int]:
        """Those of the largest output, in their order; of equal ones the first."""
        norms = sums.norms(down.name).astype(np.float64)
        values = matrix(source, down).astype(np.float64)
        if norms.shape != values.shape[1:]:
            raise InvalidParamsError(f"calibration: {down.name} reads {values.shape[1]} columns, it has {norms.shape[-1]}", "calibration")
        scores = norms * np.sqrt(over_columns(np.ascontiguousarray(values.T) ** 2))
        order = np.argsort(-scores, kind="stable")
        return sorted(order[: len(order) - self.count].tolist())


def _mlps(source: Source) -> list[MlpSpec]:
    """Of all layers. Raises UnsupportedModelError."""
    mlps = []
    for index, layer in enumerate(source.spec.layers):
        mlp = layer.mlp
        size = source.spec.layers[0].mlp.size
        if layer.moe.num_experts or not size or mlp.size != size or mlp.inner_norm.present:
            raise source.refuse("drop_columns", f"whose layer {index} is not one MLP of the size of all, without a norm inside")
        if num_columns(source, mlp.down.weight) != size:
            raise source.refuse("drop_columns", f"whose layer {index} has no down projection of {size} columns")
        mlps.append(mlp)
    return mlps
