"""Odd values of arguments: every target below meets every value. What may be taken is said here, apart from the product's own table."""

from __future__ import annotations

import array
import asyncio
import collections
import dataclasses
import decimal
import enum
import fractions
import itertools
import numbers
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import llmi
from llmi import LLM, SamplingParams


class Colour(enum.IntEnum):
    RED = 1


class Loud:
    """An object that nothing can be done with."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no equality")

    __hash__ = object.__hash__


def broken() -> Iterator[int]:
    yield 1
    raise RuntimeError("the reader broke")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


#: Name and maker: generators are new for each use.
VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "0": lambda: 0,
    "1": lambda: 1,
    "-1": lambda: -1,
    "-7": lambda: -7,
    "1.0": lambda: 1.0,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "1e-320": lambda: 1e-320,
    "2**31": lambda: 2**31,
    "2**63": lambda: 2**63,
    "2**64": lambda: 2**64,
    "10**30": lambda: 10**30,
    "10**400": lambda: 10**400,
    "10**5000": lambda: 10**5000,
    "''": lambda: "",
    "'yes'": lambda: "yes",
    "'5'": lambda: "5",
    "surrogate": lambda: "\ud83d",
    "NUL": lambda: "a\0b",
    "b'x'": lambda: b"x",
    "bytearray": lambda: bytearray(b"xy"),
    "[]": lambda: [],
    "()": lambda: (),
    "{}": lambda: {},
    "set()": lambda: set(),
    "[None]": lambda: [None],
    "[1.5]": lambda: [1.5],
    "[True]": lambda: [True],
    "['5']": lambda: ["5"],
    "[b'5']": lambda: [b"5"],
    "[[1.5]]": lambda: [[1.5]],
    "[2**40]": lambda: [2**40],
    "[-5]": lambda: [-5],
    "['\\ud83d']": lambda: ["\ud83d"],
    "{'a': 1}": lambda: {"a": 1},
    "{1.5: 1}": lambda: {1.5: 1},
    "{5: 'x'}": lambda: {5: "x"},
    "{5: nan}": lambda: {5: float("nan")},
    "{True: 1}": lambda: {True: 1},
    "object()": object,
    "Loud()": Loud,
    "int": lambda: int,
    "len": lambda: len,
    "1j": lambda: 1j,
    "generator of floats": lambda: (x / 2 for x in range(3)),
    "broken()": broken,
    "nested": lambda: nested(3000),
    "Colour.RED": lambda: Colour.RED,
    "Decimal": lambda: decimal.Decimal("0.5"),
    "Fraction": lambda: fractions.Fraction(1, 2),
    "np.int64(1)": lambda: np.int64(1),
    "np.uint8(1)": lambda: np.uint8(1),
    "np.float32(0.5)": lambda: np.float32(0.5),
    "np.float16(1)": lambda: np.float16(1),
    "np.bool_(True)": lambda: np.bool_(True),
    "np.str_('a')": lambda: np.str_("a"),
    "np.bytes_": lambda: np.bytes_(b"a"),
    "np.datetime64": lambda: np.datetime64(5, "ns"),
    "np.timedelta64": lambda: np.timedelta64(1, "ns"),
    "np 0-d int": lambda: np.array(1),
    "np 0-d float": lambda: np.array(0.5),
    "np empty": lambda: np.array([]),
    "np ints": lambda: np.array([1, 2]),
    "np floats": lambda: np.array([1.0, 2.0]),
    "np bools": lambda: np.array([True, False]),
    "np objects": lambda: np.array([1, "a"], object),
    "np 2-d": lambda: np.array([[1, 2]]),
    "np 3-d": lambda: np.zeros((1, 1, 1), int),
    "range(1, 3)": lambda: range(1, 3),
    "array.array": lambda: array.array("i", [1, 2]),
    "deque": lambda: collections.deque([1, 2]),
    "{1, 2}": lambda: {1, 2},
    "{'a', 1}": lambda: {"a", 1},
    "count()": itertools.count,
    "Path('x')": lambda: Path("no-such-file"),
    "memoryview": lambda: memoryview(b"ab"),
    "Ellipsis": lambda: ...,
}


# --- what may be taken, by family. These look at the value as it was given; `listed` is read before.


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic | array.array) else value


def integer(value: Any) -> bool:
    value = value if isinstance(value, np.datetime64 | np.timedelta64) else plain(value)
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def number(value: Any) -> bool:
    if isinstance(value, np.datetime64 | np.timedelta64):
        return False
    value = plain(value)
    return isinstance(value, numbers.Real | decimal.Decimal) and not isinstance(value, bool)


def flag(value: Any) -> bool:
    return isinstance(plain(value), bool)


def text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def listed(value: Any) -> list[Any] | None:
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping | Loud | type):
        return None
    try:
        return list(itertools.islice(plain(value), 1000))
    except TypeError:
        return None


def every(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        entries = listed(value)
        return entries is not None and all(test(entry) for entry in entries)

    return check


def maybe(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or test(value)


def either(*tests: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: any(test(value) for test in tests)


def biases(value: Any) -> bool:
    return isinstance(value, dict) and all(integer(key) and number(entry) for key, entry in value.items())


def hook(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def nothing(value: Any) -> bool:
    return value is None


def empty(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and not value) or listed(value) == []


def of_none(value: Any) -> bool:
    return value is None or listed(value) == [None]


def prompt(value: Any) -> bool:
    return text(value) or every(integer)(value)


ids = every(integer)
ids_of_ids = maybe(every(ids))
prompts = either(prompt, every(prompt), lambda value: listed(value) == [])
FAMILIES = {
    "integer": integer,
    "number": number,
    "flag": flag,
    "text": text,
    "ids": ids,
    "biases": biases,
    "nothing": nothing,
    "prompt": prompt,
    "prompts": prompts,
    "maybe prompt": maybe(prompt),
    "maybe integer": maybe(integer),
    "maybe number": maybe(number),
    "maybe flag": maybe(flag),
    "maybe text": maybe(text),
    "maybe ids": maybe(ids),
    "maybe biases": maybe(biases),
    "texts": maybe(either(text, every(text))),
    "words": maybe(either(text, every(either(text, ids)))),
    "integer or ids": maybe(either(integer, ids)),
    "hook": maybe(hook),
    "hooks": maybe(either(hook, every(hook))),
    "integer or each": either(integer, ids),
    "texts or none": either(text, every(text)),
    "objects": maybe(every(lambda value: False)),
    "text or empty chats": lambda value: text(value) or listed(value) == [],
    "content": maybe(either(text, every(text))),
    "names": maybe(lambda value: isinstance(value, dict) and all(isinstance(key, str) for key in value)),
    "path or text": either(maybe(text), lambda value: isinstance(value, Path)),
    "empty": empty,
    "of none": of_none,
    "lists of ids": ids_of_ids,
    "hook or of none": either(hook, of_none),
    "policy": lambda value: False,
}


@dataclasses.dataclass(frozen=True)
class Target:
    """A call with one argument, the names that an error may say, and the family of what may be taken."""

    name: str
    call: Callable[[LLM, Any], Any]
    family: str
    names: tuple[str, ...]


def target(name: str, family: str, call: Callable[[LLM, Any], Any], *names: str) -> Target:
    return Target(name, call, family, names or (name.rpartition(".")[2],))


PARAMETERS = {
    "n": "integer",
    "temperature": "maybe number",
    "top_p": "maybe number",
    "top_k": "maybe integer",
    "min_p": "maybe number",
    "seed": "maybe integer",
    "max_tokens": "maybe integer",
    "min_tokens": "maybe integer",
    "stop": "texts",
    "stop_token_ids": "maybe ids",
    "eos_token_id": "integer or ids",
    "ignore_eos": "flag",
    "include_stop_str_in_output": "flag",
    "presence_penalty": "maybe number",
    "frequency_penalty": "maybe number",
    "repetition_penalty": "maybe number",
    "logit_bias": "maybe biases",
    "steering": "empty",
    "sparse_attention": "objects",
    "bad_words": "words",
    "allowed_token_ids": "maybe ids",
    "structured_outputs": "nothing",
    "logits_processors": "hooks",
    "stopping_criteria": "hooks",
    "sampler": "hook",
    "logprobs": "maybe integer",
    "penalty_last_n": "maybe integer",
    "dry_multiplier": "maybe number",
    "dry_base": "maybe number",
    "dry_allowed_length": "maybe integer",
    "dry_penalty_last_n": "maybe integer",
    "dry_sequence_breakers": "texts",
    "epsilon_cutoff": "maybe number",
    "eta_cutoff": "maybe number",
    "top_h": "maybe number",
    "top_n_sigma": "maybe number",
    "p_less": "flag",
    "penalty_alpha": "maybe number",
    "xtc_probability": "maybe number",
    "dynatemp_range": "maybe number",
    "dynatemp_exponent": "maybe number",
    "mirostat": "maybe integer",
    "mirostat_tau": "maybe number",
    "mirostat_eta": "maybe number",
    "adaptive_p": "maybe number",
    "adaptive_p_decay": "maybe number",
    "sampler_order": "objects",
    "prompt_logprobs": "maybe integer",
    "detokenize": "flag",
    "skip_special_tokens": "flag",
    "output_kind": "objects",
    # by other names
    "max_new_tokens": "maybe integer",
    "min_new_tokens": "maybe integer",
    "stop_strings": "texts",
    "num_return_sequences": "maybe integer",
    "suppress_tokens": "maybe ids",
    "sequence_bias": "empty",
    "bad_words_ids": "lists of ids",
    "do_sample": "maybe flag",
    "typical_p": "maybe number",
    "num_beams": "maybe integer",
    "use_cache": "maybe flag",
    "pad_token_id": "maybe integer",
    "no_repeat_ngram_size": "maybe integer",
    "early_stopping": "maybe flag",
    "guidance_scale": "maybe number",
    "streamer": "nothing",
    "max_length": "nothing",
    "xtc_threshold": "maybe number",
    "stop_regex": "texts",
    "thinking_token_budget": "maybe integer",
    "repetition_detection": "empty",
    "logprob_token_ids": "maybe ids",
    "token_ids_logprob": "maybe ids",
    "negative_prompt": "maybe prompt",
    "negative_prompt_ids": "maybe prompt",
    "dola_layers": "maybe ids",
    "dola_rule": "objects",
    "typical": "maybe number",
    "adaptive_target": "maybe number",
    "adaptive_decay": "maybe number",
    "mirostat_mode": "maybe integer",
    "repeat_last_n": "maybe integer",
}
ENGINE = {
    "tokenizer": "objects",
    "revision": "maybe text",
    "device": "objects",
    "dtype": "objects",
    "quantization": "objects",
    "activation_bits": "maybe integer",
    "kv_cache_dtype": "objects",
    "attention_dtype": "objects",
    "linear_dtype": "objects",
    "deterministic": "flag",
    "seed": "maybe integer",
    "max_model_len": "maybe integer",
    "max_num_seqs": "integer",
    "max_num_batched_tokens": "integer",
    "block_size": "integer",
    "kv_cache_memory_bytes": "maybe integer",
    "gpu_memory_utilization": "number",
    "enable_chunked_prefill": "flag",
    "enable_prefix_caching": "flag",
    "prefix_cache_dir": "path or text",
    "prefix_cache_disk_bytes": "integer",
    "kv_transfer_config": "objects",
    "state_snapshot_interval": "integer",
    "scheduling_policy": "objects",
    "waiting_served_ratio": "maybe number",
    "speculative_config": "hook",
    "batch_processors": "objects",
    "generation_config": "objects",
    "num_threads": "maybe integer",
    "hf_overrides": "empty",
    "chat_template": "path or text",
    "enforce_eager": "flag",
    "trust_remote_code": "flag",
    "tensor_parallel_size": "integer",
    "tensor_split": "objects",
    "pipeline_parallel_size": "integer",
    "on_worker_failure": "objects",
    "data_parallel_size": "integer",
    "distributed_executor_backend": "objects",
    "swap_space": "maybe number",
    "max_logprobs": "maybe integer",
}


def generate(name: str) -> Callable[[LLM, Any], Any]:
    return lambda llm, value: llm.generate([5, 6], **{"max_tokens": 1, "temperature": 0} | {name: value})


def with_new_names(name: str) -> Callable[[LLM, Any], Any]:
    """max_tokens is not given beside its other name."""
    return lambda llm, value: llm.generate(
        [5, 6], **({} if name in ("max_new_tokens", "max_length") else {"max_tokens": 1}) | {name: value}
    )


ENGINES: dict[int, llmi.AsyncLLM] = {}  # one for each LLM: to shut one down takes a tenth of a second


async def _first(engine: llmi.AsyncLLM, prompt: Any, **arguments: Any) -> Any:
    async for output in engine.generate(prompt, **arguments):
        if output.finished:
            return output


def _async(llm: LLM, prompt: Any, **arguments: Any) -> Any:
    if id(llm) not in ENGINES:
        ENGINES[id(llm)] = llmi.AsyncLLM(llm=llm)
    return asyncio.run(_first(ENGINES[id(llm)], prompt, **arguments))


def _enqueue(llm: LLM, prompts: Any, **arguments: Any) -> None:
    llm.enqueue(prompts, **arguments)
    for output in llm.wait_for_completion():
        if output.error is not None:
            raise output.error


def in_strategy(llm: LLM, value: Any) -> Any:
    def strategy(sequence: llmi.TokenSequence) -> Any:
        return (yield llmi.Generate(value, max_tokens=1))

    return llm.run(strategy, [[5, 6]])


CALLS = [
    target("generate.prompts", "prompts", lambda llm, value: llm.generate(value, max_tokens=1), "prompt"),
    target("generate.prompts[1]", "prompt", lambda llm, value: llm.generate([[5], value, [6]], max_tokens=1), "prompt"),
    target("generate.prompt_token_ids", "ids", lambda llm, value: llm.generate({"prompt_token_ids": value}, max_tokens=1), "prompt"),
    target("generate.prompt", "text", lambda llm, value: llm.generate({"prompt": value}, max_tokens=1), "prompt"),
    target("generate.cache_salt", "maybe text", lambda llm, value: llm.generate({"prompt": "a", "cache_salt": value}, max_tokens=1)),
    target("generate.multi_modal_data", "empty", lambda llm, value: llm.generate({"prompt": "a", "multi_modal_data": value}, max_tokens=1)),
    target("generate.sampling_params", "of none", lambda llm, value: llm.generate([5], value)),
    target("generate.sampling_params[0]", "nothing", lambda llm, value: llm.generate([[5]], [value]), "sampling_params"),
    target("generate.priority", "integer or each", lambda llm, value: llm.generate([[5], [6]], max_tokens=1, priority=value)),
    target("generate.trace", "flag", lambda llm, value: llm.generate([5], max_tokens=1, trace=value)),
    target("generate.on_error", "objects", lambda llm, value: llm.generate([5], max_tokens=1, on_error=value)),
    target(
        "generate.use_tqdm", "maybe flag", lambda llm, value: llm.generate([5], max_tokens=1, use_tqdm=value if value is not True else None)
    ),
    target(
        "generate.speculative_config",
        "hook or of none",
        lambda llm, value: llm.generate([5], max_tokens=1, speculative_config=value),
        "speculative_config",
        "drafter",
    ),
    target("SamplingParams.max_tokens", "maybe integer", lambda llm, value: llm.generate([5], SamplingParams(max_tokens=value))),
    target(
        "SamplingParams.stop_token_ids",
        "maybe ids",
        lambda llm, value: llm.generate([5], SamplingParams(stop_token_ids=value, max_tokens=1)),
    ),
    target(
        "SamplingParams.replace.top_k",
        "maybe integer",
        lambda llm, value: llm.generate([5], SamplingParams(max_tokens=1).replace(top_k=value)),
    ),
    target("stream.prompts", "prompts", lambda llm, value: list(llm.stream(value, max_tokens=1)), "prompt", "chat"),
    target("stream.temperature", "maybe number", lambda llm, value: list(llm.stream([5], max_tokens=1, temperature=value))),
    target("chat.messages", "text or empty chats", lambda llm, value: llm.chat(value, max_tokens=1), "message", "chat", "prompt"),
    target("chat.messages[0]", "objects", lambda llm, value: llm.chat([value], max_tokens=1), "message", "chat"),
    target(
        "chat.content",
        "content",
        lambda llm, value: llm.chat([{"role": "user", "content": value}], max_tokens=1),
        "content",
        "message",
        "prompt",
    ),
    target("chat.role", "text", lambda llm, value: llm.chat([{"role": value, "content": "a"}], max_tokens=1), "role", "message"),
    target(
        "chat.chat_template",
        "maybe text",
        lambda llm, value: llm.chat([{"role": "user", "content": "a"}], max_tokens=1, chat_template=value),
        "template",
        "text holds",
        "No such file",
    ),
    target(
        "chat.chat_template_kwargs",
        "names",
        lambda llm, value: llm.chat([{"role": "user", "content": "a"}], max_tokens=1, chat_template_kwargs=value),
        "template",
    ),
    target("chat.tools", "empty", lambda llm, value: llm.chat([{"role": "user", "content": "a"}], max_tokens=1, tools=value), "tools"),
    target(
        "chat.add_generation_prompt",
        "flag",
        lambda llm, value: llm.chat([{"role": "user", "content": "a"}], max_tokens=1, add_generation_prompt=value),
    ),
    target(
        "chat.continue_final_message",
        "flag",
        lambda llm, value: llm.chat([{"role": "user", "content": "a"}], max_tokens=1, continue_final_message=value),
    ),
    target("chat.top_p", "maybe number", lambda llm, value: llm.chat([{"role": "user", "content": "a"}], max_tokens=1, top_p=value)),
    target(
        "chat.priority", "integer or each", lambda llm, value: llm.chat([{"role": "user", "content": "a"}], max_tokens=1, priority=value)
    ),
    target("enqueue.prompts", "prompts", lambda llm, value: _enqueue(llm, value, max_tokens=1), "prompt"),
    target("enqueue.seed", "maybe integer", lambda llm, value: _enqueue(llm, [5], max_tokens=1, seed=value)),
    target("abort.request_ids", "texts or none", lambda llm, value: llm.abort(value)),
    target("sequence.prompt", "prompt", lambda llm, value: llm.sequence(value).close()),
    target("sequence.seed", "maybe integer", lambda llm, value: llm.sequence([5], seed=value).close()),
    target("sequence.capture", "nothing", lambda llm, value: llm.sequence([5], capture=value).close()),
    target("Capture.hidden_states", "ids", lambda llm, value: llm.sequence([5], capture=llmi.Capture(hidden_states=value)).close()),
    target("Capture.attention", "ids", lambda llm, value: llm.sequence([5], capture=llmi.Capture(attention=value)).close()),
    target("extend.tokens", "ids", lambda llm, value: llm.sequence([5]).extend(value)),
    target("LLM.extend.tokens", "biases", lambda llm, value: llm.extend(value)),
    target("llmi.extend.tokens", "biases", lambda llm, value: llmi.extend(value)),
    target("commit.path", "ids", lambda llm, value: llm.sequence([5]).commit(value)),
    target("rollback.num_tokens", "integer", lambda llm, value: llm.sequence([5, 6]).rollback(value)),
    target("fork.same_noise", "flag", lambda llm, value: llm.sequence([5]).fork(same_noise=value)),
    target("sync.token_ids", "ids", lambda llm, value: llm.sequence([5]).sync(value)),
    target("probs.sampling_params", "nothing", lambda llm, value: llm.sequence([5]).probs(value)),
    target("probs.logits", "nothing", lambda llm, value: llm.sequence([5]).probs(logits=value)),
    target("run.strategy", "hook", lambda llm, value: llm.run(value, [[5]]) if value is not None else None),
    target("run.prompts", "prompts", lambda llm, value: llm.run(_no_strategy, value), "prompt"),
    target("run.seed", "maybe integer", lambda llm, value: llm.run(_no_strategy, [[5]], seed=value)),
    target("Generate.prompts", "prompts", in_strategy, "prompt"),
    target("loglikelihood.pairs", "objects", lambda llm, value: llm.loglikelihood(value)),
    target("loglikelihood.context", "prompt", lambda llm, value: llm.loglikelihood([(value, "b")]), "pairs", "prompt", "context"),
    target("loglikelihood.continuation", "prompt", lambda llm, value: llm.loglikelihood([("a", value)]), "pairs", "prompt", "continuation"),
    target("perplexity.texts", "prompts", lambda llm, value: llm.perplexity(value), "text", "prompt"),
    target("perplexity.max_length", "maybe integer", lambda llm, value: llm.perplexity("abc", max_length=value)),
    target("perplexity.stride", "maybe integer", lambda llm, value: llm.perplexity("abc", max_length=3, stride=value)),
    target("encode.text", "text", lambda llm, value: llm.tokenizer.encode(value)),
    target("encode.parse_special", "flag", lambda llm, value: llm.tokenizer.encode("a", parse_special=value)),
    target("encode.add_special_tokens", "flag", lambda llm, value: llm.tokenizer.encode("a", add_special_tokens=value)),
    target("decode.token_ids", "ids", lambda llm, value: llm.tokenizer.decode(value), "token"),
    target("decode.skip_special_tokens", "flag", lambda llm, value: llm.tokenizer.decode([5], skip_special_tokens=value)),
    target("Tokenizer.path", "objects", lambda llm, value: llmi.Tokenizer(value), "path", ""),
    target("AsyncLLM.prompt", "prompt", lambda llm, value: _async(llm, value, max_tokens=1), "prompt"),
    target("AsyncLLM.request_id", "maybe text", lambda llm, value: _async(llm, [5], request_id=value, max_tokens=1)),
    target("AsyncLLM.deadline_s", "maybe number", lambda llm, value: _async(llm, [5], deadline_s=value, max_tokens=1)),
    target("AsyncLLM.max_queue", "maybe integer", lambda llm, value: llmi.AsyncLLM(llm=llm, max_queue=value)),
    target("AsyncLLM.top_k", "maybe integer", lambda llm, value: _async(llm, [5], top_k=value, max_tokens=1)),
    target("AsyncLLM.llm", "nothing", lambda llm, value: llmi.AsyncLLM(llm=value) if value is not None else None),
    target("SpeculativeConfig.drafter", "hook", lambda llm, value: llmi.SpeculativeConfig(value)),
    target("SpeculativeConfig.num_speculative_tokens", "integer", lambda llm, value: llmi.SpeculativeConfig(llmi.PromptLookup(), value)),
    target("SpeculativeConfig.verification", "objects", lambda llm, value: llmi.SpeculativeConfig(llmi.PromptLookup(), verification=value)),
    target(
        "speculative_config.prompt_lookup_max",
        "maybe integer",
        lambda llm, value: llm.generate([5], max_tokens=1, speculative_config={"method": "ngram", "prompt_lookup_max": value}),
    ),
    target(
        "speculative_config.method",
        "nothing",
        lambda llm, value: llm.generate([5], max_tokens=1, speculative_config={"method": value}),
        "method",
    ),
    target("PromptLookup.prompt_lookup_max", "integer", lambda llm, value: llmi.PromptLookup(value)),
    target("PromptLookup.prompt_lookup_min", "integer", lambda llm, value: llmi.PromptLookup(4, value)),
    target("Eagle.num_draft_tokens", "integer", lambda llm, value: llmi.Eagle("heads", value)),
    target("Eagle.shortlist", "maybe integer", lambda llm, value: llmi.Eagle("heads", shortlist=value)),
    target("DraftModel.model", "objects", lambda llm, value: llmi.DraftModel(value) if value is not None else None, "model", ""),
    target("DraftModel.shortlist", "maybe integer", lambda llm, value: llmi.DraftModel(llm, shortlist=value)),
    target(
        "DraftModel.draft_sample_method",
        "objects",
        lambda llm, value: llmi.DraftModel(llm, draft_sample_method=value) if value is not None else None,
    ),
    target("SelfDraft.skip_layers", "maybe ids", lambda llm, value: llmi.SelfDraft(skip_layers=value)),
    target("SelfDraft.exit_layer", "maybe integer", lambda llm, value: llmi.SelfDraft(exit_layer=value), "exit_layer", "SelfDraft"),
    target("SelfDraft.quantization", "nothing", lambda llm, value: llmi.SelfDraft(quantization=value), "quantization", "SelfDraft"),
    target("SelfDraft.activation_bits", "integer", lambda llm, value: llmi.SelfDraft(exit_layer=1, activation_bits=value)),
    target("Typical.epsilon", "number", lambda llm, value: llmi.Typical(value)),
    target("Typical.delta", "number", lambda llm, value: llmi.Typical(0.1, value)),
    target("TokenTree.token_ids", "ids", lambda llm, value: llmi.TokenTree(value)),
    target("TokenTree.parents", "maybe ids", lambda llm, value: llmi.TokenTree([1, 2], value)),
    target(
        "TokenTree.from_paths", "lists of ids", lambda llm, value: llmi.TokenTree.from_paths(value) if value is not None else None, "paths"
    ),
    target("Draft.token_ids", "ids", lambda llm, value: llmi.Draft(value)),
    target("log_softmax.logits", "objects", lambda llm, value: llmi.log_softmax(value)),
    target("Receipt.load", "objects", lambda llm, value: llmi.Receipt.load(value), "receipt"),
    target("replay.receipt", "objects", lambda llm, value: llmi.replay(value, llm), "receipt"),
]


def _no_strategy(sequence: llmi.TokenSequence) -> Any:
    yield from ()


#: Numbers that are arrays of logits, and single numbers of log_softmax's last axis.
LOGITS = frozenset(
    {"[1.5]", "[[1.5]]", "[2**40]", "[-5]", "np ints", "np floats", "np 2-d", "np 3-d", "range(1, 3)", "array.array", "deque"}
)
TARGETS = [
    *(target(f"generate.{name}", family, with_new_names(name)) for name, family in PARAMETERS.items()),
    *CALLS,
]
