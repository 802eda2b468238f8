"""Arguments of LLM: checked here, and what they mean for the numerics id."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from llmi import _core
from llmi._engine_options import DEFAULT_GPU_MEMORY_UTILIZATION
from llmi._errors import DeviceError, UnsupportedCombinationError
from llmi._hooks import BatchRunner
from llmi._kinds import Listed, Real, parse
from llmi._log import log

NUMERICS_VERSION = 3
# In a numerics id:
_CUBLAS = "cublaslt"
_WIDE_BITS, _WIDE = 16, "i16"
#: linear_dtype that rounds activations: the type of weights it is for, and what a numerics id calls it on the devices that have it.
_ROUNDED = {"bf16": ("bf16", {"cpu": "bf16dot", "cuda": "bf16mma"}), "fp16": ("f16", {"cuda": "f16mma"})}


@dataclasses.dataclass(frozen=True, slots=True)
class RequestInfo:
    """A waiting request, as a scheduling policy sees it. `arrival_time_s` and `now_s` share a steady clock."""

    request_id: str
    priority: int
    arrival_time_s: float
    num_prompt_tokens: int
    num_tokens: int
    max_new_tokens: int
    num_preemptions: int


class SchedulingPolicy(Protocol):
    """Orders the waiting requests. One that others have overtaken 64 times goes first, whatever its key."""

    def key(self, request: RequestInfo, now_s: float) -> tuple[float, ...]:
        """Smallest first. An exception ends that request alone."""
        ...


_KEY = Listed(Real(-math.inf, math.inf, "a number"), "a tuple of numbers", 64)


class PolicyRunner:
    """Between the core and a policy object."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy

    def key(self, request_id: int, *fields: Any) -> list[float]:
        """The key's floats."""
        priority, arrival_time_s, num_prompt_tokens, num_tokens, max_new_tokens, num_preemptions, now_s = fields
        info = RequestInfo(str(request_id), priority, arrival_time_s, num_prompt_tokens, num_tokens, max_new_tokens, num_preemptions)
        parsed: list[float] = parse(_KEY, "the policy's key", self._policy.key(info, now_s))
        return parsed


