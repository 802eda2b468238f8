"""Planted bugs are found by the function that holds them, wherever it stands and however it is formatted."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutant import Mutant

SOURCE = """int Before(int x) { return x + 1; }

template <typename T>
void Engine::Step(T* step,
                  int count) {
#ifdef __AVX2__
  step->Add(count,
            1);
#endif

  if (count > 0) step->Run();
}

void Engine::After() { step_.Run(); }
"""


def planted(anchor: str, old: str, new: str, within: str = "csrc") -> Mutant:
    return Mutant("a bug", within, anchor, old, new, "project/test_mutant.py")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with one source; each test has its own, as texts are read once."""
    (tmp_path / "csrc/engine").mkdir(parents=True)
    (tmp_path / "csrc/engine/step.cc").write_text(SOURCE)
    return tmp_path


def test_a_bug_is_planted_in_its_function_alone(tree: Path) -> None:
    path, original = planted("Step", "step->Add(count, 1);", "").apply(tree)
    assert original == SOURCE and path.read_text() == SOURCE.replace("step->Add(count,\n            1);", "")
    with pytest.raises(AssertionError, match="no place in blocks of After"):
        planted("After", "step->Add(count, 1);", "").find(tree)


def test_the_rest_of_a_statement(tree: Path) -> None:
    path, _ = planted("Step", "if (count > 0) …;", "").apply(tree)
    assert path.read_text() == SOURCE.replace("if (count > 0) step->Run();", "")


def test_two_places_are_refused(tree: Path) -> None:
    (tree / "csrc/engine/other.cc").write_text(SOURCE)
    with pytest.raises(AssertionError, match=r"is at csrc/engine/other.cc:11, csrc/engine/step.cc:11 in blocks of Step"):
        planted("Step", "step->Run()", "").find(tree)
    assert planted("Step", "step->Run()", "", "csrc/engine/other.cc").find(tree)[0].name == "other.cc"


def test_an_anchor_is_a_whole_word(tree: Path) -> None:
    with pytest.raises(AssertionError, match="no place"):
        planted("Ste", "step->Run()", "").find(tree)
