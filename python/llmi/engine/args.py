"""What an engine is built with: LLM's arguments, whether they agree with each other, and what the core gets."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from llmi import _core
from llmi.base.kinds import Listed, Real, parse
from llmi.base.log import log
from llmi.engine.numerics_id import ROUNDED
from llmi.engine.options import DEFAULT_GPU_MEMORY_UTILIZATION, ENGINE
from llmi.errors import DeviceError, UnsupportedCombinationError
from llmi.hooks.runners import BatchRunner

_WIDE_BITS = 16
#: The type of stored tensors that a dtype makes of all weights.
_WEIGHT_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclasses.dataclass(frozen=True, slots=True)
class RequestInfo:
    """A waiting request, as a scheduling policy sees it.

    Attributes
    ----------
    request_id : str
    priority : int
    arrival_time_s : float
        On the steady clock of `now_s`.
    num_prompt_tokens : int
    num_tokens : int
        Of prompt and output so far.
    max_new_tokens : int
        That may still come.
    num_preemptions : int

    Examples
    --------
    >>> class ShortestPrompt:
    ...     def key(self, request: RequestInfo, now_s: float) -> tuple[float, ...]:
    ...         return (request.num_prompt_tokens,)
    >>> ShortestPrompt().key(RequestInfo("0", 0, 1.5, 12, 12, 64, 0), now_s=2.0)
    (12,)
    """

    request_id: str
    priority: int
    arrival_time_s: float
    num_prompt_tokens: int
    num_tokens: int
    max_new_tokens: int
    num_preemptions: int


class SchedulingPolicy(Protocol):
    """Orders the waiting requests. One that others have overtaken 64 times goes first, whatever its key.

    Examples
    --------
    >>> class ShortestPrompt:
    ...     def key(self, request, now_s):
    ...         return (request.num_prompt_tokens,)
    >>> with LLM(llm.model_info.path, scheduling_policy=ShortestPrompt(), max_num_seqs=1, kv_cache_memory_bytes=1 << 24) as short:
    ...     texts = short.generate(["a long prompt", "one"], max_tokens=8, seed=1).texts
    >>> texts == llm.generate(["a long prompt", "one"], max_tokens=8, seed=1).texts
    True
    """

    def key(self, request: RequestInfo, now_s: float) -> tuple[float, ...]:
        """Smallest first. An exception ends that request alone."""
        ...


_KEY = Listed(Real(-math.inf, math.inf, "a number"), "a tuple of numbers", 64)


class PolicyRunner:
    """Between the core and a policy object."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy

    def key(self, request: _core.PolicyRequest, now_s: float) -> list[float]:
        """The key's floats."""
        info = RequestInfo(
            request_id=str(request.id),
            priority=request.priority,
            arrival_time_s=request.arrival_time_s,
            num_prompt_tokens=request.prompt_len,
            num_tokens=request.num_tokens,
            max_new_tokens=request.max_new_tokens,
            num_preemptions=request.num_preemptions,
        )
        parsed: list[float] = parse(_KEY, "the policy's key", self._policy.key(info, now_s))
        return parsed


