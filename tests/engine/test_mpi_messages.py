"""Ranks of several machines: what MPI carries, over a library with MPI's names between threads (tests/native/mpi.cc)."""

from __future__ import annotations

import ctypes
import functools
import operator
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM, PromptLookup, SpeculativeConfig, WorkerDiedError, _core
from llmi.ranks import workers
from llmi.testing import tiny_model
from mpi_threads import RanksOverMpi, build_mpi, groups

ARGUMENTS: dict[str, Any] = {"seed": 3, "num_threads": 1, "kv_cache_memory_bytes": 1 << 23}
PROMPTS = [[5, 9, 2, i] for i in range(6)]


@pytest.fixture(scope="module")
def mpi(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_mpi(tmp_path_factory.mktemp("mpi"))


@pytest.fixture
def over_mpi(mpi: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> type[RanksOverMpi]:
    """What an LLM's ranks are."""
    monkeypatch.setattr(RanksOverMpi, "mpi", mpi, raising=False)
    monkeypatch.setattr(workers, "Ranks", RanksOverMpi)
    return RanksOverMpi


@pytest.mark.parametrize("to_first", [False, True])
def test_what_is_gathered(mpi: ctypes.CDLL, to_first: bool) -> None:
    """Rows of several owners, one of whom has none; to all, and to the first rank alone."""
    _, world = groups(mpi, 3)
    blocks = [(0, 0, 3, 4, 10), (2, 5, 5, 4, 10)]
    own = [bytes(10 * row + at if at in parts else 0 for row in range(4) for at in range(10)) for parts in ((0, 1, 2), (), range(5, 10))]
    buffers = [bytearray(values) for values in own]
    run_all([functools.partial(world[rank].gather, buffers[rank], blocks, to_first) for rank in range(3)])
    whole = bytes(map(operator.or_, own[0], own[2]))
    assert [bytes(buffer) for buffer in buffers] == ([whole, own[1], own[2]] if to_first else [whole] * 3)


def run_all(calls: list[Callable[[], Any]]) -> list[BaseException]:
    """Each in a thread of its own; what they raised."""
    raised: list[BaseException] = []

    def run(call: Callable[[], Any]) -> None:
        try:
            call()
        except BaseException as error:  # for the test to judge
            raised.append(error)

    threads = [threading.Thread(target=run, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_ranks_that_gather_different_things(mpi: ctypes.CDLL) -> None:
    """The message is shorter than rank 0 asks for."""
    _, world = groups(mpi, 2)
    asked = functools.partial(world[0].gather, bytearray(8), [(1, 0, 6, 1, 0)])
    raised = run_all([asked, functools.partial(world[1].gather, bytearray(8), [(1, 0, 4, 1, 0)])])
    assert "ranks are out of step: rank 1 (host-1, process 1001)" in str(raised[0])


def test_outputs_are_those_of_one_rank(mpi: ctypes.CDLL, over_mpi: type[RanksOverMpi], tmp_path: Path) -> None:
    """Several samples, drafts, and a beginning that the cache knows; each gather is a message."""
    model = tiny_model("gemma3", vocab_size=4200, path=tmp_path)
    runs: list[dict[str, Any]] = [
        {"n": 3, "temperature": 0.9, "max_tokens": 9},
        {"temperature": 0, "max_tokens": 12, "speculative_config": SpeculativeConfig(PromptLookup(), 3)},
    ]
    with LLM(model, **ARGUMENTS) as one, LLM(model, **ARGUMENTS, tensor_parallel_size=3) as three:
        before = mpi.stand_in_messages()
        for run in runs:
            assert one.generate(PROMPTS, **run) == three.generate(PROMPTS, **run)
        assert mpi.stand_in_messages() > before + 100
        assert [worker.host for worker in three.workers()] == ["host-0", "host-1", "host-2"]
    settled: list[bool] = []
    while settled != [True] * 3:  # on a slow machine one may not wait long enough for the others
        settled.clear()
        run_all([lambda group=group: settled.append(group.settle()) for group in over_mpi.made])  # type: ignore[misc]


def test_a_rank_that_leaves_is_named(over_mpi: type[RanksOverMpi], tmp_path: Path) -> None:
    with LLM(tiny_model(path=tmp_path), **ARGUMENTS, tensor_parallel_size=3) as llm:
        over_mpi.made[2].leave("a fault")
        (output,) = llm.generate(PROMPTS[:1], max_tokens=3, on_error="return")
        assert isinstance(output.error, WorkerDiedError)
        assert "rank 2 (host-2, process 1002): a fault" in str(output.error)


def test_what_mpi_says_of_a_rank(mpi: ctypes.CDLL) -> None:
    number, world = groups(mpi, 2)
    mpi.stand_in_fail(number, 1)
    with pytest.raises(_core.CoreError, match=r"rank 1 \(host-1, process 1001\) cannot be reached: MPI_ERR_PROC_FAILED"):
        world[0].gather(bytearray(8), [(1, 0, 4, 1, 0)])


def test_a_library_that_is_not_mpi() -> None:
    with pytest.raises(_core.CoreError, match="the library has no MPI_Isend"):
        _core.RankGroup.over_mpi(ctypes.CDLL(None)._handle, 0, 0, 0, [(1, "a"), (2, "b")], spins=False)
