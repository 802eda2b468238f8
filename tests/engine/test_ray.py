"""What llmi has for Ray, without Ray: rows do not depend on their batches, and messages come in order. With it: tests/support/ray_checks.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmi import LLM, InvalidParamsError, UnsupportedCombinationError
from llmi.errors import MissingExtraError
from llmi.integrations import ray
from llmi.replicas.cluster import Actor, Cluster
from llmi.replicas.wire import encode
from llmi.testing import tiny_model

ROWS = [[5, 9, 2, index] for index in range(9)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("ray"))


@pytest.fixture(scope="module")
def stage(model: Path) -> Iterator[ray.Generate]:
    made = ray.Generate(model, {"max_tokens": 8, "n": 2}, seed=3, kv_cache_memory_bytes=1 << 23)
    yield made
    made._llm.close()


def rows_of(stage: ray.Generate, batch_size: int, **columns: list[Any]) -> list[Any]:
    found = []
    for begin in range(0, len(ROWS), batch_size):
        batch = {name: np.array(values[begin : begin + batch_size]) for name, values in columns.items()}
        made = stage(batch)
        found += list(zip(made["token_ids"], made["generated_text"], made["finish_reason"], made["error"], strict=True))
    return found


def test_rows_do_not_depend_on_their_batches(stage: ray.Generate, model: Path) -> None:
    ids = list(range(len(ROWS)))
    whole = rows_of(stage, len(ROWS), prompt_token_ids=ROWS, id=ids)
    assert rows_of(stage, 2, prompt_token_ids=ROWS, id=ids) == whole
    with LLM(model, seed=3, kv_cache_memory_bytes=1 << 23) as llm:
        outputs = llm.generate(ROWS, max_tokens=8, n=2)
    assert [row[0] for row in whole] == [[list(sample.token_ids) for sample in output.outputs] for output in outputs]
    assert len({str(row[0]) for row in whole}) > 1


def test_a_seed_is_a_column(stage: ray.Generate) -> None:
    one = rows_of(stage, 9, prompt=["a"] * 9, seed=[1, 2] * 4 + [1])
    assert one[0] == one[2] == one[8] != one[1]


def test_a_row_without_a_seed_is_refused(stage: ray.Generate) -> None:
    with pytest.raises(InvalidParamsError, match="a column seed or id"):
        stage({"prompt": ["a"]})
    with pytest.raises(InvalidParamsError, match="rows have text, id: give them a column prompt"):
        stage({"text": ["a"], "id": [1]})


def test_a_row_that_is_refused_says_why(stage: ray.Generate) -> None:
    made = stage({"prompt_token_ids": [[5], [99999]], "id": [0, 1]})
    assert made["error"][0] is None and "99999" in made["error"][1]
    assert made["finish_reason"][1] == ["error", "error"]


def test_ray_that_is_missing_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"llmi\[ray\]"):
        LLM(model, data_parallel_size=2, distributed_executor_backend="ray")
    with pytest.raises(MissingExtraError, match=r"llmi\[ray\]"):
        ray.app(model)


def test_an_unknown_backend_is_refused(model: Path) -> None:
    with pytest.raises(UnsupportedCombinationError, match="distributed_executor_backend must be one of local, mpi, ray"):
        LLM(model, distributed_executor_backend="carrier pigeons")


def test_messages_are_taken_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmi.replicas.cluster._run", lambda replica: None)
    actor = Actor()
    for number in (1, 0, 3, 2):
        actor.take(number, encode({"kind": str(number)}))
    assert [actor._line.receive()["kind"] for _ in range(4)] == ["0", "1", "2", "3"]


class FakeRay:
    """A cluster of machines with so many CPUs."""

    def __init__(self, *cpus: int) -> None:
        self.cpus = cpus

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": float(count)}} for count in self.cpus]


@pytest.mark.parametrize(
    ("cpus", "given", "count", "want"),
    [((64, 64), None, 2, (64, 2)), ((2,), None, 2, (1, 2)), ((3, 3), None, 3, (2, 2)), ((8, 8), 4, 4, (4, 3))],
)
def test_threads_of_a_cluster(
    monkeypatch: pytest.MonkeyPatch, cpus: tuple[int, ...], given: int | None, count: int, want: tuple[int, int]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay(*cpus))
    assert Cluster().threads(given, count) == ([want[0]] * count, want[1])


def test_a_cluster_that_is_too_small_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay(2, 2))
    with pytest.raises(InvalidParamsError, match=r"places 3 replicas, and its machines of 2, 2 CPUs have room for 2 of 2 threads"):
        Cluster().threads(2, 4)