@dataclasses.dataclass(frozen=True)
class EngineArgs:
    """What an engine is built with: those of LLM's arguments that shape the engine, each in its plain form.

    Fields are the arguments that Python itself reads; `passed_on` holds those that the core takes as they are. LLM keeps it for drafts,
    replays and reports.
    """

    device: str
    dtype: str
    quantization: str | None
    activation_bits: int | None  # None: 16 where layers are quantised
    kv_cache_dtype: str  # with attention_dtype taken into account
    attention_dtype: str
    linear_dtype: str
    deterministic: bool
    max_model_len: int | None
    max_num_batched_tokens: int
    kv_cache_memory_bytes: int | None
    gpu_memory_utilization: float
    enable_chunked_prefill: bool
    scheduling_policy: str | SchedulingPolicy
    hf_overrides: str  # changes to the model's config, as JSON; empty: none
    batch_runner: BatchRunner | None
    layers: Sequence[int]  # only these of the model; empty: all
    passed_on: Mapping[str, object]

    @classmethod
    def of(cls, given: Mapping[str, Any], *, batch_runner: BatchRunner | None, layers: Sequence[int]) -> EngineArgs:
        """From LLM's arguments by name, each in its plain form."""
        values = {**given, "kv_cache_dtype": with_attention_dtype(given["kv_cache_dtype"], given["attention_dtype"])}
        return cls(
            batch_runner=batch_runner,
            layers=layers,
            passed_on={name: values[name] for name, option in ENGINE.items() if option.passed_on},
            **{field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in ENGINE},
        )

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
                f"activation_bits = {self.activation_bits} is for quantised layers, and dtype = {self.dtype!r} makes floats of all weights,"
                " whose inputs are not rounded: leave one of them out",
                "activation_bits",
                "dtype",
            )
        if self.linear_dtype in ROUNDED and self.device_kind not in ROUNDED[self.linear_dtype][1]:
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

    def for_tensors(self, tensors: Iterable[_core.TensorInfo]) -> EngineArgs:
        """With what "auto" means for a model of these tensors.

        On CUDA layers of bf16 or fp16 multiply on tensor cores, and a model of bf16 has a bf16 cache, unless "float32" was given. Models
        with quantised weights keep the CPU's bits.
        """
        if self.device_kind == "cpu" or not self.deterministic or self.quantization is not None:
            return self
        types = {tensor.dtype for tensor in tensors if len(tensor.shape) > 1} if self.dtype == "auto" else {_WEIGHT_TYPES[self.dtype]}
        if not types <= {*_WEIGHT_TYPES.values()}:
            return self
        linear_dtype, kv_cache_dtype = self.linear_dtype, self.kv_cache_dtype
        if linear_dtype == "auto":
            narrow = types - {"F32"}
            linear_dtype = "bf16" if narrow == {"BF16"} else "fp16" if narrow == {"F16"} else "auto"
        if kv_cache_dtype == "auto" and self.attention_dtype == "auto" and linear_dtype == "bf16" and "BF16" in types:
            kv_cache_dtype = "bfloat16"
        passed_on = {**self.passed_on, "linear_dtype": linear_dtype}
        return dataclasses.replace(self, linear_dtype=linear_dtype, kv_cache_dtype=kv_cache_dtype, passed_on=passed_on)

    @property
    def needs_quantized_layers(self) -> bool:
        """Whether 16-bit activations were given, and not only the default."""
        return self.activation_bits == _WIDE_BITS

    @property
    def resolved_device(self) -> str:
        """cpu, cuda, or emulated: the CUDA kernels run by the host, for tests, where LLMI_EMULATE_CUDA=1."""
        if os.environ.get("LLMI_EMULATE_CUDA") == "1" and self.device == "cuda":
            return "emulated"
        return "cpu" if self.device == "auto" else self.device  # auto: the GPU, once the kernels have run on one

    @property
    def device_kind(self) -> str:
        """As a numerics id has it: cpu or cuda."""
        return "cpu" if self.resolved_device == "cpu" else "cuda"

    @property
    def kv_type(self) -> str:
        """float16, bfloat16, float32, int8 or fp8."""
        if self.kv_cache_dtype != "auto":
            return self.kv_cache_dtype
        return "float32" if self.dtype == "float32" else "float16"

    def no_effect(self) -> dict[str, Any]:
        """The given arguments that have no effect on this device."""
        if self.device_kind == "cpu" and self.gpu_memory_utilization != DEFAULT_GPU_MEMORY_UTILIZATION:
            log.info(
                "gpu_memory_utilization = %g does nothing on the CPU: its cache is bounded by kv_cache_memory_bytes",
                self.gpu_memory_utilization,
            )
            return {"gpu_memory_utilization": self.gpu_memory_utilization}
        return {}

    def for_core(self) -> dict[str, object]:
        """The core's options by name (csrc/engine/options.h); None is the core's own default."""
        policy = self.scheduling_policy
        return {
            **self.passed_on,
            "device": self.resolved_device,
            "cublas_lt": self._cublas_lt(),
            "dtype": self.quantization or self.dtype,
            "kv_cache_dtype": self.kv_type,
            "scheduling_policy": policy if isinstance(policy, str) else "custom",
            "policy_hook": None if isinstance(policy, str) else PolicyRunner(policy),
            "batch_hook": self.batch_runner,
            "layers": list(self.layers),
            "audit_each_step": os.environ.get("LLMI_AUDIT") == "1",
            "small_heads": os.environ.get("LLMI_SMALL_HEADS") != "0",
        }

    def _cublas_lt(self) -> str | None:
        if self.deterministic:
            return None
        from llmi.engine.cublas import find_cublas_lt  # noqa: PLC0415 (CUDA alone needs it)

        return find_cublas_lt()

    def same_bits(self) -> dict[str, Any]:
        """LLM's arguments for another engine of the same model that computes the same bits."""
        return {
            "device": self.device,
            "dtype": self.dtype,
            "quantization": self.quantization,
            "activation_bits": self.activation_bits,
            "kv_cache_dtype": self.kv_cache_dtype,
            "attention_dtype": self.attention_dtype,
            "linear_dtype": self.linear_dtype,
            "deterministic": self.deterministic,
            "hf_overrides": json.loads(self.hf_overrides or "{}"),
        }


def with_attention_dtype(kv_cache_dtype: str, attention_dtype: str) -> str:
    """The kv_cache_dtype that goes with attention_dtype: bf16 dots read a cache of their own type, fp32 arithmetic all others."""
    if attention_dtype == "bf16" and kv_cache_dtype == "auto":
        return "bfloat16"
    if attention_dtype != "auto" and (attention_dtype == "bf16") != (kv_cache_dtype == "bfloat16"):
        raise UnsupportedCombinationError(
            f"attention_dtype = {attention_dtype!r} does not read kv_cache_dtype = {kv_cache_dtype!r}: bf16 goes with bfloat16, float32"
            " with all others",
            "attention_dtype",
            "kv_cache_dtype",
        )
    return kv_cache_dtype
