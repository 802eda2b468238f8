"""The fuzzer of the surface finds what it looks for, and a case is a function of its name."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fuzz_inputs import AREAS
from fuzz_slow import PASSES, run, text_of
from fuzz_surface import fuzz
from waiting import HANG_S


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "kind"), [("crash", "crash"), ("slow", "hang"), ("hang", "hang"), ("memory", "memory"), ("unclear", "unclear error")]
)
def test_planted_faults_are_found(planted: str, kind: str) -> None:
    report = fuzz([planted], first_seed=0, seconds=HANG_S, num_cases=1, max_call_s=0.9 if planted in ("slow", "hang") else HANG_S / 5)
    assert report["kinds"] == {kind: 1}


@pytest.mark.parametrize("area", AREAS)
def test_a_case_is_a_function_of_its_name(area: str, tmp_path: Path) -> None:
    contents = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        assert AREAS[area](random.Random(f"{area}:7"), folder)
        contents.append({path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()})
    assert contents[0] == contents[1]


@pytest.mark.parametrize("name", PASSES)
def test_a_slow_text_is_a_function_of_its_name(name: str) -> None:
    texts = [text_of(name, seed) for seed in range(20)]
    assert texts == [text_of(name, seed) for seed in range(20)]
    assert len(set(texts)) > 5 and sum(len(body) for _, body in texts) > 20 * 16_000


@pytest.mark.slow
def test_slow_texts_are_answered() -> None:
    """A slice of `--slow`: each has an answer that is none of a failure, and /health one meanwhile."""
    report = run([*PASSES], first_seed=0, num_cases=2)
    assert report["findings"] == [] and {entry["texts"] for entry in report["passes"].values()} == {2}
