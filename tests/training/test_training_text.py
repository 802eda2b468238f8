"""The test prompts of the drafters' benchmark, and the text that drafters are trained on: apart from each other, and varied."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from llmi import LLM
from llmi.training.frames import ALONE, AROUND, SHARES
from llmi.training.plan import Clock, TextProgress
from llmi.training.text import GivenPrompts, OwnTurns
from llmi.training.turns import KINDS, Turn, turn, turns

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="the benchmarks are not beside the tests")
sys.path.insert(0, str(ROOT / "benchmarks"))
if (ROOT / "benchmarks").is_dir():
    import prompts
    import ship

TRAINING_FRAMES = {frame for group in ALONE.values() for frame in group} | {
    frame for first, around in AROUND.values() for frame in (*first, *around)
}


def bare(frame: str) -> str:
    """A frame without case, marks and slots."""
    return " ".join(re.findall(r"\w+", re.sub(r"\{\w*\}", " ", frame.lower())))


@pytest.mark.parametrize("kind", prompts.KINDS)
def test_a_kind_has_100_varied_prompts(kind: str) -> None:
    made = prompts.prompts(kind)
    assert len(made) == len({prompt.user for prompt in made}) == 100
    assert max(Counter(bare(prompt.frame) for prompt in made).values()) <= 5
    assert max(Counter(prompt.frame for prompt in made[:20]).values()) == 1, "a run of 20 has every frame"


def test_no_frame_of_a_test_prompt_is_a_training_frame() -> None:
    training = {bare(frame) for frame in TRAINING_FRAMES}
    assert len(training) == len(TRAINING_FRAMES)
    assert not training & {bare(prompt.frame) for kind in prompts.KINDS for prompt in prompts.prompts(kind)}


@pytest.fixture(scope="module")
def overlap(smollm: LLM) -> ship.Overlap:
    return ship.overlap_of_prompts(smollm)


@pytest.mark.unsanitized
def test_no_eight_tokens_of_a_test_prompt_are_in_a_training_turn(smollm: LLM, overlap: ship.Overlap) -> None:
    texts = {text for made in turns(0, 0, 8000) for text in (made.text, made.around.replace("{x}", "")) if text}
    assert len(texts) > 5000
    assert [text for text in sorted(texts) if overlap.found(list(smollm.tokenizer.encode(text)))] == []


@pytest.mark.unsanitized
def test_an_overlap_is_found_wherever_it_stands(smollm: LLM, overlap: ship.Overlap) -> None:
    for kind in prompts.KINDS:
        ids = list(smollm.tokenizer.encode(prompts.prompts(kind)[7].user))
        assert overlap.found([1, 2, *ids[1:9], 3]) and not overlap.found(ids[1:8]), kind


def test_a_turn_depends_on_seed_and_number_alone() -> None:
    assert turns(3, 40, 20) == [turn(3, index) for index in range(40, 60)] != turns(4, 40, 20)
    assert Counter(KINDS) == SHARES
    assert len({made.text for made in turns(0, 0, 1000)}) > 800
    assert turns(0, 0, 100).count(Turn("begun", "")) == SHARES["begun"]


# --- the bar


class Bar:
    """Notes its moves."""

    def __init__(self) -> None:
        self.moves: list[float] = []

    def update(self, count: float) -> None:
        self.moves.append(count)


def test_the_bar_moves_with_each_answer(tiny: LLM) -> None:
    """Of one group, written at once, and up to its end."""
    for writer in (GivenPrompts(tiny, [[i % 250 + 1, 2, 3] for i in range(30)], 0), OwnTurns(tiny, 0)):
        bar = Bar()
        shown = TextProgress(bar, Clock.of(1), 16, 0)
        parts: list[float] = []

        def note(share: float, parts: list[float] = parts, shown: TextProgress = shown) -> None:
            parts.append(share)
            shown.moved(share)

        writer.moved = note
        writer(0, 16)
        assert 0 < sum(parts) <= 16 + 1e-9
        shown.end()
        assert sum(bar.moves) == 100 and min(bar.moves) > 0


def test_answers_are_told_as_they_end(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that some have ended, not once at the end."""

    class Ending:
        submissions = (1, 2, 3)

        def __init__(self) -> None:
            self.left = [1, 2]

        @property
        def done(self) -> bool:
            return not self.left

        def ending(self, keep: object) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

        def wait(self) -> None: ...

        def take_finished(self) -> range:
            return range(self.left.pop(0))

    monkeypatch.setattr(tiny, "_submit", lambda call: None)
    told: list[int] = []
    tiny._run_to_end(Ending(), False, told.append)  # type: ignore[arg-type]
    assert told == [1, 2]


def test_the_bar_moves_with_the_clock_until_the_turns_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("llmi.training.plan.time.monotonic", lambda: now)
    clock, bar = Clock(now + 300), Bar()
    shown = TextProgress(bar, clock, None, 0)
    now = 125.0
    shown.moved(10)
    assert sum(bar.moves) == 25, "a third of the time is for the text"
    shown.expect(40)
    shown.moved(5)
    assert sum(bar.moves) == 37
    shown.expect(100)  # fewer turns are written than was thought: the bar waits, and never goes back
    shown.moved(5)
    assert sum(bar.moves) == 37 and min(bar.moves) > 0
    shown.end()
    assert sum(bar.moves) == 100
