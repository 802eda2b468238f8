"""Engine-wide processors: rows together or alone, the tokens are the same; and transformers' streamers."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from features import DRAFTED, FEATURES, make_request
from llmi import LLM, Outputs, SamplingParams, SpeculativeConfig, TokenContext
from llmi.testing import assert_same_tokens
from test_speculation import Replay


def shift(context: TokenContext, logits: Any) -> None:
    """What the engine-wide processor does, as a processor of one request: with memory, and an eye on the text."""
    seen = context.state.setdefault("batch", [])
    seen.append(int(context.token_ids[-1]))
    logits[seen[0]] -= 0.5
    logits[seen[-1]] -= 2.0
    logits[len(context.output_text) % len(logits)] += 1.5


class Shift:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def apply(self, contexts: list[TokenContext], logits: Any) -> None:
        assert logits.shape[0] == len(contexts)
        self.sizes.append(len(contexts))
        for context, row in zip(contexts, logits, strict=True):
            shift(context, row)


@pytest.fixture
def shifted(tiny_path: Callable[..., Path]) -> Any:
    processor = Shift()
    with LLM(tiny_path("gemma3"), kv_cache_memory_bytes=1 << 22, max_model_len=160, max_num_seqs=12, batch_processors=[processor]) as llm:
        yield llm, processor


def alone(roomy: LLM, requests: list[tuple[Any, SamplingParams]]) -> Outputs:
    """The same processor, request by request."""
    outputs = Outputs()
    for prompt, params in requests:
        outputs += roomy.generate(prompt, params.replace(logits_processors=[shift, *params.logits_processors]), use_tqdm=False)
    return outputs


def test_together_and_alone(shifted: tuple[LLM, Shift], tiny_path: Callable[..., Path]) -> None:
    llm, processor = shifted
    requests = [make_request(name, 17 * i + 1) for i, name in enumerate(FEATURES)]
    with LLM(tiny_path("gemma3"), kv_cache_memory_bytes=1 << 24, max_model_len=256) as roomy:
        expected = alone(roomy, requests)
    prompts, params = [prompt for prompt, _ in requests], [params for _, params in requests]
    assert_same_tokens(llm.generate(prompts, params), expected)
    assert max(processor.sizes) > 4, "rows did not come together"
    config = SpeculativeConfig(Replay(expected, error_rate=0.3), 4)
    configs = [config if name in DRAFTED else None for name in FEATURES]
    assert_same_tokens(llm.generate(prompts, params, speculative_config=configs), expected)
    metrics = llm.get_metrics()
    assert 0 < metrics["hook_time_s"] < metrics["busy_time_s"]


def test_sequences_meet_it_too(shifted: tuple[LLM, Shift]) -> None:
    llm, _ = shifted
    params = SamplingParams(max_tokens=8, seed=4, ignore_eos=True, temperature=0.8)
    out = llm.generate([[1, 2, 3]], params)[0]
    sequence = llm.sequence([1, 2, 3], seed=4)
    for token in out.token_ids:
        assert sequence.sample(params) == token
        sequence.extend([token])


def test_one_that_raises_ends_its_own_request(tiny_path: Callable[..., Path]) -> None:
    class Picky:
        def apply(self, contexts: list[TokenContext], logits: Any) -> None:
            for context, row in zip(contexts, logits, strict=True):
                shift(context, row)
                if context.token_ids[0] == 9 and len(context.token_ids) == 6:
                    raise ValueError("not this one")

    params = SamplingParams(max_tokens=12, seed=4, ignore_eos=True)
    prompts = [[i, 2, 3] for i in (7, 8, 9, 10)]
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=160, batch_processors=[Picky()]) as llm:
        outputs = llm.generate(prompts, params, on_error="return")
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=160) as roomy:
        expected = alone(roomy, [(prompt, params) for prompt in prompts])
    assert isinstance(outputs[2].error, llmi.HookError) and isinstance(outputs[2].error.__cause__, ValueError)
    assert "a batch processor raised ValueError: not this one" in str(outputs[2].error)
    assert [outputs[i] for i in (0, 1, 3)] == [expected[i] for i in (0, 1, 3)]


def test_nan_is_caught(tiny_path: Callable[..., Path]) -> None:
    class Nan:
        def apply(self, contexts: list[TokenContext], logits: Any) -> None:
            logits[0] = np.nan

    with (
        LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=160, batch_processors=[Nan()]) as llm,
        pytest.raises(llmi.NonFiniteLogitsError, match="NaN"),
    ):
        llm.generate([1, 2], max_tokens=2)


# --- transformers' streamers


@pytest.mark.parity
def test_streamers_of_transformers(tiny: LLM) -> None:
    import transformers

    class Recorder(transformers.generation.streamers.BaseStreamer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.calls: queue.Queue[list[int] | None] = queue.Queue()

        def put(self, value: Any) -> None:
            self.calls.put(value.reshape(-1).tolist())

        def end(self) -> None:
            self.calls.put(None)

    recorder = Recorder()
    out = tiny.generate([[1, 2, 3]], max_tokens=5, seed=1, ignore_eos=True, stopping_criteria=[recorder])[0]
    assert list(recorder.calls.queue) == [[1, 2, 3], *([token] for token in out.token_ids), None]
    recorder = Recorder()
    again = tiny.generate(
        [[1, 2, 3]],
        max_tokens=5,
        seed=1,
        ignore_eos=True,
        stopping_criteria=[recorder],
        speculative_config=Replay(Outputs([out]), error_rate=0.2),
    )[0]
    assert again == out and recorder.calls.qsize() == 7
    with pytest.raises(llmi.UnsupportedCombinationError, match="one continuation"):
        tiny.generate([1], n=2, stopping_criteria=[Recorder()])


@pytest.mark.parity
def test_the_last_token_is_seen_as_in_transformers(tiny: LLM, tiny_path: Callable[..., Path]) -> None:
    """Streamers and criteria see each token once, the one that ends the text too: end-of-text, a stop, or the last of max_tokens."""
    import torch
    import transformers

    class Recorder(transformers.generation.streamers.BaseStreamer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.tokens: list[int] = []
            self.num_ends = 0

        def put(self, value: Any) -> None:
            self.tokens += value.reshape(-1).tolist()

        def end(self) -> None:
            self.num_ends += 1

    class Watch(transformers.StoppingCriteria):  # type: ignore[misc, name-defined]
        def __init__(self, stops: bool = False) -> None:
            self.seen: list[int] = []
            self.stops = stops

        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            self.seen.append(int(input_ids[0, -1]))
            return torch.tensor([self.stops])

    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_path("llama"), dtype=torch.float32)
    prompt = [1, 2, 3]

    def theirs(**arguments: Any) -> tuple[list[int], list[int], list[list[int]], int]:
        streamer, watches = Recorder(), [Watch(), Watch()]
        ids = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, 3, dtype=torch.int64),
            do_sample=False,
            max_new_tokens=6,
            pad_token_id=0,
            streamer=streamer,
            stopping_criteria=watches,
            **arguments,
        )
        return ids[0, 3:].tolist(), streamer.tokens, [watch.seen for watch in watches], streamer.num_ends

    def ours(criteria: int = 0, **arguments: Any) -> tuple[list[int], list[int], list[list[int]], int]:
        streamer, watches = Recorder(), [Watch(), Watch()]
        hooks = [watches[0], Watch(stops=True), streamer, watches[1]] if criteria else [watches[0], streamer, watches[1]]
        out = tiny.generate([prompt], temperature=0, max_tokens=6, stopping_criteria=hooks, **arguments)[0]
        return out.token_ids, streamer.tokens, [watch.seen for watch in watches], streamer.num_ends

    first = theirs(eos_token_id=None)[0]
    end = first[2]
    for result in (theirs(eos_token_id=end), theirs(eos_token_id=None)):
        ids, streamed, seen, num_ends = result
        assert streamed == [*prompt, *ids] and seen == [ids, ids] and num_ends == 1, "transformers' rule"
    own = ours(ignore_eos=True)[0]
    for result, length in (
        (ours(eos_token_id=own[2]), own.index(own[2]) + 1),
        (ours(stop_token_ids=[own[2]], ignore_eos=True), own.index(own[2]) + 1),
        (ours(ignore_eos=True), 6),
        (ours(ignore_eos=True, criteria=1), 1),
        (ours(stop=[tiny.tokenizer.decode([own[1]])], ignore_eos=True), None),
    ):
        ids, streamed, seen, num_ends = result
        assert length is None or len(ids) == length
        assert streamed == [*prompt, *ids] and seen == [ids, ids] and num_ends == 1


def test_beams_show_their_last_token_to_criteria(tiny: LLM) -> None:
    """Also the one that ends a hypothesis, as in transformers."""
    seen: list[list[int]] = []

    def watch(context: TokenContext) -> bool:
        seen.append(context.token_ids[context.prompt_len :].tolist())
        return False

    ends = tiny.generate([[1, 2, 3]], temperature=0, max_tokens=3, ignore_eos=True)[0].token_ids[1:2]
    outputs = tiny.generate([[1, 2, 3]], llmi.BeamSearchParams(beam_width=3, max_tokens=5, eos_token_id=ends, stopping_criteria=[watch]))[
        0
    ].outputs
    assert any(out.token_ids[-1] in ends for out in outputs)
    assert all(out.token_ids in seen for out in outputs)


@pytest.mark.parity
def test_text_streamer_prints_the_text(tiny: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    import transformers

    class Decoder:
        def decode(self, ids: int | list[int], **kwargs: Any) -> str:
            return " ".join(map(str, np.atleast_1d(ids))) + "\n"

    streamer = transformers.TextStreamer(Decoder(), skip_prompt=True)
    out = tiny.generate([[1, 2, 3]], max_tokens=5, seed=1, ignore_eos=True, stopping_criteria=[streamer])[0]
    assert capsys.readouterr().out.split() == [str(token) for token in out.token_ids]
