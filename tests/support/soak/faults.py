"""The kinds of fault: what a client, or the server's surroundings, does to one request, and what must come of it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections.abc import Awaitable, Callable

from soak.cases import COMPLETIONS, Case
from soak.wire import Answer, Connection, CutError, request_bytes

#: What came of a request: its whole answer was compared; the server refused it as it must; the client had gone; it must be sent again.
COMPARED, REFUSED, GONE, AGAIN = "compared", "refused", "gone", "again"
_LATER = ("queue_full", "grammar_compiling")  # codes of errors after which a client comes again
#: Bodies of which each is wrong, and the status that says so.
_BAD: list[tuple[bytes, int]] = [
    (b"", 400),
    (b"{", 400),
    (b"[]", 400),
    (b'{"model":"main","prompt":"a","max_tokens":"5"}', 400),
    (b'{"model":"main","prompt":"a","max_tokens":-1}', 400),
    (b'{"model":"main","prompt":"a","temperature":1e400}', 400),
    (b'{"model":"main","prompt":"a","n":1000000}', 400),
    (b'{"model":"main","prompt":"a","n":1,"n":1}', 400),
    (b'{"model":"main","prompt":[[]]}', 400),
    (b'{"model":"main","prompt":[1e9]}', 400),
    (b'{"model":"main","prompt":[999999]}', 400),
    (b'{"model":"main","prompt":"\xff"}', 400),
    (b'{"model":"main","prompt":"\\ud800"}', 400),
    (b'{"model":"none","prompt":"a"}', 404),
    (b'{"model":"main","prompt":"a","temprature":1}', 400),
    (b'{"model":"main","prompt":"' + b"long " * 2000 + b'"}', 400),
    (b"[" * 100_000, 400),
]


@dataclasses.dataclass(slots=True)
class Outcome:
    """One request that has ended. problem: what is wrong with its end; "" if nothing is."""

    what: str
    problem: str = ""


@dataclasses.dataclass(slots=True)
class Visit:
    """One request under a fault. is_ending: whether the server has been told to end; other_died: whether the engine of `other` has."""

    port: int
    case: Case
    rng: random.Random
    stream: bool
    is_ending: Callable[[], bool]
    other_died: Callable[[], bool]

    def body(self, **more: object) -> bytes:
        """The case's body; more: further fields."""
        return json.dumps({**self.case.body, "stream": self.stream, **more}).encode()

    def endless(self, **more: object) -> bytes:
        """A body whose answer does not end while the client is there."""
        return self.body(**({"ignore_eos": True} | _longest(self.case) | {"stop": None, "stop_sequences": None} | more))

    def judge(self, answer: Answer, allowed: tuple[str, ...] = ()) -> Outcome:
        """The outcome of an answer that is to be the right one; allowed: codes of errors that are right as well."""
        code = _code_of(answer, self.stream)
        if code is None:
            return Outcome(COMPARED, self.case.difference(answer, self.stream))
        if code in _LATER or (code in ("shutting_down", "aborted") and self.is_ending()):
            return Outcome(AGAIN)
        if code in allowed:
            return Outcome(REFUSED)
        return Outcome(REFUSED, f"{answer.status} {answer.body[:300]!r}")


def _longest(case: Case) -> dict[str, int]:
    return {"max_output_tokens" if "max_output_tokens" in case.body else "max_tokens": 400}


def _code_of(answer: Answer, stream: bool) -> str | None:
    """The code of an answer that is an error, or of a stream that ends with one."""
    if answer.status != 200:
        return str(answer.json()["error"]["code"])
    if not stream:
        return None
    for event in answer.events()[-3:]:
        error = event.get("error") or (event.get("response") or {}).get("error")
        if error:
            return str(error.get("code"))
    return None


async def _plain(visit: Visit, pace: tuple[int, float] | None = None, pieces: int = 1, body: bytes | None = None) -> Answer:
    connection = await Connection.open(visit.port, pace)
    try:
        request = request_bytes(visit.case.path, visit.body() if body is None else body, close=visit.rng.random() < 0.5)
        await connection.send(request, pieces, 0.003)
        return await connection.answer()
    finally:
        connection.close()


async def no_fault(visit: Visit) -> Outcome:
    """Nothing happens to this one."""
    return visit.judge(await _plain(visit))


async def slow_reader(visit: Visit) -> Outcome:
    """The client takes some hundred bytes and then pauses, with a small buffer in its kernel."""
    return visit.judge(await _plain(visit, (600, 0.001)))


async def slow_sender(visit: Visit) -> Outcome:
    """Header and body come in pieces."""
    return visit.judge(await _plain(visit, pieces=8))


