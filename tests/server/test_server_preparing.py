"""What a body becomes before the engine has it: each kind waits for its own kind alone, and whoever waits stops in time."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from llmi import LLM, ChatTemplateError, EngineError, InvalidParamsError, RequestTimeoutError, StructuredOutputsParams, Tokenizer
from llmi.base.ending import ENDING, Ending
from llmi.chat import process, rules
from llmi.server import chat as chat_route
from llmi.server.errors import ApiError
from llmi.server.fields import CHAT, Taken
from llmi.server.preparing import Preparing, kind_of
from llmi.server.prompts import render
from llmi.structured import trial
from llmi.structured.constraint import grammar_constraint
from server_client import Client, tiny_llm

PLAIN = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
KINDS: dict[str, dict[str, Any]] = {
    "template": {"chat_template": "{{ messages[0].content }}"},
    "tools": {"tools": [TOOL]},
    "large": {"messages": [{"role": "user", "content": "x" * 300_000}]},
}


@pytest.fixture(scope="module")
def llm(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with tiny_llm(tiny_path) as llm:
        yield llm


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[Ending]]]:
    """Chats of a kind are held until the event; the list has the ending of each that has begun."""
    go, begun = threading.Event(), list[Ending]()

    def hold(model: Any, chat: Any) -> Any:
        if chat.chat_template or chat.tools or len(json.dumps(chat.messages)) > 256 << 10:
            ending = ENDING.get()
            assert ending is not None
            begun.append(ending)
            assert go.wait(120)
        return render(model, chat)

    monkeypatch.setattr(chat_route, "render", hold)
    yield go, begun
    go.set()


@pytest.mark.parametrize("kind", KINDS)
def test_what_takes_long_makes_its_own_kind_wait_alone(llm: LLM, held: tuple[threading.Event, list[Ending]], kind: str) -> None:
    go, begun = held
    app = Client(llm).app

    async def main() -> list[int]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=120) as client:
            url = "/v1/chat/completions"
            slow = [asyncio.create_task(client.post(url, json={**PLAIN, **KINDS[kind]})) for _ in range(12)]
            while not begun:
                await asyncio.sleep(0.01)
            others = [await client.post(url, json=PLAIN)]
            others.append(await client.post("/tokenize", json={"model": "tiny", "prompt": "hi"}))
            assert not any(task.done() for task in slow)
            go.set()
            await asyncio.gather(*slow)
            return [answer.status_code for answer in others]

    assert asyncio.run(main()) == [200, 200]


def test_the_deadline_counts_while_a_chat_is_prepared(llm: LLM, held: tuple[threading.Event, list[Ending]]) -> None:
    _, begun = held
    error = Client(llm).error("/v1/chat/completions", {**PLAIN, **KINDS["template"], "timeout_s": 0.05}, 504)
    assert error["code"] == "timeout" and "timeout_s = 0.05" in error["message"]
    assert all(ending.is_over for ending in begun)


def asking(work: Callable[[], object], leave: asyncio.Event, preparing: Preparing, body: dict[str, Any]) -> Any:
    async def receive() -> dict[str, str]:
        await leave.wait()
        return {"type": "http.disconnect"}

    async def read() -> bytes:
        return json.dumps(body).encode()

    return preparing.run(SimpleNamespace(receive=receive, body=read), CHAT.take(body), work)  # type: ignore[arg-type]


@pytest.mark.parametrize(("why", "status"), [("the client leaves", 499), ("the server ends", 503)])
def test_a_wait_ends(why: str, status: int) -> None:
    """The work is told so."""
    endings: list[Ending | None] = []
    go, begun = threading.Event(), threading.Event()

    def work() -> None:
        endings.append(ENDING.get())
        begun.set()
        assert go.wait(60)

    async def main() -> ApiError:
        preparing, leave = Preparing(), asyncio.Event()
        task = asyncio.create_task(asking(work, leave, preparing, PLAIN))
        await asyncio.to_thread(begun.wait)
        if status == 499:
            leave.set()
        else:
            preparing.end()
        with pytest.raises(ApiError) as caught:
            await task
        go.set()
        return caught.value

    assert asyncio.run(main()).status == status
    assert endings[0] is not None and endings[0].is_over


def test_errors_and_results_come_through() -> None:
    def fail() -> None:
        raise InvalidParamsError("no", "x")

    async def main() -> Any:
        preparing = Preparing()
        with pytest.raises(InvalidParamsError, match="no"):
            await asking(fail, asyncio.Event(), preparing, PLAIN)
        with pytest.raises(RequestTimeoutError):
            await asking(
                lambda: threading.Event().wait(0.5),
                asyncio.Event(),
                preparing,
                {**PLAIN, "timeout_s": 0.001},
            )
        return await asking(lambda: 3, asyncio.Event(), preparing, PLAIN)

    assert asyncio.run(main()) == 3


def until_its_ending(done: threading.Event) -> None:
    """Work that ends with an error because its deadline has passed, as a chat template does."""
    ending = ENDING.get()
    assert ending is not None
    while not ending.is_over:
        time.sleep(0.001)
    done.set()
    raise ChatTemplateError("ended", None)


def test_work_that_its_deadline_ends_is_a_timeout() -> None:
    """Its own error has come first: the loop stands still until then."""

    async def main() -> None:
        done = threading.Event()
        task = asyncio.create_task(asking(lambda: until_its_ending(done), asyncio.Event(), Preparing(), {**PLAIN, "timeout_s": 0.05}))
        await asyncio.sleep(0)
        assert done.wait(60)
        time.sleep(0.05)
        with pytest.raises(RequestTimeoutError):
            await task

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "size", "kind"),
    [
        ({}, 10, "small"),
        ({}, 1 << 20, "large"),
        ({"tools": [TOOL]}, 1 << 20, "tools"),
        ({"tools": []}, 10, "small"),
        ({"tools": [TOOL], "chat_template": "x"}, 10, "template"),
    ],
)
def test_kinds(body: dict[str, Any], size: int, kind: str) -> None:
    assert kind_of(Taken(body, {}, []), size) == kind


def test_a_process_that_renders_for_nobody_is_ended(tmp_path: Path) -> None:
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    ending = Ending()
    token = ENDING.set(ending)
    try:
        timer = threading.Timer(0.1, ending.end)
        timer.start()
        with pytest.raises(ChatTemplateError, match="did not answer in time"):
            rules.render(loop, PLAIN["messages"], {}, None, tmp_path, is_own=False)
    finally:
        ENDING.reset(token)
    assert rules.render("{{ messages[0].content }}", PLAIN["messages"], {}, None, tmp_path, is_own=False).text == "hi"


@pytest.mark.parametrize("online", [False, True], ids=["LLM", "online"])
@pytest.mark.parametrize(
    "given",
    [
        {"grammar": "start: T\nA: /(a|b|ab)*/\nT: " + "A " * 30_000},
        {"json": {"type": "string", "allOf": [{"pattern": f"a{{{i}}}b.*c"} for i in range(300)]}},
    ],
    ids=["terminals of terminals", "patterns together"],
)
def test_a_grammar_that_takes_too_much_is_refused(tiny_path: Callable[..., Path], given: dict[str, Any], online: bool) -> None:
    from llmi.structured.compiling import Deadline

    deadline = Deadline(600, time.monotonic()) if online else None
    with pytest.raises(InvalidParamsError, match=r"the grammar takes more than .* to compile"):
        grammar_constraint(StructuredOutputsParams(**given), Tokenizer(tiny_path()), deadline=deadline)
    assert grammar_constraint(StructuredOutputsParams(regex="[ab]"), Tokenizer(tiny_path()), deadline=deadline)


def test_no_grammar_is_compiled_untried(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is larger than a trial reads is refused by name; where no process can be started, the machine is at fault."""
    tokenizer = Tokenizer(tiny_path())
    monkeypatch.setattr(trial, "_free", [])
    with monkeypatch.context() as small:
        small.setattr(process, "MAX_REQUEST_BYTES", 1000)
        with pytest.raises(InvalidParamsError, match=r"the grammar has .* more than the 1,000 bytes that a trial reads") as large:
            grammar_constraint(StructuredOutputsParams(regex="(bc){1,3}d" * 200), tokenizer)
    assert (large.value.fault, large.value.parameter) == ("request", "structured_outputs")
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(EngineError, match=r"compiled in a process of its own first, and none can be started: .*/nonexistent") as none:
        grammar_constraint(StructuredOutputsParams(regex="(bc){1,4}d"), tokenizer)
    assert none.value.fault == "machine"


