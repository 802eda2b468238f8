"""A folder whose matrices are packed integers, in the form of compressed-tensors, which transformers and vLLM load."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from llmi.base.kinds import Choice, Text, parse
from llmi.compress.calibration import Calibration
from llmi.compress.chosen_types import fitting
from llmi.compress.folders import source_of
from llmi.compress.gguf_file import NewTensor, StoredTensor
from llmi.compress.made_files import Report, Source, origin_of
from llmi.compress.packed_types import GROUPS, PACKED, PackedType
from llmi.compress.preparing import OWN, calibrated, rotated
from llmi.compress.pruning import matrices
from llmi.compress.rewriting import Edit, write
from llmi.compress.rotation import SEED
from llmi.compress.rounding import Rounding
from llmi.errors import InvalidParamsError
from llmi.families.quantization import KEYS
from llmi.models import by_name
from llmi.models.layout import find

if TYPE_CHECKING:
    import numpy as np
else:
    from llmi.base.lazy_numpy import np

PACKED_METHODS = ("absmax", "search", "gptq")
_WEIGHT = ".weight"


def quantize_folder(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    packing: Pack,
    calibration: Calibration | str | os.PathLike[str] | None,
) -> Report:
    """Makes a folder of a folder. Raises InvalidParamsError, ModelFileError."""
    if calibration == OWN and packing.method == "absmax":  # before minutes pass
        raise InvalidParamsError('calibration: method="absmax" reads none; "search" weighs errors by it', "calibration")
    path = by_name.resolve(model)
    if find(path).config is None:
        raise InvalidParamsError(f"out: {Path(out)} must end in .gguf: only folders of safetensors become folders", "out")
    source = source_of(path)
    target, plain = source.free_path(out), origin_of(source, None, None)
    with rotated(source, packing.rotate, plain) as ready:
        sums = calibrated(ready, calibration, gram=packing.method == "gptq", is_rotated=packing.rotate is not None)
        report = write(ready, target, packing, origin_of(ready, sums, None if calibration == OWN else calibration) | plain, sums)
    report.source_bytes = source.num_bytes
    return report


@dataclasses.dataclass(frozen=True)
class Pack:
    """`quantize` of a folder. tensors: patterns of names and their types, in the order in which they hold."""

    type: str
    method: str
    tensors: list[tuple[str, str]]
    rotate: int | None = None
    made: ClassVar[str] = "quantize_folder"

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Pack:
        """From a caller or a receipt. Raises InvalidParamsError."""
        types = Choice(tuple(PACKED))
        rules = [(parse(Text(), "tensors", name), parse(types, f"tensors[{name!r}]", kind)) for name, kind in settings["tensors"]]
        turn = settings.get("rotate")
        return cls(
            parse(types, "type", "W4A16" if settings["type"] is None else settings["type"]),
            parse(Choice(PACKED_METHODS), "method", settings["method"]),
            rules,
            None if turn is None else parse(SEED, "rotate", turn),
        )

    def settings(self) -> dict[str, object]:
        """For the receipt."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def edit(self, source: Source, calibration: Calibration | None) -> Edit:
        """Codes for the matrices of the layers; their scales come last in the file."""
        grids, fallbacks = self._grids(source)
        rounding = Rounding(self.method, calibration)
        remarks: dict[str, str] = {}
        tensors: list[NewTensor] = []
        last: list[NewTensor] = []
        for tensor in source.tensors.values():
            grid = grids.get(tensor.name)
            if grid is None:
                tensors.append(source.copied(tensor.name))
                continue
            notes = [f"groups of {grid.columns} columns: {GROUPS[0]} do not divide those of all matrices"] * (grid.columns != GROUPS[0])
            if self.method != "absmax" and (how := rounding.remark(tensor.name, tensor.shape, grid.name)) is not None:
                notes.append(how)
            if notes:
                remarks[tensor.name] = "; ".join(notes)
            first, *rest = _Matrix(source, tensor, grid, rounding).tensors()
            tensors.append(first)
            last += rest
        types = {name: grid.name for name, grid in grids.items()}
        linear = [name for name, tensor in source.tensors.items() if len(tensor.shape) == 2 and name.endswith(_WEIGHT)]
        kept = sorted(set(linear) - grids.keys() - {source.spec.embedding.weight.name, "lm_head.weight"})
        described = _description(grids, self, map(_module, ["lm_head.weight", *kept]))
        spec = dataclasses.replace(source.spec, quantization=json.dumps(described, sort_keys=True))
        return Edit([*tensors, *last], {KEYS[0]: described}, spec, remarks, fallbacks, types)

    def _grids(self, source: Source) -> tuple[dict[str, PackedType], dict[str, str]]:
        """({name: its grid}, {name: why a matrix stays}). Raises InvalidParamsError for a pattern that matches nothing."""
        found: dict[str, StoredTensor] = {}
        stays: dict[str, str] = {}
        for weight, names in matrices(source.spec):
            for name in names:
                tensor = source.tensors.get(name)
                if tensor is None or weight.transposed or len(tensor.shape) != 2 or tensor.shape[1] == 1 or not name.endswith(_WEIGHT):
                    stays[name] = "stays as it is: it is no matrix with rows for outputs"
                elif tensor.shape[0] % GROUPS[-1]:
                    stays[name] = f"stays as it is: groups of {GROUPS[-1]} do not divide its {tensor.shape[0]} columns"
                else:
                    found[name] = tensor
        if not found:
            raise source.refuse("quantize", f"without a matrix that can be packed: {next(iter(stays.items()), 'it has none')}")
        types, _ = fitting(found.values(), dict.fromkeys(found, self.type), self.tensors)
        grids = {}
        for name, kind in types.items():
            columns = [found[other].shape[0] for other, same in types.items() if same == kind]
            size = next(size for size in GROUPS if not any(count % size for count in columns))
            grids[name] = PackedType(kind, *PACKED[kind], size, source.type_name(found[name]))
        return grids, stays


