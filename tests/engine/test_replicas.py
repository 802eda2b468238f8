"""Replicas in processes of their own: the outputs of one engine, whatever dies on the way, and no process left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmi import LLM, AsyncLLM, InvalidParamsError, Outputs, SamplingParams, WorkerDiedError
from llmi.errors import EngineClosedError
from llmi.replicas.placing import chain_of
from llmi.replicas.process import Process
from llmi.replicas.replica import Replica
from llmi.replicas.router import Router
from llmi.replicas.under_way import UnderWay
from llmi.testing import tiny_model
from waiting import wait_until

PROMPTS = [[5, 9, 2, index, 2, 7] for index in range(12)]
ARGUMENTS: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 25, "seed": 3, "num_threads": 3}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 0.9, "logprobs": 2, "prompt_logprobs": 1},
    "several": {"n": 3, "logprobs": 1, "min_p": 0.02},
    "state": {"mirostat": 2, "logprobs": 0},
    "penalties": {"presence_penalty": 0.5, "dry_multiplier": 0.8, "bad_words": [[5, 6]], "logit_bias": {3: 2.0, 9: float("-inf")}},
    "guidance": {"guidance_scale": 1.5, "negative_prompt": [7, 7]},
    "ends": {"stop_token_ids": list(range(40)), "ignore_eos": False, "stop": ["a", "b"]},
    "beams": {"beam_width": 3, "max_tokens": 12, "ignore_eos": False, "logprobs": 1, "seed": None},
    "contrast": {"penalty_alpha": 0.6, "top_k": 4, "temperature": None, "max_tokens": 12},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("replicas"), max_position_embeddings=1024)


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[LLM]:
    with LLM(model, **ARGUMENTS) as llm:
        yield llm


@pytest.fixture(scope="module")
def shared(model: Path) -> Iterator[LLM]:
    with LLM(model, data_parallel_size=3, **ARGUMENTS) as llm:
        yield llm


@pytest.fixture
def llm(shared: LLM) -> LLM:
    """Three replicas, all there."""
    wait_until(lambda: all(replica.state == "ready" for replica in router_of(shared).replicas))
    return shared


def router_of(llm: LLM) -> Router:
    assert isinstance(llm._router, Router)
    return llm._router


def decode(llm: LLM, **params: Any) -> Outputs:
    return llm.generate(PROMPTS, **{"max_tokens": 40, "seed": 11, "ignore_eos": True, **params})


@pytest.mark.parametrize("name", KINDS)
def test_outputs_are_those_of_one_engine(alone: LLM, llm: LLM, name: str) -> None:
    before = llm.get_metrics()["num_finished_requests"]
    found = decode(llm, **KINDS[name])
    assert found == decode(alone, **KINDS[name])
    assert 0 < llm.get_metrics()["num_finished_requests"] - before < len(PROMPTS), "some run here, and some elsewhere"
    assert [output.metrics.num_preemptions for output in found] == [0] * len(PROMPTS)
    assert all(output.metrics.e2e_latency_s > 0 for output in found)


def test_a_grammar_travels(alone: LLM, llm: LLM) -> None:
    pytest.importorskip("llguidance")
    params = {"structured_outputs": {"regex": "[a-c]{30}"}, "ignore_eos": False}
    found = decode(llm, **params)
    assert found == decode(alone, **params)
    assert all(output.outputs[0].complete for output in found)


def test_seeds_are_those_of_the_call(alone: LLM, llm: LLM) -> None:
    assert llm.generate(PROMPTS, max_tokens=8) == alone.generate(PROMPTS, max_tokens=8)


def test_a_receipt_of_a_replica_is_verified_by_one_engine(alone: LLM, llm: LLM) -> None:
    for output in decode(llm, logprobs=1):
        assert output.receipt().verify(alone)


def test_python_stays_in_this_process(alone: LLM, llm: LLM) -> None:
    seen: list[int] = []

    def note(token_ids: Any, logits: Any) -> Any:
        seen.append(os.getpid())
        return logits

    before = llm.get_metrics()["num_finished_requests"]
    found = decode(llm, logits_processors=[note])
    assert found == decode(alone, logits_processors=[lambda token_ids, logits: logits])
    assert set(seen) == {os.getpid()} and llm.get_metrics()["num_finished_requests"] - before == len(PROMPTS)


def test_a_mistake_in_one_request_is_its_own(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=5, seed=1) for _ in PROMPTS]
    params[4] = SamplingParams(max_tokens=4000, seed=1)
    found = llm.generate(PROMPTS, params, on_error="return")
    assert [index for index, output in enumerate(found) if output.error is not None] == [4]
    assert isinstance(found[4].error, InvalidParamsError) and "max_model_len" in str(found[4].error)


def test_streams_and_asyncio(alone: LLM, llm: LLM) -> None:
    want = [output.outputs[0].text for output in decode(alone)]
    texts = [""] * len(PROMPTS)
    for chunk in llm.stream(PROMPTS, max_tokens=40, seed=11, ignore_eos=True):
        texts[chunk.request_index] += chunk.text
    assert texts == want

    async def read(server: AsyncLLM, prompt: list[int]) -> str:
        text = ""
        async for output in server.generate(prompt, max_tokens=40, seed=11, ignore_eos=True, output_kind="delta"):
            text += output.outputs[0].text
        return text

    async def read_all() -> list[str]:
        async with AsyncLLM(llm=llm) as server:
            assert server.health().alive and server.live().num_waiting == 0
            return await asyncio.gather(*(read(server, prompt) for prompt in PROMPTS))

    assert asyncio.run(read_all()) == want


def test_an_aborted_stream_ends_where_it_runs(llm: LLM) -> None:
    with llm.stream(PROMPTS, max_tokens=900, seed=11, ignore_eos=True) as stream:
        next(stream)
    ends = [(completion.finish_reason, len(completion.token_ids)) for output in stream.outputs for completion in output.outputs]
    # On a busy machine a request may have all of its tokens before the abort.
    assert any(reason == "abort" for reason, _ in ends) and all(end[0] == "abort" or end == ("length", 900) for end in ends)
    wait_until(lambda: not any(replica.under_way for replica in router_of(llm).replicas))


def test_a_beginning_goes_where_it_is_known(llm: LLM) -> None:
    long = [list(range(begin, begin + 64)) for begin in range(6)]
    places = {}
    for _ in range(3):
        for prompt in long:
            for output in llm.stream([prompt], max_tokens=1, seed=1):
                assert output
            knows = [index for index, replica in enumerate(router_of(llm).replicas) if replica.known.count(chain_of(prompt, ""))]
            places.setdefault(prompt[0], set()).add(tuple(knows))
    assert all(len(found) == 1 for found in places.values()), places


class Stop:
    """Stops or kills each replica that runs something, once tokens of it have come: one after the other, and none that has a request of
    another that died without a new token of it, since two such deaths end a request by rule."""

    def __init__(self, llm: LLM, signal_number: signal.Signals) -> None:
        self.router, self.signal = router_of(llm), signal_number
        self.pids = {replica: replica.pid for replica in self.router.replicas}
        self.hit: list[Replica] = []
        self.taken = self.router.take

    def take(self, replica: Replica, events: list[dict[str, Any]]) -> None:
        """The router's: strikes as soon as tokens are there, and what a replica that was hit says later is lost."""
        for event in events:  # one by one: on a busy machine an answer's end may come in the message of its first token
            if replica in self.hit and replica.pid == self.pids[replica]:
                return
            self.taken(replica, [event])
            self._strike()

    def _strike(self) -> None:
        with self.router._lock:
            if any(one.pid == self.pids[one] and (one.state == "ready" or one.under_way) for one in self.hit):
                return  # its requests have not moved yet
            for replica in self.router.replicas:
                entries = list(replica.under_way.values())
                may_die = all(entry.deaths == 0 or entry.came_further for entry in entries)
                if replica not in self.hit and may_die and any(entry.has_begun for entry in entries):
                    os.kill(replica.pid, self.signal)
                    self.hit.append(replica)
                    if self.signal is signal.SIGSTOP:
                        for _ in range(7):
                            replica.tick()
                    return


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV], ids=lambda number: number.name)
@pytest.mark.parametrize("name", ["drawn", "several", "state", "guidance", "beams", "contrast"])
def test_a_replica_that_dies_or_stands_still_costs_no_token(
    alone: LLM, llm: LLM, name: str, signal_number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {"max_tokens": 300, "seed": 11, "ignore_eos": True, **KINDS[name]}
    want = alone.generate(PROMPTS, **params)
    stop = Stop(llm, signal_number)
    monkeypatch.setattr(stop.router, "take", stop.take)
    texts: dict[tuple[int, int], str] = {}
    ids: dict[tuple[int, int], list[int]] = {}
    stream = llm.stream(PROMPTS, **params)
    for chunk in stream:
        key = (chunk.request_index, chunk.index)
        texts[key] = texts.get(key, "") + chunk.text
        ids.setdefault(key, []).extend(chunk.token_ids)
    assert stream.outputs == want
    if name not in ("beams", "contrast"):
        assert stop.hit, "none was hit"
        wanted = {(i, c.index): c for i, output in enumerate(want) for c in output.outputs}
        assert texts == {key: completion.text for key, completion in wanted.items()}
        assert ids == {key: completion.token_ids for key, completion in wanted.items()}
    wait_until(lambda: all(replica.state == "ready" for replica in stop.router.replicas))
    assert decode(llm, **KINDS[name]) == decode(alone, **KINDS[name])


def test_a_replica_that_says_nothing_gets_no_request(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = router_of(llm).replicas
    got: list[str] = []
    place = Router._send

    def sends(self: Router, entry: UnderWay, replica: Replica) -> None:
        got.append(replica.name)
        place(self, entry, replica)

    monkeypatch.setattr(Router, "_send", sends)
    monkeypatch.setattr("llmi.replicas.router.choose", lambda loads, chain: 1)  # the first that is not here
    for silent, expected in ((None, first), (first, second)):
        monkeypatch.setattr(Replica, "answers", property(lambda self, silent=silent: self is not silent))
        assert llm.generate(PROMPTS[:1], max_tokens=3, seed=1, ignore_eos=True)
        assert got.pop() == expected.name


def poison(monkeypatch: pytest.MonkeyPatch, prompt: list[int]) -> list[str]:
    """Requests with this prompt kill the replica that gets them. Returns the replicas that they have killed."""
    send = Replica.send
    killed: list[str] = []

    def sends(self: Replica, message: dict[str, Any]) -> None:
        send(self, message)
        if message.get("prompt_token_ids") == prompt:
            killed.append(self.name)
            os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(Replica, "send", sends)
    return killed


def test_a_request_that_kills_its_replica_is_sent_on_once(alone: LLM, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = list(range(100, 140))
    monkeypatch.setattr("llmi.replicas.router.choose", lambda loads, chain: len(loads) - 1)
    killed = poison(monkeypatch, bad)
    found = llm.generate([*PROMPTS, bad], max_tokens=60, seed=11, ignore_eos=True, on_error="return")
    assert found[:-1] == alone.generate(PROMPTS, max_tokens=60, seed=11, ignore_eos=True)
    error = found[-1].error
    assert isinstance(error, WorkerDiedError) and "SIGKILL" in str(error) and "not sent on again" in str(error)
    assert 2 <= len(killed) <= 3


def test_a_stopped_replica_is_not_the_doing_of_its_requests(alone: LLM, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stops them: two replicas that stand still with one request do not end it."""
    prompt, send = list(range(100, 140)), Replica.send
    stopped: list[int] = []

    def sends(self: Replica, message: dict[str, Any]) -> None:
        if message.get("prompt_token_ids") == prompt and len(stopped) < 2:
            stopped.append(self.pid)
            os.kill(self.pid, signal.SIGSTOP)
            wait_until(lambda: Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
            for _ in range(7):
                self.tick()
        send(self, message)

    monkeypatch.setattr(Replica, "send", sends)
    monkeypatch.setattr("llmi.replicas.router.choose", lambda loads, chain: len(loads) - 1)
    assert llm.generate([prompt], max_tokens=20, seed=1) == alone.generate([prompt], max_tokens=20, seed=1)
    assert len(set(stopped)) == 2


def test_a_second_without_a_cpu_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[str] = []
    why = ["starved"]
    replica = Replica("1", router_of, None, {})  # type: ignore[arg-type]
    replica._process = SimpleNamespace(kill=lambda: killed.append("yes"), why_silent=lambda: why[0])  # type: ignore[assignment]
    for _ in range(20):
        replica.tick()
    assert not killed and replica.answers
    why[0] = ""
    for _ in range(6):
        assert not killed
        replica.tick()
    assert killed


@pytest.mark.parametrize(
    ("stat", "scheduled", "why"),
    [
        ("1 (a b) T 1", "0 0 0", "stopped"),
        ("1 (a) S) S 1", "0 0 0", ""),
        ("1 (a) S 1", "0 600000000 3", "starved"),
        ("1 (a) R 1", "100000000 0 3", "starved"),
        ("1 (a) R 1", "900000000 100000000 3", ""),
    ],
)
def test_why_a_process_may_be_silent(monkeypatch: pytest.MonkeyPatch, stat: str, scheduled: str, why: str) -> None:
    process = Process.__new__(Process)
    process.process, process._scheduled = SimpleNamespace(pid=1), (0, 0, 0)  # type: ignore[assignment]
    monkeypatch.setattr("time.monotonic_ns", lambda: 1_000_000_000)
    monkeypatch.setattr(Path, "read_text", lambda path: stat if path.name == "stat" else scheduled)
    assert process.why_silent() == why


def test_closing_leaves_no_process(model: Path) -> None:
    with LLM(model, data_parallel_size=2, **ARGUMENTS) as llm:
        router = router_of(llm)
        pids = [replica.pid for replica in router.replicas]
        stream = llm.stream(PROMPTS, max_tokens=900, ignore_eos=True)
        next(stream)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    with pytest.raises(EngineClosedError):
        llm.generate(PROMPTS)
    assert not any(replica.thread.is_alive() for replica in router.replicas)


@pytest.mark.parametrize("ending", ["kill", "exit", "interrupt"])
def test_the_programs_end_leaves_no_process(model: Path, ending: str) -> None:
    script = f"""
import sys
from llmi import LLM
llm = LLM({str(model)!r}, data_parallel_size=3, **{ARGUMENTS!r})
print(*(replica.pid for replica in llm._router.replicas), flush=True)
if {ending!r} != "exit":
    llm.generate([[5, 9]] * 20, max_tokens=900, ignore_eos=True)
    while True:
        llm.generate([[5, 9]] * 20, max_tokens=900, ignore_eos=True)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
        assert program.stdout is not None
        pids = program.stdout.readline().split()
        if ending != "exit":
            program.send_signal(signal.SIGKILL if ending == "kill" else signal.SIGINT)
        program.wait()
    assert len(pids) == 2
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.parametrize("value", [0, 2.5, "2x", -1, True, None, 65])
def test_degrees_that_are_none(model: Path, value: object) -> None:
    with pytest.raises(InvalidParamsError, match="data_parallel_size") as raised:
        LLM(model, data_parallel_size=value)  # type: ignore[arg-type]
    assert raised.value.parameter == "data_parallel_size"


def test_more_replicas_than_the_machine_holds(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmi._core.system_info", lambda: {"available_memory_bytes": 3 * sum(f.stat().st_size for f in model.iterdir())})
    with pytest.raises(InvalidParamsError, match=r"each process holds the model.*give at most") as raised:
        LLM(model, data_parallel_size=64, **ARGUMENTS)
    assert raised.value.parameter == "data_parallel_size"


def test_objects_that_cannot_go_to_another_process(model: Path) -> None:
    class Policy:
        def key(self, request: object, now_s: float) -> tuple[float, ...]:
            return (0.0,)

    with pytest.raises(InvalidParamsError, match="scheduling_policy is an object of this one"):
        LLM(model, data_parallel_size=2, scheduling_policy=Policy(), **ARGUMENTS)


def test_a_model_that_does_not_load_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_model_len"):
        LLM(tiny_model(vocab_size=257, path=tmp_path), data_parallel_size=2, max_model_len=1 << 20, **ARGUMENTS)
