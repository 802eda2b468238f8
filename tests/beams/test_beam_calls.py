"""Beam search in every call, its receipts, records and aliases, drafters, and what is refused, each by the argument's name."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from features import one_by_one
from llmi import (
    LLM,
    AsyncLLM,
    BeamSearchOutput,
    BeamSearchParams,
    GenerationInterrupted,
    HookError,
    InvalidParamsError,
    NonFiniteLogitsError,
    OutOfMemoryError,
    Outputs,
    PromptLookup,
    Receipt,
    SamplingParams,
    UnsupportedCombinationError,
    replay,
)
from llmi.params.beams import BEAMS, NOT_SHARED, SHARED
from llmi.params.sampling import SAMPLING
from llmi.testing import assert_same_tokens
from test_beams import ENDS, PROMPT, Array, beams, many


@pytest.fixture(scope="module")
def path(tiny_path: Callable[..., Path]) -> Path:
    return tiny_path("llama", vocab_size=48, num_layers=2)


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=128) as llm:
        yield llm


@pytest.fixture(scope="module")
def byte_llm(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path("llama", vocab_size=257), kv_cache_memory_bytes=1 << 22, max_model_len=64) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(llm: LLM) -> Outputs:
    return one_by_one(llm, *many())


# --- calls


def test_each_way_to_call(llm: LLM, alone: Outputs) -> None:
    prompts, params = many()
    with llm.stream(prompts, params) as stream:
        chunks = list(stream)
    assert_same_tokens(stream.outputs, alone)
    whole = [chunk for chunk in chunks if isinstance(params[chunk.request_index], BeamSearchParams)]
    assert len(whole) == sum(len(out.outputs) for out, entry in zip(alone, params, strict=True) if isinstance(entry, BeamSearchParams))
    for chunk in whole:
        completion = alone[chunk.request_index].outputs[chunk.index]
        assert (chunk.text, chunk.token_ids, chunk.finish_reason) == (completion.text, completion.token_ids, completion.finish_reason)
    llm.enqueue(prompts, params)
    assert_same_tokens(llm.wait_for_completion(), alone)

    async def main() -> list[Any]:
        async with AsyncLLM(llm=llm) as server:

            async def last(i: int) -> Any:
                return [output async for output in server.generate(prompts[i], params[i])][-1]

            return await asyncio.gather(*map(last, range(len(prompts))))

    assert_same_tokens(Outputs(asyncio.run(main())), alone)


def test_chat_and_keywords(llm: LLM) -> None:
    llm.tokenizer.chat_template = "{{ messages[0].content }}"
    text = llm.tokenizer.decode([20, 21, 22])
    chat = llm.chat([{"role": "user", "content": text}], beams(3))
    direct = llm.generate([chat[0].prompt_token_ids], beams(3))
    assert_same_tokens(chat, direct)
    by_keywords = llm.generate([PROMPT], num_beams=4, num_return_sequences=2, max_new_tokens=10, eos_token_id=ENDS, length_penalty=2.0)
    assert_same_tokens(by_keywords, llm.generate([PROMPT], beams(4, n=2, length_penalty=2.0)))
    assert len(llm.generate([PROMPT], num_beams=4, max_tokens=4)[0].outputs) == 1
    assert len(llm.generate([PROMPT], beam_width=4, max_tokens=4)[0].outputs) == 4
    assert llm.generate([PROMPT], num_beams=1, temperature=0, max_tokens=4)[0].outputs[0].score is None


def test_vllms_shape(llm: LLM) -> None:
    outputs = llm.beam_search([PROMPT, [3, 4]], beams(3))
    plain = llm.generate([PROMPT, [3, 4]], beams(3, logprobs=0))
    assert [type(output) for output in outputs] == [BeamSearchOutput] * 2
    for output, request in zip(outputs, plain, strict=True):
        assert [s.score for s in output.sequences] == sorted((s.score for s in output.sequences), reverse=True)
        for sequence, completion in zip(output.sequences, request.outputs, strict=True):
            assert sequence.tokens == [*request.prompt_token_ids, *completion.token_ids]
            assert (sequence.token_ids, sequence.text, sequence.score) == (completion.token_ids, completion.text, completion.score)
            assert sequence.cum_logprob == completion.cumulative_logprob and len(sequence.logprobs) == len(sequence.token_ids)
    with pytest.raises(InvalidParamsError, match="params must be BeamSearchParams"):
        llm.beam_search([PROMPT], SamplingParams())  # type: ignore[arg-type]


def test_scores_of_vllm_count_the_prompt(llm: LLM) -> None:
    for completion in llm.generate([PROMPT], beams(4, length_penalty=1.0, length_includes_prompt=True))[0].outputs:
        ended = completion.token_ids[-1] in ENDS
        assert completion.score == (completion.cumulative_logprob or 0) / (len(PROMPT) + len(completion.token_ids) - ended)


def test_receipts(llm: LLM, tmp_path: Path) -> None:
    for params in (
        beams(4, n=2, logprobs=1),
        beams(3, do_sample=True, seed=9, early_stopping="never"),
        beams(4, num_beam_groups=2, diversity_penalty=1.0),
    ):
        output = llm.generate([PROMPT], params)[0]
        output.receipt().save(tmp_path / "receipt.json")
        receipt = Receipt.load(tmp_path / "receipt.json")
        assert replay(receipt, llm)
        fields = json.loads((tmp_path / "receipt.json").read_text())
        assert fields["sampling_params"]["beam_width"] == params.beam_width and fields["outputs"][0]["score"] == output.outputs[0].score
        fields["outputs"][0]["score"] = math.nextafter(fields["outputs"][0]["score"], 0)
        assert not replay(Receipt(fields), llm)


def test_what_is_shown(llm: LLM) -> None:
    output = llm.generate([PROMPT], beams(3))[0]
    assert "score=" in repr(output.outputs[0]) and "<th>score</th>" in output._repr_html_()
    assert f"{output.outputs[0].score:.4f}" in output._repr_html_()
    assert "score" not in llm.generate([PROMPT], max_tokens=2)[0]._repr_html_()
    assert output.params_resolved["beam_width"] == (3, "user") and output.params_resolved["early_stopping"] == (False, "default")
    assert output.params_resolved["n"] == (3, "default")


# --- drafters


def test_drafters(path: Path, llm: LLM, alone: Outputs) -> None:
    """A named one is refused; the engine's own is left out, and params_resolved says so."""
    with pytest.raises(UnsupportedCombinationError, match="speculative_config"):
        llm.generate([PROMPT], beams(2), speculative_config=PromptLookup())
    assert llm.generate([PROMPT], beams(2), speculative_config=None)
    with LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=128, speculative_config=PromptLookup()) as drafting:
        outputs = drafting.generate(*many())
        assert_same_tokens(outputs, alone)
        for output, params in zip(outputs, many()[1], strict=True):
            shown = output.params_resolved.get("speculative_config")
            assert (shown == ("engine", "no effect")) == isinstance(params, BeamSearchParams)


