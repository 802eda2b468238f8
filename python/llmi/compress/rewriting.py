"""A model that a method makes of another one: written whole or not at all, checked before, and made again from its receipt."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from llmi.base.progress import progress
from llmi.compress.calibration import Calibration
from llmi.compress.converting import in_form_of
from llmi.compress.folders import source_of
from llmi.compress.gguf_file import SIZES, NewTensor, made_ahead
from llmi.compress.made_files import FLOATS, VERSION, Report, Source, float_bytes, loaded, origin_of
from llmi.errors import InvalidParamsError, UnsupportedModelError
from llmi.families import ModelSpec, spec_of
from llmi.models import by_name
from llmi.models.files import open_model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np

_NAMES = {number: name for name, number in FLOATS.items()}


def float_tensor(name: str, shape: tuple[int, ...], kind: int, make: Callable[[], F32]) -> NewTensor:
    """A tensor of new values: F32 and BF16 stay what they are, all others become F16. Raises InvalidParamsError when it is made: a value is
    beyond fp16."""
    kind = kind if kind in _NAMES else FLOATS["F16"]

    def data() -> bytes:
        return float_bytes(np.ascontiguousarray(make(), np.float32), kind, name, "model")

    return NewTensor(name, shape, kind, data)


@dataclasses.dataclass
class Edit:
    """What becomes of a file.

    Attributes
    ----------
    tensors : list of NewTensor
    entries : dict
        Entries of the metadata that change, of a folder those of config.json.
    spec : ModelSpec
        What llmi must read from the new file.
    remarks : dict
        Name: what was chosen.
    fallbacks : dict
        Name: why it stays.
    types : dict, optional
        Name: its new type, where that is no type of floats.
    """

    tensors: list[NewTensor]
    entries: Mapping[str, Any]
    spec: ModelSpec
    remarks: dict[str, str] = dataclasses.field(default_factory=dict)
    fallbacks: dict[str, str] = dataclasses.field(default_factory=dict)
    types: dict[str, str] | None = None


class Method(Protocol):
    """A way to change a file. `settings` are JSON values that make it again."""

    made: ClassVar[str]

    def settings(self) -> dict[str, object]:
        """For the receipt."""

    def edit(self, source: Source, calibration: Calibration | None) -> Edit:
        """What becomes of this file. Raises UnsupportedModelError: it does not know the graph."""


def rewrite(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    method: Method,
    calibration: Calibration | str | os.PathLike[str] | None = None,
) -> Report:
    """Makes `out` of `model`. Raises InvalidParamsError, ModelFileError."""
    source = source_of(by_name.resolve(model))
    target, sums = source.free_path(out), loaded(calibration)
    origin = origin_of(source, sums, calibration)
    with in_form_of(source, target) as (ready, names):
        report = write(ready, target, method, origin, sums and sums.of_tensors(names))
    report.source_bytes = source.num_bytes
    return report


def write(source: Source, target: Path, method: Method, origin: Mapping[str, object], calibration: Calibration | None) -> Report:
    """Writes what the method makes, with a receipt."""
    edit = method.edit(source, calibration)
    receipt = {"version": VERSION, "made": method.made, **origin, "settings": method.settings()}
    old = source.tensors
    kinds = {new.name: new.type for new in edit.tensors if new.type in _NAMES and (new.name not in old or old[new.name].type != new.type)}
    metadata = source.metadata(edit.entries, json.dumps(receipt, sort_keys=True), set(kinds.values()))
    try:
        _check(source, edit, metadata)
        with progress(len(edit.tensors), "tensors") as bar, made_ahead(edit.tensors) as ahead:
            source.write(target, metadata, ahead, partial(bar.update, 1))
    except OSError as error:
        raise InvalidParamsError(f"out: {target} cannot be written: {error.strerror}", "out") from None
    matrices = [tensor for tensor in source.tensors.values() if len(tensor.shape) > 1]
    return Report(
        path=str(target),
        bytes=sum(file.size for file in open_model(target).files),
        source_bytes=source.num_bytes,
        tensors={name: _NAMES[kind] for name, kind in kinds.items()} if edit.types is None else edit.types,
        fallbacks=edit.fallbacks,
        remarks=edit.remarks,
        requantized=sorted({source.type_name(tensor) for tensor in matrices if SIZES[tensor.type][0] > 1}),
    )


def _check(source: Source, edit: Edit, metadata: Mapping[str, Any]) -> None:
    """Reads the header of the new file as llmi will. Raises UnsupportedModelError: it would be another model than the method means."""
    with tempfile.TemporaryDirectory() as folder:
        found = spec_of(open_model(source.write_header(Path(folder), metadata, edit.tensors)).core)
    if found != edit.spec:
        raise UnsupportedModelError(
            f"{source.path}: what a {source.spec.family} file says of its layers depends on their number or size, so that the new file"
            " would be read as another model",
            str(source.path),
        )
