"""A GGUF file that a method makes of another one: written whole or not at all, checked before, and made again from its receipt."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from llmi import _core
from llmi.base.progress import progress
from llmi.compress.calibration import Calibration
from llmi.compress.gguf_file import (
    SIZES,
    GgufSource,
    NewTensor,
    StoredTensor,
    made_ahead,
    number_entry,
    text_entry,
    write_gguf,
    write_header,
)
from llmi.compress.quantizing import RECEIPT, Report, free_path
from llmi.errors import InvalidParamsError, ModelFileError, UnsupportedModelError
from llmi.families import ModelSpec, spec_of
from llmi.models import by_name
from llmi.models.files import OpenModel, open_model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np

VERSION = 1  # of what a receipt's parameters mean
_F32, _F16, _BF16 = 0, 1, 30
_NAMES = {_F32: "F32", _F16: "F16", _BF16: "BF16"}


class Source:
    """A GGUF file of one part, with its graph.

    Attributes
    ----------
    spec : ModelSpec
        A copy, which may be changed.
    tensors : dict of str to StoredTensor
    """

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError: no GGUF file of one part, or no sound one."""
        self.opened: OpenModel = open_model(path)
        if self.opened.core.gguf is None:
            raise ModelFileError(
                f"{path} is a folder of safetensors: llmi.compress reads GGUF files so far (llama.cpp's convert_hf_to_gguf.py)", str(path)
            )
        if len(self.opened.files) != 1:
            raise ModelFileError(f"{path} has {len(self.opened.files)} parts: join them first (llama-gguf-split --merge)", str(path))
        self.path = path
        self.gguf = GgufSource(Path(self.opened.files[0].path))
        self.spec: ModelSpec = copy.deepcopy(spec_of(self.opened.core))
        self.tensors = {tensor.name: tensor for tensor in self.gguf.tensors}
        self._types = {tensor.name: tensor.dtype for tensor in _core.model_tensors(self.opened.core, "")}

    def values(self, name: str) -> F32:
        """A tensor as float32, [rows, columns] as the file has them. Raises ModelFileError: it holds NaN or infinity."""
        values: F32 = _core.tensor_values(self.opened.core, "", name)
        if not np.isfinite(values).all():
            raise ModelFileError(f"{self.path}: {name} holds NaN or infinity", str(self.path))
        return values

    def copied(self, name: str, new_name: str = "") -> NewTensor:
        """A tensor whose bytes stay."""
        tensor = self.tensors[name]
        return NewTensor(new_name or name, tensor.shape, tensor.type, partial(self.gguf.bytes_of, tensor))

    def type_name(self, tensor: StoredTensor) -> str:
        """As users write it."""
        return self._types[tensor.name]

    def refuse(self, method: str, why: str) -> UnsupportedModelError:
        """The error for a graph that a method does not know."""
        return UnsupportedModelError(f"{method}: {self.path} is a {self.spec.family} model {why}", str(self.path))


def float_tensor(name: str, shape: tuple[int, ...], kind: int, make: Callable[[], F32]) -> NewTensor:
    """A tensor of new values: F32 and BF16 stay what they are, all others become F16. Raises InvalidParamsError when it is made: a value is
    beyond fp16."""
    kind = kind if kind in (_F32, _BF16) else _F16

    def data() -> bytes:
        values = np.ascontiguousarray(make(), np.float32)
        if kind == _F32:
            return values.tobytes()
        if kind == _BF16:
            bits = values.view(np.uint32)
            return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
        with np.errstate(over="ignore"):
            halves = values.astype(np.float16)
        if not np.isfinite(halves).all():
            raise InvalidParamsError(f"{name}: {np.abs(values).max():g} is beyond fp16", "model")
        return halves.tobytes()

    return NewTensor(name, shape, kind, data)


@dataclasses.dataclass
class Edit:
    """What becomes of a file.

    Attributes
    ----------
    tensors : list of NewTensor
    entries : dict
        Entries of the metadata that change.
    spec : ModelSpec
        What llmi must read from the new file.
    remarks : dict
        Name: what was chosen.
    """

    tensors: list[NewTensor]
    entries: dict[str, bytes]
    spec: ModelSpec
    remarks: dict[str, str] = dataclasses.field(default_factory=dict)


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
    target, path = free_path(out), by_name.resolve(model)
    sums = calibration if calibration is None or isinstance(calibration, Calibration) else Calibration.load(calibration)
    source = Source(path)
    origin: dict[str, object] = {"source": source.opened.digest()(), "model": path.name}
    if sums is not None:
        if sums.made.get("model", origin["source"]) != origin["source"]:
            raise InvalidParamsError(
                f"calibration: it is of another model than {path} (SHA-256 {sums.made['model']}, not {origin['source']})", "calibration"
            )
        file = None if isinstance(calibration, Calibration) or calibration is None else Path(calibration).name
        origin["calibration"] = {"digest": sums.digest(), "made": sums.made, "file": file}
    return write(source, target, method, origin, sums)


def write(source: Source, target: Path, method: Method, origin: Mapping[str, object], calibration: Calibration | None) -> Report:
    """Writes what the method makes, with a receipt."""
    edit = method.edit(source, calibration)
    receipt = {"version": VERSION, "made": method.made, **origin, "settings": method.settings()}
    entries = {**source.gguf.entries, **edit.entries, RECEIPT: text_entry(json.dumps(receipt, sort_keys=True))}
    old = {tensor.name: tensor for tensor in source.gguf.tensors}
    kinds = {new.name: new.type for new in edit.tensors if new.type in _NAMES and (new.name not in old or old[new.name].type != new.type)}
    if kinds:
        entries["general.file_type"] = number_entry(_F32 if set(kinds.values()) == {_F32} else _F16)
    try:
        _check(source, edit, entries)
        with progress(len(edit.tensors), "tensors") as bar, made_ahead(edit.tensors) as ahead:
            write_gguf(target, entries, ahead, partial(bar.update, 1))
    except OSError as error:
        raise InvalidParamsError(f"out: {target} cannot be written: {error.strerror}", "out") from None
    matrices = [tensor for tensor in source.gguf.tensors if len(tensor.shape) > 1]
    return Report(
        path=str(target),
        bytes=target.stat().st_size,
        source_bytes=source.gguf.path.stat().st_size,
        tensors={name: _NAMES[kind] for name, kind in kinds.items()},
        fallbacks={},
        remarks=edit.remarks,
        requantized=sorted({source.type_name(tensor) for tensor in matrices if SIZES[tensor.type][0] > 1}),
    )


def _check(source: Source, edit: Edit, entries: Mapping[str, bytes]) -> None:
    """Reads the header of the new file as llmi will. Raises UnsupportedModelError: it would be another model than the method means."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "header.gguf"
        write_header(path, entries, edit.tensors)
        found = spec_of(open_model(path).core)
    if found != edit.spec:
        raise UnsupportedModelError(
            f"{source.path}: what a {source.spec.family} file says of its layers depends on their number or size, so that the new file"
            " would be read as another model",
            str(source.path),
        )
