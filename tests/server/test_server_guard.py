"""What stands before the server's routes: keys, hosts and origins, sizes, rates. The application behind it is a stub."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import llmi
from held_clock import run_skipping
from llmi.cli.commands import main
from llmi.server import keys as keys_module
from llmi.server.guard import OPEN, Door, Guard, Origins
from llmi.server.keys import Keys, read_keys
from llmi.server.limits import Limits
from llmi.server.listen import check_reach
from llmi.server.settings import ServerSettings

SMALL = Limits(body_bytes=1000, header_bytes=2000, body_s=0.1)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Tells who called, and how much came."""
    message = await receive()
    if scope["path"] == "/slow":
        await asyncio.sleep(0.05)
    admission = scope["state"]["admission"]
    body = json.dumps({"name": admission.caller.name, "bytes": len(message["body"]), "limit": admission.limits.body_bytes}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(
        f"""
[[keys]]
name = "alice"
sha256 = "{sha("secret-a")}"
requests_per_minute = 3
max_context = 100
[[keys]]
name = "bob"
sha256 = "{sha("secret-b")}"
priority = 5
max_concurrent = 1
tokens_per_minute = 50
may_see_metrics = true
"""
    )
    return path


def ask(door: Door, *requests: tuple[str, str, dict[str, Any]]) -> list[httpx.Response]:
    """The answers to requests that are sent at once."""

    async def main() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=Guard(app, door))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return list(await asyncio.gather(*(client.request(method, path, **more) for method, path, more in requests)))

    return run_skipping(main())


def one(door: Door, method: str = "POST", path: str = "/v1/completions", **more: Any) -> httpx.Response:
    [answer] = ask(door, (method, path, more))
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"].isascii() and error["message"]
    return answer


def bearer(key: str) -> dict[str, dict[str, str]]:
    return {"headers": {"authorization": f"Bearer {key}"}}


