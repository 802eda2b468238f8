"""Servers that are told to end while clients ask: no request that was let in may be lost. And how long a start takes, and a disconnect."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import signal
import subprocess
import sys
import time
from typing import Any

from llmi.async_llm import AsyncLLM
from llmi.llm import LLM
from llmi.server.settings import ServerSettings
from soak.cases import COMPLETIONS, Case
from soak.rounds import Running
from soak.wire import Answer, Connection, CutError, request_bytes

_END_S = 300.0


@dataclasses.dataclass
class Ends:
    """What the clients of ending servers saw.

    answered: whole answers, compared; turned_away: told 503 by a server that ends; refused: nobody listened any more;
    closed: the server closed the connection as the request was sent, and has read none of it; lost: begun answers that were not whole;
    differ: wrong answers; exit_codes: of the servers, those that are not 0.
    """

    cycles: int = 0
    answered: int = 0
    turned_away: int = 0
    refused: int = 0
    closed: int = 0
    lost: int = 0
    differ: int = 0
    exit_codes: list[int] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    ready_s: list[float] = dataclasses.field(default_factory=list)
    drained_s: list[float] = dataclasses.field(default_factory=list)


def percentiles(values: list[float]) -> dict[str, float]:
    """p50, p99 and the largest."""
    ordered = sorted(values)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], "max": ordered[-1]}


def drain_cycles(count: int, model: str, options: list[str], cases: list[Case], seed: int, num_clients: int = 16) -> Ends:
    """Starts `llmi serve`, asks, sends SIGTERM in the middle of it, and counts what became of each request; `count` times."""
    ends, rng = Ends(), random.Random(seed)
    command = [sys.executable, "-m", "llmi", "serve", "-m", f"main={model}", "--port", "0", "--no-access-log", *options]
    for _ in range(count):
        begun = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            port = _port_of(process)
            ends.ready_s.append(time.monotonic() - begun)
            asyncio.run(_cycle(process, port, cases, rng, ends, num_clients))
            told = time.monotonic()
            code = process.wait(_END_S)
            ends.drained_s.append(time.monotonic() - told)
            if code != 0:
                ends.exit_codes.append(code)
        ends.cycles += 1
    return ends


def _port_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("ready: "):
            return int(line.rsplit(":", 1)[1])
    raise RuntimeError(f"the server did not start: {''.join(lines)[-2000:]}")


async def _cycle(process: subprocess.Popen[str], port: int, cases: list[Case], rng: random.Random, ends: Ends, num_clients: int) -> None:
    tasks = [asyncio.create_task(_client(port, cases, random.Random(rng.getrandbits(64)), ends)) for _ in range(num_clients)]
    await asyncio.sleep(0.1 + rng.random() * 0.3)
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*tasks), _END_S)


async def _client(port: int, cases: list[Case], rng: random.Random, ends: Ends) -> None:
    """Asks one request after the other, on one connection for as long as it lasts, until the server takes no more."""
    connection = None
    while True:
        case, stream = rng.choice(cases), rng.random() < 0.5
        try:
            connection = connection or await Connection.open(port)
        except OSError:
            ends.refused += 1
            return
        try:
            await connection.send(request_bytes(case.path, json.dumps({**case.body, "stream": stream}).encode()))
            answer = await connection.answer()
        except (OSError, CutError) as error:
            connection.close()
            if not isinstance(error, CutError) or error.num_bytes == 0:  # sent to a socket that was closed, or nothing came
                ends.closed += 1
            else:
                ends.lost += 1
                ends.problems.append(f"{case.path}: {error}")
            return
        if not _judge(answer, case, stream, ends):
            connection.close()
            return
        if answer.headers.get("connection") == "close" or rng.random() < 0.3:
            connection.close()
            connection = None


def _judge(answer: Answer, case: Case, stream: bool, ends: Ends) -> bool:
    """Counts an answer; whether to go on."""
    if answer.status == 503 and b"shutting_down" in answer.body:
        ends.turned_away += 1
        return False
    problem = (
        case.difference(answer, stream)
        if answer.status == 200 and b'"error":{' not in answer.body
        else f"{answer.status} {answer.body[:200]!r}"
    )
    if problem:
        ends.differ += 1
        ends.problems.append(problem)
        return False
    ends.answered += 1
    return True


def disconnect_times(llm: LLM, count: int, num_others: int = 8) -> dict[str, dict[str, float]]:
    """Seconds from a client's going to the end of its request in the engine, streamed or not, while others are served; and those of a
    step."""
    server = Running({"main": AsyncLLM(llm=llm)}, ServerSettings(port=0))
    try:
        return {
            name: percentiles(asyncio.run(_disconnects(server.port, llm, count, stream, num_others)))
            for name, stream in (("streamed", True), ("whole", False))
        } | {"step": {"mean": llm.get_metrics()["busy_time_s"] / max(1, llm.get_metrics()["num_steps"])}}
    finally:
        server.tell_to_end()
        server.join()


async def _disconnects(port: int, llm: LLM, count: int, stream: bool, num_others: int) -> list[float]:
    times: list[float] = []
    while len(times) < count:
        connections = [await Connection.open(port) for _ in range(num_others + 1)]
        for number, connection in enumerate(connections):
            await connection.send(_endless(stream or number > 0))
        try:
            async with asyncio.timeout(5):
                times.append(await _disconnect(llm, connections))
        except TimeoutError:  # one had ended before the last began
            pass
        for connection in connections:
            connection.close(reset=True)
        while _num_running(llm):
            await asyncio.sleep(0.001)
    return times


async def _disconnect(llm: LLM, connections: list[Connection]) -> float:
    while _num_running(llm) < len(connections):
        await asyncio.sleep(0.001)
    begun = time.perf_counter()
    connections[0].close(reset=True)
    while _num_running(llm) == len(connections):
        await asyncio.sleep(0.0005)
    return time.perf_counter() - begun


def _endless(stream: bool) -> bytes:
    fields: dict[str, Any] = {"model": "main", "prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    return request_bytes(COMPLETIONS, json.dumps(fields).encode())


def _num_running(llm: LLM) -> int:
    return int(llm._engine.latest_stats()["num_running"])