async def _begun(visit: Visit, data: bytes, num_bytes: int) -> tuple[Connection, bool]:
    """A connection on which a request was sent, after some bytes of its answer; and whether these came. data: a request that closes it, or a
    shorter answer would be waited for until the server ends what is idle."""
    connection = await Connection.open(visit.port)
    await connection.send(data)
    while connection.num_read < num_bytes:
        if not await connection.read(512):
            return connection, False
    return connection, True


async def gone_before_first_token(visit: Visit) -> Outcome:
    """The client goes as soon as it has sent its request, or after the headers of the answer."""
    visit.stream = True
    connection, _ = await _begun(visit, request_bytes(visit.case.path, visit.endless(), close=True), visit.rng.choice([0, 0, 1]))
    connection.close(reset=visit.rng.random() < 0.5)
    return Outcome(GONE)


async def gone_in_the_stream(visit: Visit) -> Outcome:
    """The client goes after some events."""
    visit.stream = True
    connection, _ = await _begun(visit, request_bytes(visit.case.path, visit.endless(), close=True), visit.rng.randint(700, 4000))
    connection.close(reset=visit.rng.random() < 0.5)
    return Outcome(GONE)


async def gone_unstreamed(visit: Visit) -> Outcome:
    """The client goes while it waits for a whole answer."""
    visit.stream = False
    connection = await Connection.open(visit.port)
    await connection.send(request_bytes(visit.case.path, visit.endless()))
    await asyncio.sleep(visit.rng.random() * 0.03)
    connection.close(reset=visit.rng.random() < 0.5)
    return Outcome(GONE)


async def half_closed(visit: Visit) -> Outcome:
    """The client closes its half after the request: for a server, it has gone. What it still gets must not be wrong."""
    connection = await Connection.open(visit.port)
    try:
        await connection.send(request_bytes(visit.case.path, visit.body()))
        connection.end_writing()
        return visit.judge(await connection.answer())
    except CutError:
        return Outcome(GONE)
    finally:
        connection.close()


async def cut_body(visit: Visit) -> Outcome:
    """The client goes before its body is whole."""
    data = request_bytes(visit.case.path, visit.body())
    connection = await Connection.open(visit.port)
    await connection.send(data[: visit.rng.randint(1, len(data) - 1)])
    await asyncio.sleep(visit.rng.random() * 0.01)
    connection.close(reset=visit.rng.random() < 0.5)
    return Outcome(GONE)


async def bad_request(visit: Visit) -> Outcome:
    """A body that is wrong; then, on the same connection, one that is right."""
    body, status = visit.rng.choice(_BAD)
    connection = await Connection.open(visit.port)
    try:
        await connection.send(request_bytes(COMPLETIONS, body))
        answer = await connection.answer()
        if answer.status == 429 or (answer.status == 503 and visit.is_ending()):
            return Outcome(AGAIN)
        if answer.status != status:
            return Outcome(REFUSED, f"{body[:80]!r}: {answer.status} {answer.body[:200]!r}")
        await connection.send(request_bytes(visit.case.path, visit.body()))
        return visit.judge(await connection.answer())
    finally:
        connection.close()


async def deadline(visit: Visit) -> Outcome:
    """The request may take so little time that it may not end in it."""
    answer = await _plain(visit, body=visit.body(timeout_s=visit.rng.choice([0.0, 0.001, 0.005, 0.02])))
    return visit.judge(answer, ("timeout",))


async def grammar_cancelled(visit: Visit) -> Outcome:
    """The client goes while its grammar is compiled: one that no other request has, of a thousand words."""
    words = [f"{visit.rng.getrandbits(60):x}" for _ in range(1000)]
    body = {"model": "main", "prompt": "a", "max_tokens": 400, "structured_outputs": {"choice": words}}
    connection = await Connection.open(visit.port)
    await connection.send(request_bytes(COMPLETIONS, json.dumps(body).encode()))
    await asyncio.sleep(visit.rng.random() * 0.03)
    connection.close(reset=True)
    return Outcome(GONE)


async def other_engine_dies(visit: Visit) -> Outcome:
    """The request is for another model of the same server, whose engine ends."""
    answer = await _plain(visit, body=visit.body(model="other"))
    return visit.judge(answer, ("engine_unavailable", "aborted") if visit.other_died() else ())


Fault = Callable[[Visit], Awaitable[Outcome]]
#: What a request may meet, by name.
FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        slow_reader,
        slow_sender,
        gone_before_first_token,
        gone_in_the_stream,
        gone_unstreamed,
        half_closed,
        cut_body,
        bad_request,
        deadline,
        grammar_cancelled,
        other_engine_dies,
    )
}
#: What happens to all requests under way, counted by the engine and the driver.
SURROUNDINGS = ("preemption", "prefix_eviction", "queue_full", "drain")


def wording(value: object) -> str:
    """What a fault is, in its own words."""
    return (value.__doc__ or "").strip().split("\n")[0]
