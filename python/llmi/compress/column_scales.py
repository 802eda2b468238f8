"""Column scales before rounding (AWQ): columns that read much are multiplied, and the layer before makes up for it."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from llmi.compress.blocks import row_sum
from llmi.compress.calibration import Calibration
from llmi.compress.grids import GRIDS, rounded
from llmi.compress.made_files import Source
from llmi.errors import InvalidParamsError
from llmi.families.spec import LayerSpec, LinearSpec, ModelSpec, NormSpec, RowOrder, TensorBinding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]
else:
    from llmi.base.lazy_numpy import np

_EIGHTHS = range(9)  # of the exponent: powers are products of square roots, which are equal on every machine
_EVERY_ROW = 4  # of a matrix decides about the exponent
_LEAST_NORM = 1e-3  # of the mean


@dataclasses.dataclass
class _Link:
    """What is multiplied and what is divided. `shared_by` heads read each head of the `head_dim` columns before; 0: columns are those."""

    readers: list[str]
    norm: NormSpec | None = None
    before: LinearSpec | None = None
    shared_by: int = 0
    head_dim: int = 0


class ScaledSource(Source):
    """A source some of whose tensors are multiplied by columns or divided by rows.

    Attributes
    ----------
    exponents : dict
        Name of what is divided: the exponent of its scales, in eighths.
    """

    def __init__(self, source: Source, kinds: Mapping[str, str], calibration: Calibration) -> None:
        """kinds: what the tensors are rounded to. Raises UnsupportedModelError: a graph that it does not know."""
        self.__dict__.update(source.__dict__)
        self._source = source
        self._changes: dict[str, list[Callable[[F32], F32]]] = {}
        self.exponents: dict[str, int] = {}
        scales: dict[str, F32] = {}
        for link in _links(source):
            if not all(kinds.get(name) in GRIDS and name in calibration for name in link.readers):
                continue
            if link.before is not None and kinds.get(link.before.weight.name) not in GRIDS:
                continue
            before, columns, eighths = self._best(link, kinds, calibration)
            if eighths:
                self._apply(link, before, columns, eighths)
                scales.update(dict.fromkeys(link.readers, columns))
        self.calibration = ScaledCalibration(calibration, scales)

    def values(self, name: str) -> F32:
        """As they are to be rounded."""
        values = self._source.values(name)
        for change in self._changes.get(name, []):
            values = change(values)
        return values

    def changes(self, name: str) -> bool:
        """Whether a tensor is another one than the file's."""
        return name in self._changes

    def _best(self, link: _Link, kinds: Mapping[str, str], calibration: Calibration) -> tuple[F32, F32, int]:
        """(scales of what stands before, of the columns, the exponent in eighths) of the least weighted error."""
        norms = calibration.norms(link.readers[0]).astype(np.float64)
        found: list[tuple[float, int, F32, F32]] = []
        samples = [(GRIDS[kinds[name]], np.ascontiguousarray(self.values(name)[::_EVERY_ROW])) for name in link.readers]
        for eighths in _EIGHTHS:
            before = powers(_pooled(norms, link), eighths)
            columns = _spread(before, link)
            weights = norms / columns
            loss = 0.0
            for grid, values in samples:
                scaled = values * columns
                by = _mean_one(weights * weights)
                gaps = ((rounded(grid, scaled, by) - scaled) * weights) ** 2
                loss += math.fsum(row_sum(gaps.reshape(-1, 32)).ravel().tolist())
            found.append((loss, eighths, before, columns))
        _, eighths, before, columns = min(found, key=lambda each: each[:2])
        return before, columns, eighths

    def _apply(self, link: _Link, before: F32, columns: F32, eighths: int) -> None:
        for name in link.readers:
            self._change(name, lambda values: values * columns)
        if link.norm is not None:
            weight = link.norm.weight
            self._change(weight.name, lambda values: _divided_norm(values, before, weight))
            divided, parts = weight.name, [link.norm.bias]
        else:
            assert link.before is not None
            divided, parts = link.before.weight.name, [link.before.weight, link.before.bias]
        for part in parts:
            if part.name:
                self._change(part.name, lambda values: (values.T / before).T)
        self.exponents[divided] = eighths

    def _change(self, name: str, change: Callable[[F32], F32]) -> None:
        def checked(values: F32) -> F32:
            changed = np.ascontiguousarray(change(values), np.float32)
            if not np.isfinite(changed).all():
                raise InvalidParamsError(f"awq: a column of {name} is beyond float32 when it is scaled", "awq")
            return changed

        self._changes.setdefault(name, []).append(checked)


