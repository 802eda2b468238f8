"""The table of LLM's arguments, each with its kind, default, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmi.base.kinds import Choice, Either, Flag, Maybe, Object, Objects, Place, Real, Text, Whole, callable_object, refuse
from llmi.params.foreign_options import ENGINE_FOREIGN, ENGINE_HINTS
from llmi.params.options import SEED, Option, parse_all, table, unknown
from llmi.params.overrides import overrides_text

DEFAULT_GPU_MEMORY_UTILIZATION = 0.9
KV_CACHE_DTYPES = ("float16", "bfloat16", "float32", "int8", "fp8")
POLICIES = ("fcfs", "priority", "shortest_remaining", "longest_prefix", "prefill_first", "static")
_DTYPES = {"half": "float16", "float": "float32", "fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}
_BYTES = 2**63 - 1
_LIMIT = 1 << 20


def _is_policy(value: object) -> bool:
    return callable_object(getattr(value, "key", None)) and not isinstance(value, type)


def _is_batch_processor(value: object) -> bool:
    return callable_object(getattr(value, "apply", None)) and not isinstance(value, type)


def _is_tokenizer(value: object) -> bool:
    return any(base.__name__ == "Tokenizer" and base.__module__.partition(".")[0] == "llmi" for base in type(value).__mro__)


class _BlockSize:
    """A multiple of 16 up to 1,024."""

    def parse(self, name: str, value: object) -> int:
        rule = "a multiple of 16 in [16, 1,024]"
        size = Whole(16, 1024, rule).parse(name, value)
        if size % 16:
            raise refuse(name, rule, value)
        return size


class _ActivationBits:
    """8 or 16."""

    def parse(self, name: str, value: object) -> int:
        rule = "one of the integers 8 and 16"
        bits = Whole(8, 16, rule).parse(name, value)
        if bits not in (8, 16):
            raise refuse(name, rule, value)
        return bits


ACTIVATION_BITS = _ActivationBits()


class _Overrides:
    """A mapping whose values JSON has; its plain form is that JSON."""

    def parse(self, name: str, value: object) -> str:
        return overrides_text(value)


ENGINE = table(
    Option("model", Maybe(Place()), None, "A file, a directory, a hub name, or a name that llmi knows; None: SmolLM2-135M-Instruct."),
    Option(
        "tokenizer",
        Maybe(Either((Object("a Tokenizer", _is_tokenizer), Place()), "None, a path or a Tokenizer")),
        None,
        "A tokenizer or a directory with one; None: the model's own.",
    ),
    Option("revision", Maybe(Text(4096)), None, "Branch, tag or commit of a hub repository."),
    Option("device", Choice(("auto", "cpu", "cuda")), "auto", "Where the model runs."),
    Option(
        "dtype",
        Choice(("auto", "float32", "float16", "bfloat16"), _DTYPES),
        "auto",
        "Type of the weights; 'auto': as stored, quantised ones included. 'float32' is the exact path.",
    ),
    Option(
        "quantization",
        Maybe(Choice(("q8_0", "q4_0"), unavailable_in="LLM", says="None, q8_0 or q4_0")),
        None,
        "Quantise weights while they are loaded.",
    ),
    Option(
        "activation_bits",
        Maybe(ACTIVATION_BITS),
        None,
        "Bits to which quantised layers round their input, 8 or 16; None: 16, and models without such layers round nothing.",
        passed_on=True,
    ),
    Option(
        "kv_cache_dtype",
        Choice(("auto", *KV_CACHE_DTYPES), _DTYPES),
        "auto",
        "Type of the KV cache; 'auto': float32 with dtype='float32', else float16.",
    ),
    Option(
        "attention_dtype",
        Choice(("auto", "float32", "bf16")),
        "auto",
        "Arithmetic of attention; 'auto': float32, unless kv_cache_dtype is 'bfloat16'.",
    ),
    Option(
        "linear_dtype",
        Choice(("auto", "float32", "bf16", "fp16")),
        "auto",
        "Arithmetic of layers whose weights have this type; 'auto': float32. 'fp16' needs a GPU.",
        passed_on=True,
    ),
    Option(
        "deterministic", Flag(), True, "Keep the promise of equal bits. False needs a GPU: 16-bit layers by cuBLASLt, without receipts."
    ),
    Option("seed", SEED, None, "Requests without a seed get one derived from it."),
    Option(
        "max_model_len",
        Maybe(Whole(1, _BYTES, "None or an integer of 1 or more")),
        None,
        "Most tokens in a sequence; None: the model's limit, or what the cache holds.",
        passed_on=True,
    ),
    Option("max_num_seqs", Whole(1, _LIMIT), 256, "Most sequences in one step.", passed_on=True),
    Option(
        "max_num_batched_tokens", Whole(1, _LIMIT), 2048, "Most tokens in one step; longer prompts are cut into chunks.", passed_on=True
    ),
    Option("block_size", _BlockSize(), 16, "Tokens in one block of the KV cache.", passed_on=True),
    Option(
        "kv_cache_memory_bytes",
        Maybe(Whole(1, _BYTES, "None or an integer of 1 or more")),
        None,
        "Size of the KV cache; None: half of the free memory, or on a GPU by gpu_memory_utilization.",
        passed_on=True,
    ),
    Option(
        "gpu_memory_utilization",
        Real(0, 1, "a number in (0, 1]", open_low=True),
        DEFAULT_GPU_MEMORY_UTILIZATION,
        "Share of a GPU's memory that may be in use, the cache included; no effect on a CPU.",
        passed_on=True,
    ),
    Option("enable_chunked_prefill", Flag(), True, "Cut long prompts into chunks.", passed_on=True),
    Option(
        "enable_prefix_caching",
        Flag(),
        True,
        "Keep cache blocks of sequences that have ended, for prompts with the same beginning.",
        passed_on=True,
    ),
    Option(
        "scheduling_policy",
        Either((Choice(POLICIES), Object("", _is_policy)), "one of " + ", ".join(map(repr, POLICIES)) + ", or an object with key()"),
        "fcfs",
        "Which waiting request runs next.",
    ),
    Option(
        "waiting_served_ratio",
        Maybe(Real(0, 1e6, "None or a number in (0, 1e6]", open_low=True)),
        None,
        "Decodes pause for one prefill when the waiting requests are this many times the running ones.",
        passed_on=True,
    ),
    Option("speculative_config", Object("", lambda value: True), None, "How requests speculate unless a call says otherwise."),
    Option(
        "batch_processors", Objects("objects with apply(contexts, logits)", _is_batch_processor), (), "Logits processors for every request."
    ),
    Option(
        "chat_template",
        Maybe(Either((Text(1 << 20), Place()), "None, a template or a path")),
        None,
        "Replaces the model's own chat template.",
    ),
    Option("generation_config", Place(), "auto", "'auto': the model's file; 'none' or 'vllm': none; else a path."),
    Option(
        "num_threads",
        Maybe(Whole(1, 256, "None or an integer in [1, 256]")),
        None,
        "CPU threads; None: LLMI_NUM_THREADS, OMP_NUM_THREADS, or the CPUs this process may use.",
        passed_on=True,
    ),
    Option("hf_overrides", _Overrides(), None, "Changes to keys of the model's config."),
)

#: Options that are accepted and have no effect.
NO_EFFECT = table(
    Option("enforce_eager", Flag(), False, "Nothing is captured or compiled."),
    Option("trust_remote_code", Flag(), False, "No code of a model is ever run."),
    Option("disable_log_stats", Flag(), False, "get_metrics() counts in any case."),
    Option("use_tqdm_on_load", Flag(), True, "Loading shows no progress bar."),
)


def parse_engine(values: Mapping[str, Any]) -> dict[str, Any]:
    """LLM's own arguments in their plain form; names that are not in the table are left alone."""
    return {name: ENGINE[name].parse(value) if name in ENGINE else value for name, value in values.items()}


def parse_no_effect(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The further arguments, which have no effect. Raises TypeError for unknown names, all at once, and refuses others by name."""
    others = [name for name in arguments if name not in NO_EFFECT and name not in ENGINE_FOREIGN]
    if others:
        raise unknown("LLM() has no such arguments", others, [*ENGINE, *NO_EFFECT, *ENGINE_FOREIGN], ENGINE_HINTS)
    accepted = parse_all(NO_EFFECT, {name: value for name, value in arguments.items() if name in NO_EFFECT})
    for name, foreign in ENGINE_FOREIGN.items():
        if name in arguments:
            foreign.check(arguments[name], "LLM")
            if foreign.inert is not None and arguments[name] is not None:
                accepted[name] = arguments[name]
    return accepted
