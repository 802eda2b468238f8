"""A GGUF file with smaller matrices, and the receipt that makes it again."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from llmi import _core
from llmi.base.kinds import Choice, Text, parse, show
from llmi.base.progress import progress
from llmi.base.travel import Record
from llmi.compress.calibration import Calibration, calibrate
from llmi.compress.gguf_file import GgufSource, NewTensor, StoredTensor, made_ahead, number_entry, text_entry, write_gguf
from llmi.compress.grids import GRIDS
from llmi.compress.rounding import METHODS, Rounding
from llmi.compress.study import FORM, check_method, study_type
from llmi.errors import InvalidParamsError, ModelFileError
from llmi.models import by_name
from llmi.models.catalogue import sha256_of_file
from llmi.models.files import OpenModel, open_model

if TYPE_CHECKING:
    import numpy as np
else:
    from llmi.base.lazy_numpy import np

#: What `llmi.compress.quantize` writes a tensor as: name of the type, number in a GGUF file.
FLOATS = {"F32": 0, "F16": 1, "BF16": 30}
TYPES = (*GRIDS, *FLOATS)
#: What a tensor becomes whose columns blocks of 256 do not divide, as llama.cpp chooses.
_INSTEAD = {"Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
RECEIPT = "llmi.receipt"
_FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q3_K": 11,
    "Q4_K": 14,
    "Q5_K": 16,
    "Q6_K": 18,
    "IQ4_NL": 25,
    "BF16": 32,
    "MXFP4": 38,
}  # general.file_type

_FLOAT_NUMBERS = (0, 1, 30)
_VERSION = 1  # of what a receipt's parameters mean


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


def quantize(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    type: str = "Q4_0",
    method: str = "search",
    tensors: Mapping[str, str] | None = None,
    calibration: Calibration | str | os.PathLike[str] | None = None,
) -> Report:
    """Writes a GGUF file with the matrices of the layers in a smaller type; all metadata and the tokenizer are those of the source.

    Equal inputs give equal bytes, on every machine. The file has a receipt, from which `llmi replay OUT -m MODEL` makes it again.

    Parameters
    ----------
    model : path or name
        A GGUF file of one part.
    out : path
        A new .gguf file; it is written whole or not at all.
    type : {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "F16", "BF16", "F32"}
        Of the matrices of the layers. Embedding, head and norms keep their types. Where 256 does not divide the columns, a K type becomes
        the one that llama.cpp chooses.
        For study "int8-tensor", "int8-channel" or "int8-32" (2 to 8 bits): what such codes stand for, as F32: the file is not smaller.
    method : {"search", "absmax", "gptq", "kl"}
        "absmax": ggml's own rule, byte for byte, for Q4_0 to Q8_0. "search": scales and minima of the least squared error, which a
        calibration weighs by column. "gptq": the same, and each column makes up for the errors of those before it, by the products of a
        calibration. "kl", of "int8-tensor": values are cut where `kl_threshold` cuts the histogram of magnitudes, then "absmax".
    tensors : dict, optional
        Pattern of names, such as "blk.*.ffn_down.*": type. Of several that match, the last one holds, for all tensors of two dimensions or
        more.
    calibration : Calibration or path, optional
        Of `calibrate`, or a file of llama-imatrix. "gptq" needs one with gram=True.

    Returns
    -------
    Report

    Raises
    ------
    InvalidParamsError
        An unknown type or method, a pattern that no tensor matches, a calibration of another model or without what the method needs, an
        `out` that exists or cannot be written.
    ModelFileError
        No GGUF file of one part, or no calibration.

    Examples
    --------
    >>> from llmi.compress import quantize
    >>> print(quantize("model.gguf", "small.gguf", type="Q4_1", tensors={"*ffn_down*": "Q8_0"}))  # doctest: +SKIP
    """
    settings = _Settings.of(type, method, [] if tensors is None else tensors.items())
    path, target = by_name.resolve(model), free_path(out)
    sums = calibration if calibration is None or isinstance(calibration, Calibration) else Calibration.load(calibration)
    rounding = Rounding(settings.method, sums)
    opened, source = _open(path)
    digest = opened.digest()()
    if sums is not None and sums.made.get("model", digest) != digest:
        raise InvalidParamsError(
            f"calibration: it is of another model than {path} (SHA-256 {sums.made['model']}, not {digest})", "calibration"
        )
    origin: dict[str, object] = {"source": digest, "model": path.name}
    if sums is not None:
        file = None if isinstance(calibration, Calibration) or calibration is None else Path(calibration).name
        origin["calibration"] = {"digest": sums.digest(), "made": sums.made, "file": file}
    return _write(opened, source, target, settings, rounding, origin)


def replay_file(
    path: Path, model: str | os.PathLike[str] | None = None, calibration: str | os.PathLike[str] | None = None
) -> tuple[bool, str]:
    """Makes a file again from its receipt: (whether all bytes are equal, a line that says so).

    calibration: the file that it was made with. Without it, one of that name beside `path` is read, or a calibration on the model's own
    text is made again.

    Raises
    ------
    InvalidParamsError
        It has no receipt, or one of another version; the source is another file than its receipt names.
    """
    text = GgufSource(path).text_of(RECEIPT)
    if text is None:
        raise InvalidParamsError(f"{path} has no receipt: llmi quantize writes one")
    try:
        receipt = json.loads(text)
        if receipt["version"] != _VERSION:
            raise InvalidParamsError(f"its receipt is of version {receipt['version']}, this llmi reads version {_VERSION}")
        given = receipt["settings"]
        settings = _Settings.of(given["type"], given["method"], given["tensors"])
        digest, name = str(receipt["source"]), str(receipt["model"])
        wanted = receipt.get("calibration")
    except InvalidParamsError as error:
        raise InvalidParamsError(f"{path}: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidParamsError(f"{path}: its receipt cannot be read: {error!r:.200}") from None
    opened, source = _open(by_name.resolve(path.parent / name if model is None else model))
    if opened.digest()() != digest:
        raise InvalidParamsError(f"{opened.path} is not the source of {path}: SHA-256 {opened.digest()()}, not {digest}")
    origin: dict[str, object] = {"source": digest, "model": name}
    sums = None
    if wanted is not None:
        origin["calibration"] = wanted
        sums = calibration_of(path, opened.path, wanted, calibration)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        again = Path(folder) / path.name
        _write(opened, source, again, settings, Rounding(settings.method, sums), origin)
        first, second = sha256_of_file(path), sha256_of_file(again)
    if first == second:
        return True, f"{path}: made again from {opened.path.name} with the same bytes (SHA-256 {first})"
    return False, f"{path}: made again from {opened.path.name} it has other bytes (SHA-256 {second}, not {first})"


def calibration_of(path: Path, source: Path, wanted: Mapping[str, object], given: str | os.PathLike[str] | None) -> Calibration:
    """The calibration that a receipt names. Raises InvalidParamsError: it is not found, or is another one."""
    made = wanted.get("made")
    beside = path.parent / str(wanted.get("file"))
    if given is not None or (wanted.get("file") is not None and beside.is_file()):
        found = Calibration.load(beside if given is None else given)
    elif isinstance(made, dict) and made.get("text") == "own":
        found = calibrate(source, tokens=made.get("tokens", 0), seed=made.get("seed", 0), gram=made.get("gram", False))
    else:
        raise InvalidParamsError(f"{path}: it was made with a calibration on a given text: name its file by --calibration", "calibration")
    if found.digest() != wanted.get("digest"):
        raise InvalidParamsError(f"{path}: it was made with another calibration (SHA-256 {wanted.get('digest')}, not {found.digest()})")
    return found


def free_path(out: str | os.PathLike[str]) -> Path:
    path = Path(out)
    if path.suffix != ".gguf":
        raise InvalidParamsError(f"out: {path} must end in .gguf", "out")
    if path.exists():
        raise InvalidParamsError(f"out: {path} exists: nothing is written over a file", "out")
    if not path.parent.is_dir():
        raise InvalidParamsError(f"out: there is no folder {path.parent}", "out")
    return path


def _open(path: Path) -> tuple[OpenModel, GgufSource]:
    opened = open_model(path)
    if opened.core.gguf is None:
        raise ModelFileError(
            f"{path} is a folder of safetensors: llmi.compress reads GGUF files so far (llama.cpp's convert_hf_to_gguf.py)", str(path)
        )
    if len(opened.files) != 1:
        raise ModelFileError(f"{path} has {len(opened.files)} parts: join them first (llama-gguf-split --merge)", str(path))
    return opened, GgufSource(Path(opened.files[0].path))


class _TypeName:
    """A type of a file, or one for study."""

    def parse(self, name: str, value: object) -> str:
        if isinstance(value, str) and study_type(value) is not None:
            return value
        if value not in TYPES:
            raise InvalidParamsError(f"{name} must be one of {', '.join(TYPES)}, or for study {FORM}, not {show(value)}", name)
        return str(value)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What a file is made by. tensors: patterns of names and their types, in the order in which they hold."""

    type: str
    method: str
    tensors: list[tuple[str, str]]

    @classmethod
    def of(cls, kind: object, method: object, tensors: Iterable[tuple[object, object]]) -> _Settings:
        """From a caller or a receipt. Raises InvalidParamsError."""
        rules = [(parse(Text(), "tensors", pattern), parse(_TypeName(), f"tensors[{pattern!r}]", wanted)) for pattern, wanted in tensors]
        return cls(parse(_TypeName(), "type", kind), parse(Choice(METHODS), "method", method), rules)


