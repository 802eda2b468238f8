"""LLM's arguments, each declared once: name, type, default, valid values, meaning, whether the core takes it, and the commands' flags.

The signature of LLM, its checks and docstring, the command line and docs/parameters.md come from here.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from llmi.base.kinds import Choice, Either, Flag, Listed, Maybe, Object, Objects, Place, Real, Text, Whole, callable_object
from llmi.handover.settings import TransferKind
from llmi.hooks.runners import BatchLogitsProcessor
from llmi.models.files import OpenModel
from llmi.params.foreign_options import ENGINE_FOREIGN, ENGINE_HINTS
from llmi.params.options import SEED, Option, about, options_of_arguments, parse_all, table, unknown
from llmi.params.overrides import overrides_text
from llmi.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llmi.engine.args import SchedulingPolicy

DEFAULT_GPU_MEMORY_UTILIZATION = 0.9
KV_CACHE_DTYPES = ("float16", "bfloat16", "float32", "int8", "fp8")
POLICIES = ("fcfs", "priority", "shortest_remaining", "longest_prefix", "prefill_first", "static")
_DTYPES = {"half": "float16", "float": "float32", "fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}
_BYTES = 2**63 - 1
_LIMIT = 1 << 20
_MANY = Maybe(Whole(1, _BYTES, "None or an integer of 1 or more"))
# Commands, by the flags that they have.
_SERVERS = ("serve", "batch")
_RUNNERS = ("chat", "generate", "bench")
_LOADERS = (*_RUNNERS, "train-heads", "eval", "embed")


def _is_policy(value: object) -> bool:
    return callable_object(getattr(value, "key", None)) and not isinstance(value, type)


def _is_batch_processor(value: object) -> bool:
    return callable_object(getattr(value, "apply", None)) and not isinstance(value, type)


ACTIVATION_BITS = Whole(8, 16, "one of the integers 8 and 16", step=8)


class _Overrides:
    """A mapping whose values JSON has; its plain form is that JSON."""

    def parse(self, name: str, value: object) -> str:
        return overrides_text(value)


class TakesOptions:
    """What LLM is called with."""

    def __init__(  # noqa: PLR0913 (the engine's options by name)
        self,
        model: Annotated[
            str | os.PathLike[str] | None,
            about(
                Maybe(Place()),
                "A .gguf file (of a split one, any part), a directory with config.json and safetensors or with one GGUF model, a hub name,"
                " or a name that llmi knows. None: the default small model, SmolLM2-135M-Instruct.",
            ),
        ] = None,
        *,
        tokenizer: Annotated[
            str | os.PathLike[str] | Tokenizer | None,
            about(
                Maybe(Either((Object("a Tokenizer", lambda value: isinstance(value, Tokenizer)), Place()), "None, a path or a Tokenizer")),
                "A tokenizer or a directory with one; None: the model's own.",
            ),
        ] = None,
        revision: Annotated[str | None, about(Maybe(Text(4096)), "Branch, tag or commit of a hub repository.", flag_of=_LOADERS)] = None,
        device: Annotated[str, about(Choice(("auto", "cpu", "cuda")), "Where the model runs.")] = "auto",
        dtype: Annotated[
            str,
            about(
                Choice(("auto", "float32", "float16", "bfloat16"), _DTYPES),
                "Type of the weights; 'auto': as stored. Quantised ones stay so, and round what they read (activation_bits). 'float32' is"
                " the exact path.",
                flag_of=_LOADERS + _SERVERS,
            ),
        ] = "auto",
        quantization: Annotated[
            str | None,
            about(
                Maybe(Choice(("q8_0", "q4_0"), unavailable_in="LLM", says="None, q8_0 or q4_0")),
                "Quantise weights while they are loaded. 'q8_0' those stored as floats, 'q4_0' those of more than five bits; others stay.",
                flag_of=(*_SERVERS, "eval", "embed"),
            ),
        ] = None,
        activation_bits: Annotated[
            int | None,
            about(
                Maybe(ACTIVATION_BITS),
                "Bits to which quantised layers round their input; None: 16, with nearly the answers of fp32 arithmetic; 8 is the fast"
                " setting: batches and prompts take about two thirds of the time. One sequence takes a few per cent less, and answers may"
                " differ. Models without such layers round nothing, and refuse a given 16.",
                passed_on=True,
                flag_of=(*_RUNNERS, *_SERVERS, "inspect", "eval"),
            ),
        ] = None,
        kv_cache_dtype: Annotated[
            str,
            about(
                Choice(("auto", *KV_CACHE_DTYPES), _DTYPES),
                "Type of the KV cache; 'auto': float32 with dtype='float32', else float16. 'int8' holds nearly twice the tokens of float16,"
                " with a scale for each 16 values; 'fp8' (e4m3, no scale, 448 at most) twice, and less exactly.",
                flag_of=(*_SERVERS, "eval"),
            ),
        ] = "auto",
        attention_dtype: Annotated[
            str,
            about(
                Choice(("auto", "float32", "bf16")),
                "Arithmetic of attention; 'auto': float32, unless kv_cache_dtype is 'bfloat16', or CUDA runs a model of bf16 weights"
                " with its layers on tensor cores. 'bf16': queries, K, V and weights of the softmax are rounded to bf16 and multiplied"
                " in pairs (a bfloat16 cache): faster prefill where the processor has the instruction, equal bits where it has not;"
                " tensor cores on CUDA.",
            ),
        ] = "auto",
        linear_dtype: Annotated[
            str,
            about(
                Choice(("auto", "float32", "bf16", "fp16")),
                "Arithmetic of layers whose weights have this type; 'auto': float32, but on CUDA tensor cores for models of bf16 or of"
                " fp16 weights, where 'float32' gives the CPU's bits. 'bf16': layers whose weights are bf16 round their input to it and"
                " multiply in pairs, faster where the processor has the instruction, with equal bits where it has not; on CUDA by"
                " tensor cores, which 'fp16' uses for fp16 weights (CUDA only; inputs beyond 65,504 become infinite). Other weights as"
                " ever.",
                passed_on=True,
            ),
        ] = "auto",
        deterministic: Annotated[
            bool,
            about(
                Flag(),
                "Keep the promise of equal bits. False needs a GPU: layers whose weights are bf16 or fp16 are multiplied by cuBLASLt"
                " (nvidia-cublas), which rounds its input as linear_dtype='bf16' or 'fp16' does and adds in an order of its own. Tokens may"
                " then depend on the batch and on the library, and there are no receipts.",
            ),
        ] = True,
        seed: Annotated[int | None, about(SEED, "Requests without a seed get one derived from it and their index in the call.")] = None,
        max_model_len: Annotated[
            int | None,
            about(
                _MANY,
                "Most tokens in a sequence; None: the model's limit, or what the cache holds.",
                passed_on=True,
                flag_of=_LOADERS + _SERVERS,
            ),
        ] = None,
        max_num_seqs: Annotated[int, about(Whole(1, _LIMIT), "Most sequences in one step.", passed_on=True, flag_of=_SERVERS)] = 256,
        max_num_batched_tokens: Annotated[
            int, about(Whole(1, _LIMIT), "Most tokens in one step; longer prompts are cut into chunks.", passed_on=True)
        ] = 2048,
        block_size: Annotated[
            int, about(Whole(16, 1024, "a multiple of 16 in [16, 1,024]", step=16), "Tokens in one block of the KV cache.", passed_on=True)
        ] = 16,
        kv_cache_memory_bytes: Annotated[
            int | None,
            about(
                _MANY,
                "Size of the KV cache; None: half of the free memory, or on a GPU by gpu_memory_utilization. The default is no more than"
                " the limits can use.",
                passed_on=True,
                flag_of=_SERVERS,
            ),
        ] = None,
        gpu_memory_utilization: Annotated[
            float,
            about(
                Real(0, 1, "a number in (0, 1]", open_low=True),
                "Share of a GPU's memory that may be in use when the cache is there; no effect on a CPU. Weights, workspaces and what"
                " others hold count.",
                passed_on=True,
            ),
        ] = DEFAULT_GPU_MEMORY_UTILIZATION,
        enable_chunked_prefill: Annotated[bool, about(Flag(), "Cut long prompts into chunks.", passed_on=True)] = True,
        enable_prefix_caching: Annotated[
            bool,
            about(
                Flag(),
                "Keep cache blocks of sequences that have ended, for prompts with the same beginning, as long as memory is not needed.",
                passed_on=True,
            ),
        ] = True,
        prefix_cache_dir: Annotated[
            str | os.PathLike[str] | None,
            about(
                Maybe(Place()),
                "A folder in which blocks of the prefix cache outlive the process: the next one with the same model and arithmetic reads"
                " them instead of computing them. It must belong to this user alone. None: they end with the process.",
                flag_of=_SERVERS,
            ),
        ] = None,
        prefix_cache_disk_bytes: Annotated[
            int,
            about(
                Whole(1 << 20, _BYTES, "an integer of 1,048,576 or more"),
                "Most bytes in prefix_cache_dir; the least recently used blocks go first.",
                flag_of=_SERVERS,
            ),
        ] = 4 << 30,
        kv_transfer_config: Annotated[
            Mapping[str, Any] | None,
            about(
                Maybe(TransferKind()),
                'Prefills by others: kv_connector ("local": one machine; "nixl": several), kv_role ("kv_producer": others may ask this'
                ' engine for a prompt\'s blocks; "kv_consumer": it asks; "kv_both"), kv_peers (URLs of the servers that it asks) and'
                " kv_min_tokens (256; it asks for prompts that miss as many). See docs/tiers.md.",
                flag_of=_SERVERS,
            ),
        ] = None,
        state_snapshot_interval: Annotated[
            int,
            about(
                Whole(0, _LIMIT, "a multiple of 16 in [0, 1,048,576]", step=16),
                "For models whose layers have states: the number of tokens between the snapshots of them that the prefix cache keeps,"
                " a multiple of block_size. 0: it keeps those at the end of a prompt alone. `llmi inspect` names the memory of one.",
                passed_on=True,
            ),
        ] = 0,
        scheduling_policy: Annotated[
            "str | SchedulingPolicy",
            about(
                Either(
                    (Choice(POLICIES), Object("", _is_policy)), "one of " + ", ".join(map(repr, POLICIES)) + ", or an object with key()"
                ),
                "Which waiting request runs next. An object orders them by its key. 'prefill_first' and 'static' are baselines to compare"
                " with.",
                flag_of=_SERVERS,
            ),
        ] = "fcfs",
        waiting_served_ratio: Annotated[
            float | None,
            about(
                Maybe(Real(0, 1e6, "None or a number in (0, 1e6]", open_low=True)),
                "Decodes pause for one prefill when the waiting requests are this many times the running ones (TGI's meaning).",
                passed_on=True,
            ),
        ] = None,
        speculative_config: Annotated[
            object,
            about(
                Object("", lambda value: True),
                'How requests speculate unless a call says otherwise, as in {"method": "ngram", "num_speculative_tokens": 3}. Tokens do not'
                " depend on it.",
                flag_of=_SERVERS,
            ),
        ] = None,
        batch_processors: Annotated[
            Iterable[BatchLogitsProcessor],
            about(
                Objects("objects with apply(contexts, logits)", _is_batch_processor),
                "Logits processors for every request. They are called with all rows that are ready at once.",
            ),
        ] = (),
        chat_template: Annotated[
            str | os.PathLike[str] | None,
            about(
                Maybe(Either((Text(1 << 20), Place()), "None, a template or a path")),
                "Replaces the model's own chat template.",
                flag_of=_SERVERS,
            ),
        ] = None,
        generation_config: Annotated[
            str | os.PathLike[str], about(Place(), "'auto': the model's file; 'none' or 'vllm': none; else a path.")
        ] = "auto",
        num_threads: Annotated[
            int | None,
            about(
                Maybe(Whole(1, 256, "None or an integer in [1, 256]")),
                "CPU threads; None: LLMI_NUM_THREADS, OMP_NUM_THREADS, or the CPUs this process may use.",
                passed_on=True,
                flag_of=_LOADERS,
            ),
        ] = None,
        data_parallel_size: Annotated[
            int,
            about(
                Whole(1, 64),
                "Engines in as many processes, of which this one is the first; threads are divided among them. Outputs are the same.",
                flag_of=("batch",),
            ),
        ] = 1,
        tensor_parallel_size: Annotated[
            int,
            about(
                Whole(1, 256),
                "Processes that compute the model together, of which this one is the first: each holds rows of every matrix, its heads'"
                " cache, and a share of the threads. Outputs are the same.",
                flag_of=(*_RUNNERS, *_SERVERS, "replay"),
            ),
        ] = 1,
        tensor_split: Annotated[
            Sequence[float] | None,
            about(
                Maybe(Listed(Real(0, 1, "numbers in (0, 1]", open_low=True), "None, or a share for each of tensor_parallel_size", 256)),
                "Shares of these processes, of sum 1; None: equal ones.",
            ),
        ] = None,
        pipeline_parallel_size: Annotated[
            int,
            about(
                Whole(1, 64),
                "Stages that the model's layers are divided into, each of tensor_parallel_size processes. As many steps are under way"
                " together, of other sequences each. Outputs are the same.",
                flag_of=(*_RUNNERS, *_SERVERS, "replay"),
            ),
        ] = 1,
        on_worker_failure: Annotated[
            str | None,
            about(
                Maybe(Choice(("raise", "restart"))),
                "What the death of one of these processes means. 'raise': requests fail with WorkerDiedError, and the engine ends."
                " 'restart': they are started again, and requests go on with the same tokens. None: 'restart' in a server, else 'raise'.",
                flag_of=_SERVERS,
            ),
        ] = None,
        distributed_executor_backend: Annotated[
            str,
            about(
                Choice(("local", "mpi", "ray"), {"mp": "local", "uni": "local"}, "LLM"),
                "Who starts the other processes: llmi, on this machine; mpirun, those of tensor_parallel_size; or Ray, which places those"
                " of data_parallel_size on a cluster.",
                flag_of=(*_RUNNERS, "batch", "serve", "replay"),
            ),
        ] = "local",
        hf_overrides: Annotated[
            Mapping[str, Any] | None,
            about(
                _Overrides(),
                "Changes to keys of the model's config. A key's value replaces that of config.json or GGUF metadata whole; None takes the"
                " key away, or leaves out tensors of that name (* for any text). What nothing reads is refused; receipts record all.",
                flag_of=(*_RUNNERS, *_SERVERS, "embed"),
            ),
        ] = None,
        _layers: Sequence[int] = (),
        _files: OpenModel | None = None,
        **no_effect: object,
    ) -> None:
        values = locals()
        given = {name: option.parse(values[name]) for name, option in ENGINE.items()}
        self._given: Mapping[str, Any] = given
        self._no_effect = parse_no_effect(no_effect)
        self._open(given, _layers, _files)

    def _open(self, given: Mapping[str, Any], layers: Sequence[int], files: OpenModel | None) -> None:
        """Loads the model and starts the engine. given: each argument in its plain form."""
        raise NotImplementedError


ENGINE = options_of_arguments(TakesOptions.__init__)

#: Options that are accepted and have no effect.
NO_EFFECT = table(
    Option("enforce_eager", Flag(), False, "Nothing is captured or compiled."),
    Option("trust_remote_code", Flag(), False, "No code of a model is ever run."),
    Option("disable_log_stats", Flag(), False, "get_metrics() counts in any case."),
    Option("use_tqdm_on_load", Flag(), True, "Loading shows no progress bar."),
)


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