@pytest.mark.parametrize("parse_special", [False, True])
def test_a_long_text_has_the_ids_of_the_librarys_plain_way(llm: LLM, parse_special: bool) -> None:
    special = next(iter(llm.tokenizer.special_tokens.values()), "<s>")
    text = f"héllo {special} 日本 e\u0301 {special}x\n" * 300
    library = llm.tokenizer._tokenizer_for(None)
    library.encode_special_tokens = not parse_special
    assert (
        llm.tokenizer.encode(text, add_special_tokens=False, parse_special=parse_special)
        == library.encode(text, add_special_tokens=False).ids
    )


def test_other_threads_run_while_a_long_text_becomes_tokens(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, over, seen = threading.Event(), threading.Event(), 0
    library = llm.tokenizer._tokenizer_for(None)

    class Watched:
        def __getattr__(self, name: str) -> Any:
            value = getattr(library, name)
            if not callable(value):
                return value

            def called(*args: Any, **kwargs: Any) -> Any:
                inside.set()
                try:
                    return value(*args, **kwargs)
                finally:
                    inside.clear()

            return called

    monkeypatch.setattr(llm.tokenizer, "_whole", Watched())
    thread = threading.Thread(target=lambda: (llm.tokenizer.encode("e " * 1_000_000), over.set()))
    thread.start()
    while not over.is_set():
        seen += inside.is_set()
    thread.join()
    assert seen > 1_000, "a thread that holds the lock lets others run once or not at all"