def _write(
    opened: OpenModel, source: GgufSource, target: Path, settings: _Settings, rounding: Rounding, origin: Mapping[str, object]
) -> Report:
    wanted, fallbacks = _wanted(source, settings)
    for kind in wanted.values():
        check_method(kind, settings.method)
    in_blocks = [tensor for tensor in source.tensors if wanted.get(tensor.name) in GRIDS]
    remarks = {
        tensor.name: how for tensor in in_blocks if (how := rounding.remark(tensor.name, tensor.shape, wanted[tensor.name])) is not None
    }
    made = [_made(opened, source, tensor, wanted.get(tensor.name), rounding) for tensor in source.tensors]
    entries = dict(source.entries)
    entries["general.file_type"] = number_entry(_FILE_TYPES.get(settings.type, 0))
    entries["general.quantization_version"] = number_entry(2)
    receipt = {"version": _VERSION, "made": "quantize", **origin, "settings": dataclasses.asdict(settings)}
    entries[RECEIPT] = text_entry(json.dumps(receipt, sort_keys=True))
    try:
        with progress(len(made), "tensors") as bar, made_ahead(made) as ahead:
            write_gguf(target, entries, ahead, partial(bar.update, 1))
    except OSError as error:
        raise InvalidParamsError(f"out: {target} cannot be written: {error.strerror}", "out") from None
    infos = {tensor.name: tensor.dtype for tensor in _core.model_tensors(opened.core, "")}
    return Report(
        path=str(target),
        bytes=target.stat().st_size,
        source_bytes=source.path.stat().st_size,
        tensors={old.name: wanted[old.name] for old in source.tensors if not _is_kept(old, wanted.get(old.name))},
        fallbacks=fallbacks,
        remarks=remarks,
        requantized=sorted(
            {infos[tensor.name] for tensor in source.tensors if tensor.name in wanted and tensor.type not in _FLOAT_NUMBERS}
        ),
    )


