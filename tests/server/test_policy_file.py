"""A policy file: the front asks it where requests go, its engines ask it which runs next, and the simulator asks it both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import llmi
from llmi import HookError, InvalidParamsError, SamplingParams
from llmi.cli.commands import main
from llmi.errors import QueueFullError
from llmi.replicas.policy import PolicyFile
from llmi.server.front import Front

POLICY = """
from pathlib import Path

def note(word):
    with Path(__file__).with_suffix(".log").open("a") as file:
        file.write(word + "\\n")

def key(request, now_s):
    note("key")
    return (request.num_prompt_tokens,)

def route(request, replicas):
    if request.num_prompt_tokens == 13:
        raise ValueError("an unlucky number")
    if request.num_prompt_tokens == 14:
        return len(replicas)
    place = request.num_prompt_tokens % len(replicas)
    note(f"route {place} {[replica.num_known_tokens for replica in replicas]}")
    return place

def admit(request, replicas):
    return request.num_prompt_tokens <= 100
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> PolicyFile:
    path = tmp_path_factory.mktemp("policy") / "mine.py"
    path.write_text(POLICY)
    return PolicyFile(path)


def told(policy: PolicyFile) -> list[str]:
    """What the file has noted since the last call."""
    log = Path(policy.path).with_suffix(".log")
    words = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return words


@pytest.fixture(scope="module")
def front(tiny_path: Callable[..., Path], policy: PolicyFile) -> Iterator[Front]:
    options = {"scheduling_policy": policy, "data_parallel_size": 2, "kv_cache_memory_bytes": 1 << 20, "max_num_seqs": 1, "num_threads": 2}
    with Front(str(tiny_path()), policy=policy, **options) as llm:
        yield llm


def test_the_front_and_its_engines_ask_it(front: Front, policy: PolicyFile) -> None:
    told(policy)
    params = SamplingParams(max_tokens=12, temperature=0)
    outputs = front.generate([[5] * 32, [6] * 33, [5] * 34, *([[7] * 21] * 8)], params, use_tqdm=False)
    assert all(len(output.outputs[0].token_ids) == 12 for output in outputs)
    words = told(policy)
    routes = [word for word in words if word.startswith("route")]
    assert routes[:3] == ["route 0 [0, 0]", "route 1 [0, 0]", "route 0 [32, 0]"]
    while "key" not in words:  # an engine asks where several wait, which they need not do if each ends before the next one comes
        front.generate([[7] * 21] * 8, params, use_tqdm=False)
        words = told(policy)


@pytest.mark.parametrize(
    "length, error, words",
    [
        (13, HookError, "route raised ValueError for request .*: an unlucky number"),
        (14, HookError, "returned 2"),
        (101, QueueFullError, "does not take"),
    ],
)
def test_requests_that_it_ends(front: Front, length: int, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        front.generate([[5] * length], SamplingParams(max_tokens=2), use_tqdm=False)
    assert len(front.generate([[5] * 12], SamplingParams(max_tokens=2), use_tqdm=False)) == 1, "others go on"


def test_the_simulator_runs_the_same_file(tiny_path: Callable[..., Path], policy: PolicyFile) -> None:
    told(policy)
    trace = [{"timestamp": 0, "input_length": length, "output_length": 12} for length in (32, 33, 34, 101, *([21] * 8))]
    options = {"model": tiny_path(), "costs": llmi.Costs.formula(0.01, 1e-4), "kv_cache_memory_bytes": 1 << 20, "max_num_seqs": 1}
    result = llmi.simulate(trace, policy=policy.path, replicas=2, **options)
    assert result.requests["replica"].tolist() == [0, 1, 0, -1, *[1] * 8] and "key" in told(policy)
    assert result.summary["num_turned_away"] == 1 and result.summary["num_requests"] == 12
    with pytest.raises(HookError, match="for request 1: an unlucky"):
        llmi.simulate([trace[0], {**trace[0], "input_length": 13}], policy=policy.path, replicas=2, **options)


@pytest.mark.parametrize(
    "text, words",
    [("x = 1", "none of the functions key, route, admit"), ("1/0", "raised ZeroDivisionError"), ("def route(:", "raised SyntaxError")],
)
def test_files_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(InvalidParamsError, match=words):
        PolicyFile(tmp_path / "bad.py")
    with pytest.raises(InvalidParamsError, match="cannot be read"):
        PolicyFile(tmp_path / "none.py")


def test_a_server_without_replicas_has_nothing_to_place(
    tiny_path: Callable[..., Path], policy: PolicyFile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "-m", str(tiny_path()), "--port", "0", "--policy", policy.path]) == 2
    assert "give --replicas N" in capsys.readouterr().err