def test_a_keys_priority_that_the_policy_would_not_heed(key_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--keys", str(key_file), "--scheduling-policy", "fcfs"]) == 2
    assert "key 'bob' has priority = 5, which --scheduling-policy fcfs does not look at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer secret-a"}, 200),
        ({"authorization": "bearer secret-a"}, 200),
        ({"x-api-key": "secret-a"}, 200),
        ({"authorization": "Bearer secret-a", "x-api-key": "secret-a"}, 200),
        ({"authorization": "Bearer secret-a", "x-api-key": "secret-b"}, 401),
        ({"authorization": "Bearer secret"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Basic secret-a"}, 401),
        ({"authorization": "secret-a"}, 401),
        ({"authorization": "Bearer " + "x" * 1_000}, 401),
    ],
)
def test_keys(key_file: Path, headers: dict[str, str], status: int) -> None:
    door = Door(Limits(), Origins(), Keys(key_file))
    answer = one(door, headers=headers)
    assert answer.status_code == status
    assert (answer.json().get("name") == "alice") == (status == 200)
    assert ("www-authenticate" in answer.headers) == (status == 401)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_key_that_is_not_ascii(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(f'[[keys]]\nname = "zoe"\nsha256 = "{sha("schlüssel-é")}"\n')
    door = Door(Limits(), Origins(), Keys(path))
    for key, status in (("schlüssel-é", 200), ("schlüssel-è", 401)):
        for name, value in (("authorization", f"Bearer {key}"), ("x-api-key", key)):
            [answer] = ask(door, ("POST", "/v1/completions", {"headers": {name: value.encode(encoding)}}))
            assert answer.status_code == status


def test_20_every_route_needs_a_key_but_those_that_are_named(key_file: Path) -> None:
    from llmi.server.app import ROUTES

    door = Door(Limits(), Origins(), Keys(key_file))
    paths = {path.replace("{name:path}", "x") for _, path, _ in ROUTES} | {
        "/",
        "/nowhere",
        "/v2/x",
        "//health",
        "/health/",
        "/HEALTH",
        "/docs",
    }
    assert {"/metrics", "/v1/models", "/tokenize"} <= paths
    for path in paths:
        for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            [answer] = ask(door, (method, f"http://127.0.0.1:8000{path}", {}))
            assert answer.status_code == (200 if path in OPEN else 401), (method, path)


def test_what_tells_of_other_keys_needs_leave(key_file: Path) -> None:
    door = Door(Limits(), Origins(), Keys(key_file))
    for path in ("/metrics", "/llmi/events"):
        assert one(door, "GET", path, **bearer("secret-a")).status_code == 403
        assert one(door, "GET", path, **bearer("secret-b")).status_code == 200


def test_rates_of_a_key(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(keys_module.time, "monotonic", lambda: now[0])
    door = Door(Limits(), Origins(), Keys(key_file))
    answers = [one(door, **bearer("secret-a")) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers.get("x-ratelimit-remaining-requests") for answer in answers[:3]] == ["2", "1", "0"]
    assert answers[3].headers["x-ratelimit-remaining-requests"] == "0" and answers[3].headers["x-ratelimit-reset-requests"] == "60.000s"
    assert answers[3].headers["retry-after"] == "20" and answers[3].json()["error"]["code"] == "rate_limit_exceeded"
    now[0] += 20
    assert one(door, **bearer("secret-a")).status_code == 200
    assert one(door, "GET", "/v1/models", **bearer("secret-a")).status_code == 200, "reading is free"
    bob = door.keys.find("secret-b") if door.keys is not None else None
    assert bob is not None and one(door, **bearer("secret-b")).status_code == 200
    bob.spend(80)
    refused = one(door, **bearer("secret-b"))
    assert refused.status_code == 429 and refused.headers["retry-after"] == "38", "31 tokens at 50 a minute"
    now[0] += 38
    assert one(door, **bearer("secret-b")).status_code == 200


def test_concurrency_of_a_key(key_file: Path) -> None:
    door = Door(Limits(), Origins(), Keys(key_file))
    answers = ask(door, *[("POST", "/slow", bearer("secret-b"))] * 3, ("POST", "/slow", bearer("secret-a")))
    assert sorted(answer.status_code for answer in answers[:3]) == [200, 429, 429] and answers[3].status_code == 200
    assert one(door, "POST", "/slow", **bearer("secret-b")).status_code == 200


def test_salts_priorities_and_contexts(key_file: Path) -> None:
    keys = Keys(key_file)
    alice, bob = keys.find("secret-a"), keys.find("secret-b")
    assert alice is not None and bob is not None
    assert len({alice.salt(), bob.salt(), alice.salt("x"), bob.salt("x"), ""}) == 5 and alice.salt("x") == alice.salt("x")
    assert (alice.priority, bob.priority) == (0, 5)
    alice.check_context(100)
    with pytest.raises(llmi.InvalidParamsError, match="101 tokens, more than the 100"):
        alice.check_context(101)


def test_what_a_key_has_used_outlives_a_change_of_its_entry(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module.time, "monotonic", lambda: 100.0)
    keys = Keys(key_file)
    bob = keys.find("secret-b")
    assert bob is not None
    bob.spend(30)
    with bob.admitted():
        key_file.write_text(key_file.read_text().replace("priority = 5", "priority = 1").replace("minute = 50", "minute = 40"))
        keys.reload()
        again = keys.find("secret-b")
        assert again is not None and again.priority == 1 and again.num_active == 1
        assert dict(again.headers())[b"x-ratelimit-remaining-tokens"] == b"10"
    assert again.num_active == 0
    key_file.write_text(key_file.read_text().replace("tokens_per_minute = 40", ""))
    keys.reload()
    assert again.headers() == []


def test_keys_are_read_again(key_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = Keys(key_file)
    before = keys.find("secret-b")
    key_file.write_text(key_file.read_text().replace(sha("secret-a"), sha("other")))
    keys.reload()
    assert keys.find("secret-a") is None and keys.find("other") is not None and keys.find("secret-b") is before
    key_file.write_text("nonsense")
    with caplog.at_level(logging.ERROR):
        keys.reload()
    assert keys.find("other") is not None and "the keys stay as they were" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no table"),
        ("x = 1", "unknown 'x'"),
        ("keys = 3", "no table"),
        ("[[keys]]\nname = 'a'", r"keys\[0\]: sha256 is missing"),
        ("[[keys]]\nname = 'a'\nsha256 = 'xyz'", "64 hexadecimal"),
        (f"[[keys]]\nname = 'a b'\nsha256 = '{sha('a')}'", "letters, digits"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{sha('a')}'\nkey = 'a'", "unknown 'key'"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{sha('a')}'\nmax_concurrent = 0", "1 or more, not 0"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{sha('a')}'\nrequests_per_minute = true", "1 or more, not True"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{sha('a')}'\n" * 2, "two keys have the name"),
        ("[[keys", "no TOML"),
    ],
)
def test_key_files_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(llmi.InvalidParamsError, match=message) as caught:
        read_keys(path)
    assert str(path) in str(caught.value)
    with pytest.raises(llmi.InvalidParamsError, match="No such file"):
        read_keys(tmp_path / "none")


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:8000", None, 200),
        ("127.0.0.1", None, 200),
        ("[::1]:8000", None, 200),
        ("192.168.1.5:8000", None, 200),
        ("evil.example", None, 403),
        ("evil.example:8000", None, 403),
        ("localhost.evil.example", None, 403),
        ("127.0.0.1.evil.example", None, 403),
        ("named.example:8000", None, 200),
        ("", None, 403),
        ("localhost:8000", "http://localhost:8000", 200),
        ("localhost:8000", "http://localhost:9000", 403),
        ("127.0.0.1:8000", "http://localhost:8000", 200),
        ("localhost", "http://[::1]", 200),
        ("[::1]:8000", "http://127.0.0.1:8000", 200),
        ("127.0.0.1:8000", "http://localhost", 403),
        ("127.0.0.1:8000", "ws://localhost:8000", 403),
        ("127.0.0.1:8000", "http://192.168.1.5:8000", 403),
        ("192.168.1.5:8000", "http://localhost:8000", 403),
        ("127.0.0.1:8000", "http://localhost.evil.example:8000", 403),
        ("localhost:8000", "http://evil.example", 403),
        ("localhost:8000", "null", 403),
        ("localhost:8000", "https://app.example", 200),
        ("localhost:8000", "https://app.example.evil.example", 403),
    ],
)
def test_21_22_hosts_and_origins(host: str, origin: str | None, status: int) -> None:
    door = Door(Limits(), Origins(["named.example"], ["https://app.example"]))
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    answer = one(door, headers=headers)
    assert answer.status_code == status
    named = status == 200 and origin not in (None, f"http://{host}")  # another site, or this one by another name
    assert answer.headers.get("access-control-allow-origin") == (origin if named else None), "no CORS but for a site that was named"
    asked = "authorization,content-type,x-stainless-os,x-stainless-retry-count,anthropic-dangerous-direct-browser-access"
    preflight = one(door, "OPTIONS", headers={**headers, "access-control-request-headers": asked})
    assert preflight.status_code == (204 if named else status)
    assert preflight.headers.get("access-control-allow-headers") == (asked if named else None)