class ScaledCalibration(Calibration):
    """A calibration of what the scaled columns read."""

    def __init__(self, calibration: Calibration, scales: Mapping[str, F32]) -> None:
        self.__dict__.update(copy.copy(calibration.__dict__))
        self._whole, self._scales = calibration, scales

    def norms(self, name: str) -> F32:
        """Of the scaled columns."""
        norms = self._whole.norms(name)
        if name in self._scales:
            norms = norms / self._scales[name]
        return norms

    def gram(self, name: str) -> F32:
        """Of the scaled columns."""
        gram = self._whole.gram(name)
        if name not in self._scales:
            return gram
        scales = self._scales[name]
        scaled: F32 = gram / scales / scales[:, None]
        return scaled

    def shares_gram(self, name: str) -> str | None:
        """Only with those that are scaled together."""
        key = self._whole.shares_gram(name)
        return key if key is None or name not in self._scales else f"{key} of {id(self._scales[name])}"


def _pooled(norms: F64, link: _Link) -> F64:
    """The norms of what stands before: of a value that several heads read, the root mean square of theirs."""
    if link.shared_by <= 1:
        return norms
    squares = (norms * norms).reshape(-1, link.shared_by, link.head_dim)
    total = squares[:, 0].copy()
    for head in range(1, link.shared_by):
        total += squares[:, head]
    return np.sqrt(total / link.shared_by).reshape(-1)


def _spread(before: F32, link: _Link) -> F32:
    """Scales of the columns, by those of what stands before."""
    if link.shared_by <= 1:
        return before
    return np.repeat(before.reshape(-1, 1, link.head_dim), link.shared_by, axis=1).reshape(-1)


def powers(norms: F64, eighths: int) -> F32:
    """norms ** (eighths / 8), with a geometric middle of 1."""
    mean = math.fsum(norms.tolist()) / len(norms)
    if mean == 0:
        return np.ones(len(norms), np.float32)
    clear = np.maximum(norms / mean, _LEAST_NORM)
    root = clear = clear / np.sqrt(clear.max() * clear.min())
    power = clear if eighths == 8 else np.ones_like(clear)
    for bit in (4, 2, 1):
        root = np.sqrt(root)
        if eighths & bit:
            power = power * root
    found: F32 = power.astype(np.float32)
    return found


def _mean_one(weights: F64) -> F32:
    mean = math.fsum(weights.tolist()) / len(weights)
    return np.ones(len(weights), np.float32) if mean == 0 else (weights / mean + 1e-6).astype(np.float32)


def _divided_norm(values: F32, scales: F32, weight: TensorBinding) -> F32:
    """What the file says of a norm whose outputs are divided by the scales."""
    applied = values.astype(np.float64) * weight.times + weight.plus
    return ((applied / scales - weight.plus) / weight.times).astype(np.float32)


def _links(source: Source) -> Iterator[_Link]:
    spec = source.spec
    read_by_others = {layer.attention.kv_donor for layer in spec.layers}
    for index, layer in enumerate(spec.layers):
        if layer.mixer != "attention" or layer.attention.latent.rank or layer.moe.num_experts:
            raise source.refuse("awq", f"whose layer {index} is not plain attention and one MLP")
        for norm, readers in _of_norms(layer):
            names = list(dict.fromkeys(linear.weight.name for linear in readers if linear.weight.name))
            if norm.present and norm.weight.name and names:
                yield _Link(names, norm=norm)
        if layer.mlp.gated and not layer.mlp.inner_norm.present and layer.mlp.activation != "swiglu_clamped" and _is_plain(layer.mlp.up):
            yield _Link([layer.mlp.down.weight.name], before=layer.mlp.up)
        if index not in read_by_others and _carries_values(spec, layer):
            heads, groups = layer.attention.num_heads or spec.num_heads, layer.attention.num_kv_heads or spec.num_kv_heads
            size = layer.attention.head_dim or spec.head_dim
            yield _Link([layer.attention.output.weight.name], before=layer.attention.value, shared_by=heads // groups, head_dim=size)


def _of_norms(layer: LayerSpec) -> list[tuple[NormSpec, list[LinearSpec]]]:
    attention, mlp = layer.attention, layer.mlp
    first, second = [attention.query, attention.key, attention.value, attention.gate], [mlp.gate, mlp.up]
    if layer.mlp_reads_attention_norm:
        return [(layer.attention_norm, first + second)]
    return [(layer.attention_norm, first), (layer.mlp_norm, second)]


def _carries_values(spec: ModelSpec, layer: LayerSpec) -> bool:
    """Whether what the output projection reads is linear in the values of this layer, which no other reads."""
    attention = layer.attention
    norms = (attention.norms.value, attention.output_norm)
    if attention.kv_donor >= 0 or attention.value_is_key or attention.clip or any(norm.present for norm in norms):
        return False
    return _is_plain(attention.value) and bool(attention.output.weight.name) and spec.num_kv_heads > 0


def _is_plain(linear: LinearSpec) -> bool:
    """Whether a tensor holds its rows alone, in order."""
    orders = (linear.weight.order, linear.bias.order)
    return bool(linear.weight.name) and not linear.weight.transposed and all(order == RowOrder() for order in orders)