def _wanted(source: GgufSource, settings: _Settings) -> tuple[dict[str, str], dict[str, str]]:
    """({name: type}, {name: why it stays}). Raises InvalidParamsError for a pattern that matches nothing."""
    wanted: dict[str, str] = {}
    unused = {pattern for pattern, _ in settings.tensors}
    fallbacks: dict[str, str] = {}
    for tensor in source.tensors:
        if len(tensor.shape) < 2:
            continue
        chosen = settings.type if tensor.name.startswith("blk.") and tensor.name.endswith(".weight") else None
        for pattern, named in settings.tensors:
            if fnmatch.fnmatchcase(tensor.name, pattern):
                chosen = named
                unused.discard(pattern)
        size = _columns(chosen)
        if chosen is not None and tensor.shape[0] % size:
            instead = _INSTEAD.get(chosen)
            fits = instead is not None and tensor.shape[0] % GRIDS[instead].columns == 0
            outcome = f"becomes {instead}" if fits else "stays as it is"
            why = f"{chosen} has blocks of {size} columns, which do not divide its {tensor.shape[0]}"
            fallbacks[tensor.name] = f"{outcome}: {why}"
            chosen = instead if fits else None
        if chosen is not None:
            wanted[tensor.name] = chosen
    if unused:
        raise InvalidParamsError(f"tensors: no tensor of two dimensions has a name like {sorted(unused)[0]!r}", "tensors")
    return wanted, fallbacks


def _columns(kind: str | None) -> int:
    """That must divide a matrix's."""
    study = None if kind is None else study_type(kind)
    return study.columns if study is not None else GRIDS[kind].columns if kind in GRIDS else 1


def _is_kept(tensor: StoredTensor, kind: str | None) -> bool:
    """Whether a tensor that is to have this type has it already."""
    return kind is None or (study_type(kind) is None and _number(kind) == tensor.type)


def _number(kind: str) -> int:
    return GRIDS[kind].number if kind in GRIDS else FLOATS.get(kind, FLOATS["F32"])


def _made(opened: OpenModel, source: GgufSource, tensor: StoredTensor, kind: str | None, rounding: Rounding) -> NewTensor:
    if kind is None or _is_kept(tensor, kind):
        return NewTensor(tensor.name, tensor.shape, tensor.type, partial(source.bytes_of, tensor))
    return NewTensor(tensor.name, tensor.shape, _number(kind), _encoder(opened, tensor, kind, rounding))


def _encoder(opened: OpenModel, tensor: StoredTensor, kind: str, rounding: Rounding) -> Callable[[], bytes]:
    def make() -> bytes:
        values = _core.tensor_values(opened.core, "", tensor.name)
        if not np.isfinite(values).all():
            raise ModelFileError(f"{opened.path}: {tensor.name} holds NaN or infinity", str(opened.path))
        if (study := study_type(kind)) is not None:
            return study.rounded(rounding.method, values).tobytes()
        if kind == "F32":
            return values.tobytes()
        if kind == "F16":
            with np.errstate(over="ignore"):
                halves = values.astype(np.float16)
            if not np.isfinite(halves).all():
                raise InvalidParamsError(f"{tensor.name}: {np.abs(values).max():g} is beyond fp16", "type")
            return halves.tobytes()
        if kind == "BF16":
            bits = values.view(np.uint32)
            return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
        return rounding.bytes_of(GRIDS[kind], tensor.name, values)

    return make
