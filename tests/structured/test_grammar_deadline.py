"""A grammar that compiles for long: its request ends alone and soon, the work goes on once, and a later request finds the result."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import llmi
from llmi import LLM, AsyncLLM, GrammarTimeoutError, InvalidParamsError, SamplingParams
from llmi.online import reader
from llmi.requests import prepare
from llmi.server.errors import api_error
from llmi.structured import constraint
from llmi.structured.compiling import Compilations, Deadline
from llmi.structured.constraint import GrammarConstraint
from waiting import HANG_S, wait_until

PARAMS = SamplingParams(max_tokens=12, seed=5, temperature=1.0)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[str]]]:
    """Compilations wait for the event; the list has one entry for each."""
    go, begun = threading.Event(), []

    class Held(GrammarConstraint):
        def __init__(self, params: Any, *rest: Any) -> None:
            begun.append(params.kind)
            assert go.wait(HANG_S)
            super().__init__(params, *rest)

    monkeypatch.setattr(constraint, "GrammarConstraint", Held)
    monkeypatch.setattr(prepare, "DEADLINE_S", 0.05)
    yield go, begun
    go.set()


def far_off() -> Deadline:
    return Deadline(HANG_S, time.monotonic())


async def result(engine: AsyncLLM, params: SamplingParams) -> Any:
    try:
        return [output async for output in engine.generate([1, 2], params)][-1]
    except llmi.LlmiError as error:
        return error


def test_request_ends_alone_and_finds_the_grammar_later(held: tuple[threading.Event, list[str]], tiny_path: Callable[..., Path]) -> None:
    go, begun = held
    asked = PARAMS.replace(structured_outputs={"regex": "[a-f]{3,8}"})

    async def main() -> list[Any]:
        async with AsyncLLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=256) as engine:
            first = await asyncio.gather(*(result(engine, params) for params in (asked, PARAMS, asked)))
            go.set()
            while isinstance(last := await result(engine, asked), GrammarTimeoutError):
                pass
            return [*first, last]

    *both, last = asyncio.run(main())
    assert [type(entry) for entry in both] == [GrammarTimeoutError, llmi.RequestOutput, GrammarTimeoutError]
    assert both[0].retry_after_s == 0.05
    assert begun == ["regex"]  # the three requests share one compilation
    assert set(last.text) <= set("abcdef") and 3 <= len(last.text) <= 8


def test_generate_waits_for_the_end(held: tuple[threading.Event, list[str]], tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    go, begun = held
    monkeypatch.setattr(prepare, "DEADLINE_S", 0.0)  # which has passed before the compilation begins

    def let_go() -> None:
        wait_until(lambda: begun, "the compilation")
        go.set()

    threading.Thread(target=let_go).start()
    assert tiny.generate([[1]], PARAMS.replace(structured_outputs={"regex": "[g-k]{3}"}))[0].text.isalpha()


def test_errors_of_a_compilation_reach_its_requests() -> None:
    compilations: Compilations[int] = Compilations()

    def refuse() -> int:
        raise InvalidParamsError("no", "structured_outputs")

    for _ in range(2):
        with pytest.raises(InvalidParamsError, match="no"):
            compilations.wait("a", refuse, far_off())
    assert compilations.wait("a", lambda: 3, far_off()) == 3

    def late() -> int:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        compilations.wait("a", late, far_off())


def test_a_compilation_that_nobody_waits_for_does_not_begin() -> None:
    compilations: Compilations[int] = Compilations(1)
    go, begun = threading.Event(), []

    def first() -> int:
        begun.append("first")
        assert go.wait(HANG_S)
        return 1

    def second() -> int:
        begun.append("second")
        return 2

    thread = threading.Thread(target=compilations.wait, args=("first", first, far_off()))
    thread.start()
    wait_until(lambda: begun, "the compilation")
    for make, state in ((first, "has been compiling for 0.01 s and goes on"), (second, "has waited behind others for 0.01 s;")):
        with pytest.raises(GrammarTimeoutError, match=state):
            compilations.wait(make.__name__, make, Deadline(0.01, time.monotonic()))
    go.set()
    thread.join()
    assert compilations.wait("third", lambda: 3, far_off()) == 3 and begun == ["first"]


def many(engine: AsyncLLM, count: int, letters: str) -> list[asyncio.Task[Any]]:
    """Requests, each with a grammar of its own."""
    each = [PARAMS.replace(structured_outputs={"regex": f"[{letters}]{{{number + 1}}}"}) for number in range(count)]
    return [asyncio.create_task(result(engine, params)) for params in each]


def test_slow_grammars_take_no_thread_that_others_need(
    held: tuple[threading.Event, list[str]], tiny: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, begun = held
    monkeypatch.setattr(prepare, "DEADLINE_S", HANG_S)

    async def main() -> list[Any]:
        async with AsyncLLM(llm=tiny) as engine:
            slow = many(engine, 40, "m-q")
            while not begun:
                await asyncio.sleep(0.01)
            other = asyncio.create_task(asyncio.to_thread(int))  # as texts and chats are prepared
            done, _ = await asyncio.wait({other}, timeout=HANG_S / 10)
            assert not any(task.done() for task in slow)
            go.set()
            assert done
            return await asyncio.gather(*slow)

    assert all(isinstance(end, llmi.RequestOutput) for end in asyncio.run(main()))


def test_the_wait_for_a_grammar_counts_from_the_arrival(
    held: tuple[threading.Event, list[str]], tiny: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of requests behind others, too: the test's clock passes the deadline once all have come, before any of them waits."""
    now_s, left, passed = [0.0], [], threading.Event()

    class Clock(Deadline):
        def left_s(self) -> float:
            assert passed.wait(HANG_S)
            left.append(self.since_s + self.limit_s - now_s[0])
            return 0.0

    monkeypatch.setattr(prepare, "Deadline", Clock)
    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    async def main() -> list[Any]:
        async with AsyncLLM(llm=tiny) as engine:
            tasks = many(engine, 256, "r-t")
            for _ in range(20):  # each task comes to its place in the queue
                await asyncio.sleep(0)
            now_s[0] = 100.0
            passed.set()
            return await asyncio.gather(*tasks)

    assert all(isinstance(end, GrammarTimeoutError) for end in asyncio.run(main()))
    assert len(left) == 256 and max(left) < 0


def test_over_http_it_is_a_503_that_says_when_to_come_again() -> None:
    answer = api_error(GrammarTimeoutError("the grammar has been compiling", retry_after_s=2.0))
    assert (answer.status, answer.code, answer.headers) == (503, "grammar_compiling", {"retry-after": "2"})