@dataclasses.dataclass
class EngineArgs:
    """Engine arguments after LLM's own handling of model, tokenizer and templates."""

    device: str
    dtype: str
    quantization: str | None
    activation_bits: int
    prefers_activation_bits: bool  # 16 of them are for quantised layers; a model that has none runs all the same
    kv_cache_dtype: str
    linear_dtype: str
    deterministic: bool
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_cache_memory_bytes: int | None
    gpu_memory_utilization: float
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    waiting_served_ratio: float | None
    scheduling_policy: Any
    num_threads: int | None
    seed: int | None
    batch_runner: BatchRunner | None
    layers: Sequence[int]  # of the model; empty: all
    overrides: str  # of the model's config, as JSON; empty: none

    #: Those that come from LLM's arguments as they are.
    OPTIONS: ClassVar[tuple[str, ...]] = (
        "device", "dtype", "quantization", "activation_bits", "kv_cache_dtype", "linear_dtype", "deterministic", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size",
        "kv_cache_memory_bytes", "gpu_memory_utilization", "enable_chunked_prefill", "enable_prefix_caching", "waiting_served_ratio", "scheduling_policy", "num_threads", "seed",
    )  # fmt: skip

    def validate(self) -> None:
        """Raise InvalidParamsError or DeviceError for values that contradict each other; each was checked for itself before."""
        if self.resolved_device == "cuda" and (why := _core.system_info()["why_no_cuda"]):
            raise DeviceError(why)
        if self.quantization is not None and self.dtype != "auto":
            raise UnsupportedCombinationError(
                f"dtype = {self.dtype!r} keeps weights as floats: give quantization or dtype, not both", "quantization", "dtype"
            )
        if self.needs_quantized_layers and self.dtype != "auto":
            raise UnsupportedCombinationError(
                f"activation_bits = {self.activation_bits} is for quantised layers, and dtype = {self.dtype!r} makes floats of all weights, whose"
                " inputs are not rounded: leave one of them out",
                "activation_bits",
                "dtype",
            )
        if self.linear_dtype in _ROUNDED and self._device_kind not in _ROUNDED[self.linear_dtype][1]:
            raise UnsupportedCombinationError(
                f"linear_dtype = {self.linear_dtype!r} multiplies on a GPU's tensor cores: it needs device = 'cuda'",
                "linear_dtype",
                "device",
            )
        if not self.deterministic and self.resolved_device == "cpu":
            raise UnsupportedCombinationError(
                "deterministic = False lets a GPU's cuBLASLt multiply: it needs device = 'cuda'", "deterministic", "device"
            )
        if not self.deterministic and self.linear_dtype == "float32":
            raise UnsupportedCombinationError(
                "deterministic = False rounds the input of layers of bf16 or fp16 weights, linear_dtype = 'float32' does not",
                "deterministic",
                "linear_dtype",
            )
        if not self.enable_chunked_prefill and self.max_model_len is not None and self.max_model_len > self.max_num_batched_tokens:
            raise UnsupportedCombinationError(
                "without chunked prefill, max_num_batched_tokens must be at least max_model_len",
                "enable_chunked_prefill",
                "max_num_batched_tokens",
            )

    @property
    def needs_quantized_layers(self) -> bool:
        """Whether somebody asked for 16-bit activations, and did not only prefer them."""
        return self.activation_bits == _WIDE_BITS and not self.prefers_activation_bits

    @property
    def resolved_device(self) -> str:
        """cpu, cuda, or emulated: the CUDA kernels run by the host, for tests, where LLMI_EMULATE_CUDA=1."""
        if os.environ.get("LLMI_EMULATE_CUDA") == "1" and self.device == "cuda":
            return "emulated"
        return "cpu" if self.device == "auto" else self.device  # auto: the GPU, once the kernels have run on one

    @property
    def _device_kind(self) -> str:
        """As a numerics id has it: cpu or cuda."""
        return "cpu" if self.resolved_device == "cpu" else "cuda"

    @property
    def _core_device(self) -> str:
        if not self.deterministic:
            from llmi._cublas import find_cublas_lt

            return f"{self.resolved_device}+cublaslt:{find_cublas_lt()}"
        return self.resolved_device + (f"+{self.linear_dtype}" if self.linear_dtype in _ROUNDED else "")

    @property
    def kv_type(self) -> str:
        """float16, bfloat16, float32, int8 or fp8."""
        if self.kv_cache_dtype != "auto":
            return self.kv_cache_dtype
        return "float32" if self.dtype == "float32" else "float16"

    def no_effect(self) -> dict[str, Any]:
        """What was given and does nothing on this device."""
        if self._device_kind == "cpu" and self.gpu_memory_utilization != DEFAULT_GPU_MEMORY_UTILIZATION:
            log.info(
                "gpu_memory_utilization = %g does nothing on the CPU: its cache is bounded by kv_cache_memory_bytes",
                self.gpu_memory_utilization,
            )
            return {"gpu_memory_utilization": self.gpu_memory_utilization}
        return {}

    def for_core(self) -> dict[str, Any]:
        """Keyword arguments of the core's Engine."""
        return {
            "device": self._core_device, "dtype": self.quantization or self.dtype, "activation_bits": self.activation_bits, "kv_dtype": self.kv_type, "isa": "", "num_threads": self.num_threads or 0, "policy": self.scheduling_policy if isinstance(self.scheduling_policy, str) else "custom",
            "max_num_seqs": self.max_num_seqs, "max_num_batched_tokens": self.max_num_batched_tokens, "chunked_prefill": self.enable_chunked_prefill,
            "block_size": self.block_size, "kv_cache_memory_bytes": self.kv_cache_memory_bytes or 0, "max_model_len": self.max_model_len or 0,
            "gpu_memory_utilization": float(self.gpu_memory_utilization),
            "prefix_caching": bool(self.enable_prefix_caching), "waiting_served_ratio": float(self.waiting_served_ratio or 0.0), "audit_each_step": os.environ.get("LLMI_AUDIT") == "1",
            "policy_object": None if isinstance(self.scheduling_policy, str) else PolicyRunner(self.scheduling_policy),
            "batch_object": self.batch_runner, "layers": list(self.layers), "overrides": self.overrides,
        }  # fmt: skip


