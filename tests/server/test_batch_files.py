"""`llmi batch`: answers are the server's, a run goes on where one ended, and what is wrong with a line is in its answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llmi.server.batch as batch_module
from llmi import LLM
from llmi.cli.commands import main
from llmi.server.batch_lock import only_run
from llmi.testing.tiny import tiny_model
from server_client import TEMPLATE, Client
from waiting import HANG_S

CACHE = ["--kv-cache-memory-bytes", str(1 << 24)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("batch") / "tiny")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[Client]:
    with LLM(model, kv_cache_memory_bytes=1 << 24) as llm:
        yield Client(llm)


def chat(index: int, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": f"story {index}"}], "max_tokens": 6, "seed": index, "temperature": 1.0, **fields}
    return {"custom_id": f"chat-{index}", "method": "POST", "url": "/v1/chat/completions", "body": body}


#: One of each endpoint, with fields that change the answer's form.
REQUESTS = [
    chat(0),
    chat(1, logprobs=True, top_logprobs=2, n=2),
    chat(2, receipt=True, ignore_eos=True),
    {
        "custom_id": "text",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": ["a", "bé"], "max_tokens": 5, "seed": 3, "logprobs": 1},
    },
    {"custom_id": "responses", "method": "POST", "url": "/v1/responses", "body": {"input": "hi", "max_output_tokens": 5, "seed": 1}},
    {
        "custom_id": "messages",
        "method": "POST",
        "url": "/v1/messages",
        "body": {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "seed": 1},
    },
]


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read(path: Path) -> dict[Any, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["id"] for line in lines}) == len(lines)
    return {line["custom_id"]: line for line in lines}


#: What is new each time: ids, times, and what was in the cache.
NEW = {
    "id",
    "created",
    "created_at",
    "completed_at",
    "request_id",
    "prompt_tokens_details",
    "input_tokens_details",
    "cache_read_input_tokens",
    "input_tokens",
}


def plain(value: Any) -> Any:
    """An answer without what is new each time."""
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items() if name not in NEW}
    return [plain(entry) for entry in value] if isinstance(value, list) else value


def run(model: Path, source: Path, output: Path, *flags: str) -> int:
    return main(["batch", str(source), str(output), "-m", f"tiny={model}", *CACHE, *flags])


def test_answers_are_the_servers(client: Client, model: Path, tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", REQUESTS), tmp_path / "out.jsonl"
    assert run(model, source, output) == 0
    answers = read(output)
    assert set(answers) == {request["custom_id"] for request in REQUESTS}
    for request in REQUESTS:
        response = answers[request["custom_id"]]["response"]
        assert response["status_code"] == 200 and answers[request["custom_id"]]["error"] is None
        assert plain(response["body"]) == plain(client.ok(request["url"], request["body"])), request["custom_id"]


@pytest.mark.parametrize("cut", [0, 7], ids=["between lines", "within a line"])
def test_a_run_goes_on_where_one_ended(model: Path, tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [chat(index) for index in range(12)]
    source, output = write(tmp_path / "in.jsonl", requests), tmp_path / "out.jsonl"
    assert run(model, source, output) == 0
    whole = read(output)
    lines = output.read_bytes().splitlines(keepends=True)
    kept = b"".join(lines[:5])
    output.write_bytes(kept + lines[5][:cut])
    called: list[bytes] = []
    plain_call = batch_module.call

    async def counted(app: Any, path: str, body: bytes) -> tuple[int, bytes]:
        called.append(body)
        return await plain_call(app, path, body)

    monkeypatch.setattr(batch_module, "call", counted)
    assert run(model, source, output) == 0
    assert len(called) == 7 and output.read_bytes().startswith(kept), "what was there stays, and is not computed again"
    assert {name: plain(line) for name, line in read(output).items()} == {name: plain(line) for name, line in whole.items()}
    called.clear()
    assert run(model, source, output) == 0 and called == []


#: `llmi`, with Ctrl-C once three answers are written. A shell starts what runs in the background with Ctrl-C ignored.
INTERRUPTED = """
import itertools, signal, sys
import llmi.server.batch
from llmi.cli.commands import main

signal.signal(signal.SIGINT, signal.default_int_handler)
written = itertools.count(1)
run = llmi.server.batch.run_until_signal
llmi.server.batch.run_until_signal = lambda batch, _: run(batch, lambda: next(written) == 3 and signal.raise_signal(signal.SIGINT))
sys.exit(main())
"""


def test_an_interrupted_run(model: Path, tmp_path: Path) -> None:
    requests = [chat(index, max_tokens=400, ignore_eos=True) for index in range(40)]
    source, output, other = write(tmp_path / "in.jsonl", requests), tmp_path / "out.jsonl", tmp_path / "other.jsonl"
    arguments = ["batch", str(source), str(output), "-m", f"tiny={model}", *CACHE, "--concurrency", "2"]
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED, *arguments], capture_output=True, text=True, timeout=HANG_S, check=False)
    told = ended.stderr
    assert ended.returncode == 130 and "goes on where this run ended" in told and "Traceback" not in told, told
    count = output.read_bytes().count(b"\n")
    assert 3 <= count < 40 and output.read_bytes().endswith(b"\n")
    assert run(model, source, output) == 0 and run(model, source, other) == 0
    assert {name: plain(line) for name, line in read(output).items()} == {name: plain(line) for name, line in read(other).items()}


def test_two_runs_on_one_output(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second says so and computes nothing, while the first runs; a run that was killed leaves no lock behind."""
    source, output = write(tmp_path / "in.jsonl", [chat(index) for index in range(3)]), tmp_path / "out.jsonl"
    with only_run(output):
        assert run(model, source, output) == 2 and "another run of `llmi batch` writes to it" in capsys.readouterr().err
        assert not output.exists()
        assert run(model, source, tmp_path / "other.jsonl") == 0
    (tmp_path / "out.jsonl.lock").touch()  # of a process that has ended
    assert run(model, source, output) == 0 and len(read(output)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "other.jsonl", "out.jsonl"]


