"""`llmi route`: a front whose engines are servers that run already. Its answers are theirs, and go on when one of them dies."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM, AsyncLLM, InvalidParamsError, WorkerDiedError
from llmi.cli.commands import main
from llmi.replicas import servers as routing
from llmi.replicas.replica import Replica
from llmi.replicas.servers import Server, Servers
from llmi.server.native import Answer
from llmi.server.routed import Routed
from llmi.server.settings import ServerSettings
from llmi.testing import tiny_model
from replica_bodies import ARGUMENTS, BODIES, joined, normal, stream
from server_client import Client, Served
from waiting import wait_until

KEY = "a-key"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("served"), max_position_embeddings=1024)


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[Client]:
    with LLM(model, **ARGUMENTS) as llm:
        yield Client(llm)


class Fleet:
    """Two servers, and what routes to them."""

    def __init__(self, model: Path) -> None:
        self.llms = [LLM(model, **ARGUMENTS) for _ in range(2)]
        self.served = [Served(llm) for llm in self.llms]
        self.front = routed(*(each.url for each in self.served))
        self.client = Client(self.front)
        self.router = self.front._front_router

    def cut(self, index: int) -> None:
        self.served[index].cut()

    def start(self, index: int, llm: LLM | None = None) -> None:
        """The server of this place, on the same port."""
        self.served[index] = Served(llm or self.llms[index], port=self.served[index].port)

    def whole(self) -> None:
        """Returns when all are there."""
        for index, each in enumerate(self.served):
            if not each.thread.is_alive():
                self.start(index)
        wait_until(lambda: all(replica.state == "ready" for replica in self.router.replicas))

    def close(self) -> None:
        self.front.close()
        for each in self.served:
            each.close()
        for llm in self.llms:
            llm.close()


def routed(*urls: str, key: str | None = None, model: str | None = None) -> Routed:
    return Routed(Servers(urls, None, key), model)


@pytest.fixture(scope="module")
def fleet_of_module(model: Path) -> Iterator[Fleet]:
    with closing(Fleet(model)) as fleet, pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmi.replicas.replica.DELAYS_S", (0.0, 0.05))
        yield fleet


@pytest.fixture
def fleet(fleet_of_module: Fleet) -> Fleet:
    fleet_of_module.whole()
    return fleet_of_module


@contextmanager
def cut_once(fleet: Fleet) -> Iterator[list[int]]:
    """Cuts the first server whose tokens come, as soon as they are there; gives its place. What it says later is lost."""
    hit, taken = list[int](), fleet.router.take

    def take(replica: Replica, events: list[dict[str, Any]]) -> None:
        place = fleet.router.replicas.index(replica)
        if place in hit:
            return
        taken(replica, events)
        if not hit and any(entry.has_begun for entry in list(replica.under_way.values())):
            hit.append(place)
            fleet.cut(place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet.router, "take", take)
        yield hit


@pytest.mark.parametrize("name", BODIES)
def test_answers_are_those_of_a_plain_server(fleet: Fleet, plain: Client, name: str) -> None:
    path, body = BODIES[name]
    assert normal(fleet.client.ok(path, body)) == normal(plain.ok(path, body))
    assert joined(stream(fleet.client, path, body)) == joined(stream(plain, path, body))


@pytest.mark.parametrize("name", BODIES)
def test_a_stream_goes_on_behind_its_last_token(fleet: Fleet, plain: Client, name: str) -> None:
    path, body = BODIES[name]
    with cut_once(fleet) as hit:
        told = joined(stream(fleet.client, path, body))
    assert len(hit) == 1
    assert told == joined(stream(plain, path, body))


def test_a_beam_search_and_errors_are_those_of_a_plain_server(fleet: Fleet, plain: Client) -> None:
    body = {"prompt": [5, 9], "max_tokens": 12, "beam_width": 3, "n": 2, "seed": 1}
    assert normal(fleet.client.ok("/v1/completions", body)) == normal(plain.ok("/v1/completions", body))
    for body in ({"prompt": [5], "max_tokens": 5000}, {"prompt": [5], "top_p": 7}, {"prompt": [5], "n": 1000}):
        assert fleet.client.error("/v1/completions", body) == plain.error("/v1/completions", body)


def test_servers_that_are_down_and_come_back(fleet: Fleet, model: Path) -> None:
    """503, until one is back; one with another fingerprint is left out, and named."""
    body = {"prompt": [5, 9, 2], "max_tokens": 8, "seed": 1}
    want = normal(fleet.client.ok("/v1/completions", body))
    fleet.cut(0)
    fleet.cut(1)
    wait_until(lambda: all(replica.never_began for replica in fleet.router.replicas))
    message = fleet.client.error("/v1/completions", body, 503)["message"]
    assert message.startswith("no server answers, the next try comes by itself: server http://127.0.0.1")
    assert fleet.client.get("/health").status_code == 503
    fleet.start(0)
    wait_until(lambda: fleet.router.replicas[0].state == "ready")
    with LLM(model, max_model_len=512, **ARGUMENTS) as other:
        fleet.start(1, other)
        wait_until(lambda: "is left out" in str(fleet.router.replicas[1].problem))
        assert normal(fleet.client.ok("/v1/completions", body)) == want
        states = fleet.client.get("/llmi/replicas").json()["data"]
        assert [state["name"] for state in states] == [each.url for each in fleet.served]
        assert f"server {fleet.served[1].url} is left out: its fingerprint is llmi-" in states[1]["problem"]
        fleet.served[1].close()


def test_a_request_that_kills_its_servers(fleet: Fleet, plain: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent on once; others live."""
    generate = Server._generate

    async def killed(server: Server, message: dict[str, Any]) -> None:
        if message["prompt_token_ids"] == [13]:
            server._end("has gone: killed")
        else:
            await generate(server, message)

    monkeypatch.setattr(Server, "_generate", killed)
    error = fleet.client.error("/v1/completions", {"prompt": [13], "max_tokens": 4}, 503)
    assert "has gone: killed: this request ran there, as it did in 1 before that died" in error["message"]
    fleet.whole()
    path, body = BODIES["completion"]
    assert normal(fleet.client.ok(path, body)) == normal(plain.ok(path, body))


