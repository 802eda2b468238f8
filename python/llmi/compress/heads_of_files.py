"""Files with fewer heads of keys and values."""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from llmi.base.gguf_entries import number_entry
from llmi.base.kinds import Whole, parse
from llmi.compress.calibration import Calibration
from llmi.compress.heads import pool_kv_heads
from llmi.compress.least_squares import times
from llmi.compress.made_files import Report, Source
from llmi.compress.pooling import pooled_values
from llmi.compress.rewriting import Edit, float_tensor, rewrite
from llmi.errors import InvalidParamsError

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
        A GGUF file of one part.
    out : path
        A new .gguf file; it is written whole or not at all. Pooled matrices that were quantised become F16.
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
        No GGUF file of one part; UnsupportedModelError names what the method does not know of a graph.

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
        pooled = _pooled_tensors(source)
        fitted = {} if calibration is None else _fitted(source, calibration, heads // self.num_kv_heads)
        new = {}
        for name in pooled:
            shape = source.tensors[name].shape
            shape = (*shape[:-1], shape[-1] // heads * self.num_kv_heads)
            new[name] = float_tensor(name, shape, source.tensors[name].type, partial(_pooled, source, name, heads, self.num_kv_heads))
        for name, values in fitted.items():
            new[name] = float_tensor(name, values.shape[::-1], source.tensors[name].type, partial(np.asarray, values))
        architecture = source.gguf.text_of("general.architecture")
        spec.num_kv_heads = self.num_kv_heads
        return Edit(source.with_new(new), {f"{architecture}.attention.head_count_kv": number_entry(self.num_kv_heads)}, spec)


def _pooled(source: Source, name: str, heads: int, to: int) -> F32:
    values = source.values(name)
    rows = values.reshape(len(values), -1)  # a bias has one column
    return pool_kv_heads(rows, num_kv_heads=heads, to=to).reshape(-1, *values.shape[1:])


def _fitted(source: Source, calibration: Calibration, size: int) -> dict[str, F32]:
    """Values and output projections of all layers, where `size` heads become one. Raises UnsupportedModelError, InvalidParamsError."""
    spec = source.spec
    made: dict[str, F32] = {}
    for index, layer in enumerate(spec.layers):
        attention = layer.attention
        if attention.value.bias.name or attention.norms.value.present or attention.gate.weight.name or attention.output_norm.present:
            raise source.refuse("pool_heads", f"with a bias, norm or gate of the values of layer {index}: pool it without a calibration")
        name = attention.value.weight.name
        squares = calibration.gram(name).astype(np.float64)
        values = source.values(name).reshape(-1, size, spec.head_dim, len(squares))
        output = source.values(attention.output.weight.name).astype(np.float64)
        queries = spec.num_heads // spec.num_kv_heads
        weights = []
        for group, heads in enumerate(values):
            weight, maps = pooled_values(heads, squares, name)
            weights.append(weight)
            for place in range(size * queries):
                first = (group * size * queries + place) * spec.head_dim
                part = slice(first, first + spec.head_dim)
                output[:, part] = times(output[:, part], maps[place // queries])
        made[name] = np.concatenate(weights).astype(np.float32)
        made[attention.output.weight.name] = output.astype(np.float32)
    return made


def _pooled_tensors(source: Source) -> set[str]:
    spec = source.spec
    names: set[str] = set()
    rows = spec.num_kv_heads * spec.head_dim
    for index, layer in enumerate(spec.layers):
        attention = layer.attention
        if layer.mixer != "attention" or attention.latent.rank or attention.num_kv_heads or attention.kv_donor >= 0:
            raise source.refuse("pool_heads", f"whose layer {index} has no keys and values of the model's number of heads")
        norms = attention.norms
        if norms.span == "projection" or norms.own_weights:
            raise source.refuse("pool_heads", f"with norms over all heads of layer {index}, or with weights for each of them")
        for linear in (attention.key, attention.value):
            if not linear.weight.name or source.tensors[linear.weight.name].shape[-1] != rows:
                raise source.refuse("pool_heads", f"whose layer {index} has no keys and values in tensors of their own")
            names |= {linear.weight.name, linear.bias.name} - {""}
    return names