class _Matrix:
    """A matrix that is rounded when its codes are due; its scales are kept until theirs are."""

    def __init__(self, source: Source, tensor: StoredTensor, grid: PackedType, rounding: Rounding) -> None:
        self._source, self._tensor, self._grid, self._rounding = source, tensor, grid, rounding
        self._made = Future[dict[str, bytes]]()

    def tensors(self) -> list[NewTensor]:
        """The codes, which must be made first, and what goes with them."""
        name, (columns, rows) = _module(self._tensor.name), self._tensor.shape
        known: dict[str, Callable[[], bytes]] = {"weight_packed": self._codes, "weight_shape": np.array([rows, columns], np.int64).tobytes}
        return [
            NewTensor(f"{name}.{part}", shape, kind, known.get(part) or partial(self._rest, part))
            for part, (shape, kind) in self._grid.stored(rows, columns).items()
        ]

    def _codes(self) -> bytes:
        name, grid = self._tensor.name, self._grid
        try:
            values = self._source.values(name)
            data = grid.absmax(values) if self._rounding.method == "absmax" else self._rounding.bytes_of(grid, name, values)
            made = grid.bytes_of(name, data, len(values))
            codes = made.pop("weight_packed")
        except BaseException as error:
            self._made.set_exception(error)
            raise
        self._made.set_result(made)
        return codes

    def _rest(self, part: str) -> bytes:
        return self._made.result()[part]


def _module(name: str) -> str:
    return name.removesuffix(_WEIGHT)


def _description(grids: Mapping[str, PackedType], packing: Pack, ignored: Iterable[str]) -> dict[str, object]:
    """config.json's entry, with the keys that llm-compressor writes."""
    kinds = {grid.name: grid for grid in grids.values()}
    groups: dict[str, object] = {}
    for number, (kind, grid) in enumerate(sorted(kinds.items(), key=lambda item: item[0] != packing.type)):
        targets: Sequence[str] = ["Linear"] if kind == packing.type else [_module(name) for name in grids if grids[name].name == kind]
        groups[f"group_{number}"] = {
            "format": "pack-quantized",
            "input_activations": None,
            "output_activations": None,
            "targets": targets,
            "weights": {
                "actorder": None,
                "block_structure": None,
                "dynamic": False,
                "group_size": grid.columns,
                "num_bits": grid.bits,
                "observer": "memoryless_minmax" if packing.method == "absmax" else None,
                "observer_kwargs": {},
                "scale_dtype": None,
                "strategy": "group",
                "symmetric": grid.is_symmetric,
                "type": "int",
                "zp_dtype": None if grid.is_symmetric else "torch.int8",
            },
        }
    return {
        "config_groups": groups,
        "format": "pack-quantized",
        "global_compression_ratio": None,
        "ignore": list(ignored),
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.19.0",
    }