def test_a_client_that_goes_ends_its_request(fleet: Fleet) -> None:
    async def asked() -> int:
        stream = AsyncLLM(llm=fleet.front).generate({"prompt_token_ids": [5, 9]}, max_tokens=1000, ignore_eos=True, seed=1)
        output = await anext(stream)
        await stream.aclose()
        return len(output.outputs[0].token_ids)

    assert asyncio.run(asked()) > 0
    wait_until(lambda: not any(replica.under_way for replica in fleet.router.replicas))
    wait_until(lambda: not any(llm._engine.latest_stats()["num_running"] for llm in fleet.llms))


def test_vectors_are_refused_by_name(fleet: Fleet) -> None:
    assert "llmi route passes on requests for tokens" in fleet.client.post("/v1/embeddings", {"input": "a"}).text


@pytest.fixture
def keyed(fleet: Fleet, tmp_path: Path) -> Iterator[Served]:
    keys = tmp_path / "keys.toml"
    entries = [("router", KEY, "true"), ("user", "other", "false")]
    keys.write_text(
        "".join(
            f'[[keys]]\nname = "{n}"\nsha256 = "{hashlib.sha256(k.encode()).hexdigest()}"\nmay_see_metrics = {m}\n' for n, k, m in entries
        )
    )
    with closing(Served(fleet.llms[0], ServerSettings(keys=keys))) as served:
        yield served


def test_servers_with_keys(fleet: Fleet, keyed: Served, plain: Client) -> None:
    for key, why in [(None, "wants a key: give --api-key-file"), ("wrong", "does not know the key"), ("other", "may not see this")]:
        with pytest.raises(WorkerDiedError, match=f"server {keyed.url} .*{why}"):
            routed(keyed.url, key=key)
    path, body = BODIES["chat"]
    with routed(keyed.url, fleet.served[1].url, key=KEY) as front:
        assert normal(Client(front).ok(path, body)) == normal(plain.ok(path, body))