# --- bad input


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("n", {"n": 5}),
        ("n", {"n": 0}),
        ("n", {"n": 2.0}),
        ("num_beam_groups", {"num_beam_groups": 3, "diversity_penalty": 1.0}),
        ("num_beam_groups", {"num_beam_groups": 2}),
        ("diversity_penalty", {"diversity_penalty": 0.5}),
        ("diversity_penalty", {"diversity_penalty": -1.0}),
        ("do_sample", {"do_sample": True, "num_beam_groups": 2, "diversity_penalty": 1.0}),
        ("do_sample", {"do_sample": True, "temperature": 0}),
        ("do_sample", {"do_sample": 1}),
        ("length_penalty", {"length_penalty": math.nan}),
        ("length_penalty", {"length_penalty": 51}),
        ("early_stopping", {"early_stopping": "always"}),
        ("early_stopping", {"early_stopping": 1}),
        ("beam_width", {"beam_width": 0}),
        ("beam_width", {"beam_width": None}),
        ("beam_width", {"beam_width": 500}),
        ("length_includes_prompt", {"length_includes_prompt": 0}),
        ("temperature", {"temperature": -1}),
        ("max_tokens", {"max_tokens": 0}),
        ("sampler", {"sampler": lambda context, law: 1}),
        ("speculative_config", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else re.sub(" at 0x[0-9a-f]+", "", str(value))[:50],
)
def test_bad_input_is_refused_by_name(llm: LLM, name: str, fields: dict[str, Any]) -> None:
    options = {"speculative_config": PromptLookup()} if name == "speculative_config" else {}
    before = llm.get_metrics()["num_steps"]
    with pytest.raises(InvalidParamsError, match=name):
        llm.generate([PROMPT], BeamSearchParams(**{"beam_width": 4, "max_tokens": 4, **fields}), **options)
    assert llm.get_metrics()["num_steps"] == before


