"""Files whose matrices have zeros where weights were pruned."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from llmi.base.kinds import Choice, Real, Text, parse
from llmi.compress.calibration import Calibration
from llmi.compress.feedback import Factors
from llmi.compress.made_files import Report, Source
from llmi.compress.masks import prune_mask
from llmi.compress.pruning_feedback import Groups, prune_by_feedback
from llmi.compress.rewriting import Edit, float_tensor, rewrite
from llmi.compress.stored_matrices import matrix, num_columns
from llmi.compress.stored_rows import turned
from llmi.errors import InvalidParamsError
from llmi.families.spec import LinearSpec, ModelSpec, RouterSpec, TensorBinding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np

PRUNE_METHODS = ("magnitude", "wanda", "sparsegpt")
_SHARE = Real(0.0, 1.0, "a share in [0, 1]")


def prune(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    sparsity: float | None = None,
    pattern: str | None = None,
    method: str = "magnitude",
    calibration: Calibration | str | os.PathLike[str] | None = None,
) -> Report:
    """Writes a model in which weights of the layers' matrices are 0: those that `prune_mask` leaves out, matrix by matrix. Embedding, head,
    norms and biases stay. The zeros are stored like all other weights: the file is no smaller and runs no faster.

    Parameters
    ----------
    model : path or name
        A GGUF file of one part, or a folder of float safetensors.
    out : path
        A new .gguf file, or of a folder a new one with the same files beside the weights, if it does
        not end in .gguf; it is written whole or not at all. Matrices that were quantised become F16.
    sparsity : float, optional
        The share that goes, in [0, 1]. Give this or pattern.
    pattern : str, optional
        Such as "2:4": two of each four columns of a row stay.
    method : {"magnitude", "wanda", "sparsegpt"}
        By |w| in the whole matrix; by |w| times the norm of the column's input in each row; or the latter with error feedback: the columns
        behind a zero make up for it, by the products of a calibration.
    calibration : Calibration or path, optional
        Of `calibrate`: "wanda" and "sparsegpt" need one, the latter with gram=True.

    Returns
    -------
    Report

    Raises
    ------
    InvalidParamsError
        Both or neither of sparsity and pattern, a method without what it needs, an `out` that exists or cannot be written.
    ModelFileError
        No GGUF file of one part, or a folder whose weights are quantised; UnsupportedModelError names what the method does not know of a
        graph.

    Examples
    --------
    >>> from llmi.compress import prune
    >>> print(prune("model.gguf", "pruned.gguf", pattern="2:4"))  # doctest: +SKIP
    """
    settings = {"sparsity": sparsity, "pattern": pattern, "method": method}
    pruning = Prune.of(settings)
    if (calibration is None) != (pruning.method == "magnitude"):
        wants = "needs a calibration: llmi.compress.calibrate(model)" if calibration is None else "reads no calibration"
        raise InvalidParamsError(f'calibration: method="{pruning.method}" {wants}', "calibration")
    return rewrite(model, out, pruning, calibration)


@dataclasses.dataclass(frozen=True)
class Prune:
    """`prune`."""

    sparsity: float | None
    pattern: str | None
    method: str
    made: ClassVar[str] = "prune"

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Prune:
        """From a caller or a receipt. Raises InvalidParamsError."""
        sparsity, pattern = settings["sparsity"], settings["pattern"]
        if (sparsity is None) == (pattern is None):
            raise InvalidParamsError("give sparsity or pattern, one of the two", "sparsity")
        return cls(
            None if sparsity is None else parse(_SHARE, "sparsity", sparsity),
            None if pattern is None else parse(Text(), "pattern", pattern),
            parse(Choice(PRUNE_METHODS), "method", settings["method"]),
        )

    def settings(self) -> dict[str, object]:
        """For the receipt."""
        return dataclasses.asdict(self)

    def edit(self, source: Source, calibration: Calibration | None) -> Edit:
        """Zeros in every matrix of the layers."""
        weights: dict[str, TensorBinding] = {}
        for weight, own in matrices(source.spec):
            if not source.tensors.keys() >= set(own):
                raise source.refuse("prune", f"whose {weight.name} is no matrix of the file")
            weights.update({name: TensorBinding(name, transposed=weight.transposed) for name in own})
        if self.pattern is not None:
            for name in sorted(weights):  # what cannot be is said before minutes pass
                prune_mask(np.zeros((1, num_columns(source, weights[name]))), pattern=self.pattern)
        remarks: dict[str, str] = {}
        factors = None
        if calibration is not None:
            if self.method == "sparsegpt":
                factors = Factors(calibration)
            for name in sorted(weights):
                self._check(source, calibration, weights[name], remarks)
        new = {}
        for name, weight in weights.items():
            tensor = source.tensors[name]
            new[name] = float_tensor(name, tensor.shape, tensor.type, partial(self._pruned, source, calibration, factors, weight))
        return Edit(source.with_new(new), {}, source.spec, remarks)

    def _check(self, source: Source, calibration: Calibration, weight: TensorBinding, remarks: dict[str, str]) -> None:
        """Raises InvalidParamsError: the calibration has not what the method needs."""
        name, columns = weight.name, _norms(source, calibration, weight).shape[-1]
        if self.method != "sparsegpt":
            return
        if len(source.tensors[name].shape) > 2:
            raise source.refuse("sparsegpt", f"with experts ({name}), of which a calibration has no products")
        if calibration.shares_gram(name) is None:
            raise InvalidParamsError(
                f'calibration: method="sparsegpt" needs products of the columns of {name}: llmi.compress.calibrate(model, gram=True)',
                "calibration",
            )
        if (rows := calibration.num_rows(name)) < columns:
            remarks[name] = f"the calibration has {rows:,} rows, fewer than its {columns:,} columns: damping fills up what is missing"

    def _pruned(self, source: Source, calibration: Calibration | None, factors: Factors | None, weight: TensorBinding) -> F32:
        values = matrix(source, weight)
        if factors is not None:
            pruned = prune_by_feedback(values, factors.of(Groups.of(self.pattern), weight.name), self.sparsity, self.pattern)
            return turned(pruned, weight)
        matrices = values.reshape(-1, *values.shape[-2:])  # of experts one each
        norms: list[F32 | None] = [None] * len(matrices)
        if calibration is not None:
            norms = list(np.broadcast_to(_norms(source, calibration, weight), (len(matrices), values.shape[-1])))
        made = [
            np.where(prune_mask(matrix, sparsity=self.sparsity, pattern=self.pattern, input_norms=own), matrix, np.float32(0))
            for matrix, own in zip(matrices, norms, strict=True)
        ]
        return turned(np.stack(made).reshape(values.shape), weight)


def _norms(source: Source, calibration: Calibration, weight: TensorBinding) -> F32:
    """[columns], or of experts [experts, columns]. Raises InvalidParamsError: they are of another shape."""
    name = weight.name
    norms = calibration.norms(name)
    columns = num_columns(source, weight)
    if norms.shape[-1] != columns:
        raise InvalidParamsError(f"calibration: {name} reads {columns} columns, it has {norms.shape[-1]}: another model's", "calibration")
    return norms


def matrices(spec: ModelSpec) -> Iterator[tuple[TensorBinding, list[str]]]:
    """The weights of the layers, without those that choose experts, and the names of each: one, or one for each expert."""
    for layer in spec.layers:
        for weight in _weights(layer):
            numbers = range(max(layer.moe.num_experts, 1))
            yield weight, list(dict.fromkeys(weight.name.replace("{expert}", str(expert)) for expert in numbers))


def _weights(part: object) -> Iterator[TensorBinding]:
    if isinstance(part, LinearSpec):
        if part.weight.name:
            yield part.weight
    elif dataclasses.is_dataclass(part) and not isinstance(part, RouterSpec):
        for field in dataclasses.fields(part):
            yield from _weights(getattr(part, field.name))
