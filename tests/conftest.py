"""Fixtures: real models from the cache (fetched once), tiny ones made on the spot; every engine is audited."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

os.environ["LLMI_AUDIT"] = "1"  # the engine audits its cache after each step
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's threads leave the cores to the tests beside them
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: what tests start would ignore Ctrl-C, too
    signal.signal(signal.SIGINT, signal.default_int_handler)

from features import DEVICES, crowded_llm, enumerable_llm
from llmi import LLM, _core
from llmi.models import by_name
from llmi.ranks import workers
from llmi.testing import tiny_model
from rank_threads import RankThreads

DATA = Path(__file__).parent / "data"
# Each run draws the same examples; `pytest --hypothesis-profile default` draws others.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.load_profile("same")


def _import_or_fail(name: str, **kwargs: Any) -> Any:
    """pytest.importorskip in the runs of tests/run.py, which install what their tests import: TESTS_LACK names what may be absent."""
    return IMPORT_OR_SKIP(name, **kwargs) if name in LACKING.split(",") else importlib.import_module(name)


IMPORT_OR_SKIP, LACKING = pytest.importorskip, os.environ.get("TESTS_LACK")
if LACKING is not None:
    pytest.importorskip = _import_or_fail  # before any module of tests is imported


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks are threads, which need no start of Python."""
    monkeypatch.setattr(workers, "Ranks", RankThreads)


@pytest.fixture(autouse=True)
def clean_audit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test: the cache of every engine it touched is clean."""
    engines: list[Any] = []
    original = LLM._call

    def call(self: LLM, *args: Any, **kwargs: Any) -> Any:
        engines.append(self._engine)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(LLM, "_call", call)
    yield
    for engine in engines:
        assert engine.stats()["audit"] == ""


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    return by_name.fetch("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    return by_name.fetch("gemma-3-270m")


@pytest.fixture(scope="session")
def smollm(smollm_path: Path) -> Iterator[LLM]:
    with LLM(smollm_path, kv_cache_memory_bytes=1 << 28) as llm:
        yield llm


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes (once for equal arguments) a tiny model."""
    made: dict[str, Path] = {}

    def make(architecture: str = "llama", **kwargs: Any) -> Path:
        key = f"{architecture} {sorted(kwargs.items())}"
        if key not in made:
            arguments = {"vocab_size": 257, "num_layers": 3, **kwargs}
            made[key] = tiny_model(architecture, path=tmp_path_factory.mktemp("tiny"), **arguments)
        return made[key]

    return make


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tiny_families.make keeps what it has made: one folder for all processes of a session."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "families"


@pytest.fixture(scope="session")
def tiny(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 24) as llm:
        yield llm


@pytest.fixture(params=[*_core.system_info()["tables"], *DEVICES])
def table(request: pytest.FixtureRequest) -> str:
    """What can run the ops of the forward pass: each kernel table that the machine has, and the CUDA kernels, emulated and, where there is
    one, on a GPU."""
    return str(request.param)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `device="cuda"` is: the emulation, and a GPU where there is one."""
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1" if request.param == "emulated" else "0")
    return str(request.param)


@pytest.fixture(params=_core.system_info()["tables"])
def cpu_table(request: pytest.FixtureRequest) -> str:
    """Each kernel table that the machine has."""
    return str(request.param)


@pytest.fixture(scope="session")
def text() -> str:
    return (DATA / "text.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def small(tiny_path: Callable[..., Path]) -> Any:
    """A target of 16 tokens, whose laws can be enumerated."""
    with enumerable_llm(tiny_path, num_layers=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def weak(tiny_path: Callable[..., Path]) -> Any:
    """A draft model for it."""
    with enumerable_llm(tiny_path, num_layers=1, seed=3) as llm:
        yield llm


@pytest.fixture(scope="module")
def crowded(tiny_path: Callable[..., Path]) -> Any:
    """An engine with little memory, small chunks and few seats: sequences are preempted, cut and computed again."""
    with crowded_llm(tiny_path("gemma3"), 24, max_model_len=110, max_num_batched_tokens=24) as llm:
        yield llm


@pytest.fixture(scope="module")
def roomy(tiny_path: Callable[..., Path]) -> Any:
    with LLM(tiny_path("gemma3"), kv_cache_memory_bytes=1 << 24, max_model_len=256) as llm:
        yield llm
