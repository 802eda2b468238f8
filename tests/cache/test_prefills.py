"""Prefills by others: blocks that another engine has computed are hits with equal bits; whatever the other one does moves no token."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from llmi import LLM, InvalidParamsError, SamplingParams, UnsupportedCombinationError, _core
from llmi.errors import LlmiError
from llmi.handover import peers, shared_folder
from llmi.handover.settings import FRONT, TransferKind
from llmi.replicas.placing import chain_of
from llmi.replicas.prefills import Prefills
from llmi.replicas.replica import Replica
from llmi.server.front import Front
from llmi.testing import assert_same_tokens
from loopback_server import LoopbackServer

PROMPT = [3 + i * 7 % 250 for i in range(200)]
LATER = SamplingParams(temperature=0.7, seed=5, max_tokens=12, logprobs=1, ignore_eos=True)
ENGINE: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 22, "max_model_len": 320, "num_threads": 1}
PRODUCER = {"kv_connector": "local", "kv_role": "kv_producer"}
CONSUMER = {"kv_connector": "local", "kv_role": "kv_consumer", "kv_peers": [FRONT], "kv_min_tokens": 64}
Ask = Callable[[dict[str, Any], float], dict[str, Any]]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of blocks, which no other test has."""
    monkeypatch.setattr(shared_folder, "_ROOT", tmp_path)
    return tmp_path / f"llmi-kv-{os.geteuid()}"


@contextmanager
def asking(monkeypatch: pytest.MonkeyPatch, model: Path, ask: Ask, **engine: Any) -> Iterator[LLM]:
    """A consumer whose questions go to this function."""
    monkeypatch.setattr(peers, "front", ask)
    with LLM(model, kv_transfer_config=CONSUMER, **ENGINE | engine) as llm:
        yield llm


@pytest.fixture
def producer(tiny_path: Callable[..., Path], place: Path) -> Iterator[LLM]:
    with LLM(tiny_path(), kv_transfer_config=PRODUCER, **ENGINE) as llm:
        yield llm


def told(producer: LLM, body: dict[str, Any]) -> dict[str, Any]:
    assert producer._handover is not None
    return producer._handover.answer(producer, body)


def counts(llm: LLM) -> dict[str, int]:
    """What went wrong, by reason, and what came."""
    stats = llm.get_metrics()
    assert stats["audit"] == ""
    names = ("asked_prefills", "late_prefills", "failed_prefills", "foreign_prefills", "short_prefills")
    names += ("fetched_blocks", "damaged_blocks", "cut_blocks", "exchanged_blocks")
    return {name: stats[f"num_{name}"] for name in names if stats[f"num_{name}"]}


def plain(model: Path, prompt: Any = PROMPT, **engine: Any) -> Any:
    with LLM(model, **ENGINE | engine) as llm:
        return llm.generate(prompt, LATER)


@pytest.mark.parametrize("architecture, kv_type", [("llama", "float16"), ("llama", "int8"), ("gemma3", "fp8"), ("gemma3", "float32")])
def test_blocks_of_another_engine(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, architecture: str, kv_type: str) -> None:
    """Threads and chunks may differ."""
    model = tiny_path(architecture)
    with (
        LLM(model, kv_transfer_config=PRODUCER, **ENGINE | {"kv_cache_dtype": kv_type, "max_num_batched_tokens": 33}) as producer,
        asking(monkeypatch, model, lambda body, _: told(producer, body), kv_cache_dtype=kv_type, num_threads=2) as llm,
    ):
        outputs = llm.generate(PROMPT, LATER)
        assert counts(llm) == {"asked_prefills": 1, "fetched_blocks": 12}
        assert outputs[0].num_cached_tokens == 192 and llm.get_metrics()["num_prompt_tokens"] == 8
        assert_same_tokens(outputs, plain(model, kv_cache_dtype=kv_type))
        llm.generate(PROMPT, LATER)
        llm.generate(PROMPT[:60], LATER)
        assert counts(llm)["asked_prefills"] == 1, "what is known, and what is short, is not asked for"


