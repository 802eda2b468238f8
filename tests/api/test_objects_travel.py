"""Objects travel: outputs, records, parameters and errors go through pickle and copies and come back equal; receipts are strict JSON."""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import importlib
import inspect
import json
import math
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, InvalidParamsError, Receipt, SamplingParams, SpeculativeConfig, UnsupportedCombinationError, testing
from llmi.models.files import ModelDigest
from pickled_objects import ERRORS, made_error, objects

WAYS: list[Callable[[Any], Any]] = [
    *(lambda value, protocol=protocol: pickle.loads(pickle.dumps(value, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)),
    copy.copy,
    copy.deepcopy,
]


@pytest.fixture(scope="module")
def llm(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22) as llm:
        yield llm


def outputs_of(llm: LLM) -> llmi.Outputs:
    """One of every kind: several samples, log-probabilities of both sides, a trace, speculation, an error, hooks."""

    def hook(context: Any, logits: Any) -> None:
        logits[3] = -math.inf

    def bad(context: Any) -> bool:
        raise ZeroDivisionError("mine")

    shared = {"max_tokens": 6, "seed": 1, "ignore_eos": True}
    params = [
        SamplingParams(**shared, n=2, logprobs=2, prompt_logprobs=1, top_k=5),
        SamplingParams(**shared, logits_processors=[hook], stopping_criteria=[hook.__class__ and (lambda context: False)]),
        SamplingParams(**shared, stopping_criteria=[bad]),
        SamplingParams(**shared),
    ]
    drafters = [None, None, None, llmi.PromptLookup()]
    return llm.generate([[1, 2, 3], [4], [5], [6, 7, 6, 7]], params, trace=True, on_error="return", speculative_config=drafters)


def everything(value: Any) -> Any:
    """A value's whole content, as what `==` compares: also what equality leaves out."""
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, BaseException):
        return (type(value), str(value), everything(vars(value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (type(value), {field.name: everything(getattr(value, field.name)) for field in dataclasses.fields(value)})
    if isinstance(value, dict):
        return {key: everything(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return (type(value), [everything(entry) for entry in value], everything(getattr(value, "__dict__", {})))
    if isinstance(value, ModelDigest):  # of open files here, of their digest there
        return value()
    if isinstance(value, llmi.Tokenizer):  # the library's own form may change with its version
        return ({**value.__getstate__(), "library": value.encode("ab c")}, value.decode([70, 71]))
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__
    if type(value).__module__.split(".")[0] == "llmi" and hasattr(value, "__dict__"):
        return (type(value), everything(vars(value)))
    return (type(value), repr(value))


def named_hooks(outputs: llmi.Outputs) -> llmi.Outputs:
    """Python hooks among the parameters travel as their names."""
    result = copy.copy(outputs)
    for i, output in enumerate(result):
        result[i] = copy.copy(output)
    return result


# --- outputs and records


def test_outputs_come_back_equal(llm: LLM) -> None:
    outputs = outputs_of(llm)
    for way in WAYS:
        back = way(outputs)
        assert type(back) is llmi.Outputs and back == outputs and back.texts == outputs.texts
        assert everything(list(named_hooks(back))) == everything(list(named_hooks(outputs)))
        for there, here in zip(back, outputs, strict=True):
            assert there.metrics == here.metrics and there.params_resolved.keys() == here.params_resolved.keys()
            for sample, original in zip(there.outputs, here.outputs, strict=True):
                assert sample.trace == original.trace and sample.spec_decode_metrics == original.spec_decode_metrics
        assert back[0].receipt() == outputs[0].receipt()
        assert repr(back) == repr(outputs) and back._repr_html_()
    back = pickle.loads(pickle.dumps(outputs))
    assert back[1].params_resolved["logits_processors"][0] == (f"{outputs_of.__qualname__}.<locals>.hook",)
    assert type(back[2].error) is llmi.HookError and back[2].error.hook == "bad" and "mine" in str(back[2].error)


def records(llm: LLM) -> list[Any]:
    outputs = outputs_of(llm)
    trace = outputs[0].outputs[0].trace
    assert trace is not None
    other = llm.generate([1, 2, 3], max_tokens=6, seed=2, ignore_eos=True, trace=True)[0].outputs[0].trace
    with llm.sequence([1, 2, 3]) as sequence:
        _ = sequence.logits
        memory = llm.memory_report()
    chunk = next(llm.stream([1], max_tokens=2, ignore_eos=True))
    lookup = {"lookup": llmi.PromptLookup()}
    return [
        *outputs,
        *(entry for output in outputs for entry in output.outputs),
        *(output.metrics for output in outputs),
        *(entry for output in outputs for sample in output.outputs for entry in [sample.spec_decode_metrics, sample.trace]),
        outputs[0].outputs[0].logprobs,
        outputs[0].prompt_logprobs,
        chunk,
        memory,
        llm.model_info,
        trace.explain(3),
        trace.diff(other),
        *llm.loglikelihood([([1], [2, 3])]),
        *llm.perplexity([[1, 2, 3]]),
        llm.get_default_sampling_params(),
        outputs[0].receipt(),
        llmi.drafter_arena(outputs, lookup),
        llmi.speculation_forecast(llm, [[1, 2]], lookup, SamplingParams(max_tokens=20, ignore_eos=True)),
        SamplingParams(stop=["a"], logit_bias={3: -math.inf}, seed=2**64 - 1),
        llmi.Generate([[1]], SamplingParams()),
        llmi.doctor(),
        SpeculativeConfig(llmi.PromptLookup(3, 2), 4, "typical"),
        SpeculativeConfig([llmi.PromptLookup(), llmi.PromptLookup(2)], "auto", "block"),
        SpeculativeConfig(llmi.SelfDraft(exit_layer=1), 2),
        llmi.Typical(0.1),
        llmi.TokenTree([1, 2], [-1, -1]),
        llmi.Draft([1], None, [np.ones(4)]),
        llmi.Capture(hidden_states=(i for i in [0, -1])),
        llmi.RequestInfo("1", 0, 0.0, 1, 1, 1, 0),
    ]


def test_records_come_back_equal(llm: LLM) -> None:
    for record in records(llm):
        for way in WAYS:
            back = way(record)
            assert type(back) is type(record) and back == record, record
            assert repr(back) == repr(record) or " object at " in repr(record)


def test_records_differ_where_a_value_does(llm: LLM) -> None:
    one = llm.loglikelihood([([1], [2, 3])])[0]
    assert one == dataclasses.replace(one, token_logprobs=one.token_logprobs.copy())
    assert one != dataclasses.replace(one, token_logprobs=one.token_logprobs + 1)
    assert one != dataclasses.replace(one, is_greedy=not one.is_greedy)
    nan = float("nan")
    metrics = llmi.RequestMetrics(nan, np.array([nan, 1.0], np.float32), nan, nan, nan, 0)
    assert metrics == copy.deepcopy(metrics) != dataclasses.replace(metrics, num_preemptions=1)
    assert llmi.TokenTree([1, 2]) == llmi.TokenTree([1, 2]) != llmi.TokenTree([1, 2], [-1, -1])
    assert llmi.PromptLookup(3) == llmi.PromptLookup(3) != llmi.PromptLookup(4)


def _length(outputs: llmi.Outputs) -> tuple[llmi.Outputs, int]:
    return outputs, sum(len(output.token_ids) for output in outputs)


def _refuses(message: str) -> None:
    raise llmi.OutOfMemoryError(message, 2, 1, "advice")


def test_outputs_and_errors_cross_processes(llm: LLM) -> None:
    outputs = outputs_of(llm)
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        back, length = pool.submit(_length, outputs).result(60)
        with pytest.raises(llmi.OutOfMemoryError, match="too small: advice") as caught:
            pool.submit(_refuses, "too small").result(60)
    assert back == outputs and length == sum(len(output.token_ids) for output in outputs)
    assert (caught.value.needed_bytes, caught.value.available_bytes, caught.value.advice) == (2, 1, "advice")


# --- all public classes


def test_objects_of_public_classes_come_back_equal() -> None:
    for name, value in objects().items():
        for way in WAYS:
            assert everything(way(value)) == everything(value), name


def test_there_is_an_object_of_each_public_class() -> None:
    """All but protocols, and what holds an engine or belongs to a running request."""
    stay = {"LLM", "AsyncLLM", "TextStream", "TokenSequence", "DraftModel", "DraftContext", "TokenContext", "VerifyContext"}
    public = {name: getattr(llmi, name) for name in llmi.__all__}
    classes = {name for name, value in public.items() if isinstance(value, type) and not getattr(value, "_is_protocol", False)}
    assert classes - stay == objects().keys() & classes


# --- errors


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_errors_come_back_equal(kind: type[BaseException]) -> None:
    error = made_error(kind)
    error.add_note("a note")
    for way in WAYS:
        back = way(error)
        assert everything(back) == everything(error) and everything(back.args) == everything(error.args), way
        assert [base.__name__ for base in type(back).__mro__] == [base.__name__ for base in kind.__mro__]


def test_interrupted_outputs_travel(llm: LLM) -> None:
    error = llmi.GenerationInterrupted(outputs_of(llm))
    for way in WAYS:
        assert way(error).outputs == error.outputs


def test_request_errors_are_a_group(llm: LLM) -> None:
    def bad(context: Any) -> bool:
        raise ZeroDivisionError("mine")

    caught = []
    try:
        llm.generate([[1], [300]], [SamplingParams(stopping_criteria=[bad]), SamplingParams()])
    except* llmi.HookError as group:
        caught += group.exceptions
    except* InvalidParamsError as group:
        caught += group.exceptions
    assert len(caught) == 2


# --- names


@pytest.mark.parametrize("module", ["llmi", "llmi.smc", "llmi.testing", "llmi.tools", "llmi.watermark"])
def test_public_names_say_where_they_are(module: str) -> None:
    package = importlib.import_module(module)
    for name in package.__all__:
        value = getattr(package, name)
        if isinstance(value, type) or inspect.isfunction(value):
            assert (value.__module__, value.__qualname__) == ("llmi" if name in llmi.__all__ else module, name)
            assert pickle.loads(pickle.dumps(value)) is value


def test_results_say_so_too(llm: LLM) -> None:
    """Also a class that nobody has asked llmi for."""
    for record in records(llm):
        kind = type(record)
        if kind.__module__.split(".")[0] == "llmi" and kind.__name__ in llmi.__all__:
            assert kind.__module__ == "llmi", kind


def test_what_holds_an_engine_stays(llm: LLM, tiny_path: Callable[..., Path]) -> None:
    server = llmi.AsyncLLM(llm=llm)
    with llm.sequence([1]) as sequence, llm.stream([1], max_tokens=1) as stream:
        for thing in (llm, server, sequence, stream, server.generate([1]), llmi.DraftModel(llm)):
            for way in WAYS[:-2] + ([copy.copy, copy.deepcopy] if not isinstance(thing, llmi.DraftModel) else []):
                with pytest.raises(InvalidParamsError, match="in each process"):
                    way(thing)
    with pytest.raises(TypeError):
        pickle.dumps(llm)


# --- receipts


def refuse(constant: str) -> None:
    raise ValueError(constant)


def strict(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


#: Every parameter that tokens, text or log-probabilities depend on, away from its default.
CHANGES: dict[str, Any] = {
    "n": 2,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "max_tokens": 5,
    "min_tokens": 3,
    "stop": ["zz", "inf"],
    "stop_token_ids": [9],
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "repetition_penalty": 1.3,
    "logit_bias": {7: -math.inf, 8: math.inf, 9: 1.5},
    "bad_words": ["ab"],
    "allowed_token_ids": [7, 8, 9, 10, 11, 200],
    "typical_p": 0.8,
    "epsilon_cutoff": 0.004,
    "top_h": 0.5,
    "top_n_sigma": 1.5,
    "p_less": True,
    "xtc_probability": 0.5,
    "dynatemp_range": 0.4,
    "mirostat": 2,
    "adaptive_p": 0.3,
    "dry_multiplier": 0.8,
    "dry_sequence_breakers": [],
    "no_repeat_ngram_size": 2,
    "penalty_last_n": 5,
    "sampler_order": "llama.cpp",
    "logprobs": 3,
    "prompt_logprobs": 2,
    "detokenize": False,
    "skip_special_tokens": False,
}


@pytest.mark.parametrize("name", CHANGES)
def test_receipts_are_strict_and_replay(llm: LLM, tmp_path: Path, name: str) -> None:
    params = {"max_tokens": 4, "logprobs": 1, name: CHANGES[name]}
    if name == "logit_bias":
        params["logit_bias"] = {7: -math.inf, 9: 1.5}
    output = llm.generate([1, 2, 3], seed=11, **params)[0]
    path = tmp_path / "r.json"
    output.receipt().save(path)
    fields = strict(path)
    assert Receipt.load(path) == output.receipt() == Receipt(fields)
    assert llmi.replay(path, llm)
    recorded = fields["sampling_params"]
    assert set(recorded) >= set(CHANGES), "a receipt holds every parameter, at its default or not"


def test_receipts_take_the_models_defaults_for_nothing(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    """What was at llmi's default when the output was made stays there, whatever a generation_config says."""
    model = testing.tiny_model(vocab_size=257, path=tmp_path)
    with LLM(model, kv_cache_memory_bytes=1 << 22, generation_config="none") as llm:
        receipt = llm.generate([1, 2], SamplingParams(seed=3, max_tokens=20, ignore_eos=True))[0].receipt()
    config = tmp_path / "defaults.json"
    config.write_text(json.dumps({"temperature": 0.1, "top_k": 1}))
    with LLM(model, kv_cache_memory_bytes=1 << 22, generation_config=config) as llm:
        assert llmi.replay(receipt, llm)


def test_receipts_see_every_difference(llm: LLM) -> None:
    output = llm.generate([1, 2, 3], max_tokens=4, seed=5, logprobs=1, prompt_logprobs=1, ignore_eos=True)[0]
    fields = output.receipt().fields
    changed = copy.deepcopy(output)
    assert changed.prompt_logprobs is not None and changed.prompt_logprobs[1] is not None
    next(iter(changed.prompt_logprobs[1].values())).logprob += 1e-6
    assert changed.receipt().fields["logprob_digest"] != fields["logprob_digest"], "prompt log-probabilities are in the digest"
    for path, value in (
        (("outputs", 0, "finish_reason"), "stop"),
        (("outputs", 0, "text"), "x"),
        (("seed",), 6),
        (("prompt_token_ids",), [1, 2]),
    ):
        other = copy.deepcopy(fields)
        place: Any = other
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        assert not llmi.replay(Receipt(other), llm)
    with pytest.raises(InvalidParamsError, match="end with token ids"):
        llmi.replay(Receipt({**fields, "eos_token_ids": [3]}), llm)


def test_receipts_of_format_1_are_read(llm: LLM, tmp_path: Path) -> None:
    output = llm.generate([1, 2, 3], max_tokens=4, seed=5, logprobs=1, prompt_logprobs=1, logit_bias={7: -math.inf}, temperature=0.9)[0]
    fields = output.receipt().fields
    import hashlib
    import struct

    digest = hashlib.sha256()
    for entries in output.outputs[0].logprobs or []:
        for token, entry in entries.items():
            digest.update(struct.pack("<iffi", token, entry.logprob, entry.processed_logprob, entry.rank))
    old = {
        **{name: value for name, value in fields.items() if name != "eos_token_ids"},
        "format": 1,
        "sampling_params": {"max_tokens": 4, "logprobs": 1, "prompt_logprobs": 1, "logit_bias": {"7": -math.inf}, "temperature": 0.9},
        "outputs": [{"token_ids": output.token_ids, "text": output.text}],
        "logprob_digest": digest.hexdigest(),
    }
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    assert "-Infinity" in path.read_text()
    receipt = Receipt.load(path)
    assert llmi.replay(receipt, llm)
    receipt.save(path)
    strict(path)
    assert llmi.replay(path, llm)


HOSTILE: dict[str, Any] = {
    "no object": [],
    "no format": {"format": None},
    "another format": {"format": 3},
    "a format that is a bool": {"format": True},
    "a path for a name": {"model": "../../etc/passwd"},
    "a hub name": {"model": "user/repo"},
    "a number for a digest": {"model_sha256": 3},
    "no prompt": {"prompt_token_ids": None},
    "text for ids": {"prompt_token_ids": "12"},
    "a negative id": {"prompt_token_ids": [-1]},
    "a float for an id": {"prompt_token_ids": [1.0]},
    "a huge id": {"prompt_token_ids": [2**40]},
    "a float for a seed": {"seed": 1.5},
    "a huge seed": {"seed": 2**64},
    "hooks": {"sampling_params": {"logits_processors": ["os.system"]}},
    "an unknown parameter": {"sampling_params": {"x": 1}},
    "parameters in a list": {"sampling_params": []},
    "a bias in a list": {"sampling_params": {"logit_bias": [1]}},
    "a bias that is text": {"sampling_params": {"logit_bias": {"7": "x"}}},
    "a bias that is nan": {"sampling_params": {"logit_bias": {"7": "nan"}}},
    "a bias for no id": {"sampling_params": {"logit_bias": {"x": 1.0}}},
    "outputs that are none": {"outputs": [3]},
    "a number for a text": {"outputs": [{"token_ids": [1], "text": 2}]},
    "NaN": {"extra": math.nan},
    "infinity": {"extra": -math.inf},
    "overrides in a list": {"hf_overrides": [1]},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_are_no_receipts_are_refused(llm: LLM, tmp_path: Path, name: str) -> None:
    fields = llm.generate([1, 2], max_tokens=2, seed=1)[0].receipt().fields
    change = HOSTILE[name]
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps({**fields, **change} if isinstance(change, dict) else change))
    with pytest.raises(InvalidParamsError, match=r"hostile\.json"):
        Receipt.load(path)


def test_files_that_are_no_json_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "hostile.json"
    for text in ("", "[" * 100_000, '{"format": 1e400}', '{"format": ' + "9" * 5000 + "}", "\0", '{"format": 2'):
        path.write_text(text)
        with pytest.raises(InvalidParamsError, match=r"hostile\.json"):
            Receipt.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    for bad in (path, tmp_path, tmp_path / "none.json", "/dev/zero"):
        with pytest.raises(InvalidParamsError):
            Receipt.load(bad)


def test_outputs_without_an_end_of_their_own_have_no_receipt(llm: LLM) -> None:
    stream = llm.stream([1], max_tokens=1900, ignore_eos=True)
    next(stream)
    with pytest.raises(UnsupportedCombinationError, match="own end"):
        stream.outputs[0].receipt()
    stream.close()
    with pytest.raises(UnsupportedCombinationError, match="own end"):
        stream.outputs[0].receipt()