def with_attention_dtype(kv_cache_dtype: str, attention_dtype: str) -> str:
    """The kv_cache_dtype that attention_dtype asks for: bf16 dots read a cache of their own type, fp32 arithmetic all others."""
    if attention_dtype == "bf16" and kv_cache_dtype == "auto":
        return "bfloat16"
    if attention_dtype != "auto" and (attention_dtype == "bf16") != (kv_cache_dtype == "bfloat16"):
        raise UnsupportedCombinationError(
            f"attention_dtype = {attention_dtype!r} does not read kv_cache_dtype = {kv_cache_dtype!r}: bf16 goes with bfloat16, float32 with all others",
            "attention_dtype",
            "kv_cache_dtype",
        )
    return kv_cache_dtype


def numerics_id(weight_types: str, has_quantized_layers: bool, args: EngineArgs) -> str:
    """All that may move a bit besides model file, prompt, parameters and seed.

    Raises UnsupportedCombinationError where an argument is for weights that the model does not have.
    """
    quantized = any(name.startswith("q") for name in weight_types.split("+"))
    if args.needs_quantized_layers and not has_quantized_layers:
        raise UnsupportedCombinationError(
            f"activation_bits = {args.activation_bits} is for quantised layers, and this model's weights are {weight_types}, as dtype = {args.dtype!r}"
            " has them: their inputs are not rounded; leave activation_bits out, or give quantization = 'q8_0' or 'q4_0'",
            "activation_bits",
            "dtype",
        )
    activations = "i8b32b16" if quantized else "f32"
    if has_quantized_layers and args.activation_bits == _WIDE_BITS:
        activations = _WIDE
    kind = args._device_kind
    if args.linear_dtype in _ROUNDED or not args.deterministic:
        rounded = args.linear_dtype in _ROUNDED
        option, value = ("linear_dtype", repr(args.linear_dtype)) if rounded else ("deterministic", "False")
        wanted = [args.linear_dtype] if rounded else [*_ROUNDED]
        if not {_ROUNDED[dtype][0] for dtype in wanted} & {*weight_types.split("+")}:
            dtypes = " or ".join(repr({"bf16": "bfloat16", "fp16": "float16"}[dtype]) for dtype in wanted)
            raise UnsupportedCombinationError(
                f"{option} = {value} is for {' or '.join(wanted)} weights, this model has {weight_types} (dtype = {dtypes} keeps or makes them)",
                option,
                "dtype",
            )
        name = _ROUNDED[args.linear_dtype][1][kind] if args.deterministic else _CUBLAS
        activations = f"{activations}+{name}" if quantized else name
    kv = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "int8": "i8", "fp8": "f8"}[args.kv_type]
    attention = _ROUNDED["bf16"][1][kind] if args.kv_type == "bfloat16" else "f32"
    return f"llmi{NUMERICS_VERSION}-{kind}-w:{weight_types}-a:{activations}-kv:{kv}-attn:{attention}-tp1"


def _activations(numerics_id: str) -> list[str]:
    return numerics_id.partition("-a:")[2].partition("-kv:")[0].split("+")


def dots_of_a_weight(numerics_id: str) -> int:
    """Integer products that a weight takes with each row of its layer's input: one for each byte; 0 where layers read floats."""
    activations = _activations(numerics_id)
    return 2 if _WIDE in activations else 1 if any(name.startswith("i8") for name in activations) else 0


def where_it_runs(numerics_id: str) -> dict[str, Any]:
    """Arguments of an engine that has the bits of one with this id, besides the types of weights and cache."""
    activations = _activations(numerics_id)
    return {
        "device": "cuda" if "-cuda-" in numerics_id else "cpu",
        "activation_bits": _WIDE_BITS if _WIDE in activations else 8,
        "linear_dtype": next((dtype for dtype, (_, names) in _ROUNDED.items() if set(names.values()) & set(activations)), "auto"),
        "deterministic": promises_bits(numerics_id),
    }


def promises_bits(numerics_id: str) -> bool:
    """Whether the tokens of an engine with this id are a function of model, prompt, parameters and seed."""
    return _CUBLAS not in numerics_id