def test_a_salt_goes_along(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, producer: LLM) -> None:
    model = tiny_path()
    salted: Any = {"prompt_token_ids": PROMPT, "cache_salt": "mine"}
    with asking(monkeypatch, model, lambda body, _: told(producer, body)) as llm:
        assert llm.generate(salted, LATER)[0].num_cached_tokens == 192
    with asking(monkeypatch, model, lambda body, _: told(producer, {**body, "cache_salt": ""})) as llm:
        outputs = llm.generate({**salted, "cache_salt": "yours"}, LATER)
        assert outputs[0].num_cached_tokens == 0 and counts(llm) == {"asked_prefills": 1, "short_prefills": 1}
        assert_same_tokens(outputs, plain(model))


def test_steering_is_computed_here(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, producer: LLM) -> None:
    with asking(monkeypatch, tiny_path(), lambda body, _: told(producer, body)) as llm:
        llm.generate(PROMPT, max_tokens=1, steering={1: np.ones(64, np.float32)})
        assert counts(llm) == {}


def _gone(body: dict[str, Any]) -> None:
    raise ConnectionRefusedError("nobody listens")


def _no_answer(body: dict[str, Any]) -> None:
    raise ValueError("no JSON")


@pytest.mark.parametrize("fault", [_gone, _no_answer])
def test_a_producer_that_fails(
    tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, fault: Callable[[dict[str, Any]], Any]
) -> None:
    """The next prompt does not wait for it."""
    monkeypatch.setattr(peers, "_DELAYS_S", (0.0, 3600.0))
    model = tiny_path()
    with asking(monkeypatch, model, lambda body, _: fault(body)) as llm:
        assert_same_tokens(llm.generate(PROMPT, LATER), plain(model))
        assert counts(llm) == {"asked_prefills": 1, "failed_prefills": 1}
        llm.generate([9, *PROMPT[1:]], LATER)
        assert counts(llm) == {"asked_prefills": 1, "failed_prefills": 1}, "it rests"


def test_a_producer_that_hangs(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, producer: LLM) -> None:
    """The request goes on when computing would have ended; what comes later is of use to the next one."""
    model, released = tiny_path(), threading.Event()

    def hang(body: dict[str, Any], _: float) -> dict[str, Any]:
        assert released.wait(300)
        return told(producer, body)

    with asking(monkeypatch, model, hang) as llm:
        llm.generate(PROMPT[:20], max_tokens=1)  # now it is known how long computing takes
        assert_same_tokens(llm.generate([9, *PROMPT[1:]], LATER), plain(model, [9, *PROMPT[1:]]))
        found = counts(llm)
        found.pop("asked_prefills", None)  # of a question that came too late to be asked
        assert found == {"late_prefills": 1}
        released.set()


def test_others_run_while_one_waits(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, producer: LLM) -> None:
    """The producer answers when a request that came later has ended."""
    model, ended = tiny_path(), threading.Event()

    def ask(body: dict[str, Any], _: float) -> dict[str, Any]:
        assert ended.wait(300)
        return told(producer, body)

    with asking(monkeypatch, model, ask) as llm:
        outputs: list[Any] = []
        waiting = threading.Thread(target=lambda: outputs.extend(llm.generate(PROMPT, LATER)))
        waiting.start()
        llm.generate(PROMPT[:20], LATER)
        ended.set()
        waiting.join()
        assert_same_tokens(outputs, plain(model))


def test_an_engine_of_another_kind_is_named_and_not_asked_again(
    tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, producer: LLM
) -> None:
    model = tiny_path(seed=1)
    with asking(monkeypatch, model, lambda body, _: told(producer, body)) as llm, caplog.at_level(logging.WARNING, "llmi"):
        assert_same_tokens(llm.generate(PROMPT, LATER), plain(model))
        llm.generate([9, *PROMPT[1:]], LATER)
        assert counts(llm) == {"asked_prefills": 1, "foreign_prefills": 1}
    assert producer.get_metrics()["num_prompt_tokens"] == 0
    assert [FRONT in record.message and "its model is" in record.message for record in caplog.records] == [True]