def test_what_transformers_renormalises(llm: LLM) -> None:
    llm.generate([PROMPT], num_beams=2, max_tokens=2, renormalize_logits=False)
    with pytest.raises(UnsupportedCombinationError, match=r"renormalize_logits.*not normalised again"):
        llm.generate([PROMPT], num_beams=2, max_tokens=2, renormalize_logits=True)


def test_aliases(llm: LLM) -> None:
    params = BeamSearchParams(num_beams=4, num_return_sequences=2, max_new_tokens=5)  # type: ignore[call-arg]
    assert (params.beam_width, params.n, params.max_tokens) == (4, 2, 5)
    assert BeamSearchParams(num_beams=4).n == 1 and BeamSearchParams(beam_width=4).n is None  # type: ignore[call-arg]
    assert params.replace(num_return_sequences=3).n == 3
    with pytest.raises(InvalidParamsError, match="beam_width and num_beams contradict"):
        BeamSearchParams(beam_width=4, num_beams=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="beam_with"):
        BeamSearchParams(beam_width=4, beam_with=3)  # type: ignore[call-arg]
    for name, value in {
        "length_penalty": 2.0,
        "early_stopping": True,
        "num_beam_groups": 2,
        "diversity_penalty": 0.5,
    }.items():
        with pytest.raises(UnsupportedCombinationError, match=rf"{name}.*belongs to beam search.*num_beams"):
            llm.generate([PROMPT], max_tokens=2, **{name: value})
        with pytest.raises(UnsupportedCombinationError, match="belongs to beam search"):
            SamplingParams(**{name: value})
    with pytest.raises(InvalidParamsError, match="num_beams must be an integer"):
        llm.generate([PROMPT], num_beams=2.5)


@pytest.mark.parametrize("name", ["force_words", "force_words_ids", "constraints"])
def test_what_transformers_dropped_is_refused_with_the_version(llm: LLM, name: str) -> None:
    for call in (
        lambda: BeamSearchParams(beam_width=2, **{name: [[3]]}),
        lambda: BeamSearchParams(beam_width=2).replace(**{name: [[3]]}),
        lambda: SamplingParams(**{name: [[3]]}),
        lambda: llm.generate([PROMPT], num_beams=2, max_tokens=2, **{name: [[3]]}),
    ):
        with pytest.raises(
            UnsupportedCombinationError, match=rf"{name} = .*transformers dropped it after version 4.52.*structured_outputs"
        ):
            call()
    BeamSearchParams(beam_width=2, **{name: []})


def test_the_tables_are_the_dataclass() -> None:
    fields = {field.name: field for field in dataclasses.fields(BeamSearchParams)}
    assert set(fields) == {*BEAMS, *SHARED} and set(SAMPLING) == {*SHARED, *NOT_SHARED, "n"}
    for name, option in {**{name: SAMPLING[name] for name in SHARED}, **BEAMS}.items():
        if name != "beam_width":
            assert fields[name].default == option.default and type(fields[name].default) is type(option.default), name
        assert option.doc.endswith(".")


