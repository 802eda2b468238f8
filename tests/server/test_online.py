"""AsyncLLM under a server: deltas that cost what is new, wakeups, deadlines, the queue's bound, chats off the loop, seeds, health."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import llmi
from llmi import LLM, AsyncLLM, SamplingParams
from llmi.base.ending import ENDING
from llmi.outputs.results import RequestOutput
from llmi.requests.resolve import derive_seed
from llmi.requests.results import ResultBuilder
from waiting import HANG_S

PARAMS = SamplingParams(max_tokens=24, seed=5, ignore_eos=True)
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}{% if add_generation_prompt %}<answer>{% endif %}"
)
CHAT = [{"role": "user", "content": "abc"}]


def slowly(context: Any, logits: Any) -> None:
    """A processor that takes its time."""
    time.sleep(0.005)


SLOW = PARAMS.replace(logits_processors=[slowly], max_tokens=200)


@pytest.fixture(scope="module")
def llm(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=512, max_num_seqs=4, seed=7) as llm:
        llm.tokenizer.use_chat_template(TEMPLATE)
        yield llm


async def read(stream: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
    return [output async for output in stream]


def run(llm: LLM, main: Callable[[AsyncLLM], Any], **options: Any) -> Any:
    """What `main` returns for an AsyncLLM around `llm`. No block is lost."""

    async def inner() -> Any:
        async with AsyncLLM(llm=llm, **options) as engine:
            return await main(engine)

    result = asyncio.run(inner())
    llm.reset_prefix_cache()
    stats = llm.get_metrics()
    assert (stats["num_running"], stats["num_waiting"], stats["num_free_pages"]) == (0, 0, stats["num_pages"])
    assert llm._engine.num_queued == 0
    return result


KINDS = {
    "plain": {},
    "logprobs": {"logprobs": 5},
    "n": {"n": 3, "logprobs": 0},
    "n with ends apart": {"n": 3, "ignore_eos": False, "stop_token_ids": list(range(40, 90))},
    "prompt_logprobs": {"prompt_logprobs": 2},
    "a stop string": {"stop": ["a", "e", "i"]},
    "a stop id": {"stop_token_ids": list(range(10, 60))},
    "a grammar": {"structured_outputs": {"regex": "[ab]{5,9}"}, "ignore_eos": False, "n": 2},
    "drafts": {"temperature": 0.0},
    "one token": {"max_tokens": 1},
}


def add_up(deltas: list[RequestOutput]) -> dict[int, tuple[list[int], str, list[Any]]]:
    """(token ids, text, log-probabilities) of each continuation."""
    sums: dict[int, tuple[list[int], str, list[Any]]] = {}
    for output in deltas:
        for part in output.outputs:
            ids, text, logprobs = sums.get(part.index, ([], "", []))
            sums[part.index] = (ids + part.token_ids, text + part.text, logprobs + (part.logprobs or []))
    return sums


@pytest.mark.parametrize("pace", ["at once", "slowly"])
@pytest.mark.parametrize("kind", KINDS)
def test_deltas_add_up_to_the_whole(llm: LLM, kind: str, pace: str) -> None:
    params = PARAMS.replace(**KINDS[kind])
    more: dict[str, Any] = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}} if kind == "drafts" else {}
    prompt = "ab ab ab ab ab" if kind == "drafts" else "abc"
    [expected] = llm.generate(prompt, params, **more)

    async def main(engine: AsyncLLM) -> tuple[list[RequestOutput], RequestOutput, list[RequestOutput], list[RequestOutput]]:
        stream = engine.generate(prompt, params.replace(output_kind="delta"), **more)
        with pytest.raises(llmi.UnsupportedCombinationError, match="has not ended"):
            stream.whole()
        deltas = []
        async for output in stream:
            deltas.append(output)
            await asyncio.sleep(0.003 if pace == "slowly" else 0)
        kinds = ("cumulative", "final")
        return deltas, stream.whole(), *[await read(engine.generate(prompt, params.replace(output_kind=name), **more)) for name in kinds]

    deltas, whole, cumulative, final = run(llm, main)
    assert whole == expected and cumulative[-1] == expected and final == [expected]
    sums = add_up(deltas)
    for completion in expected.outputs:
        assert sums[completion.index] == (completion.token_ids, completion.text, completion.logprobs or [])
        ends = [part for output in deltas for part in output.outputs if part.index == completion.index and part.finish_reason is not None]
        assert {(part.finish_reason, part.stop_reason, part.complete) for part in ends} == {
            (completion.finish_reason, completion.stop_reason, completion.complete)
        }
    assert [output.finished for output in deltas] == [False] * (len(deltas) - 1) + [True]
    assert all([part.index for part in output.outputs] == list(range(params.n)) for output in deltas)
    assert deltas[0].prompt_logprobs == expected.prompt_logprobs and all(output.prompt_logprobs is None for output in deltas[1:])
    for first in (deltas[0], cumulative[0]):
        assert 0 < first.metrics.time_to_first_token_s < 10 and first.metrics.queue_time_s >= 0
    assert deltas[0].metrics.time_to_first_token_s == deltas[-1].metrics.time_to_first_token_s
    assert math.isfinite(deltas[-1].metrics.e2e_latency_s)
    assert all(output.finished or any(part.token_ids for part in output.outputs) for output in deltas)


def test_receipts_of_streams(llm: LLM) -> None:
    params = PARAMS.replace(logprobs=1, output_kind="delta")

    async def main(engine: AsyncLLM) -> Any:
        stream = engine.generate("abc", params)
        outputs = await read(stream)
        with pytest.raises(llmi.UnsupportedCombinationError, match="whole"):
            outputs[-1].receipt()
        return stream.whole().receipt()

    assert run(llm, main).fields == llm.generate("abc", params)[0].receipt().fields


def test_a_delta_costs_what_is_new(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each position's log-probabilities are made into objects once, and a delta holds a step's tokens, whatever came before."""
    made = []
    entries = ResultBuilder._entries
    monkeypatch.setattr(ResultBuilder, "_entries", lambda self, row: made.append(1) or entries(self, row))
    params = PARAMS.replace(max_tokens=400, logprobs=3)

    async def main(engine: AsyncLLM) -> list[int]:
        counts = []
        for kind in ("delta", "cumulative"):
            await read(engine.generate("abc", params.replace(output_kind=kind)))
            counts.append(len(made))
        return counts

    assert run(llm, main) == [400, 800]


