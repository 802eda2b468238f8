"""The page and its events: one file without a network, and counts without anybody's text. tests/support/page_browser.py looks at it in a real
browser."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import llmi.server.events as events_module
from llmi import LLM, SamplingParams
from llmi.server.events import MOST_ROWS, Watch, snapshot
from server_client import Client, tiny_llm

PAGE = Path(events_module.__file__).with_name("page.html")


@pytest.fixture(scope="module")
def client(tiny_path: Callable[..., Path]) -> Iterator[Client]:
    with tiny_llm(tiny_path) as llm:
        yield Client(llm)


class Elements(HTMLParser):
    """Ids and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fields = dict(attrs)
        self.ids += [fields["id"] or ""] if "id" in fields else []
        self.addresses += [fields[name] or "" for name in ("src", "href", "action", "srcset") if name in fields]
        if tag not in ("meta", "link", "input", "br", "i"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "i":
            assert self.open.pop() == tag


def test_one_small_file_without_a_network(client: Client) -> None:
    answer = client.get("/")
    text = answer.text
    assert (
        answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8" and answer.content == PAGE.read_bytes()
    )
    assert len(answer.content) < 60_000
    found = Elements(text)
    assert found.open == [] and found.addresses == ["data:,"], "nothing is loaded from anywhere"
    assert not re.search(r"https?:|//[a-z]|@import|url\(|innerHTML|eval\(|localStorage|document\.write", text), "and no text becomes markup"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    used = set(re.findall(r'\$\("(\w+)"\)', text))
    assert used <= set(found.ids) and len(set(found.ids)) == len(found.ids)


def test_the_page_calls_only_routes_that_there_are(client: Client) -> None:
    called = set(re.findall(r'(?:fetch|events)\("(/[^"]*)"', PAGE.read_text()))
    assert called == {"/v1/models", "/v1/chat/completions", "/llmi/events"}
    assert called <= {route.path for route in client.app.routes}


def test_a_request_of_the_page_is_understood(client: Client) -> None:
    """The body that send() makes: its fields are all known, and its answer has what the page shows."""
    body = re.search(r"const body = (\{.*?\});", PAGE.read_text(), re.DOTALL)
    assert body is not None
    names = set(re.findall(r"(\w+):", body[1])) - {"include_usage"} | {"seed"}
    values = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.8, "max_tokens": 5, "stream": True,
              "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 4, "seed": 3}  # fmt: skip
    assert names == set(values)
    chunks = client.events("/v1/chat/completions", values)
    assert any(chunk.get("llmi", {}).get("seed") == 3 for chunk in chunks) and chunks[-1]["usage"]["completion_tokens"] > 0
    entries = [entry for chunk in chunks for choice in chunk["choices"] for entry in (choice.get("logprobs") or {}).get("content") or []]
    assert entries and all({"token", "logprob", "top_logprobs"} <= set(entry) for entry in entries)


def seen(client: Client) -> dict[str, Any]:
    return snapshot(next(iter(client.app.state.llmi.models)))


def test_a_snapshot_is_the_engine(client: Client) -> None:
    llm: LLM = client.llm
    before = seen(client)
    prompts = [f"secret {i} " * 12 for i in range(3)]
    work = threading.Thread(target=lambda: llm.generate(prompts, temperature=1.0, max_tokens=1200, ignore_eos=True, use_tqdm=False))
    work.start()
    try:
        now = seen(client)
        while len(now["rows"]) < 3 and work.is_alive():
            now = seen(client)
        assert now["num_rows"] == 3 and now["model"] == "tiny" and len({row["id"] for row in now["rows"]}) == 3
        assert all(0 < row["shared"] <= row["blocks"] or row["shared"] == 0 for row in now["rows"])
        assert sum(row["blocks"] for row in now["rows"]) <= sum(now["pages"]), "each block that a row holds is a reference to its page"
        assert now["stats"]["num_steps"] > before["stats"]["num_steps"] and len(now["pages"]) == now["stats"]["num_pages"]
        assert "secret" not in json.dumps(now), "no text"
        assert set(now) == {"model", "time_s", "rows", "num_rows", "pages", "tree", "stats", "replicas"}
        assert now["replicas"] == [], "it has one engine"
        assert all(set(row) == {"id", "sample", "tokens", "drafted", "accepted", "blocks", "shared"} for row in now["rows"])
    finally:
        work.join()
    shown = set(re.findall(r"stats\.(\w+)|rate\(\"(\w+)\"\)", PAGE.read_text()))
    assert {first or second for first, second in shown} <= set(before["stats"]), "what the page shows is in the events"
    assert len(before["rows"]) <= MOST_ROWS


def test_drafts_of_rows_and_the_tree(client: Client) -> None:
    model = next(iter(client.app.state.llmi.models))
    params = SamplingParams(temperature=0.0, max_tokens=1500, ignore_eos=True, output_kind="delta", n=2)

    async def watched() -> tuple[dict[str, Any], dict[int, tuple[int, int]]]:
        prompt = "ab ab ab ab ab ab " * 8
        stream = model.server.generate(prompt, params, speculative_config={"method": "ngram", "num_speculative_tokens": 3})
        seen: dict[str, Any] = {"rows": []}
        count = 0
        async for output in stream:
            count += sum(len(part.token_ids) for part in output.outputs)
            if count > 600:
                seen = await asyncio.to_thread(snapshot, model)
                break
        drafts = stream._request.progress.drafts if stream._request is not None else {}
        await stream.aclose()
        return seen, drafts

    now, drafts = asyncio.run(watched())
    assert sorted(row["sample"] for row in now["rows"]) == [0, 1]
    for row in now["rows"]:
        assert 0 < row["accepted"] <= row["drafted"] <= drafts[row["sample"]][0], "what has come of it by then"
    tree = now["tree"]
    roots = sum(parent < 0 for parent, _ in tree)
    assert roots >= 1 and all(-1 <= parent < place for place, (parent, _) in enumerate(tree)), "parents come before their children"
    assert roots < len(tree) <= roots + now["stats"]["num_prefix_blocks"], "the counters are those of a later step"
    assert sum(pins for _, pins in tree) >= 2, "each row ends at a block"


def test_watchers_share_snapshots(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(events_module, "snapshot", lambda model: made.append(1) or {"model": model.name})
    model = next(iter(client.app.state.llmi.models))

    async def many() -> list[dict[str, Any]]:
        watch = Watch()
        return await asyncio.gather(*(watch.of(model) for _ in range(20)))

    assert asyncio.run(many()) == [{"model": "tiny"}] * 20 and made == [1]


def test_events_come_and_end_with_their_reader(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "PERIOD_S", 0.01)
    told: list[bytes] = []

    async def watched() -> None:
        asked: list[None] = []

        async def receive() -> dict[str, Any]:
            asked.append(None)
            if len(asked) == 1:
                return {"type": "http.request", "body": b"", "more_body": False}
            while len(told) < 4:
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            told.append(message.get("body", b""))

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "path": "/llmi/events",
            "raw_path": b"/llmi/events",
            "query_string": b"model=tiny",
            "headers": [(b"host", b"127.0.0.1")],
            "scheme": "http",
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
            "root_path": "",
        }
        await asyncio.wait_for(client.app(scope, receive, send), 60)

    asyncio.run(watched())
    parts = [part for part in told if part.startswith(b"data: ")]
    assert len(parts) >= 2 and all(json.loads(part[6:])["model"] == "tiny" for part in parts)
    assert client.send("GET", "/llmi/events?model=nobody").status_code == 404
