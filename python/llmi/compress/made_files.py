"""Files that are made of others: the source, what is told of the new one, and where its receipt says that it comes from."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.gguf_entries import number_entry, text_entry
from llmi.base.travel import Record
from llmi.compress.calibration import Calibration, calibrate
from llmi.compress.gguf_file import GgufSource, NewTensor, StoredTensor, sliced_entry, write_gguf, write_header
from llmi.errors import InvalidParamsError, ModelFileError, UnsupportedModelError
from llmi.families import ModelSpec, spec_of
from llmi.families.config import GGUF_KEYS
from llmi.models.files import OpenModel, open_model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np

RECEIPT = "llmi.receipt"
VERSION = 1  # of what a receipt's parameters mean
#: Types of numbers, as a GGUF file has them.
FLOATS = {"F32": 0, "F16": 1, "BF16": 30}


@dataclasses.dataclass(slots=True, eq=False)
class Report(Record):
    """What became of a model.

    Attributes
    ----------
    path : str
        The new file.
    bytes, source_bytes : int
    tensors : dict
        Name: its new type, of those that were written in another one.
    fallbacks : dict
        Name: why it has not the type that it was to have.
    requantized : list of str
        Types that the source's matrices were quantised to already: their rounding is not undone.
    remarks : dict
        Name: how it was made, where that is not as it was asked for.

    Examples
    --------
    >>> from llmi.compress import Report
    >>> made = Report("small.gguf", 100, 400, tensors={"blk.0.ffn_down.weight": "Q4_0"}, fallbacks={}, requantized=[])
    >>> made.bytes / made.source_bytes
    0.25
    """

    path: str
    bytes: int
    source_bytes: int
    tensors: dict[str, str]
    fallbacks: dict[str, str]
    requantized: list[str]
    remarks: dict[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        counted: dict[str, int] = {}
        for kind in self.tensors.values():
            counted[kind] = counted.get(kind, 0) + 1
        types = ", ".join(f"{count} as {kind}" for kind, count in counted.items()) or "none"
        lines = [f"{self.path}: {self.bytes / 1e6:,.1f} MB of {self.source_bytes / 1e6:,.1f}; tensors written: {types}"]
        for notes in (self.fallbacks, self.remarks):
            for why in dict.fromkeys(notes.values()):
                names = [name for name, note in notes.items() if note == why]
                lines.append(f"  {names[0]}{f' and {len(names) - 1} others' if len(names) > 1 else ''}: {why}")
        if self.requantized:
            lines.append(f"  the source was quantised itself ({', '.join(self.requantized)}): what that cost is still there")
        return "\n".join(lines)


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
            raise ModelFileError(f"{path} is a folder of safetensors, no GGUF file", str(path))
        if len(self.opened.files) != 1:
            raise ModelFileError(f"{path} has {len(self.opened.files)} parts: join them first (llama-gguf-split --merge)", str(path))
        self.path = path
        self.gguf = GgufSource(Path(self.opened.files[0].path))
        self.tensors = {tensor.name: tensor for tensor in self.gguf.tensors}
        self._types = {tensor.name: tensor.dtype for tensor in _core.model_tensors(self.opened.core, "")}

    @cached_property
    def spec(self) -> ModelSpec:
        """Raises UnsupportedModelError for a graph that llmi does not compute."""
        return copy.deepcopy(spec_of(self.opened.core))

    def values(self, name: str) -> F32:
        """A tensor as float32, [rows, columns] as the file has them. Raises ModelFileError: it holds NaN or infinity."""
        values: F32 = _core.tensor_values(self.opened.core, "", name)
        if not np.isfinite(values).all():
            raise ModelFileError(f"{self.path}: {name} holds NaN or infinity", str(self.path))
        return values

    def copied(self, name: str, new_name: str = "") -> NewTensor:
        """A tensor whose bytes stay."""
        tensor = self.tensors[name]
        return NewTensor(new_name or name, tensor.shape, tensor.type, partial(self.bytes_of, tensor))

    def with_new(self, new: Mapping[str, NewTensor]) -> list[NewTensor]:
        """All tensors in the file's order: those of `new`, and the bytes of all others."""
        return [new.get(name) or self.copied(name) for name in self.tensors]

    def bytes_of(self, tensor: StoredTensor) -> bytes:
        """As they are stored. Raises ModelFileError if the file ends before."""
        return self.gguf.bytes_of(tensor)

    @property
    def num_bytes(self) -> int:
        """Of the files that are read."""
        return self.gguf.path.stat().st_size

    def free_path(self, out: str | os.PathLike[str]) -> Path:
        """A new file's. Raises InvalidParamsError."""
        return free_path(out)

    @property
    def layer_prefix(self) -> str:
        """What names of layers' tensors begin with, before the number."""
        return "blk."

    def with_numbers(self, method: str, numbers: Mapping[str, int]) -> dict[str, Any]:
        """What changes in the metadata, by config.json's names of what it says. Raises UnsupportedModelError: it has no key for one."""
        del method
        architecture = self.gguf.text_of("general.architecture")
        if "head_dim" in numbers:
            numbers = {**numbers, "value_head_dim": numbers["head_dim"]}
        return {f"{architecture}.{GGUF_KEYS[name]}": number_entry(value) for name, value in numbers.items()}

    def untied(self, method: str) -> tuple[str, dict[str, Any]]:
        """The name of a head beside the embedding, and what changes in the metadata. Raises UnsupportedModelError: there cannot be one."""
        del method
        return "output.weight", {}

    def with_layers(self, total: int, kept: Sequence[int]) -> dict[str, Any]:
        """What changes in the metadata if these layers stay."""
        architecture = self.gguf.text_of("general.architecture")
        entries = {f"{architecture}.block_count": number_entry(len(kept))}
        for name, entry in self.gguf.entries.items():
            if name.startswith((f"{architecture}.", "xielu.")) and (cut := sliced_entry(entry, total, kept)) is not None:
                entries[name] = cut
        return entries

    def metadata(self, changes: Mapping[str, Any], receipt: str, kinds: set[int]) -> dict[str, Any]:
        """Of a new file with these changes. kinds: the types that tensors are written in and had not."""
        entries = {**self.gguf.entries, **changes, RECEIPT: text_entry(receipt)}
        if kinds:
            entries["general.file_type"] = number_entry(FLOATS["F32" if kinds == {FLOATS["F32"]} else "F16"])
        return entries

    def write(self, path: Path, metadata: Mapping[str, Any], tensors: Sequence[NewTensor], written: Callable[[], object]) -> None:
        """Makes the file, whole or not at all. written: called after each tensor. Raises OSError."""
        write_gguf(path, metadata, tensors, written)

    def write_header(self, folder: Path, metadata: Mapping[str, Any], tensors: Sequence[NewTensor]) -> Path:
        """The same file's header in a folder, for llmi to read. Raises OSError."""
        path = folder / "header.gguf"
        write_header(path, metadata, tensors)
        return path

    def type_name(self, tensor: StoredTensor) -> str:
        """As users write it."""
        return self._types[tensor.name]

    def refuse(self, method: str, why: str) -> UnsupportedModelError:
        """The error for a graph that a method does not know."""
        return UnsupportedModelError(f"{method}: {self.path} is a {self.spec.family} model {why}", str(self.path))