def test_one_wakeup_of_the_loop_for_a_step(llm: LLM) -> None:
    async def main(engine: AsyncLLM) -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        wakeups = []
        original = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args, **kwargs: wakeups.append(1) or original(*args, **kwargs)  # type: ignore[method-assign]
        before = llm._engine.latest_stats()["num_steps"]
        params = SLOW.replace(max_tokens=12, output_kind="delta")
        await asyncio.gather(*(read(engine.generate([5 + i], params)) for i in range(4)))
        return len(wakeups), llm._engine.latest_stats()["num_steps"] - before

    wakeups, steps = run(llm, main)
    assert wakeups <= steps + 1


def test_a_final_output_costs_no_events(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    from llmi.online.request import OnlineRequest

    events = []
    take = OnlineRequest.take
    monkeypatch.setattr(OnlineRequest, "take", lambda self, event: events.append(event.finished) or take(self, event))
    run(llm, lambda engine: read(engine.generate("abc", PARAMS.replace(output_kind="final"))))
    assert events == [True]


def test_cached_tokens_are_known_with_the_first_output(llm: LLM) -> None:
    prompt = list(range(1, 100))

    async def main(engine: AsyncLLM) -> list[list[int]]:
        params = PARAMS.replace(output_kind="delta")
        return [[output.num_cached_tokens for output in await read(engine.generate(prompt, params))] for _ in range(2)]

    cold, warm = run(llm, main)
    assert set(cold) == {0} and len(set(warm)) == 1 and warm[0] >= 80


@pytest.mark.parametrize("kind", ["delta", "cumulative", "final"])
@pytest.mark.parametrize("where", ["running", "waiting", "arriving"])
def test_deadlines_count_from_the_arrival(llm: LLM, where: str, kind: str) -> None:
    deadline = 0.0 if where == "arriving" else 0.4

    async def main(engine: AsyncLLM) -> list[RequestOutput]:
        params = SLOW.replace(output_kind=kind)
        others = [engine.generate([9 + i], SLOW) for i in range(4 if where == "waiting" else 0)]
        for other in others:
            await anext(other)
        outputs = []
        with pytest.raises(llmi.RequestTimeoutError, match=f"deadline_s = {deadline:g}: ") as caught:
            async for output in engine.generate("abc", params, "mine", deadline_s=deadline):
                outputs.append(output)
        error = caught.value
        assert error.deadline_s == deadline <= error.elapsed_s < 5
        assert (error.num_tokens > 0) == (where == "running" and kind != "final")
        assert isinstance(error, TimeoutError) and "'mine'" in str(error)
        for other in others:
            await other.aclose()
        assert (await read(engine.generate("abc", PARAMS, "mine", deadline_s=60)))[-1] == llm.generate("abc", PARAMS)[0], (
            "the name is free again"
        )
        return outputs

    outputs = run(llm, main)
    assert not any(output.finished for output in outputs) and (outputs == []) == (where != "running" or kind == "final")


def test_a_full_queue_refuses(llm: LLM) -> None:
    """Four seats, two places to wait."""

    async def main(engine: AsyncLLM) -> None:
        running = [engine.generate([9 + i], SLOW) for i in range(4)]
        for stream in running:
            await anext(stream)
        waiting = [asyncio.ensure_future(read(engine.generate([20 + i], PARAMS))) for i in range(2)]
        while engine.live().num_waiting < 2:
            await asyncio.sleep(0.001)
        with pytest.raises(llmi.QueueFullError, match="2 requests wait, and max_queue = 2 in addition to 0 free places") as caught:
            await anext(engine.generate([30], PARAMS, "late"))
        assert (caught.value.num_waiting, caught.value.max_queue) == (2, 2) and 0.1 <= caught.value.retry_after_s <= 60
        for stream in running:
            await stream.aclose()
        assert [len(outputs[-1].token_ids) for outputs in await asyncio.gather(*waiting)] == [24, 24], "those that waited run"
        assert len((await read(engine.generate([30], PARAMS, "late")))[-1].token_ids) == 24

    run(llm, main, max_queue=2)


def test_a_burst_fills_the_free_places_first(llm: LLM) -> None:
    async def main(engine: AsyncLLM) -> list[Any]:
        streams = [asyncio.ensure_future(read(engine.generate([9 + i], SLOW.replace(max_tokens=3)))) for i in range(8)]
        return await asyncio.gather(*streams, return_exceptions=True)

    got = run(llm, main, max_queue=1)
    assert [isinstance(entry, llmi.QueueFullError) for entry in got] == [False] * 5 + [True] * 3


def test_chats_are_prepared_off_the_loop(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    encode = type(llm.tokenizer).encode_chat
    monkeypatch.setattr(
        type(llm.tokenizer), "encode_chat", lambda self, chat: threads.append(threading.current_thread()) or encode(self, chat)
    )
    [expected] = llm.chat(CHAT, PARAMS)
    threads.clear()

    async def main(engine: AsyncLLM) -> list[RequestOutput]:
        with pytest.raises(llmi.InvalidParamsError, match="one chat"):
            await anext(engine.chat([CHAT, CHAT], PARAMS))  # type: ignore[list-item]
        with pytest.raises(llmi.ChatTemplateError):
            await anext(engine.chat(CHAT, PARAMS, chat_template="{{ raise_exception('no') }}"))
        return await read(engine.chat(CHAT, PARAMS))

    outputs = run(llm, main)
    assert outputs[-1] == expected and threads and threading.main_thread() not in threads


def test_work_that_its_deadline_ends_is_a_timeout(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own error has come first: the loop stands still until then."""
    begun, done = threading.Event(), threading.Event()

    def encode(*args: Any) -> Any:
        ending = ENDING.get()
        assert ending is not None
        begun.set()
        while not ending.is_over:
            time.sleep(0.001)
        done.set()
        raise llmi.ChatTemplateError("ended", None)

    monkeypatch.setattr(type(llm.tokenizer), "encode_prompt", encode)

    async def main(engine: AsyncLLM) -> None:
        task = asyncio.ensure_future(anext(engine.generate("x" * 3_000, PARAMS, deadline_s=0.2)))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        assert done.wait(HANG_S)
        time.sleep(0.05)
        with pytest.raises(llmi.RequestTimeoutError):
            await task

    run(llm, main)


def test_long_texts_leave_the_loop_free(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a text is tokenized, the loop runs, and the request can be left, time out, or wait on."""
    [expected] = llm.generate("abc", PARAMS)
    encode = type(llm.tokenizer).encode_prompt
    go = threading.Event()

    def slow_encode(self: Any, *args: Any) -> Any:
        assert go.wait(HANG_S)
        return encode(self, "abc", *args[1:])

    monkeypatch.setattr(type(llm.tokenizer), "encode_prompt", slow_encode)
    text = "x" * 3_000

    async def main(engine: AsyncLLM) -> RequestOutput:
        left = engine.generate(text, PARAMS, "left")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(left), 0.02)
        assert engine.live().num_waiting == 1
        await left.aclose()
        with pytest.raises(llmi.RequestTimeoutError):
            await anext(engine.generate(text, PARAMS, deadline_s=0.05))
        assert engine.live().num_waiting == 0
        stream = engine.generate(text, PARAMS, "aborted")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.02)
        await engine.abort("aborted")
        go.set()
        assert (await read(stream))[-1].outputs[0].finish_reason == "abort"
        go.clear()
        stream = engine.generate(text, PARAMS)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.02)
        go.set()
        return (await read(stream))[-1]

    assert run(llm, main).token_ids == expected.token_ids


