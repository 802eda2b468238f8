"""A GGUF file with smaller matrices, and the receipt that makes it again."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from llmi.base.kinds import Choice, Text, parse, show
from llmi.base.progress import progress
from llmi.compress.calibration import Calibration
from llmi.compress.gguf_file import NewTensor, StoredTensor, made_ahead, number_entry, text_entry, write_gguf
from llmi.compress.grids import GRIDS
from llmi.compress.made_files import FLOATS, RECEIPT, VERSION, Report, Source, float_bytes, free_path, loaded, origin_of
from llmi.compress.rounding import METHODS, Rounding
from llmi.compress.study import FORM, check_method, study_type
from llmi.errors import InvalidParamsError
from llmi.models import by_name

#: What `llmi.compress.quantize` writes a tensor as.
TYPES = (*GRIDS, *FLOATS)
#: What a tensor becomes whose columns blocks of 256 do not divide, as llama.cpp chooses.
_INSTEAD = {"Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
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
    settings = Settings.of(type, method, [] if tensors is None else tensors.items())
    path, target = by_name.resolve(model), free_path(out)
    sums = loaded(calibration)
    rounding, source = Rounding(settings.method, sums), Source(path)
    return write_quantized(source, target, settings, rounding, origin_of(source, sums, calibration))


class _TypeName:
    """A type of a file, or one for study."""

    def parse(self, name: str, value: object) -> str:
        if isinstance(value, str) and study_type(value) is not None:
            return value
        if value not in TYPES:
            raise InvalidParamsError(f"{name} must be one of {', '.join(TYPES)}, or for study {FORM}, not {show(value)}", name)
        return str(value)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a file is made by. tensors: patterns of names and their types, in the order in which they hold."""

    type: str
    method: str
    tensors: list[tuple[str, str]]

    @classmethod
    def of(cls, kind: object, method: object, tensors: Iterable[tuple[object, object]]) -> Settings:
        """From a caller or a receipt. Raises InvalidParamsError."""
        rules = [(parse(Text(), "tensors", pattern), parse(_TypeName(), f"tensors[{pattern!r}]", wanted)) for pattern, wanted in tensors]
        return cls(parse(_TypeName(), "type", kind), parse(Choice(METHODS), "method", method), rules)


def write_quantized(source: Source, target: Path, settings: Settings, rounding: Rounding, origin: Mapping[str, object]) -> Report:
    """Writes the file, with a receipt."""
    tensors = source.gguf.tensors
    wanted, fallbacks = _wanted(tensors, settings)
    for kind in wanted.values():
        check_method(kind, settings.method)
    in_blocks = [tensor for tensor in tensors if wanted.get(tensor.name) in GRIDS]
    remarks = {
        tensor.name: how for tensor in in_blocks if (how := rounding.remark(tensor.name, tensor.shape, wanted[tensor.name])) is not None
    }
    made = [_made(source, tensor, wanted.get(tensor.name), rounding) for tensor in tensors]
    entries = dict(source.gguf.entries)
    entries["general.file_type"] = number_entry(_FILE_TYPES.get(settings.type, 0))
    entries["general.quantization_version"] = number_entry(2)
    receipt = {"version": VERSION, "made": "quantize", **origin, "settings": dataclasses.asdict(settings)}
    entries[RECEIPT] = text_entry(json.dumps(receipt, sort_keys=True))
    try:
        with progress(len(made), "tensors") as bar, made_ahead(made) as ahead:
            write_gguf(target, entries, ahead, partial(bar.update, 1))
    except OSError as error:
        raise InvalidParamsError(f"out: {target} cannot be written: {error.strerror}", "out") from None
    return Report(
        path=str(target),
        bytes=target.stat().st_size,
        source_bytes=source.gguf.path.stat().st_size,
        tensors={old.name: wanted[old.name] for old in tensors if not _is_kept(old, wanted.get(old.name))},
        fallbacks=fallbacks,
        remarks=remarks,
        requantized=sorted(
            {source.type_name(tensor) for tensor in tensors if tensor.name in wanted and tensor.type not in FLOATS.values()}
        ),
    )


def _wanted(tensors: Iterable[StoredTensor], settings: Settings) -> tuple[dict[str, str], dict[str, str]]:
    """({name: type}, {name: why it stays}). Raises InvalidParamsError for a pattern that matches nothing."""
    wanted: dict[str, str] = {}
    unused = {pattern for pattern, _ in settings.tensors}
    fallbacks: dict[str, str] = {}
    for tensor in tensors:
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


def _made(source: Source, tensor: StoredTensor, kind: str | None, rounding: Rounding) -> NewTensor:
    if kind is None or _is_kept(tensor, kind):
        return source.copied(tensor.name)
    return NewTensor(tensor.name, tensor.shape, _number(kind), partial(_encoded, source, tensor.name, kind, rounding))


def _encoded(source: Source, name: str, kind: str, rounding: Rounding) -> bytes:
    values = source.values(name)
    if (study := study_type(kind)) is not None:
        return study.rounded(rounding.method, values).tobytes()
    if kind in FLOATS:
        return float_bytes(values, FLOATS[kind], name, "type")
    return rounding.bytes_of(GRIDS[kind], name, values)
