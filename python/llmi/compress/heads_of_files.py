"""Files with fewer heads of keys and values."""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from llmi.base.kinds import Whole, parse
from llmi.compress.calibration import Calibration
from llmi.compress.cuts import places_of
from llmi.compress.gguf_file import NewTensor
from llmi.compress.heads import pool_kv_heads
from llmi.compress.least_squares import times
from llmi.compress.made_files import Report, Source
from llmi.compress.pooling import pooled_values
from llmi.compress.rewriting import Edit, float_tensor, rewrite
from llmi.compress.stored_matrices import Role, matrix, with_roles
from llmi.compress.stored_rows import turned
from llmi.errors import InvalidParamsError
from llmi.families.spec import AttentionSpec, TensorBinding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np

_HEADS = Whole(1, 1 << 20)


def pool_heads(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    num_kv_heads: int,
    calibration: Calibration | str | os.PathLike[str] | None = None,
) -> Report:
    """Writes a model with fewer heads of keys and values, each the mean of neighbours: multi-head attention becomes grouped-query or
    multi-query attention, and the cache smaller (Ainslie et al. 2023, arXiv 2305.13245). Without training the model is much worse.

    Parameters
    ----------
    model : path or name
        A GGUF file of one part, or a folder of float safetensors.
    out : path
        A new .gguf file, or of a folder a new one with the same files beside the weights; it is written whole or not at all. Pooled
        matrices that were quantised become F16.
    num_kv_heads : int
        Heads that are left; divides those that there are.
    calibration : Calibration or path, optional
        Of `calibrate` with gram=True: a pooled head of values is the one from which linear maps come nearest to the old heads, by least
        squares on what they read; the maps go into the output projection. Keys stay means, which no map behind positions could better.

    Returns
    -------
    Report

    Raises
    ------
    InvalidParamsError
        A number that does not divide that of the heads, or is not below it; an `out` that exists or cannot be written.
    ModelFileError
        No GGUF file of one part, or a folder whose weights are quantised; UnsupportedModelError names what the method does not know of a
        graph.

    Examples
    --------
    >>> from llmi.compress import pool_heads
    >>> print(pool_heads("model.gguf", "mqa.gguf", num_kv_heads=1))  # doctest: +SKIP
    """
    return rewrite(model, out, PoolHeads.of({"num_kv_heads": num_kv_heads}), calibration)


@dataclasses.dataclass(frozen=True)
class PoolHeads:
    """`pool_heads`."""

    num_kv_heads: int
    made: ClassVar[str] = "pool_heads"

    @classmethod
    def of(cls, settings: dict[str, Any]) -> PoolHeads:
        """From a caller or a receipt. Raises InvalidParamsError."""
        return cls(parse(_HEADS, "num_kv_heads", settings["num_kv_heads"]))

    def settings(self) -> dict[str, object]:
        """For the receipt."""
        return dataclasses.asdict(self)

    def edit(self, source: Source, calibration: Calibration | None) -> Edit:
        """Keys and values of every layer, and the number of heads."""
        spec = source.spec
        heads = spec.num_kv_heads
        if self.num_kv_heads >= heads or heads % self.num_kv_heads:
            raise InvalidParamsError(
                f"num_kv_heads = {self.num_kv_heads} must be below the model's {heads} heads of keys and values, and divide them",
                "num_kv_heads",
            )
        attentions = _attentions(source)
        size = heads // self.num_kv_heads
        kept = places_of(range(0, heads, size), spec.head_dim)
        new: dict[str, NewTensor] = {}
        roles = []
        for index, attention in enumerate(attentions):
            of_queries = spec.num_heads * spec.head_dim  # whose rows may be in the same tensor
            roles += [Role(each, of_queries, range(of_queries)) for each in (attention.query.weight, attention.query.bias) if each.name]
            for linear in (attention.key, attention.value):
                for binding in (linear.weight, linear.bias) if linear.bias.name else (linear.weight,):
                    role = Role(binding, heads * spec.head_dim, kept)
                    role.values = partial(_pooled, source, binding, role.rows, heads, self.num_kv_heads)
                    roles.append(role)
            if calibration is not None:  # values come last, and have no bias
                values, maps = _fitted(source, calibration, index, roles[-1], size)
                roles[-1].values, output = partial(np.asarray, values), attention.output.weight
                new[output.name] = float_tensor(
                    output.name, source.tensors[output.name].shape, source.tensors[output.name].type, partial(turned, maps, output)
                )
        new |= with_roles(source, self.made, roles)
        spec.num_kv_heads = self.num_kv_heads
        return Edit(source.with_new(new), source.with_numbers(self.made, {"num_key_value_heads": self.num_kv_heads}), spec)


def _pooled(source: Source, binding: TensorBinding, rows: NDArray[np.int64], heads: int, to: int) -> F32:
    values = matrix(source, binding)[rows]
    columns = values.reshape(len(values), -1)  # a bias has one
    return pool_kv_heads(columns, num_kv_heads=heads, to=to).reshape(-1, *values.shape[1:])


def _fitted(source: Source, calibration: Calibration, index: int, role: Role, size: int) -> tuple[F32, F32]:
    """Values and output projection of a layer, where `size` heads become one. Raises UnsupportedModelError, InvalidParamsError."""
    spec, attention = source.spec, source.spec.layers[index].attention
    if attention.value.bias.name or attention.norms.value.present or attention.gate.weight.name or attention.output_norm.present:
        raise source.refuse("pool_heads", f"with a bias, norm or gate of the values of layer {index}: pool it without a calibration")
    name = attention.value.weight.name
    squares = calibration.gram(name).astype(np.float64)
    values = matrix(source, role.binding)[role.rows].reshape(-1, size, spec.head_dim, len(squares))
    output = matrix(source, attention.output.weight).astype(np.float64)
    queries = spec.num_heads // spec.num_kv_heads
    weights = []
    for group, heads in enumerate(values):
        weight, maps = pooled_values(heads, squares, name)
        weights.append(weight)
        for place in range(size * queries):
            first = (group * size * queries + place) * spec.head_dim
            part = slice(first, first + spec.head_dim)
            output[:, part] = times(output[:, part], maps[place // queries])
    return np.concatenate(weights).astype(np.float32), output.astype(np.float32)


def _attentions(source: Source) -> list[AttentionSpec]:
    """Of all layers. Raises UnsupportedModelError."""
    for index, layer in enumerate(source.spec.layers):
        attention = layer.attention
        own = attention.num_kv_heads or attention.kv_donor >= 0 or attention.value_is_key
        if layer.mixer != "attention" or attention.latent.rank or own:
            raise source.refuse("pool_heads", f"whose layer {index} has no keys and values of the model's number of heads")
        norms = attention.norms
        if norms.span == "projection" or norms.own_weights:
            raise source.refuse("pool_heads", f"with norms over all heads of layer {index}, or with weights for each of them")
    return [layer.attention for layer in source.spec.layers]
