"""Messages between processes are checked as files are: whatever comes is a request, an event, or refused, and nothing of it is run."""

from __future__ import annotations

import copy
import json
import random
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM, InvalidParamsError, LlmiError, NonFiniteLogitsError
from llmi.replicas.answering import Answers
from llmi.replicas.asked import Asked
from llmi.replicas.channel import Channel
from llmi.replicas.placing import Beginnings, chain_of, choose
from llmi.replicas.process import Folder, divided
from llmi.replicas.records import Remote, Sample, error_as_json, error_of, finish, news_of
from llmi.replicas.under_way import UnderWay
from llmi.replicas.wire import MOST_BYTES, BrokenMessageError, Connection, decode, encode
from llmi.requests.prepare import CallOptions
from llmi.testing import tiny_model
from waiting import wait_until


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("messages")), kv_cache_memory_bytes=1 << 25) as made:
        yield made


def asked_of(llm: LLM, **params: Any) -> UnderWay:
    given = {"max_tokens": 6, "seed": 3, "ignore_eos": True, "logprobs": 1, "prompt_logprobs": 0, **params}
    call = llm._call({"prompt_token_ids": [5, 9, 2, 7]}, None, given, CallOptions(stream=True))
    return UnderWay(call.submissions[0], Channel(), goes_on=True)


@pytest.fixture(scope="module")
def events(llm: LLM) -> list[dict[str, Any]]:
    """All that is told of one request, as it comes over a socket."""
    told: list[dict[str, Any]] = []
    answers = Answers(lambda: llm, told.extend)
    answers.begin(Asked.read(asked_of(llm).message()))
    wait_until(lambda: any("samples" in event for event in told))
    answers.close()
    message: dict[str, Any] = decode(encode({"kind": "events", "events": told})[4:])
    found: list[dict[str, Any]] = message["events"]
    return found


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"{}",
        b'{"kind":3}',
        b'{"kind":"a","x":NaN}',
        b'{"kind":"a","x":Infinity}',
        b'{"kind":"a","x":1e999}',
        b'{"kind":"\xff"}',
        b'{"kind":' + b"[" * 100_000,
    ],
)
def test_what_is_no_message(data: bytes) -> None:
    with pytest.raises(BrokenMessageError):
        decode(data)


def test_a_socket_that_ends_or_lies() -> None:
    for sent, expected in [
        (b"", None),
        (b"\x05", None),
        (struct.pack("<I", 9) + b"{", None),
        (struct.pack("<I", MOST_BYTES + 1), "longer"),
    ]:
        here, there = socket.socketpair()
        there.sendall(sent)
        there.shutdown(socket.SHUT_WR)
        if expected is None:
            assert Connection(here).receive() is None
        else:
            with pytest.raises(BrokenMessageError, match=expected):
                Connection(here).receive()
        here.close()
        there.close()
    with pytest.raises(BrokenMessageError, match="longer"):
        encode({"kind": "a", "text": "x" * MOST_BYTES})
    with pytest.raises(ValueError, match="Out of range"):
        encode({"kind": "a", "x": float("nan")})


def test_sockets_lie_in_a_folder_of_the_user_alone() -> None:
    folder = Folder()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    folder.remove()
    assert not folder.path.exists()


def test_a_request_comes_back_equal(llm: LLM) -> None:
    asked = asked_of(llm, logit_bias={3: float("-inf"), 4: 1.5}, stop=["x"], n=2).asked
    asked.known = [[1, 2], []]
    assert Asked.read(decode(encode(asked.message())[4:])) == asked
    call = asked.call(llm)
    assert call.submissions[0].error is None and call.submissions[0].params.logit_bias == {3: float("-inf"), 4: 1.5}


