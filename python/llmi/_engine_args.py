"""Arguments of LLM: checked here, and what they mean for the numerics id."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from llmi import _core
from llmi._errors import DeviceError, InvalidParamsError, ModelFileError, UnsupportedCombinationError
from llmi._hooks import BatchRunner
from llmi._input_file import is_there, read_json
from llmi._inspect import KV_CACHE_DTYPES
from llmi._request import NO_EFFECT

NUMERICS_VERSION = 3
# In a numerics id:
_CUBLAS = "cublaslt"
#: linear_dtype that rounds activations: the type of weights it is for, and what a numerics id calls it on the devices that have it.
_ROUNDED = {"bf16": ("bf16", {"cpu": "bf16dot", "cuda": "bf16mma"}), "fp16": ("f16", {"cuda": "f16mma"})}
DEFAULT_GPU_MEMORY_UTILIZATION = 0.9
HONOURED = (
    "model", "tokenizer", "revision", "device", "dtype", "quantization", "kv_cache_dtype", "attention_dtype", "linear_dtype", "seed", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "block_size", "kv_cache_memory_bytes", "gpu_memory_utilization", "enable_chunked_prefill", "scheduling_policy", "speculative_config", "deterministic", "enable_prefix_caching", "waiting_served_ratio", "batch_processors", "chat_template", "generation_config", "num_threads",
)  # fmt: skip
POLICIES = ("fcfs", "priority", "shortest_remaining", "longest_prefix", "prefill_first", "static")
#: Arguments of later versions: refused by name unless at the value that this version has anyway.
REFUSED: dict[str, Any] = {"tensor_parallel_size": 1}


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


class PolicyRunner:
    """Between the core and a policy object."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy

    def key(self, request_id: int, *fields: Any) -> list[float]:
        """The key's floats."""
        priority, arrival_time_s, num_prompt_tokens, num_tokens, max_new_tokens, num_preemptions, now_s = fields
        info = RequestInfo(str(request_id), priority, arrival_time_s, num_prompt_tokens, num_tokens, max_new_tokens, num_preemptions)
        return [float(value) for value in self._policy.key(info, now_s)]