def test_servers_that_cannot_be_used(fleet: Fleet, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_PATIENCE_S", 0.2)
    url = fleet.served[0].url
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        with pytest.raises(WorkerDiedError, match=f"server http://127.0.0.1:{port} does not answer: it said nothing for"):
            routed(url, f"http://127.0.0.1:{port}")
    with pytest.raises(WorkerDiedError, match=f"server http://127.0.0.1:{port} does not answer: nobody listens there"):
        routed(f"http://127.0.0.1:{port}", url)
    monkeypatch.undo()
    with pytest.raises(InvalidParamsError, match=f"{url} is named twice"):
        routed(url, f"{url}/")
    with pytest.raises(WorkerDiedError, match="by another name: name it once"):
        routed(url, url.replace("127.0.0.1", "localhost"))
    for wrong in ("https://127.0.0.1:1", "127.0.0.1:8000", f"{url}/v1", "http://a:b"):
        with pytest.raises(InvalidParamsError, match=r"is no URL|must be http://HOST:PORT"):
            routed(wrong)
    with (
        LLM(model, max_model_len=512, **ARGUMENTS) as other,
        closing(Served(other)) as served,
        pytest.raises(
            WorkerDiedError, match=f"server {served.url} is left out: its fingerprint is llmi-.*, that of the others llmi-|{url}"
        ),
    ):
        routed(url, served.url)
    another = tiny_model(vocab_size=257, path=tmp_path, max_position_embeddings=1024, seed=9)
    with pytest.raises(InvalidParamsError, match=f"with its vocabulary and template the fingerprint is llmi-.*, and that of {url} is"):
        routed(url, model=str(another))


def test_the_command_says_what_is_wrong(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    url = fleet.served[0].url
    assert main(["route", url, url, "--port", "0"]) == 2
    assert "is named twice" in capsys.readouterr().err
    assert main(["route", "https://127.0.0.1:1", "--port", "0"]) == 2
    assert "must be http://HOST:PORT" in capsys.readouterr().err


# --- /llmi/generate, for users


def native(client: Client, **body: Any) -> list[dict[str, Any]]:
    response = client.post("/llmi/generate", {"stream": True, **body})
    assert response.status_code == 200, response.text
    return [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line.startswith("data: ")]


@pytest.fixture(params=["a server", "replicas"])
def server(request: pytest.FixtureRequest, fleet: Fleet, plain: Client) -> Client:
    """A plain one, and one whose engines are elsewhere."""
    return plain if request.param == "a server" else fleet.client


def test_the_native_route_gives_what_generate_gives(server: Client, plain: Client) -> None:
    params = {"max_tokens": 30, "temperature": 0.9, "logprobs": 1, "n": 2, "ignore_eos": True}
    [want] = plain.llm.generate([{"prompt_token_ids": [5, 9, 2]}], seed=7, **params)
    asked = {"prompt_token_ids": [5, 9, 2], "sampling_params": params, "seed": 7}
    for more in ({}, {"known": [output.token_ids[:20] for output in want.outputs]}):
        *events, end = native(server, **asked, **more)
        for index, output in enumerate(want.outputs):
            own = [event for event in events if event["sample"] == index]
            assert [token for event in own for token in event["token_ids"]] == output.token_ids
            assert "".join(event["text"] for event in own) == output.text
            assert end["samples"][index]["cumulative_logprob"] == output.cumulative_logprob
        assert end["error"] is None and end["seed"] == 7 and end["arrival_time_s"] == 0 < end["finish_time_s"] < 300
    whole = server.ok("/llmi/generate", asked)
    assert [sample["token_ids"] for sample in whole["samples"]] == [output.token_ids for output in want.outputs]
    assert whole["system_fingerprint"] == plain.ok("/v1/completions", {"prompt": [5], "max_tokens": 1})["system_fingerprint"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt_token_ids"),
        ({"prompt_token_ids": []}, "prompt_token_ids"),
        ({"prompt_token_ids": [999]}, None),
        ({"prompt_token_ids": [5], "sampling_params": {"top_q": 1}}, "sampling_params"),
        ({"prompt_token_ids": [5], "sampling_params": {"top_p": 7}}, "top_p"),
        ({"prompt_token_ids": [5], "sampling_params": {"n": 1000}}, "n"),
        ({"prompt_token_ids": [5], "sampling_params": {"max_tokens": 5000}}, None),
        ({"prompt_token_ids": [5], "known": [["x"]]}, "known"),
        ({"prompt_token_ids": [5], "stream": "yes"}, "stream"),
        ({"prompt_token_ids": [5], "prompt": "x"}, "prompt"),
    ],
)
def test_native_requests_that_are_wrong(plain: Client, body: dict[str, Any], param: str | None) -> None:
    for more in ({}, {"stream": True}):
        response = plain.post("/llmi/generate", {**more, **body})
        assert response.status_code == 400, response.text
        assert param is None or response.json()["error"]["param"] == param


def test_a_native_request_that_the_server_ends(plain: Client) -> None:
    """Its last event is an error: what was told is no whole answer."""
    server = plain.app.state.llmi.models.find(None).server
    tell = Answer._tell

    def once(answer: Answer, event: Any) -> None:
        tell(answer, event)
        server.abort_all()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Answer, "_tell", once)
        *_, end = native(plain, prompt_token_ids=[5, 9], sampling_params={"max_tokens": 1000, "ignore_eos": True}, seed=1)
    assert end["error"]["type"] == "EngineClosedError" and "samples" not in end
