"""A server whose engines are in other processes: every endpoint's answers are a plain server's, and go on when a replica dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM, EngineError, InvalidParamsError
from llmi.cli.commands import main
from llmi.replicas.replica import Replica
from llmi.server.front import Engines, Front
from llmi.testing import tiny_model
from replica_bodies import ARGUMENTS, BODIES, LONG, TEMPLATE, joined, normal, stream
from server_client import Client
from waiting import wait_until


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("served"), max_position_embeddings=1024)


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[Client]:
    with LLM(model, **ARGUMENTS) as llm:
        yield Client(llm)


@pytest.fixture(scope="module")
def shared(model: Path) -> Iterator[Client]:
    with Front(model, data_parallel_size=2, **ARGUMENTS) as front:
        yield Client(front)


@pytest.fixture
def client(shared: Client) -> Client:
    wait_until(lambda: all(replica.state == "ready" for replica in replicas_of(shared)))
    return shared


def replicas_of(client: Client) -> list[Replica]:
    assert isinstance(client.llm, Front)
    return client.llm._front_router.replicas


@pytest.mark.parametrize("name", BODIES)
def test_answers_are_those_of_a_plain_server(client: Client, plain: Client, name: str) -> None:
    path, body = BODIES[name]
    assert normal(client.ok(path, body)) == normal(plain.ok(path, body))


def test_the_front_has_no_weights(client: Client, plain: Client) -> None:
    assert type(client.llm._engine) is Engines
    assert client.llm.model_info == plain.llm.model_info
    assert (
        client.get("/v1/models").json()["data"][0]["system_fingerprint"] == plain.get("/v1/models").json()["data"][0]["system_fingerprint"]
    )


def test_errors_are_those_of_a_plain_server(client: Client, plain: Client) -> None:
    for body in ({"prompt": [5], "max_tokens": 5000}, {"prompt": [5], "top_p": 7}, {"prompt": "x" * 3000}, {"prompt": [5], "n": 1000}):
        assert client.error("/v1/completions", body) == plain.error("/v1/completions", body)


def test_a_receipt_is_verified_by_one_engine(client: Client, plain: Client) -> None:
    from llmi import Receipt

    answer = client.ok("/v1/completions", {"prompt": [5, 9, 2], "max_tokens": 50, "receipt": True, **LONG})
    assert Receipt(answer["llmi"]["receipt"]).verify(plain.llm)


@contextmanager
def strike_once(client: Client, signal_number: signal.Signals) -> Iterator[list[int]]:
    """Stops or kills the first replica whose tokens come, as soon as they are there; gives its pid. What it says later is lost."""
    assert isinstance(client.llm, Front)
    router, hit = client.llm._front_router, list[int]()
    taken = router.take

    def take(replica: Replica, events: list[dict[str, Any]]) -> None:
        for event in events:  # one by one: on a busy machine an answer's end may come in the message of its first token
            if replica.pid in hit:
                return
            taken(replica, [event])
            if not hit and any(entry.has_begun for entry in list(replica.under_way.values())):
                hit.append(replica.pid)
                os.kill(replica.pid, signal_number)
                if signal_number is signal.SIGSTOP:
                    for _ in range(7):
                        replica.tick()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(router, "take", take)
        yield hit


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
@pytest.mark.parametrize("name", BODIES)
def test_a_stream_goes_on_behind_its_last_token(client: Client, plain: Client, name: str, signal_number: signal.Signals) -> None:
    path, body = BODIES[name]
    with strike_once(client, signal_number) as hit:
        told = joined(stream(client, path, body))
    assert len(hit) == 1
    assert told == joined(stream(plain, path, body))
    states = client.get("/llmi/replicas").json()["data"]
    assert any(state["starts"] > 1 or state["state"] != "ready" for state in states)


def test_a_whole_answer_goes_on_too(client: Client, plain: Client) -> None:
    path, body = BODIES["chat"]
    with strike_once(client, signal.SIGKILL) as hit:
        assert normal(client.ok(path, body)) == normal(plain.ok(path, body))
    assert len(hit) == 1


def test_replicas_are_listed_and_counted(client: Client, plain: Client) -> None:
    found = client.get("/llmi/replicas").json()["data"]
    assert [(entry["model"], entry["name"], entry["state"]) for entry in found] == [("tiny", "0", "ready"), ("tiny", "1", "ready")]
    assert [entry["pid"] for entry in found] == [replica.pid for replica in replicas_of(client)]
    fingerprint = plain.get("/v1/models").json()["data"][0]["system_fingerprint"]
    assert {entry["fingerprint"] for entry in found} == {fingerprint}
    [alone] = plain.get("/llmi/replicas").json()["data"]
    assert (alone["name"], alone["pid"], alone["fingerprint"]) == ("0", os.getpid(), fingerprint)
    text = client.get("/metrics").text
    for name in ("0", "1"):
        assert re.search(rf'^llmi:engine_up{{model_name="tiny",replica="{name}"}} 1$', text, re.MULTILINE)
        assert f'llmi:generation_tokens_total{{model_name="tiny",replica="{name}"}}' in text
    assert "replica=" not in plain.get("/metrics").text


def test_other_verifications_end_once_a_token_is_out(model: Path) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3, "verification": "rejection"}
    with Front(model, data_parallel_size=2, speculative_config=config, **ARGUMENTS) as front:
        client = Client(front)
        assert client.get("/v1/models").json()["data"][0]["system_fingerprint"] is None
        with strike_once(client, signal.SIGKILL) as hit:
            text = stream(client, "/v1/completions", {"prompt": [5, 9, 2], "max_tokens": 900, **LONG})
        assert len(hit) == 1
        assert "depend on its drafts" in text and "engine_unavailable" in text


def test_a_model_that_has_gone_and_one_that_was_changed(tmp_path: Path) -> None:
    """All replicas are down: 503, until the file is back. One that was written to meanwhile is left out, and says why."""
    model = tiny_model(vocab_size=257, path=tmp_path / "model")
    body = {"prompt": [5, 9, 2], "max_tokens": 8, "seed": 1}
    with Front(model, data_parallel_size=2, **ARGUMENTS) as front:
        client, replicas = Client(front), front._front_router.replicas
        want = normal(client.ok("/v1/completions", body))
        model.rename(tmp_path / "away")
        for replica in replicas:
            replica.kill()
        wait_until(lambda: all(replica.never_began for replica in replicas))
        assert "no replica can be started" in client.error("/v1/completions", body, 503)["message"]
        assert client.get("/health").status_code == 503
        (tmp_path / "away").rename(model)
        wait_until(lambda: any(replica.state == "ready" for replica in replicas))
        assert normal(client.ok("/v1/completions", body)) == want
        wait_until(lambda: all(replica.state == "ready" for replica in replicas))
        for file in model.iterdir():
            os.utime(file, ns=(1, 1))
        replicas[0].kill()
        wait_until(lambda: replicas[0].state == "gone" and replicas[0].never_began)
        assert normal(client.ok("/v1/completions", body)) == want
        [first, second] = client.get("/llmi/replicas").json()["data"]
        assert "is left out: its files is" in first["problem"] and second["state"] == "ready"


@pytest.mark.parametrize("value", ["0", "2.5", "2x", "-1", "65", ""])
def test_numbers_of_replicas_that_are_none(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--replicas", "--data-parallel-size"):
        assert main(["serve", f"{flag}={value}"]) == 2
        assert "--replicas" in capsys.readouterr().err


def test_a_front_that_cannot_open_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmi.replicas.process._BOOT", "raise SystemExit(3)")
    with pytest.raises(EngineError, match="ended with status 3 before it was there"):
        Front(tiny_model(vocab_size=257, path=tmp_path), data_parallel_size=2, **ARGUMENTS)
    with pytest.raises(InvalidParamsError, match="data_parallel_size"):
        Front(tmp_path, data_parallel_size=0, **ARGUMENTS)


def test_the_command_loses_no_stream(model: Path, tmp_path: Path, tiny_path: Callable[..., Path]) -> None:
    """docs/parallel.md: `llmi serve --replicas 2`, one killed under `llmi bench serve`, whose --check compares answers."""
    flags = ["serve", "-m", f"tiny={model}", "--replicas", "2", "--port", "0", "--kv-cache-memory-bytes", str(1 << 25)]
    template = tmp_path / "template"
    template.write_text(TEMPLATE)
    words = [sys.executable, "-m", "llmi"]
    with subprocess.Popen(
        [*words, *flags, "--chat-template", str(template), "--no-access-log"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            pids = _kill_under_load(server, words)
            server.send_signal(signal.SIGTERM)
            assert server.wait() == 0
        finally:
            server.kill()
    assert len(pids) == 3
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def _kill_under_load(server: subprocess.Popen[str], words: list[str]) -> set[int]:
    """Kills a replica that works for `llmi bench serve`; returns all that there were."""
    assert server.stdout is not None
    url = next(line.removeprefix("ready: ").strip() for line in server.stdout if line.startswith("ready: "))
    pids = {entry["pid"] for entry in _replicas(url)}
    load = ["bench", "serve", "--url", url, "--num-prompts", "24", "--max-concurrency", "8", "--ignore-eos"]
    load += ["--input-len", "20", "--output-len", "500"]
    with subprocess.Popen([*words, *load, "--check", "24"], stdout=subprocess.PIPE, text=True) as bench:
        wait_until(lambda: any(entry["load"] for entry in _replicas(url)))
        busy = max(_replicas(url), key=lambda entry: entry["load"])
        os.kill(busy["pid"], signal.SIGKILL)
        output, _ = bench.communicate()
    assert bench.returncode == 0, output
    wait_until(lambda: all(entry["state"] == "ready" for entry in _replicas(url)))
    return pids | {entry["pid"] for entry in _replicas(url)}


def _replicas(url: str) -> list[dict[str, Any]]:
    import httpx

    found: list[dict[str, Any]] = httpx.get(f"{url}/llmi/replicas", timeout=60).json()["data"]
    return found
