"""The block pool against a plain Python model: any sequence of operations, audited after each."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from llmi import _core

T = _core.testing
BLOCK = 16
NUM_PAGES = 40


class CacheMachine(RuleBasedStateMachine):
    """Two KV groups (one with a window) over one small pool. The model keeps each sequence's marks as a list."""

    sequences = Bundle("sequences")
    WINDOWS = (0, 20, 20)

    def __init__(self) -> None:
        super().__init__()
        self.cache = T.Cache(list(self.WINDOWS), BLOCK, NUM_PAGES)
        self.model: dict[int, list[int]] = {}
        self.next_mark = 1

    def marks(self, count: int) -> list[int]:
        self.next_mark += count
        return list(range(self.next_mark - count, self.next_mark))

    @rule(target=sequences)
    def new(self) -> int:
        sequence: int = self.cache.new()
        self.model[sequence] = []
        return sequence

    @rule(target=sequences, parent=sequences)
    def fork(self, parent: int) -> int:
        child: int = self.cache.fork(parent)
        self.model[child] = list(self.model[parent])
        return child

    @rule(sequence=consumes(sequences))
    def free(self, sequence: int) -> None:
        self.cache.free(sequence)
        del self.model[sequence]

    @rule(sequence=sequences, count=st.integers(1, 40))
    def append(self, sequence: int, count: int) -> None:
        marks = self.marks(count)
        free = self.cache.num_free
        needed = self.cache.pages_needed(sequence, count)
        done = self.cache.append(sequence, marks)
        assert done == (needed <= free)
        if done:
            self.model[sequence] += marks
        else:
            assert self.cache.num_free == free, "a refused reservation takes nothing"

    @rule(sequence=sequences, count=st.integers(0, 30))
    def rollback(self, sequence: int, count: int) -> None:
        count = min(count, len(self.model[sequence]))
        before = self.cache.marks(sequence)
        if self.cache.rollback(sequence, count):
            del self.model[sequence][len(self.model[sequence]) - count :]
        else:
            assert self.cache.marks(sequence) == before
            assert self.cache.length(sequence) == len(self.model[sequence])

    @invariant()
    def audit_is_clean(self) -> None:
        assert self.cache.audit() == ""

    @invariant()
    def contents_match(self) -> None:
        for sequence, expected in self.model.items():
            assert self.cache.length(sequence) == len(expected)
            for group, marks in enumerate(self.cache.marks(sequence)):
                window = sorted(set(self.WINDOWS))[group]
                for slot, (mark, wanted) in enumerate(zip(marks, expected, strict=True)):
                    if mark == -1:
                        assert window and slot < len(expected) + 1 - window, "a visible block was given back"
                    else:
                        assert mark == wanted

    def teardown(self) -> None:
        for sequence in self.model:
            self.cache.free(sequence)
        assert self.cache.audit() == "" and self.cache.num_free == NUM_PAGES


CacheMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestCacheMachine = CacheMachine.TestCase


def test_audit_finds_a_planted_fault() -> None:
    cache = T.Cache([0], BLOCK, 8)
    sequence = cache.new()
    cache.append(sequence, list(range(20)))
    assert cache.audit() == ""
    cache.corrupt(0)
    assert cache.audit() != ""


def test_fork_copies_only_when_written() -> None:
    cache = T.Cache([0], BLOCK, 8)
    parent = cache.new()
    cache.append(parent, list(range(20)))  # one full block, one of 4 tokens
    child = cache.fork(parent)
    assert cache.num_free == 6 and cache.num_copies_on_write == 0
    cache.append(child, [100])
    assert cache.num_free == 5 and cache.num_copies_on_write == 1
    assert cache.marks(parent)[0] == list(range(20)) and cache.marks(child)[0] == [*range(20), 100]


def test_window_blocks_come_back() -> None:
    cache = T.Cache([20], BLOCK, 8)
    sequence = cache.new()
    for _ in range(20):
        assert cache.append(sequence, list(range(10)))
    assert cache.length(sequence) == 200 and cache.num_free >= 8 - 3
    assert cache.num_window_blocks_returned == (200 + 1 - 20) // BLOCK


@pytest.mark.parametrize("block_size", [0, 8, -16])
def test_block_size_is_checked(block_size: int) -> None:
    with pytest.raises(_core.CoreError):
        T.Cache([0], block_size, 8)