@pytest.mark.parametrize("asked", ["x" * 5000, 'a"b', "a:b", ""])
def test_a_preflight_allows_names_of_headers_alone(asked: str) -> None:
    door = Door(Limits(), Origins((), ["https://app.example"]))
    headers = {"host": "localhost", "origin": "https://app.example", "access-control-request-headers": asked}
    answer = one(door, "OPTIONS", headers=headers)
    assert answer.status_code == 204 and "access-control-allow-headers" not in answer.headers


def test_null_is_an_origin_if_it_is_named() -> None:
    assert one(Door(Limits(), Origins((), ["null"])), headers={"origin": "null"}).status_code == 200


def test_two_hosts_and_two_origins_are_refused() -> None:
    for name, value in (("host", "localhost"), ("origin", "http://127.0.0.1:8000")):
        [answer] = ask(Door(Limits(), Origins()), ("POST", "/x", {"headers": [(name, value), (name, value)]}))
        assert answer.status_code in (400, 403), name


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 100


async def slow() -> AsyncIterator[bytes]:
    yield b"x"
    await asyncio.sleep(1)
    yield b"x"


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"content": b"x" * 1000}, 200),
        ({"content": b"x" * 1001}, 413),
        ({"content": b""}, 200),
        ({"headers": {"content-length": "999999999999999999999"}, "content": b""}, 413),
        ({"content": endless}, 413),
        ({"content": b"x", "headers": {"content-encoding": "gzip"}}, 415),
        ({"content": b"x", "headers": {"content-encoding": "identity"}}, 200),
        ({"content": b"x", "headers": {"x-much": "y" * 2000}}, 431),
        ({"content": b"x", "headers": {f"x-{i}": "y" for i in range(400)}}, 431),
    ],
)
def test_31_sizes(more: dict[str, Any], status: int) -> None:
    more = {name: value() if callable(value) else value for name, value in more.items()}
    answer = one(Door(SMALL, Origins()), **more)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["limit"] == 1000
    else:
        assert answer.headers["connection"] == "close"