@dataclasses.dataclass
class EngineArgs:
    """Engine arguments after LLM's own handling of model, tokenizer and templates."""

    device: str
    dtype: str
    quantization: str | None
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

    def validate(self) -> None:
        """Raise InvalidParamsError or DeviceError for the first value out of range."""
        if self.device not in ("auto", "cpu", "cuda"):
            raise InvalidParamsError(f"device must be auto, cpu or cuda, not {self.device!r}", "device")
        if self.resolved_device == "cuda" and (why := _core.system_info()["why_no_cuda"]):
            raise DeviceError(why)
        for name, allowed in (("dtype", ("auto", "float32", "float16", "bfloat16")), ("kv_cache_dtype", ("auto", *KV_CACHE_DTYPES)), ("linear_dtype", ("auto", "float32", *_ROUNDED)),
                              ("scheduling_policy", POLICIES)):  # fmt: skip
            if name == "scheduling_policy" and hasattr(self.scheduling_policy, "key"):
                continue
            if getattr(self, name) not in allowed:
                raise InvalidParamsError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}", name)
        if self.quantization not in (None, "q8_0", "q4_0"):
            raise UnsupportedCombinationError(f"quantization must be None, q8_0 or q4_0, not {self.quantization!r}", "quantization", "LLM")
        if self.quantization is not None and self.dtype != "auto":
            raise UnsupportedCombinationError(
                f"dtype = {self.dtype!r} keeps weights as floats: give quantization or dtype, not both", "quantization", "dtype"
            )
        for name in ("max_model_len", "kv_cache_memory_bytes", "num_threads"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidParamsError(f"{name} must be None or 1 or more, not {value!r}", name)
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= 1 << 20:
                raise InvalidParamsError(f"{name} must lie in [1, 1,048,576], not {value!r}", name)
        if not isinstance(self.block_size, int) or self.block_size % 16 or not 16 <= self.block_size <= 1024:
            raise InvalidParamsError(f"block_size must be a multiple of 16 up to 1,024, not {self.block_size!r}", "block_size")
        if self.num_threads is not None and self.num_threads > 256:
            raise InvalidParamsError("num_threads must be at most 256", "num_threads")
        share = self.gpu_memory_utilization
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise InvalidParamsError(f"gpu_memory_utilization must lie in (0, 1], not {share!r}", "gpu_memory_utilization")
        if self.linear_dtype in _ROUNDED and self._device_kind not in _ROUNDED[self.linear_dtype][1]:
            raise UnsupportedCombinationError(
                f"linear_dtype = {self.linear_dtype!r} multiplies on a GPU's tensor cores: it needs device = 'cuda'",
                "linear_dtype",
                "device",
            )
        if not isinstance(self.deterministic, bool):
            raise InvalidParamsError(f"deterministic must be True or False, not {self.deterministic!r}", "deterministic")
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
        if self.resolved_device == "cpu" and share != DEFAULT_GPU_MEMORY_UTILIZATION:
            raise UnsupportedCombinationError("the CPU's cache is bounded by kv_cache_memory_bytes", "gpu_memory_utilization", "device")
        ratio = self.waiting_served_ratio
        if ratio is not None and not (isinstance(ratio, int | float) and 0 < ratio < 1e6):
            raise InvalidParamsError(f"waiting_served_ratio must be None or positive, not {ratio!r}", "waiting_served_ratio")
        if not self.enable_chunked_prefill and self.max_model_len is not None and self.max_model_len > self.max_num_batched_tokens:
            raise UnsupportedCombinationError(
                "without chunked prefill, max_num_batched_tokens must be at least max_model_len",
                "enable_chunked_prefill",
                "max_num_batched_tokens",
            )

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

    def for_core(self) -> dict[str, Any]:
        """Keyword arguments of the core's Engine."""
        return {
            "device": self._core_device, "dtype": self.quantization or self.dtype, "kv_dtype": self.kv_type, "isa": "", "num_threads": self.num_threads or 0, "policy": self.scheduling_policy if isinstance(self.scheduling_policy, str) else "custom",
            "max_num_seqs": self.max_num_seqs, "max_num_batched_tokens": self.max_num_batched_tokens, "chunked_prefill": self.enable_chunked_prefill,
            "block_size": self.block_size, "kv_cache_memory_bytes": self.kv_cache_memory_bytes or 0, "max_model_len": self.max_model_len or 0,
            "gpu_memory_utilization": float(self.gpu_memory_utilization),
            "prefix_caching": bool(self.enable_prefix_caching), "waiting_served_ratio": float(self.waiting_served_ratio or 0.0), "audit_each_step": os.environ.get("LLMI_AUDIT") == "1",
            "policy_object": None if isinstance(self.scheduling_policy, str) else PolicyRunner(self.scheduling_policy),
            "batch_object": self.batch_runner, "layers": list(self.layers),
        }  # fmt: skip


def with_attention_dtype(kv_cache_dtype: str, attention_dtype: str) -> str:
    """The kv_cache_dtype that attention_dtype asks for: bf16 dots read a cache of their own type, fp32 arithmetic all others."""
    if attention_dtype not in ("auto", "float32", "bf16"):
        raise InvalidParamsError(f"attention_dtype must be one of auto, float32, bf16, not {attention_dtype!r}", "attention_dtype")
    if attention_dtype == "bf16" and kv_cache_dtype == "auto":
        return "bfloat16"
    if attention_dtype != "auto" and (attention_dtype == "bf16") != (kv_cache_dtype == "bfloat16"):
        raise UnsupportedCombinationError(
            f"attention_dtype = {attention_dtype!r} does not read kv_cache_dtype = {kv_cache_dtype!r}: bf16 goes with bfloat16, float32 with all others",
            "attention_dtype",
            "kv_cache_dtype",
        )
    return kv_cache_dtype


def numerics_id(weight_types: str, args: EngineArgs) -> str:
    """All that may move a bit besides model file, prompt, parameters and seed."""
    quantized = any(name.startswith("q") for name in weight_types.split("+"))
    activations = "i8b32b16" if quantized else "f32"
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


def where_it_runs(numerics_id: str) -> dict[str, Any]:
    """Arguments of an engine that has the bits of one with this id, besides the types of weights and cache."""
    activations = numerics_id.partition("-a:")[2].partition("-kv:")[0].split("+")
    return {
        "device": "cuda" if "-cuda-" in numerics_id else "cpu",
        "linear_dtype": next((dtype for dtype, (_, names) in _ROUNDED.items() if set(names.values()) & set(activations)), "auto"),
        "deterministic": promises_bits(numerics_id),
    }


def promises_bits(numerics_id: str) -> bool:
    """Whether the tokens of an engine with this id are a function of model, prompt, parameters and seed."""
    return _CUBLAS not in numerics_id


def parse_no_effect(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are accepted without effect; others raise TypeError, or are refused by name."""
    accepted = {}
    for name, value in arguments.items():
        if name in NO_EFFECT:
            accepted[name] = value
        elif name in REFUSED:
            if value != REFUSED[name]:
                raise UnsupportedCombinationError(f"{name} = {value!r} is not available in this version of llmi", name, "LLM")
        else:
            near = difflib.get_close_matches(name, [*HONOURED, *NO_EFFECT, *REFUSED], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"LLM() has no argument {name!r}{hint}")
    return accepted


_GENERATION_FIELDS = {"temperature": float, "top_p": float, "top_k": int, "min_p": float, "repetition_penalty": float}


def generation_defaults(model_path: Path, generation_config: str | os.PathLike[str]) -> dict[str, Any]:
    """Sampling defaults of the model's generation_config.json. "auto": the model's; "vllm" or "none": none; else a path."""
    if str(generation_config) in ("none", "vllm"):
        return {}
    path = model_path / "generation_config.json" if str(generation_config) == "auto" else Path(generation_config)
    if path.is_dir():
        path = path / "generation_config.json"
    if not is_there(path):
        if str(generation_config) != "auto":
            raise ModelFileError(f"{path}: no such generation config", path)
        return {}
    config = read_json(path)
    try:
        defaults: dict[str, Any] = {name: kind(config[name]) for name, kind in _GENERATION_FIELDS.items() if config.get(name) is not None}
        if isinstance(config.get("max_new_tokens"), int):
            defaults["max_tokens"] = config["max_new_tokens"]
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path}: {error}", path) from None
    return defaults