def test_requests_without_a_seed_get_their_own(llm: LLM) -> None:
    params = SamplingParams(max_tokens=6, temperature=1.0, ignore_eos=True)

    async def main(engine: AsyncLLM) -> list[RequestOutput]:
        streams = [
            engine.generate("abc", params),
            engine.generate("abc", params.replace(seed=3)),
            engine.chat(CHAT, params),
            engine.generate("abc", params),
        ]
        return [(await read(stream))[-1] for stream in reversed(streams)][::-1]

    outputs = run(llm, main)
    assert [output.seed for output in outputs] == [derive_seed(7, 0), 3, derive_seed(7, 2), derive_seed(7, 3)]
    assert outputs[0].token_ids != outputs[3].token_ids
    assert outputs[3].token_ids == llm.generate("abc", params.replace(seed=derive_seed(7, 3)))[0].token_ids


def test_health_and_live_state(llm: LLM, tiny_path: Callable[..., Path]) -> None:
    blocked = threading.Event()

    def block(context: Any, logits: Any) -> None:
        blocked.wait(HANG_S)

    async def main(engine: AsyncLLM) -> None:
        assert engine.health() == llmi.online.live.EngineHealth(True, 0.0, "")
        stream = engine.generate("abc", SLOW, "mine")
        await anext(stream)
        state = engine.live()
        [request] = state.requests
        assert (request.request_id, request.state, request.num_prompt_tokens) == ("mine", "running", 3) and request.num_tokens >= 1
        assert state.stats["num_running"] == 1 and state.stats["num_step_rows"] in (1, 3)
        await stream.aclose()
        task = asyncio.ensure_future(read(engine.generate("abc", PARAMS.replace(logits_processors=[block]))))
        while (health := engine.health(limit_s=0.1)).alive:
            await asyncio.sleep(0.01)
        assert health.stalled_s > 0.1 and "no step has ended for" in health.reason
        assert engine.health().alive, "ten seconds are the limit"
        blocked.set()
        await task

    run(llm, main)

    async def closed() -> Any:
        engine = AsyncLLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=64)
        await engine.shutdown()
        return engine.health()

    health = asyncio.run(closed())
    assert not health.alive and "closed" in health.reason


def test_two_tasks_cannot_wait_for_one_output(llm: LLM) -> None:
    async def main(engine: AsyncLLM) -> None:
        stream = engine.generate("abc", SLOW)
        await anext(stream)
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task"):
            for _ in range(100):
                await anext(stream)
        await first
        await stream.aclose()

    run(llm, main)