def test_31_a_body_that_does_not_come() -> None:
    async def main() -> list[Any]:
        sent: list[Any] = []
        scope = {"type": "http", "method": "POST", "path": "/x", "headers": [(b"host", b"localhost")]}
        parts = [{"type": "http.request", "body": b"x", "more_body": True}]

        async def receive() -> Any:
            if parts:
                return parts.pop()
            await asyncio.sleep(5)

        async def send(message: Any) -> None:
            sent.append(message)

        await Guard(app, Door(SMALL, Origins()))(scope, receive, send)
        return sent

    assert run_skipping(main())[0]["status"] == 408


def test_19_a_server_that_ends_turns_requests_away() -> None:
    door = Door(Limits(), Origins())
    door.is_draining = True
    answer = one(door)
    assert answer.status_code == 503 and answer.headers["connection"] == "close" and "retry-after" in answer.headers
    assert one(door, "GET", "/health").status_code == 200
    assert door.num_refused == {503: 1} and door.num_active == 0


def test_the_log_names_no_prompt(key_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    door = Door(Limits(), Origins(), Keys(key_file))
    with caplog.at_level(logging.INFO, logger="llmi.access"):
        one(door, path="/v1/completions?secret=q", content=b"my prompt", **bearer("secret-a"))
    assert "POST /v1/completions 200" in caplog.text and "key alice" in caplog.text
    assert not any(word in caplog.text for word in ("prompt", "secret"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, (129, "n"), 1, 0, 0), "n = 129 are 129 answers, more than 128"),
        ((64, (3, "beam_width"), 1, 0, 0), "64 prompts with beam_width = 3 are 192 answers"),
        ((1, (128, "n"), 10_000, 0, 0), "1,280,000 tokens, more than 1,048,576"),
        ((1, (1, "n"), 10_000, 10_000 * 128_257, 0), "bytes, more than 67,108,864"),
        ((1, (1, "n"), 1, 49_152, 2_000 * 49_152), "49,152 log-probabilities of the answers and 98,304,000 of their prompts"),
    ],
    ids=["6 n", "6 prompts x n", "6 n x max_tokens", "7 logprobs", "7 prompt_logprobs"],
)
def test_6_7_answers_that_would_be_too_large(arguments: tuple[int, tuple[int, str], int, int, int], message: str) -> None:
    with pytest.raises(llmi.InvalidParamsError, match=message):
        Limits().check_answer(*arguments)
    Limits().check_answer(1, (128, "n"), 100, 128 * 100 * 6, 2_000 * 6)


def test_without_keys_only_this_machine_is_served(tmp_path: Path) -> None:
    for settings in (
        ServerSettings(),
        ServerSettings(host="::1"),
        ServerSettings(host="localhost"),
        ServerSettings(host="127.0.0.3"),
        ServerSettings(host="0.0.0.0", uds=tmp_path / "s"),
        ServerSettings(host="0.0.0.0", keys=tmp_path / "k"),
    ):
        check_reach(settings)
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org", ""):
        with pytest.raises(llmi.InvalidParamsError, match="--insecure-no-keys"):
            check_reach(ServerSettings(host=host))
        check_reach(ServerSettings(host=host), insecure=True)


def test_limits_are_checked() -> None:
    for field in dataclasses.fields(Limits):
        with pytest.raises(llmi.InvalidParamsError, match=field.name):
            Limits(**{field.name: -1})
    assert Limits(queue=0, deadline_s=None).queue == 0
    assert Limits().num_connections < os.sysconf("SC_OPEN_MAX")
