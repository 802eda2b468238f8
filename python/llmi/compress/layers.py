"""Files with fewer layers."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from llmi.base.kinds import Flag, parse
from llmi.compress.calibration import Calibration
from llmi.compress.cuts import numbers_or_count
from llmi.compress.least_squares import over_columns
from llmi.compress.made_files import Report, Source
from llmi.compress.own_text import own_text
from llmi.compress.repair import check_repairable, repaired
from llmi.compress.rewriting import Edit, float_tensor, rewrite
from llmi.errors import InvalidParamsError
from llmi.families import ModelSpec
from llmi.families.spec import LayerSpec, TensorBinding
from llmi.llm import LLM

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from llmi.base.lazy_numpy import np

_TOKENS = 4096  # of the model's own text, by which layers are chosen
_WINDOW = 512


def drop_layers(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    layers: Iterable[int] | None = None,
    count: int | None = None,
    repair: bool = False,
    calibration: Calibration | str | os.PathLike[str] | None = None,
) -> Report:
    """Writes a model without some of its layers; the others stay byte for byte.

    Parameters
    ----------
    model : path or name
        A GGUF file of one part, or a folder of float safetensors.
    out : path
        A new .gguf file, or of a folder a new one with the same files beside the weights; it is written whole or not at all.
    layers : iterable of int, optional
        Those that go, counted from 0. Give this or count.
    count : int, optional
        So many layers in a row go: those whose input and output are most alike, by the mean cosine of the rows of 4,096 tokens that the
        model writes itself. The first two and the last layer stay.
    repair : bool
        The down projection before layers that go stands in for them: it becomes the one that, on 20,000 tokens of the model's own text,
        comes nearest to what it and they add to the stream (least squares). No tensor is new.
    calibration : Calibration or path, optional
        Of `calibrate` on the model's own text; repair writes that text again, instead of 20,000 tokens of seed 0.

    Returns
    -------
    Report
        Its remarks name the layers.

    Raises
    ------
    InvalidParamsError
        Both or neither of layers and count, a layer twice or one that is not there, all layers, a calibration without repair or on a given
        text, layer 0 to repair, an `out` that exists or cannot be written.
    ModelFileError
        No GGUF file of one part, or a folder whose weights are quantised; UnsupportedModelError: what a layer does depends on its number,
        as in Gemma 3.

    Examples
    --------
    >>> from llmi.compress import drop_layers
    >>> print(drop_layers("model.gguf", "short.gguf", count=2))  # doctest: +SKIP
    """
    method = DropLayers.of({"layers": None if layers is None else list(layers), "count": count, "repair": repair})
    if calibration is not None and not method.repair:
        raise InvalidParamsError("calibration: layers go without one, unless repair=True", "calibration")
    return rewrite(model, out, method, calibration)


@dataclasses.dataclass(frozen=True)
class DropLayers:
    """`drop_layers`."""

    layers: list[int] | None
    count: int | None
    repair: bool
    made: ClassVar[str] = "drop_layers"

    @classmethod
    def of(cls, settings: dict[str, Any]) -> DropLayers:
        """From a caller or a receipt. Raises InvalidParamsError."""
        return cls(*numbers_or_count(settings, "layers"), parse(Flag(), "repair", settings.get("repair", False)))

    def settings(self) -> dict[str, object]:
        """For the receipt."""
        return dataclasses.asdict(self)

    def edit(self, source: Source, calibration: Calibration | None) -> Edit:
        """The layers that stay, with new numbers."""
        total = len(source.spec.layers)
        gone = self._chosen(source) if self.layers is None else self.layers
        if gone[-1] >= total:
            raise InvalidParamsError(f"layers: there is no layer {gone[-1]}: the model has {total}, counted from 0", "layers")
        if len(gone) == total:
            raise InvalidParamsError(f"layers: all {total} layers cannot go", "layers")
        new = self._repaired(source, gone, calibration)
        kept = [layer for layer in range(total) if layer not in gone]
        numbers = {old: new for new, old in enumerate(kept)}
        tensors = []
        remarks = {"layers": f"{', '.join(map(str, gone))} of {total} left out"}
        prefix = source.layer_prefix
        for tensor in source.tensors.values():
            found = re.fullmatch(rf"{re.escape(prefix)}(\d+)\.(.*)", tensor.name)
            if found is None:
                tensors.append(source.copied(tensor.name))
            elif int(found[1]) >= total:
                raise source.refuse("drop_layers", f"with layers that llmi does not run ({tensor.name})")
            elif int(found[1]) in numbers:
                name = f"{prefix}{numbers[int(found[1])]}.{found[2]}"
                if tensor.name in new:
                    remarks[name] = "stands in for the layers that were behind it"
                    tensors.append(float_tensor(name, tensor.shape, tensor.type, partial(np.asarray, new[tensor.name])))
                else:
                    tensors.append(source.copied(tensor.name, name))
        return Edit(tensors, source.with_layers(total, kept), _with_layers(source.spec, kept, prefix), remarks)

    def _repaired(self, source: Source, gone: list[int], calibration: Calibration | None) -> dict[str, NDArray[np.float32]]:
        if not self.repair:
            return {}
        check_repairable(source, gone)
        return repaired(source, gone, calibration)

    def _chosen(self, source: Source) -> list[int]:
        """The run whose input and output are most alike, the first at a tie."""
        assert self.count is not None
        total = len(source.spec.layers)
        starts = range(2, total - self.count)
        if not starts:
            raise InvalidParamsError(
                f"count = {self.count}: the first two and the last of {total} layers stay, so that at most {max(total - 3, 0)} can go",
                "count",
            )
        sums = [0.0] * len(starts)
        with LLM(source.path, enable_prefix_caching=False) as llm:
            for text in own_text(llm, 0, _TOKENS):
                for begin in range(0, len(text), _WINDOW):
                    rows = llm.hidden_states([text[begin : begin + _WINDOW]], layers=range(total + 1))[0]
                    for place, start in enumerate(starts):
                        sums[place] += _alike(rows[start], rows[start + self.count])
        first = starts[sums.index(max(sums))]
        return list(range(first, first + self.count))


def _alike(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """The sum of the cosines of rows."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    cosines = over_columns(a * b) / np.sqrt(over_columns(a * a) * over_columns(b * b))
    return float(sum(cosines.tolist()))


def _with_layers(spec: ModelSpec, kept: list[int], prefix: str) -> ModelSpec:
    """The same model with these layers alone, their tensors by their new numbers."""
    spec.layers = [spec.layers[old] for old in kept]
    for new, (old, layer) in enumerate(zip(kept, spec.layers, strict=True)):
        _rename(layer, f"{prefix}{old}.", f"{prefix}{new}.")
        if layer.attention.kv_donor >= 0:
            donor = layer.attention.kv_donor
            layer.attention.kv_donor = kept.index(donor) if donor in kept else -2  # -2: no file says this
    return spec


def _rename(part: LayerSpec | object, old: str, new: str) -> None:
    if isinstance(part, TensorBinding):
        if part.name.startswith(old):
            part.name = new + part.name.removeprefix(old)
    elif isinstance(part, list):
        for item in part:
            _rename(item, old, new)
    elif dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            _rename(getattr(part, field.name), old, new)