def nested(identity: dict[str, Any]) -> dict[str, Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return {**identity, "model": deep}


@pytest.mark.parametrize(
    "change, reason", [(lambda identity: {**identity, "later": None}, "foreign_prefills"), (nested, "failed_prefills")]
)
def test_an_identity_that_is_none_of_ours(
    tiny_path: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    producer: LLM,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    reason: str,
) -> None:
    def ask(body: dict[str, Any], _: float) -> dict[str, Any]:
        return {**told(producer, body), "identity": change(body["identity"])}

    with asking(monkeypatch, tiny_path(), ask) as llm:
        assert llm._handover is not None
        assert llm._handover._answer_of(PROMPT, "", math.inf) == reason.split("_")[0]


def test_what_a_request_waits_for_is_not_evicted(
    tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, producer: LLM, place: Path
) -> None:
    """The consumer writes more than the folder may hold while its question is under way."""
    monkeypatch.setattr(shared_folder, "_MOST_BYTES", 1 << 18)
    kept: list[bool] = []
    num_saved, ended = 0, threading.Event()

    def evict() -> None:
        nonlocal num_saved
        blocks = sorted(place.glob("*.kv1"))
        for first in range(20):
            tokens = [first, *PROMPT[1:150]]
            llm.generate(tokens, max_tokens=1)
            num_saved += llm._engine.save_prefix(tokens, "") // 16
        kept.extend(path.exists() for path in blocks)

    def ask(body: dict[str, Any], _: float) -> dict[str, Any]:
        try:
            answer = told(producer, body)
            evict()
            return answer
        finally:
            ended.set()

    monkeypatch.setitem(CONSUMER, "kv_min_tokens", 160)
    with asking(monkeypatch, tiny_path(), ask) as llm:
        outputs = llm.generate(PROMPT, LATER)
        assert ended.wait(300)  # the request may have gone on without it
        assert_same_tokens(outputs, plain(tiny_path()))
    assert kept == [True] * 12
    assert len(list(place.glob("*.kv1"))) < num_saved, "others went"


def test_an_engine_that_asks_itself(
    tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peers, "front", lambda body, _: told(llm, body))
    with LLM(tiny_path(), kv_transfer_config={**CONSUMER, "kv_role": "kv_both"}, **ENGINE) as llm:
        llm.generate(PROMPT, LATER)
        assert counts(llm) == {"asked_prefills": 1, "foreign_prefills": 1}
    assert "this engine itself" in caplog.text


def test_two_that_ask_each_other(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """What one computes for the other it does not ask for."""
    model = tiny_path()
    both = {**CONSUMER, "kv_role": "kv_both"}
    monkeypatch.setattr(peers, "front", lambda body, _: told(others[body["engine"]], body))
    with LLM(model, kv_transfer_config=both, **ENGINE) as one, LLM(model, kv_transfer_config=both, **ENGINE) as two:
        assert one._handover is not None and two._handover is not None
        others = {one._handover._engine_id: two, two._handover._engine_id: one}
        outputs = one.generate(PROMPT, LATER)
        assert outputs[0].num_cached_tokens == 192
        assert (counts(one), counts(two)) == ({"asked_prefills": 1, "fetched_blocks": 12}, {})
        assert_same_tokens(outputs, plain(model))


def _index(path: Path) -> int:
    header = _core.saved_header(path.read_bytes())
    assert header is not None
    return int(header["index"])


def too_few(paths: list[Path]) -> None:
    for path in paths[5:]:
        path.unlink()


def other_tokens(paths: list[Path]) -> None:
    shutil.copy(paths[3], paths[5])


def flipped(paths: list[Path]) -> None:
    data = bytearray(paths[5].read_bytes())
    data[-100] ^= 4
    paths[5].write_bytes(data)


def cut(paths: list[Path]) -> None:
    os.truncate(paths[5], paths[5].stat().st_size - 7)


@pytest.mark.parametrize(
    "harm, reason, num_blocks",
    [(too_few, "short_prefills", 5), (other_tokens, "exchanged_blocks", 5), (flipped, "damaged_blocks", 5), (cut, "cut_blocks", 5)],
)
def test_blocks_that_are_not_those_that_were_asked_for(
    tiny_path: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    producer: LLM,
    place: Path,
    harm: Callable[[list[Path]], None],
    reason: str,
    num_blocks: int,
) -> None:
    model = tiny_path()

    def ask(body: dict[str, Any], _: float) -> dict[str, Any]:
        answer = told(producer, body)
        harm(sorted(place.glob("*.kv1"), key=_index))
        return answer

    with asking(monkeypatch, model, ask) as llm:
        outputs = llm.generate(PROMPT, LATER)
        assert counts(llm) == {"asked_prefills": 1, reason: 1, "fetched_blocks": num_blocks}
        assert outputs[0].num_cached_tokens == 16 * num_blocks
        assert_same_tokens(outputs, plain(model))


def test_aborts_and_an_end_while_requests_wait(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked, released = threading.Event(), threading.Event()

    def hang(body: dict[str, Any], _: float) -> dict[str, Any]:
        asked.set()
        assert released.wait(300)
        raise OSError("too late")

    with asking(monkeypatch, tiny_path(), hang) as llm:
        ids = llm.enqueue([PROMPT, PROMPT, PROMPT[:20]], LATER)
        assert asked.wait(300)
        llm.abort(ids[:1])
        llm.step()
    released.set()


def test_the_last_engine_leaves_nothing(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    producer = LLM(tiny_path(), kv_transfer_config=PRODUCER, **ENGINE)
    with asking(monkeypatch, tiny_path(), lambda body, _: told(producer, body)) as llm:
        llm.generate(PROMPT, LATER)
        producer.close()
        assert len(list(place.glob("*.kv1"))) == 12, "another one may read them"
    assert [path.name for path in place.iterdir()] == ["lock"]


def test_a_folder_of_others_is_refused(tiny_path: Callable[..., Path], place: Path) -> None:
    place.mkdir(mode=0o700)
    place.chmod(0o777)
    with pytest.raises(InvalidParamsError, match="other users may write there") as error:
        LLM(tiny_path(), kv_transfer_config=PRODUCER, **ENGINE)
    assert error.value.parameter == "kv_transfer_config"


@pytest.mark.parametrize(
    "given, words",
    [
        (5, "None or a mapping"),
        ({"kv_role": "kv_producer"}, "kv_connector must be one of local"),
        ({**PRODUCER, "kv_connector": "MooncakeConnector"}, "MooncakeConnector"),
        ({**PRODUCER, "kv_role": "both"}, "kv_producer, kv_consumer, kv_both"),
        ({**PRODUCER, "kv_rank": 1}, "the key 'kv_rank'"),
        ({**PRODUCER, "kv_peers": ["http://a:1"]}, "asks nobody"),
        ({**CONSUMER, "kv_peers": []}, "needs kv_peers"),
        ({**CONSUMER, "kv_peers": "http://a:1"}, "a list of URLs"),
        ({**CONSUMER, "kv_peers": ["a:1"]}, "'a:1'"),
        ({**CONSUMER, "kv_peers": ["http://a:99999"]}, "99999"),
        ({**CONSUMER, "kv_peers": ["http://a:1/v1"]}, "URL of a server"),
        ({**CONSUMER, "kv_peers": [3]}, "URL of a server"),
        ({**CONSUMER, "kv_min_tokens": 0}, "kv_min_tokens"),
        ({**CONSUMER, "kv_min_tokens": True}, "kv_min_tokens"),
    ],
)
def test_settings_that_are_none(given: Any, words: str) -> None:
    with pytest.raises(InvalidParamsError, match=words) as error:
        TransferKind().parse("kv_transfer_config", given)
    assert error.value.parameter == "kv_transfer_config"


def test_what_it_does_not_go_with(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [{"enable_prefix_caching": False}, {"tensor_parallel_size": 2}, {"prefix_cache_dir": tmp_path}]
    for option in options:
        with pytest.raises(UnsupportedCombinationError, match="kv_transfer_config"):
            LLM(tiny_path(), kv_transfer_config=PRODUCER, **ENGINE | option)
    with pytest.raises(InvalidParamsError, match="--prefill-replicas"):
        LLM(tiny_path(), kv_transfer_config=CONSUMER, **ENGINE)


class _Hostile(BaseHTTPRequestHandler):
    answers: ClassVar[list[tuple[int, bytes]]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status, data = self.answers.pop(0)
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def test_answers_over_http_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(500, b"{}"), (200, b"no JSON"), (200, b"[1]"), (200, b"\xff"), (200, b'{"num_tokens": 3}')]
    monkeypatch.setattr(_Hostile, "answers", found)
    with LoopbackServer(_Hostile) as server:
        line = peers.Http(f"http://127.0.0.1:{server.server_port}")
        for _ in range(4):
            with pytest.raises((OSError, ValueError)):
                line.ask({}, 60.0)
        assert line.ask({}, 60.0) == {"num_tokens": 3}
    with pytest.raises(OSError):
        line.ask({}, 60.0)


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from llmi.testing import tiny_model

    return tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("prefills"), max_position_embeddings=1024)


def test_replicas_of_which_one_computes_prompts(long_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests go to the others. Killed while it computes, it costs no token."""
    engine = {"kv_cache_memory_bytes": 1 << 24, "num_threads": 2}
    prompts = [[3 + first + i * 7 % 200 for i in range(600)] for first in range(4)]
    with LLM(long_model, **engine) as llm:
        wanted = llm.generate(prompts, LATER)
    asks = Prefills.ask

    def ask_and_kill(self: Prefills, asker: Replica, message: dict[str, Any]) -> None:
        asks(self, asker, message)
        killed.kill()

    with Front(long_model, num_producers=1, data_parallel_size=2, **engine) as front:
        consumer, killed = front._front_router.replicas
        assert (consumer.is_producer, killed.is_producer) == (False, True)
        outputs = front.generate(prompts[:2], LATER)
        assert_same_tokens(outputs, wanted[:2])
        known = [replica.known.count(chain_of(prompts[0], "")) for replica in (consumer, killed)]
        assert known == [37, 0], "the one that computes prompts gets no request"
        monkeypatch.setattr(Prefills, "ask", ask_and_kill)
        outputs = front.generate(prompts[2:], LATER)
        assert_same_tokens(outputs, wanted[2:])
        assert consumer.num_starts == 1 and not killed.under_way


def test_questions_that_are_none(tiny_path: Callable[..., Path]) -> None:
    consumer = {**CONSUMER, "kv_peers": ["http://127.0.0.1:9"]}
    with LLM(tiny_path(), kv_transfer_config=consumer, **ENGINE) as llm, pytest.raises(InvalidParamsError, match="no producer"):
        told(llm, {"prompt_token_ids": PROMPT, "cache_salt": ""})
    with LLM(tiny_path(), kv_transfer_config=PRODUCER, **ENGINE) as llm:
        for body in ({}, {"prompt_token_ids": "x", "cache_salt": ""}, {"prompt_token_ids": PROMPT}):
            with pytest.raises(LlmiError):
                told(llm, body)
        assert json.dumps(told(llm, {"prompt_token_ids": [5], "cache_salt": ""}))


class _Asked:
    """A replica that keeps what it is sent."""

    def __init__(self, is_producer: bool) -> None:
        self.name, self.state, self.answers, self.num_sequences = str(is_producer), "ready", True, 0
        self.is_producer = is_producer
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


def test_the_front_tells_who_asked_a_producer_that_died() -> None:
    consumer, producer, other = _Asked(False), _Asked(True), _Asked(True)
    replicas: Any = [consumer, producer, other]
    prefills, question = Prefills(threading.RLock(), lambda: replicas), {"id": 7, "body": {"prompt_token_ids": [1, 2]}}
    prefills.ask(replicas[0], question)
    prefills.ask(replicas[0], {**question, "id": 8})
    assert [len(each.sent) for each in (producer, other)] == [1, 1], "the one with the fewest questions"
    prefills.take(replicas[2], {"id": producer.sent[0]["id"], "told": {}})
    assert consumer.sent == [], "it was not the one that was asked"
    prefills.has_gone(replicas[1])
    assert consumer.sent == [{"kind": "answer", "id": 7, "problem": "replica True has died"}]
    prefills.take(replicas[2], {"id": other.sent[0]["id"], "told": {"num_tokens": 2}})
    assert consumer.sent[1:] == [{"kind": "answer", "id": 8, "told": {"num_tokens": 2}}]
    producer.state = other.state = "gone"
    prefills.ask(replicas[0], question)
    assert "problem" in consumer.sent[2]
    producer.state = "ready"
    prefills.ask(replicas[0], question)
    prefills.has_gone(replicas[0])
    prefills.take(replicas[1], {"id": producer.sent[1]["id"], "told": {}})
    assert len(consumer.sent) == 3, "nobody is there any more"
