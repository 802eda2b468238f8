"""The soak of the server, a slice: faults of every kind, each whole answer compared, no block lost; and the soak's own eyes."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM
from soak import __main__ as command
from soak.bodies import ask_bodies, problem_of
from soak.cases import COMPLETIONS, Case, Told, make_cases
from soak.drains import drain_cycles
from soak.faults import FAULTS
from soak.wire import Answer, Connection, CutError

pytestmark = pytest.mark.slow


def arguments(**changed: Any) -> argparse.Namespace:
    found = command._parser().parse_args([])
    return argparse.Namespace(**{**vars(found), "requests": 400, "round": 200, "cases": 40, "clients": 48, **changed})


def test_a_slice() -> None:
    report = command.soak(arguments())
    assert report["problems"] == [] and report["differ_or_fail"] == report["blocks_lost"] == 0
    assert report["compared"] > 150 and report["audits"] >= 2
    assert all(report["faults"][name] > 0 for name in (*FAULTS, "prefix_eviction", "drain"))


def test_what_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another seed for some answers: as many problems as answers are compared, and the command's exit code tells."""
    right = make_cases

    def wrong(*given: Any, **more: Any) -> list[Case]:
        return [
            dataclasses.replace(case, right=tuple(dataclasses.replace(told, text=told.text + "x") for told in case.right))
            for case in right(*given, **more)
        ]

    monkeypatch.setattr(command, "make_cases", wrong)
    report = command.soak(arguments(requests=60, round=60, clients=8, cases=10))
    assert report["differ_or_fail"] >= report["compared"] > 0 and "text:" in report["problems"][0]


def answer_of(text: str, token_logprobs: list[float], error: dict[str, Any] | None = None) -> Answer:
    choice = {
        "index": 0,
        "text": text,
        "token_ids": [1, 2],
        "finish_reason": "length",
        "logprobs": {"token_logprobs": token_logprobs, "llmi": {"processed_logprobs": token_logprobs}},
    }
    return Answer(200, {}, json.dumps({"error": error} if error else {"choices": [choice]}).encode())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (answer_of("ab", [-1.5, -0.25]), ""),
        (answer_of("ac", [-1.5, -0.25]), "text"),
        (answer_of("ab", [-1.5, -0.25000000000000006]), "logprobs"),
        (answer_of("ab", [-1.5]), "logprobs"),
    ],
)
def test_a_difference_of_one_bit_is_one(answer: Answer, says: str) -> None:
    told = Told("ab", [1, 2], [-1.5, -0.25], [-1.5, -0.25], "length")
    found = Case(COMPLETIONS, {}, (told,)).difference(answer, stream=False)
    assert (says in found) if says else not found


def test_a_cut_answer_is_none() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        writer.close()

    async def run() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            connection = await Connection.open(server.sockets[0].getsockname()[1])
            await connection.send(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises(CutError):
                await connection.answer()
            connection.close()

    asyncio.run(run())


def test_two_servers_that_end_under_load(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(command.TEMPLATE)
    path = tiny_path(vocab_size=257)
    with LLM(path, max_model_len=512, kv_cache_memory_bytes=1 << 24, chat_template=command.TEMPLATE) as llm:
        cases = make_cases(llm, "main", 20, 1, structured=False)
    options = ["--max-model-len", "512", "--kv-cache-memory-bytes", str(1 << 24), "--chat-template", str(template)]
    ends = drain_cycles(2, str(path), options, cases, seed=1, num_clients=8)
    assert (ends.lost, ends.differ, ends.exit_codes, ends.problems) == (0, 0, [], []) and ends.answered > 0


def test_bodies_that_nobody_would_write(tiny_path: Callable[..., Path]) -> None:
    with LLM(tiny_path(vocab_size=257), max_model_len=512, kv_cache_memory_bytes=1 << 24, chat_template=command.TEMPLATE) as llm:
        answers = ask_bodies(llm, 400, seed=7)
    assert answers.problems == [] and answers.statuses[200] > 20 and answers.statuses[400] > 100


@pytest.mark.parametrize(
    ("status", "data", "is_stream"),
    [
        (500, b'{"error": {"message": "x", "type": "y", "param": null, "code": null}}', False),
        (400, b'{"detail": "x"}', False),
        (400, b"x", False),
        (400, '{"error": {"message": "é", "type": "y", "param": null, "code": null}}'.encode(), False),
        (200, b'data: {"error": {"type": "api_error"}}\n\n', True),
    ],
)
def test_wrong_answers_to_bodies_are_seen(status: int, data: bytes, is_stream: bool) -> None:
    assert problem_of(COMPLETIONS, status, data, is_stream)
    assert not problem_of(COMPLETIONS, 400, b'{"error": {"message": "x", "type": "y", "param": null, "code": null}}', False)
