"""Blocks over NIXL: with a stand-in for its agents, and with NIXL itself where it is installed."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from llmi import LLM, InvalidParamsError, SamplingParams
from llmi.handover import nixl, peers, shared_folder
from llmi.handover.nixl import Nixl
from llmi.handover.settings import FRONT
from llmi.testing import assert_same_tokens
from waiting import wait_until

PROMPT = [3 + i * 7 % 250 for i in range(200)]
LATER = SamplingParams(temperature=0.7, seed=5, max_tokens=12, ignore_eos=True)
ENGINE: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 22, "max_model_len": 320, "num_threads": 1}
PRODUCER = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
CONSUMER = {"kv_connector": "nixl", "kv_role": "kv_consumer", "kv_peers": [FRONT], "kv_min_tokens": 64}


class Agent:
    """What llmi calls of an agent. It copies at once, or never."""

    agents: ClassVar[dict[bytes, Agent]] = {}
    stands_still = False

    def __init__(self, name: str, config: object) -> None:
        self.name = name.encode()
        self.agents[self.name] = self
        self.registered: list[Any] = []
        self.notes: dict[str, list[bytes]] = {}

    def get_reg_descs(self, parts: list[Any], kind: str) -> Any:
        return tuple(parts)

    get_xfer_descs = get_reg_descs

    def register_memory(self, parts: Any) -> Any:
        self.registered.append(parts)
        return parts

    def deregister_memory(self, parts: Any) -> None:
        self.registered.remove(parts)

    def get_agent_metadata(self) -> bytes:
        return self.name

    def add_remote_agent(self, metadata: bytes) -> bytes:
        if metadata not in self.agents:
            raise RuntimeError("NIXL_ERR_NOT_FOUND")
        return metadata

    def initialize_xfer(self, kind: str, local: Any, remote: Any, peer: bytes, note: bytes) -> Any:
        assert kind == "READ" and local[0][1] == remote[0][1]
        return SimpleNamespace(local=local[0], remote=remote[0], peer=self.agents[peer], note=note)

    def transfer(self, handle: Any) -> str:
        if not self.stands_still:
            assert any(parts[0][0] == handle.remote[0] for parts in handle.peer.registered)
            ctypes.memmove(handle.local[0], handle.remote[0], handle.local[1])
            handle.peer.notes.setdefault(self.name.decode(), []).append(handle.note)
        return self.check_xfer_state(handle)

    def check_xfer_state(self, handle: Any) -> str:
        return "PROC" if self.stands_still else "DONE"

    def release_xfer_handle(self, handle: Any) -> None:
        assert not self.stands_still, "it is under way"

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        found, self.notes = self.notes, {}
        return found


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared_folder, "_ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[Agent]:
    monkeypatch.setattr(Agent, "agents", {})
    monkeypatch.setattr(nixl, "load", lambda: SimpleNamespace(nixl_agent=Agent, nixl_agent_config=lambda **_: None))
    return Agent


@pytest.fixture
def sides(stand_in: type[Agent]) -> Iterator[tuple[Nixl, Nixl, list[str]]]:
    """A producer with three blocks, and a consumer."""
    producer, consumer = Nixl(), Nixl()
    keys = [letter * 64 for letter in "abc"]
    for key in keys:
        producer.folder.write(key, memoryview(key.encode() * 5))
    yield producer, consumer, keys
    producer.close()
    consumer.close()


@pytest.mark.parametrize("kind", ["stand-in", "NIXL"])
def test_blocks_of_another_engine(
    tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, place: Path, kind: str
) -> None:
    if kind == "stand-in":
        request.getfixturevalue("stand_in")
    elif not any(importlib.util.find_spec(name) for name in nixl._PACKAGES):
        pytest.skip("NIXL is not installed")
    model = tiny_path()
    with LLM(model, **ENGINE) as llm:
        plain = llm.generate(PROMPT, LATER)
    with LLM(model, kv_transfer_config=PRODUCER, **ENGINE) as producer:
        assert producer._handover is not None
        answer = producer._handover.answer
        monkeypatch.setattr(peers, "front", lambda body, _: answer(producer, body))
        with LLM(model, kv_transfer_config=CONSUMER, **ENGINE) as llm:
            outputs = llm.generate(PROMPT, LATER)
            assert outputs[0].num_cached_tokens == 192 and llm.get_metrics()["num_fetched_blocks"] == 12
            assert_same_tokens(outputs, plain)
            connector = producer._handover.connector
            assert isinstance(connector, Nixl) and len(list(place.glob("llmi-kv-*/*.kv1"))) == 24, "each side has a folder of its own"
            wait_until(lambda: not connector._offers, "what was read is let go")
    assert list(place.iterdir()) == []


def test_memory_is_given_back(sides: tuple[Nixl, Nixl, list[str]], stand_in: type[Agent]) -> None:
    producer, consumer, keys = sides
    for _ in range(3):
        consumer.fetch(keys, producer.offer(keys), time.monotonic() + 60)
    assert [(consumer.folder.path / f"{key}.kv1").read_text() for key in keys] == [key * 5 for key in keys]
    wait_until(lambda: not any(agent.registered for agent in stand_in.agents.values()))


def test_a_transfer_that_stands_still(sides: tuple[Nixl, Nixl, list[str]], stand_in: type[Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is kept until it has ended, since NIXL may still write there."""
    producer, consumer, keys = sides
    monkeypatch.setattr(stand_in, "stands_still", True)
    with pytest.raises(OSError, match="PROC"):
        consumer.fetch(keys, producer.offer(keys), time.monotonic())
    assert len(consumer._abandoned) == 1
    monkeypatch.setattr(stand_in, "stands_still", False)
    consumer.fetch(keys, producer.offer(keys), time.monotonic() + 60)
    assert consumer._abandoned == []


@pytest.mark.parametrize(
    "change",
    [
        None,
        [],
        {"offer": 5},
        {"metadata": "no base64!"},
        {"address": "1"},
        {"address": True},
        {"sizes": []},
        {"sizes": [5, 5, 5, 5]},
        {"sizes": [5, -5]},
        {"sizes": [1 << 40]},
        {"sizes": [True]},
        {"address": 0},
        {"address": (1 << 64) - 4},
        {"metadata": "QUFB"},
    ],
)
def test_answers_that_are_none(sides: tuple[Nixl, Nixl, list[str]], change: Any) -> None:
    producer, consumer, keys = sides
    told = producer.offer(keys)["nixl"]
    with pytest.raises((OSError, ValueError)):
        consumer.fetch(keys, {"nixl": {**told, **change} if isinstance(change, dict) else change}, time.monotonic() + 60)
    assert list(consumer.folder.path.glob("*.kv1")) == []


def test_without_the_package(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl, "_PACKAGES", ("no_such_nixl",))
    with pytest.raises(InvalidParamsError, match="pip install --no-deps nixl-cu13") as error:
        LLM(tiny_path(), kv_transfer_config=PRODUCER, **ENGINE)
    assert error.value.parameter == "kv_transfer_config"


def test_a_folder_that_a_killed_engine_left(place: Path, stand_in: type[Agent]) -> None:
    left = shared_folder.SharedFolder(is_own=True)
    left.write("a", memoryview(b"x"))
    other = shared_folder.SharedFolder(is_own=True)
    assert (left.path / "a.kv1").exists(), "its engine lives"
    os.close(left._lock)  # as a kill does
    shared_folder.SharedFolder(is_own=True).close()
    assert list(place.iterdir()) == [other.path]
    other.close()