def test_a_line_is_one_line_for_every_reader(model: Path, tmp_path: Path) -> None:
    name = "a\u2028b\x85c"
    source, output = write(tmp_path / "in.jsonl", [{**chat(0), "custom_id": name}]), tmp_path / "out.jsonl"
    assert run(model, source, output) == 0 and set(read(output)) == {name}


BAD: list[tuple[Any, str, str]] = [
    ("{", "no JSON", ""),
    ("[1]", "object", ""),
    ('{"custom_id": "a", "custom_id": "b"}', "twice", "custom_id"),
    ({**chat(50), "more": 1}, "no 'more'", "more"),
    ({"custom_id": "x", "method": "POST", "url": "/v1/completions"}, "body is missing", "body"),
    ({**chat(51), "custom_id": 5}, "custom_id must be", "custom_id"),
    ({**chat(52), "custom_id": ""}, "custom_id must be", "custom_id"),
    ({**chat(53), "method": "GET"}, "'POST'", "method"),
    ({**chat(54), "url": "/v1/embeddings"}, "url must be", "url"),
    ({**chat(55), "body": []}, "body must be", "body"),
    (chat(56, stream=True), "cannot be streamed", "stream"),
    ({**chat(0)}, "that of line 1", "custom_id"),
    (chat(57, model="other"), "no model", "model"),
]


def test_errors_of_lines(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad lines, and requests that the server refuses, have their own errors; the others their answers; a second run computes nothing."""
    refused = chat(60, max_tokens="many")
    source, output = write(tmp_path / "in.jsonl", [chat(0), "", *(line for line, _, _ in BAD), refused, chat(1)]), tmp_path / "out.jsonl"
    assert run(model, source, output) == 1
    assert f"{len(BAD) + 3} answers, {len(BAD) + 1} of them errors" in capsys.readouterr().err
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    errors = {answer["error"]["line"]: answer for answer in answers if answer["error"] is not None}
    assert set(errors) == set(range(3, 3 + len(BAD)))
    for number, (_, message, param) in enumerate(BAD, 3):
        error = errors[number]["error"]
        assert message in error["message"] and (error["param"] or "") == param and errors[number]["response"] is None, error
    by_id = {answer["custom_id"]: answer["response"] for answer in answers if answer["response"] is not None}
    assert by_id["chat-60"]["status_code"] == 400 and by_id["chat-60"]["body"]["error"]["param"] == "max_tokens"
    assert by_id["chat-0"]["status_code"] == by_id["chat-1"]["status_code"] == 200
    before = output.read_bytes()
    assert run(model, source, output) == 0 and output.read_bytes() == before


def test_answers_that_another_try_may_change(model: Path, tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", [chat(0), chat(1)]), tmp_path / "out.jsonl"
    assert run(model, source, output) == 0
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    for line in lines:
        if line["custom_id"] == "chat-1":
            line["response"] = {"status_code": 503, "request_id": "", "body": {}}
    write(output, lines)
    assert run(model, source, output) == 0
    assert [line["response"]["status_code"] for line in read(output).values()] == [200, 200]


def test_an_output_of_another_run(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.jsonl"
    assert run(model, write(tmp_path / "in.jsonl", [chat(0)]), output) == 0
    before = output.read_bytes()
    other = write(tmp_path / "other.jsonl", [chat(0, top_p=0.5)])
    assert run(model, other, output) == 2 and "'chat-0' that is not to line 1" in capsys.readouterr().err
    assert run(model, tmp_path / "in.jsonl", output, "--max-model-len", "100") == 2, "another fingerprint: another engine's answers"
    (tmp_path / "notes.jsonl").write_text("not an answer\n")
    assert run(model, tmp_path / "in.jsonl", tmp_path / "notes.jsonl") == 2 and "line 1 is no answer" in capsys.readouterr().err
    assert output.read_bytes() == before and (tmp_path / "notes.jsonl").read_text() == "not an answer\n"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["nowhere.jsonl", "out.jsonl"], "there is no file"),
        (["in.jsonl", "no/folder/out.jsonl"], "there is no folder"),
        (["in.jsonl", "in.jsonl"], "it is the input"),
        (["in.jsonl", "out.jsonl", "--concurrency", "0"], "--concurrency must lie"),
    ],
)
def test_arguments(
    flags: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl", [])
    assert main(["batch", *flags]) == 2 and says in capsys.readouterr().err