def test_the_models_own_parameters(path: Path, tmp_path: Path) -> None:
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.5, "top_k": 7, "repetition_penalty": 1.2}')
    with LLM(tmp_path, kv_cache_memory_bytes=1 << 22, max_model_len=64) as llm:
        resolved = llm.generate([PROMPT], num_beams=2, max_tokens=3)[0].params_resolved
        assert resolved["top_k"] == (7, "no effect") and resolved["repetition_penalty"] == (1.2, "model")
        assert_same_tokens(
            llm.generate([PROMPT], num_beams=2, max_tokens=6),
            llm.generate([PROMPT], BeamSearchParams(beam_width=2, n=1, max_tokens=6, repetition_penalty=1.2)),
        )
        resolved = llm.generate([PROMPT], num_beams=2, max_tokens=3, do_sample=True, mirostat=2)[0].params_resolved
        assert resolved["top_k"] == (7, "no effect") and resolved["mirostat"] == (2, "user")
        resolved = llm.generate([PROMPT], num_beams=2, max_tokens=3, sampler_order=["temperature"])[0].params_resolved
        assert resolved["repetition_penalty"] == (1.2, "no effect")
        resolved = llm.generate([PROMPT], num_beams=2, max_tokens=3, do_sample=True)[0].params_resolved
        assert resolved["top_k"] == (7, "model") and resolved["temperature"] == (0.5, "model") and resolved["do_sample"] == (True, "user")


def test_a_width_that_does_not_fit(path: Path) -> None:
    with LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=64, max_num_seqs=6) as llm:
        with pytest.raises(InvalidParamsError, match=r"beam_width = 7 .*max_num_seqs = 6"):
            llm.generate([PROMPT], beams(7))
        assert len(llm.generate([PROMPT], beams(6))[0].outputs) == 6
        memory = llm._page_bytes
    with (
        LLM(path, kv_cache_memory_bytes=memory * 8, max_model_len=64) as llm,
        pytest.raises(OutOfMemoryError, match=r"beam_width = 16 .*pages.*16 x"),
    ):
        llm.generate([PROMPT], beams(16, max_tokens=20))


def test_a_processors_nan_ends_its_request_alone(llm: LLM) -> None:
    for value in (math.nan, math.inf):

        def bad(context: Any, row: Array, value: float = value) -> None:
            if len(context.token_ids) > len(PROMPT) + 2:
                row[4] = value

        outputs = llm.generate([PROMPT, PROMPT], [beams(3, logits_processors=[bad]), beams(3)], on_error="return")
        assert isinstance(outputs[0].error, NonFiniteLogitsError) and "bad" in str(outputs[0].error)
        assert outputs[1].error is None and len(outputs[1].outputs) == 3

    def raising(context: Any, row: Array) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(HookError, match="mine"):
        llm.generate([PROMPT], beams(3, logits_processors=[raising]))


def test_an_interrupt_keeps_what_is_finished(llm: LLM) -> None:
    sent = threading.Event()  # not in context.state: each beam has its own, and a second Ctrl-C would end the wait for what is finished

    def interrupting(context: Any) -> bool:
        if len(context.token_ids) >= len(PROMPT) + 6:
            if not sent.is_set():
                sent.set()
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.01)
        return False

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        finished = llm.generate([PROMPT], beams(2, n=1, max_tokens=3))[0]
        ends = [0, 7, 19, 3, 5, 40, 41, 42]
        request = beams(4, stopping_criteria=[interrupting], max_tokens=100, early_stopping="never", length_penalty=8.0, eos_token_id=ends)
        with pytest.raises(GenerationInterrupted) as caught:
            llm.generate([PROMPT, PROMPT], [beams(2, n=1, max_tokens=3), request])
    finally:
        signal.signal(signal.SIGINT, before)
    done, cut = caught.value.outputs
    assert done.outputs[0].token_ids == finished.outputs[0].token_ids
    assert cut.outputs[0].finish_reason == "stop" and all(c.score is not None for c in cut.outputs), cut
    assert llm.generate([PROMPT], beams(2, n=1, max_tokens=3))[0] == finished
