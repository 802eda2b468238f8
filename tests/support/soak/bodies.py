"""Bodies that nobody would write: `python -m soak --bodies N`. Whatever comes, the server says what is wrong, in OpenAI's
form, and lives."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

from llmi.async_llm import AsyncLLM
from llmi.llm import LLM
from llmi.server.openapi import description
from llmi.server.settings import ServerSettings
from soak.rounds import Running
from soak.wire import Connection, CutError, request_bytes

_MESSAGES = [{"role": "user", "content": "ab"}]
#: A right body of each endpoint that takes one.
RIGHT: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "main", "prompt": "ab", "max_tokens": 3},
    "/v1/chat/completions": {"model": "main", "messages": _MESSAGES, "max_tokens": 3},
    "/v1/messages": {"model": "main", "messages": _MESSAGES, "max_tokens": 3},
    "/v1/messages/count_tokens": {"model": "main", "messages": _MESSAGES},
    "/v1/responses": {"model": "main", "input": "ab", "max_output_tokens": 3},
    "/tokenize": {"model": "main", "prompt": "ab"},
    "/detokenize": {"model": "main", "tokens": [1, 2]},
}
_ODD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    0.5,
    -0.0,
    1e-320,
    1e308,
    2**31,
    2**53 + 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**40,
    "",
    "a",
    "é\u0000\x7f\u2028",
    "\ud7ff\ue000",
    "😀" * 50,
    "x" * 5000,
    "null",
    "1",
    "-inf",
    "NaN",
    "auto",
    "none",
    "required",
    "json_schema",
    [],
    [[]],
    [None],
    [0],
    [1, "a"],
    [[1], [2]],
    ["a"] * 100,
    {},
    {"": ""},
    {"type": "function"},
    {"type": "json_object"},
    {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}},
    {"type": "json_schema", "json_schema": {"schema": {"pattern": "(a+)+$", "type": "string"}}},
    {"regex": "("},
    {"regex": "a{1,100000}"},
    {"choice": []},
    {"choice": ["a", "a"]},
    {"grammar": "root ::= root"},
    {"json": {"enum": []}},
    {"role": "user", "content": "a"},
    [{"role": "user"}],
    [{"role": "tool", "content": "x"}],
    [{"role": "x", "content": []}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}]}],
    [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    [{"type": "function", "name": "f", "parameters": None}],
    [{"name": "f", "input_schema": {}}],
    [{"type": "web_search"}],
    {"type": "tool", "name": "f"},
    {"50": 3.0},
    {"-1": 1},
    {"a": "b"},
    {"include_usage": True},
    {"1": "-inf"},
]
_ALLOWED = (200, 400, 404, 408, 413, 429, 504)


@dataclasses.dataclass
class Answers:
    """The answers to all bodies: how often each status came, and what was wrong."""

    statuses: dict[int, int] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)


def _mutated(value: object, rng: random.Random, depth: int = 0) -> object:
    """A JSON value with one thing in it changed."""
    if depth < 4 and isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        return {**value, name: _mutated(value[name], rng, depth + 1)}
    if depth < 4 and isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        return [*value[:index], _mutated(value[index], rng, depth + 1), *value[index + 1 :]]
    return rng.choice(_ODD)


def make_body(path: str, fields: list[str], rng: random.Random) -> bytes:
    """A body for a path: a right one with one to four odd fields, with a part changed, or with damaged bytes."""
    body: dict[str, Any] = dict(RIGHT[path])
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4])):
        name = rng.choice(fields)
        body[name] = rng.choice(_ODD) if name not in body or rng.random() < 0.5 else _mutated(body[name], rng)
    if rng.random() < 0.3:
        body["stream"] = True
    if rng.random() < 0.1:
        del body[rng.choice(list(body))]
    if rng.random() < 0.05:
        body["".join(rng.choices("abcdefgh_é", k=6))] = rng.choice(_ODD)
    text = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    for _ in range(rng.choice([0, 0, 0, 0, 0, 0, 1, 3])):
        place = rng.randrange(len(text))
        text = text[:place] + rng.randbytes(rng.randint(0, 2)) + text[place + rng.randint(0, 2) :]
    return text


def problem_of(path: str, status: int, data: bytes, is_stream: bool) -> str:
    """The fault of an answer; "" if it has none."""
    if status not in _ALLOWED:
        return f"status {status}: {data[:300]!r}"
    if status == 200 and not is_stream:
        json.loads(data)
        return ""
    if status == 200:
        return "" if b"api_error" not in data else f"a stream that failed: {data[-300:]!r}"
    try:
        error = json.loads(data)["error"]
    except (ValueError, KeyError, TypeError):
        return f"an error in another form: {data[:300]!r}"
    if set(error) < {"message", "type", "param", "code"} or not error["message"].isascii() or len(error["message"]) > 2100:
        return f"an error in another form: {data[:300]!r}"
    return ""


async def _client(port: int, next_body: Callable[[], tuple[str, bytes] | None], answers: Answers) -> None:
    connection = None
    while (given := next_body()) is not None:
        path, body = given
        connection = connection or await Connection.open(port)
        try:
            await connection.send(request_bytes(path, body))
            answer = await asyncio.wait_for(connection.answer(), 60)
        except (TimeoutError, CutError, OSError) as error:
            answers.problems.append(f"{path} {body[:400]!r}: {type(error).__name__} {error}")
            connection.close()
            connection = None
            continue
        answers.statuses[answer.status] = answers.statuses.get(answer.status, 0) + 1
        is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
        if problem := problem_of(path, answer.status, answer.body, is_stream):
            answers.problems.append(f"{path} {body[:400]!r}: {problem}")
        if answer.headers.get("connection") == "close":
            connection.close()
            connection = None
    if connection is not None:
        connection.close()


def known_fields() -> dict[str, list[str]]:
    """All fields of each path's bodies, as /openapi.json lists them."""
    paths = description([("POST", path) for path in RIGHT])["paths"]
    return {path: list(paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]) for path in RIGHT}


def ask_bodies(llm: LLM, count: int, seed: int, num_clients: int = 8) -> Answers:
    """Sends `count` bodies to a server over an engine, which must be idle and whole at the end."""
    rng, answers, fields = random.Random(seed), Answers(), known_fields()
    left = iter(range(count))

    def next_body() -> tuple[str, bytes] | None:
        if next(left, None) is None:
            return None
        path = rng.choice(list(RIGHT))
        return path, make_body(path, fields[path], rng)

    async def run(port: int) -> None:
        await asyncio.gather(*(_client(port, next_body, answers) for _ in range(num_clients)))

    server = Running({"main": AsyncLLM(llm=llm)}, ServerSettings(port=0))
    try:
        asyncio.run(run(server.port))
    finally:
        server.tell_to_end()
        server.join()
    llm.reset_prefix_cache()
    stats = llm.get_metrics()
    if stats["num_running"] or stats["num_free_pages"] != stats["num_pages"] or stats["audit"]:
        answers.problems.append(
            f"{stats['num_running']} sequences run, {stats['num_pages'] - stats['num_free_pages']} blocks lost, audit {stats['audit']!r}"
        )
    return answers