def bf16_bits(values: F32) -> NDArray[np.uint16]:
    """The nearest bf16 of each value, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def float_bytes(values: F32, kind: int, name: str, parameter: str) -> bytes:
    """Values in the type of this number, of FLOATS. Raises InvalidParamsError that names the parameter: a value is beyond fp16."""
    if kind == FLOATS["F32"]:
        return values.tobytes()
    if kind == FLOATS["BF16"]:
        return bf16_bits(values).tobytes()
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        raise InvalidParamsError(f"{name}: {np.abs(values).max():g} is beyond fp16", parameter)
    return halves.tobytes()


def loaded(calibration: Calibration | str | os.PathLike[str] | None) -> Calibration | None:
    """A calibration that is given, or one of a file. Raises ModelFileError."""
    return calibration if calibration is None or isinstance(calibration, Calibration) else Calibration.load(calibration)


def origin_of(source: Source, sums: Calibration | None, given: Calibration | str | os.PathLike[str] | None) -> dict[str, object]:
    """What a receipt says of source and calibration. Raises InvalidParamsError for sums of another model."""
    digest = source.opened.digest()()
    if sums is None:
        return {"source": digest, "model": source.path.name}
    if sums.made.get("model", digest) != digest:
        raise InvalidParamsError(
            f"calibration: it is of another model than {source.path} (SHA-256 {sums.made['model']}, not {digest})", "calibration"
        )
    file = None if isinstance(given, Calibration) or given is None else Path(given).name
    told = {"digest": sums.digest(), "made": sums.made, "file": file}
    return {"source": digest, "model": source.path.name, "calibration": told}


def calibration_of(
    path: Path, source: Source, ready: Source, wanted: Mapping[str, object], given: str | os.PathLike[str] | None
) -> Calibration:
    """The calibration that a receipt names, of the source or of what was made ready of it. Raises InvalidParamsError: it is not found, or
    is another one."""
    made = wanted.get("made")
    beside = path.parent / str(wanted.get("file"))
    if given is not None or (wanted.get("file") is not None and beside.is_file()):
        found = Calibration.load(beside if given is None else given)
    elif isinstance(made, dict) and made.get("text") == "own":
        of = source if made.get("model") == source.opened.digest()() else ready
        found = calibrate(of.path, tokens=made.get("tokens", 0), seed=made.get("seed", 0), gram=made.get("gram", False))
    else:
        raise InvalidParamsError(f"{path}: it was made with a calibration on a given text: name its file by --calibration", "calibration")
    if found.digest() != wanted.get("digest"):
        raise InvalidParamsError(f"{path}: it was made with another calibration (SHA-256 {wanted.get('digest')}, not {found.digest()})")
    return found


def free_path(out: str | os.PathLike[str]) -> Path:
    path = Path(out)
    if path.suffix != ".gguf":
        raise InvalidParamsError(f"out: {path} must end in .gguf", "out")
    return not_there(path)


def not_there(path: Path) -> Path:
    """A path in a folder that exists, where nothing is. Raises InvalidParamsError."""
    if path.exists():
        raise InvalidParamsError(f"out: {path} exists: nothing is written over a file", "out")
    if not path.parent.is_dir():
        raise InvalidParamsError(f"out: there is no folder {path.parent}", "out")
    return path
