"""The numerics id: the name of everything that may move a bit besides model file, prompt, parameters and seed."""

from __future__ import annotations

import re
from typing import Any, Protocol

from llmi.errors import UnsupportedCombinationError

NUMERICS_VERSION = 3
_CUBLAS = "cublaslt"
_NARROW_BITS, _WIDE_BITS, _WIDE = 8, 16, "i16"
#: linear_dtype that rounds activations: the type of weights it is for, and what a numerics id calls it on the devices that have it.
ROUNDED = {"bf16": ("bf16", {"cpu": "bf16dot", "cuda": "bf16mma"}), "fp16": ("f16", {"cuda": "f16mma"})}


class Arithmetic(Protocol):
    """The arguments of an engine that its numerics id depends on; EngineArgs has them."""

    @property
    def dtype(self) -> str: ...  # as given
    @property
    def activation_bits(self) -> int | None: ...  # None: 16 where layers are quantised
    @property
    def needs_quantized_layers(self) -> bool: ...
    @property
    def linear_dtype(self) -> str: ...
    @property
    def deterministic(self) -> bool: ...
    @property
    def device_kind(self) -> str: ...  # cpu or cuda
    @property
    def kv_type(self) -> str: ...


def numerics_id(weight_types: str, has_quantized_layers: bool, args: Arithmetic, rope_choice: str = "") -> str:
    """The id of an engine with these arguments, whose weights are of these types. rope_choice: which of a model's rotary tables it took.

    Raises UnsupportedCombinationError where an argument is for weights that the model does not have.
    """
    quantized = _has_quantized(weight_types)
    if args.needs_quantized_layers and not has_quantized_layers:
        raise UnsupportedCombinationError(
            f"activation_bits = {args.activation_bits} is for quantised layers, and this model's weights are {weight_types}, as dtype ="
            f" {args.dtype!r} has them: their inputs are not rounded; leave activation_bits out, or give quantization = 'q8_0' or 'q4_0'",
            "activation_bits",
            "dtype",
        )
    activations = "i8b32b16" if quantized else "f32"
    if has_quantized_layers and args.activation_bits != _NARROW_BITS:
        activations = _WIDE
    kind = args.device_kind
    if args.linear_dtype in ROUNDED or not args.deterministic:
        rounded = args.linear_dtype in ROUNDED
        option, value = ("linear_dtype", repr(args.linear_dtype)) if rounded else ("deterministic", "False")
        wanted = [args.linear_dtype] if rounded else [*ROUNDED]
        if not {ROUNDED[dtype][0] for dtype in wanted} & {*weight_types.split("+")}:
            dtypes = " or ".join(repr({"bf16": "bfloat16", "fp16": "float16"}[dtype]) for dtype in wanted)
            raise UnsupportedCombinationError(
                f"{option} = {value} is for {' or '.join(wanted)} weights, this model has {weight_types} (dtype = {dtypes} keeps or makes"
                " them)",
                option,
                "dtype",
            )
        name = ROUNDED[args.linear_dtype][1][kind] if args.deterministic else _CUBLAS
        activations = f"{activations}+{name}" if quantized else name
    kv = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "int8": "i8", "fp8": "f8"}[args.kv_type]
    attention = ROUNDED["bf16"][1][kind] if args.kv_type == "bfloat16" else "f32"
    return f"llmi{NUMERICS_VERSION}-{kind}-w:{weight_types}-a:{activations}-kv:{kv}-attn:{attention}" + (
        f"-rope:{rope_choice}" if rope_choice else ""
    )


def without_degree(numerics_id: str) -> str:
    """An id as it is now: earlier ones ended with the number of ranks, which moves no bit."""
    return re.sub(r"-tp1(?=-|$)", "", numerics_id)


def dots_of_a_weight(weight_types: str, has_quantized_layers: bool, activation_bits: int | None) -> int:
    """Integer products that a weight takes with each row of its layer's input: one for each byte of a code; 0 where layers read floats."""
    if has_quantized_layers and activation_bits != _NARROW_BITS:
        return 2
    return int(_has_quantized(weight_types))


def _has_quantized(weight_types: str) -> bool:
    return any(name.startswith("q") for name in weight_types.split("+"))


def where_it_runs(numerics_id: str) -> dict[str, Any]:
    """LLM's arguments for an engine that has the bits of one with this id, besides the types of weights and cache.

    For receipts alone: a file of an earlier run has the id and not the arguments. An LLM has its arguments: see EngineArgs.same_bits.
    """
    activations = numerics_id.partition("-a:")[2].partition("-kv:")[0].split("+")
    deterministic = promises_bits(numerics_id)
    plain = "float32" if deterministic else "auto"
    return {
        "device": "cuda" if "-cuda-" in numerics_id else "cpu",
        "activation_bits": _WIDE_BITS if _WIDE in activations else _NARROW_BITS,
        "linear_dtype": next((dtype for dtype, (_, names) in ROUNDED.items() if set(names.values()) & set(activations)), plain),
        "attention_dtype": "float32" if "-attn:f32" in numerics_id else "bf16",
        "deterministic": deterministic,
    }


def promises_bits(numerics_id: str) -> bool:
    """Whether the tokens of an engine with this id are a function of model, prompt, parameters and seed. For receipts of outputs."""
    return _CUBLAS not in numerics_id
