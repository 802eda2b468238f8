"""A GGUF file, or a folder, with smaller matrices, and the receipt that makes it again."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from llmi.base.gguf_entries import number_entry, text_entry
from llmi.base.progress import progress
from llmi.compress.budget import write_within
from llmi.compress.calibration import Calibration
from llmi.compress.chosen_types import Settings
from llmi.compress.column_scales import ScaledSource
from llmi.compress.converting import in_form_of
from llmi.compress.folders import source_of
from llmi.compress.gguf_file import NewTensor, StoredTensor, made_ahead, write_gguf
from llmi.compress.grids import GRIDS
from llmi.compress.made_files import FLOATS, RECEIPT, VERSION, Report, Source, float_bytes, free_path, origin_of
from llmi.compress.mixtures import MIXTURES
from llmi.compress.packed_folders import Pack, quantize_folder
from llmi.compress.preparing import OWN, calibrated, rotated
from llmi.compress.rewriting import float_tensor
from llmi.compress.rounding import Rounding
from llmi.compress.study import check_method, study_type
from llmi.errors import InvalidParamsError
from llmi.models import by_name

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
    type: str | None = None,
    method: str = "search",
    tensors: Mapping[str, str] | None = None,
    calibration: Calibration | str | os.PathLike[str] | None = None,
    like: str | None = None,
    rotate: int | None = None,
    awq: bool = False,
    budget_bytes: int | None = None,
) -> Report:
    """Writes a model with the matrices of the layers in a smaller type: of a GGUF file another one, with all metadata and the tokenizer; of
    a folder of safetensors a folder in the form of compressed-tensors, as llm-compressor writes it and transformers and vLLM load it.

    Equal inputs give equal bytes, on every machine. The file has a receipt, from which `llmi replay OUT -m MODEL` makes it again.

    Parameters
    ----------
    model : path or name
        A GGUF file of one part, or a folder of float safetensors. With a .gguf file as out the folder becomes one first: tensors have
        GGUF's names from then on.
    out : path
        A new .gguf file, or of a folder a new one with the same files beside the weights; it is written whole or not at all.
    type : {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "F16", "BF16", "F32"}, optional
        Of the matrices of the layers (default: Q4_0). Embedding, head and norms keep their types. Where 256 does not divide the columns, a
        K type becomes the one that llama.cpp chooses.
        Of a folder "W4A16" (default), "W4A16_ASYM" (with zero points) or "W8A16": 4 or 8 bits in groups of 128 columns, or of the larger of
        64 and 32 that divides the columns of all these matrices; one that 32 does not divide stays. Scales have the matrix's type.
        For study "int8-tensor", "int8-channel" or "int8-32" (2 to 8 bits): what such codes stand for, as F32: the file is not smaller.
    method : {"search", "absmax", "gptq", "kl"}
        "absmax": byte for byte the rule of ggml for Q4_0 to Q8_0, and of llm-compressor for folders. "search": scales and minima of the
        least squared error, which a calibration weighs by column. "gptq": the same, and each column makes up for the errors of those before
        it, by the products of a calibration. "kl", of "int8-tensor": values are cut where `kl_threshold` cuts the histogram of magnitudes,
        then "absmax".
    tensors : dict, optional
        Pattern of names, such as "blk.*.ffn_down.*": type. Of several that match, the last one holds, for all tensors of two dimensions or
        more; of a folder for the matrices of the layers.
    calibration : Calibration or path, optional
        Of `calibrate`, or a file of llama-imatrix; "own" makes one on the model's own text. "gptq" needs products of columns.
    like : str, optional
        Of GGUF files, as are awq and budget_bytes. Instead of a type, one of llama.cpp's mixtures, embedding and head included: "Q4_K_M",
        "Q4_K_S", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q5_K_S", "Q5_K_M", "Q6_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0" or "IQ4_NL".
    rotate : int, optional
        Seed of a rotation that comes first, as by `rotate`. A calibration is then "own", or one of the file that `rotate` makes.
    awq : bool
        Before rounding, columns that read much are multiplied and the layer before makes up for it (Lin et al. 2024, arXiv 2306.00978);
        the exponent is the best of nine for each. It needs a calibration.
    budget_bytes : int, optional
        Instead of a type or mixture: the bytes of the whole file. What each matrix costs alone is measured on text that the model writes,
        and bytes go where they win most; the file is then judged on other text of the model beside the largest mixture that fits, and is
        that mixture where it is not better. The report's remarks have both figures.

    Returns
    -------
    Report

    Raises
    ------
    InvalidParamsError
        An unknown type or method, a type beside a mixture, a pattern that no tensor matches, a calibration of another model or without what
        the method needs, an `out` that exists or cannot be written.
    ModelFileError
        No GGUF file of one part and no folder of floats, or no calibration; UnsupportedModelError names what a rotation or awq does not
        know of a graph, or what GGUF or the packed form cannot hold of a folder; TokenizerError of its tokenizer.

    Examples
    --------
    >>> from llmi.compress import quantize
    >>> print(quantize("model.gguf", "small.gguf", type="Q4_1", tensors={"*ffn_down*": "Q8_0"}))  # doctest: +SKIP
    """
    rules = [] if tensors is None else tensors.items()
    if Path(out).suffix != ".gguf":
        for name, given in {"like": like is not None, "budget_bytes": budget_bytes is not None, "awq": awq}.items():
            if given:
                raise InvalidParamsError(f"{name}: it is of GGUF files, and {Path(out)} is to be a folder", name)
        packing = Pack.of({"type": type, "method": method, "tensors": rules, "rotate": rotate})
        return quantize_folder(model, out, packing, calibration)
    settings = Settings.of(type, method, rules, like, rotate, awq, budget_bytes)
    settings.check(calibration)
    path, target = by_name.resolve(model), free_path(out)
    source = source_of(path)
    plain = origin_of(source, None, None)
    with in_form_of(source, target) as (gguf, names), rotated(gguf, settings.rotate, plain) as ready:
        sums = calibrated(ready, calibration, gram=settings.method == "gptq", is_rotated=settings.rotate is not None)
        is_of_ready = calibration == OWN or settings.rotate is not None
        origin = origin_of(ready if is_of_ready else source, sums, None if calibration == OWN else calibration) | plain
        sums = sums and sums.of_tensors(names)
        if settings.budget_bytes is None:
            report = write_quantized(ready, target, settings, sums, origin)
        else:
            report = write_within(ready, target, settings, sums, partial(write_quantized, origin=origin))
    report.source_bytes = source.num_bytes
    if settings.rotate is not None:
        report.requantized = quantized_types(source, source.tensors)
    return report


def write_quantized(
    source: Source, target: Path, settings: Settings, calibration: Calibration | None, origin: Mapping[str, object]
) -> Report:
    """Writes the file, with a receipt."""
    tensors = source.gguf.tensors
    wanted, fallbacks = settings.types(source, calibration is not None)
    for kind in wanted.values():
        check_method(kind, settings.method)
    exponents: dict[str, int] = {}
    by_rounding = calibration
    if settings.awq and calibration is not None:
        source = ScaledSource(source, wanted, calibration)
        exponents = source.exponents
        by_rounding = None if settings.method in ("absmax", "kl") else source.calibration
    rounding = Rounding(settings.method, by_rounding)
    in_blocks = [tensor for tensor in tensors if wanted.get(tensor.name) in GRIDS]
    remarks = {
        tensor.name: how for tensor in in_blocks if (how := rounding.remark(tensor.name, tensor.shape, wanted[tensor.name])) is not None
    }
    made = [_made(source, tensor, wanted.get(tensor.name), rounding) for tensor in tensors]
    entries = dict(source.gguf.entries)
    remarks |= {name: f"awq, exponent {eighths} / 8" for name, eighths in exponents.items() if name not in remarks}
    entries["general.file_type"] = number_entry(_file_type(settings, tensors, wanted))
    entries["general.quantization_version"] = number_entry(2)
    receipt = {"version": VERSION, "made": "quantize", **origin, "settings": settings.told()}
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
        requantized=quantized_types(source, wanted),
    )


def quantized_types(source: Source, names: Iterable[str]) -> list[str]:
    """Types of these tensors that are no floats."""
    return sorted({source.type_name(source.tensors[name]) for name in names if source.tensors[name].type not in FLOATS.values()})


def _file_type(settings: Settings, tensors: Iterable[StoredTensor], wanted: Mapping[str, str]) -> int:
    if settings.like is not None:
        return MIXTURES[settings.like][1]
    kind = settings.type
    if kind is None:  # what most numbers have
        counts: dict[str, int] = {}
        for tensor in tensors:
            if tensor.name in wanted:
                counts[wanted[tensor.name]] = counts.get(wanted[tensor.name], 0) + math.prod(tensor.shape)
        kind = max(counts, key=lambda name: counts[name], default="F32")
    return _FILE_TYPES.get(kind, 0)


def _is_kept(tensor: StoredTensor, kind: str | None) -> bool:
    """Whether a tensor that is to have this type has it already."""
    return kind is None or (study_type(kind) is None and _number(kind) == tensor.type)


def _number(kind: str) -> int:
    return GRIDS[kind].number if kind in GRIDS else FLOATS.get(kind, FLOATS["F32"])


def _made(source: Source, tensor: StoredTensor, kind: str | None, rounding: Rounding) -> NewTensor:
    changed = isinstance(source, ScaledSource) and source.changes(tensor.name)
    if changed and kind is None:
        return float_tensor(tensor.name, tensor.shape, tensor.type, partial(source.values, tensor.name))
    if kind is None or (_is_kept(tensor, kind) and not changed):
        return source.copied(tensor.name)
    return NewTensor(tensor.name, tensor.shape, _number(kind), partial(_encoded, source, tensor.name, kind, rounding))


def _encoded(source: Source, name: str, kind: str, rounding: Rounding) -> bytes:
    values = source.values(name)
    if (study := study_type(kind)) is not None:
        return study.rounded(rounding.method, values).tobytes()
    if kind in FLOATS:
        return float_bytes(values, FLOATS[kind], name, "type")
    return rounding.bytes_of(GRIDS[kind], name, values)