def mutated(value: Any, rng: random.Random) -> Any:
    """The value with one of its parts replaced, dropped or doubled."""
    odd = [None, True, -1, 2**80, 1.5, "inf", "x", [], {}, [[]], [None], {"a": 1}]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        if rng.random() < 0.1:
            return {name: entry for name, entry in value.items() if name != key}
        return value | {key: mutated(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        if rng.random() < 0.2:
            return [*value[:index], *value[index + 1 :]] if rng.random() < 0.5 else [*value, value[index]]
        return [*value[:index], mutated(value[index], rng), *value[index + 1 :]]
    return copy.deepcopy(rng.choice(odd))


def refused(act: Callable[[], object]) -> bool:
    """Whether it is refused; any other error fails the test."""
    try:
        act()
    except BrokenMessageError:
        return True
    return False


def test_mutated_requests_are_refused_or_prepared(llm: LLM) -> None:
    rng, message = random.Random(5), asked_of(llm).message()
    num_refused = 0
    for _ in range(3000):
        changed = mutated(message, rng)
        if not isinstance(changed, dict) or not isinstance(changed.get("kind"), str):
            continue
        if refused(lambda changed=changed: Asked.read(changed)):
            num_refused += 1
            continue
        try:
            Asked.read(changed).call(llm)
        except (BrokenMessageError, LlmiError):
            num_refused += 1
    assert num_refused > 500


def test_mutated_events_are_refused_or_taken(llm: LLM, events: list[dict[str, Any]]) -> None:
    rng = random.Random(7)
    num_refused = 0
    for _ in range(4000):
        changed = mutated(rng.choice(events), rng)
        if not isinstance(changed, dict):
            continue
        entry = asked_of(llm) if rng.random() < 0.01 else None
        record = Remote(1, 0.0)
        if entry is not None:
            num_refused += refused(lambda entry=entry, changed=changed: entry.take(changed))
        elif "samples" in changed:
            num_refused += refused(lambda changed=changed, record=record: finish(changed, record, [Sample()], False))
        else:
            num_refused += refused(lambda changed=changed, record=record: news_of(changed, record))
    assert num_refused > 1000


def test_an_answer_that_goes_on_must_begin_with_the_same_tokens(llm: LLM, events: list[dict[str, Any]]) -> None:
    entry = asked_of(llm)
    first = events[0]
    assert not entry.take(first)
    assert entry.message()["known"] == [first["token_ids"]]
    other = first | {"token_ids": [(first["token_ids"][0] + 1) % 256, *first["token_ids"][1:]]}
    with pytest.raises(BrokenMessageError, match="begins with other tokens"):
        entry.take(other)


def test_what_was_told_is_not_told_again(llm: LLM, events: list[dict[str, Any]]) -> None:
    """A second run tells all again, in other pieces."""
    *news, end = events
    channel = Channel()
    call = llm._call({"prompt_token_ids": [5, 9, 2, 7]}, None, {"max_tokens": 6, "seed": 3, "logprobs": 1}, CallOptions(stream=True))
    entry = UnderWay(call.submissions[0], channel, goes_on=True)
    for event in news[:3]:
        entry.take(event)
    entry.message()
    joined = dict(news[0])
    for name in ("token_ids", "text", "logprobs"):
        joined[name] = [row for event in news[:4] for row in event[name]] if name != "text" else "".join(e["text"] for e in news[:4])
    for event in [joined, *news[4:], end]:
        entry.take(event)
    told: list[Any] = []
    channel.wait(told, 0)
    tokens = [token for event in told for token in event.token_ids]
    assert tokens == [token for event in news for token in event["token_ids"]]
    assert "".join(event.text for event in told) == "".join(event["text"] for event in news)
    assert sum(len(event.logprobs) for event in told) == len(tokens)
    assert [event.finished for event in told].count(True) == 1 and told[-1].finished
    assert entry.record.samples[0].token_ids == tokens


def test_errors_travel_and_nothing_else_does() -> None:
    for error in (InvalidParamsError("no", "top_p"), NonFiniteLogitsError("nan", "request", "steering")):
        other = error_of(json.loads(json.dumps(error_as_json(error))))
        assert type(other) is type(error) and str(other) == str(error) and vars(other) == {**vars(error), "fault": error.fault}
    for name in ("Path", "importlib", "_restore", "CoreError", "LlmiErrors", "", 7, None):
        with pytest.raises(BrokenMessageError):
            error_of({"type": name, "message": "", "fields": {}})


def test_a_busy_replica_gives_way(tmp_path: Path) -> None:
    """Its beginning is known there, but another has far less to do."""
    chain = chain_of(list(range(64)), "")
    assert len(chain) == 4 and chain_of(list(range(64)), "salt") != chain and chain_of(list(range(70)), "")[:4] == chain
    knows, empty = Beginnings(), Beginnings()
    knows.add(chain)
    assert choose([(4, knows), (0, empty)], chain) == 0
    assert choose([(5, knows), (0, empty)], chain) == 1
    assert choose([(24, knows), (10, empty)], chain) == 0
    assert choose([(3, empty), (2, empty), (2, empty)], chain) == 1, "the least busy one, and the first of equals"
    assert knows.count(chain_of([*range(32), *range(40)], "")) == 2
    assert divided(7, 3) == [3, 2, 2] and divided(1, 2) == [1, 1]
