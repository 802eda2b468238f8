"""The scheduler against a plain Python model of it: the same pieces in every step, whatever arrives, ends or is cancelled.

`PYTHONPATH=tests/support python tests/engine/test_scheduler_model.py --steps 1000000` compares longer.
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from llmi import _core

BLOCK = 16
MAX_OVERTAKEN = 64
POLICIES = ["fcfs", "priority", "shortest_remaining", "custom", "prefill_first"]


def blocks(tokens: int) -> int:
    return math.ceil(tokens / BLOCK)


@dataclass
class PlainSequence:
    number: int
    known: int
    left: int
    priority: int
    key: list[float]
    allowance: int = 0
    computed: int = 0
    pages: int = 0
    overtaken: int = 0
    most_drafted: int = 0
    started: bool = False

    @property
    def missing(self) -> int:
        return self.known - self.computed

    @property
    def draft(self) -> int:
        """Rows that its last token takes along, whole."""
        return min(self.most_drafted, self.left - 1) if self.started else 0

    @property
    def behind(self) -> int:
        return self.draft if self.missing == 1 else 0

    @property
    def most(self) -> int:
        return self.missing - 1 if self.missing > 1 and self.draft else self.missing


@dataclass
class PlainScheduler:
    """Lists, sorted anew each time, and page counts: one KV group without a window, no prefix cache."""

    policy: str
    num_pages: int
    max_num_seqs: int
    budget: int
    chunked: bool
    ratio: float
    running: list[PlainSequence] = field(default_factory=list)
    waiting: list[PlainSequence] = field(default_factory=list)
    drawn_share: float = 0.5
    num_left: int = 1
    paused: bool = False
    num_preemptions: int = 0

    def precedence(self, sequence: PlainSequence) -> tuple[Any, ...]:
        last = sequence.overtaken < MAX_OVERTAKEN
        return (last, sequence.priority if self.policy == "priority" else 0, sequence.number)

    def free(self) -> int:
        return self.num_pages - sum(sequence.pages for sequence in self.running + self.waiting)

    def wait(self, sequence: PlainSequence) -> None:
        sequence.allowance = max(sequence.allowance, sequence.left)
        self.waiting.append(sequence)
        self.waiting.sort(key=self.precedence)

    def run(self, sequence: PlainSequence) -> None:
        self.running.append(sequence)
        self.running.sort(key=self.precedence)

    def remove(self, sequence: PlainSequence) -> None:
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        if drawn := sequence.allowance - sequence.left:
            self.num_left = min(self.num_left + 1, 32)
            self.drawn_share += (drawn / sequence.allowance - self.drawn_share) / self.num_left

    def reserve(self, sequence: PlainSequence, count: int) -> bool:
        more = max(0, blocks(sequence.computed + count) - sequence.pages)
        if more > self.free():
            return False
        sequence.pages += more
        return True

    def preempt_last(self) -> None:
        victim = self.running.pop()
        victim.computed = victim.pages = 0
        self.num_preemptions += 1
        self.wait(victim)
        self.order()

    def expected(self, sequence: PlainSequence) -> int:
        drawn = sequence.allowance - sequence.left
        return min(max(int(self.drawn_share * sequence.allowance) - drawn, BLOCK), sequence.left)

    def outgrows(self, newcomer: PlainSequence) -> bool:
        """Lets all grow alike, a block at a time, each until its expected end: is the pool ever too small?"""
        crowd = [
            (sequence, blocks(sequence.known + self.expected(sequence)) - blocks(sequence.known)) for sequence in [*self.running, newcomer]
        ]
        most = self.num_pages - sum(sequence.pages for sequence in self.waiting if sequence is not newcomer)
        for growth in range(max(end for _, end in crowd) + 1):
            ends = any(end == growth for _, end in crowd)
            if ends and sum(blocks(sequence.known) + growth for sequence, end in crowd if end >= growth) > most:
                return True
        return False

    def order(self) -> None:
        if self.policy not in ("priority", "shortest_remaining", "custom"):
            return

        def place(sequence: PlainSequence) -> tuple[Any, ...]:
            last, priority, number = self.precedence(sequence)
            key = [float(sequence.missing + sequence.left)] if self.policy == "shortest_remaining" else sequence.key
            return (last, key if last and self.policy != "priority" else [], priority, number)

        self.waiting.sort(key=place)

    def schedule(self, prompt_budget: float) -> list[tuple[PlainSequence, int]]:
        pieces: list[tuple[PlainSequence, int]] = []
        budget = [float(self.budget), prompt_budget]  # of all tokens, of prompts
        self.order()
        if self.policy == "prefill_first" and self.waiting and all(sequence.missing <= 1 for sequence in self.running):
            self.admit(budget, pieces)
            if pieces:
                return pieces
        if self.ratio > 0 and not self.paused and self.running and len(self.waiting) >= self.ratio * len(self.running):
            self.admit(budget, pieces)
            self.paused = bool(pieces)
            if pieces:
                return pieces
        self.paused = False
        if all(sequence.missing != 1 for sequence in self.running):
            budget[1] = math.inf
        self.go_on(budget, pieces)
        self.admit(budget, pieces)
        return pieces

    def go_on(self, budget: list[float], pieces: list[tuple[PlainSequence, int]]) -> None:
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            behind = sum(1 + other.behind for other in self.running[index + 1 :])
            index += 1
            is_prompt, draft = sequence.missing > 1, sequence.behind
            count = min(sequence.most, max(budget[0] - behind, 1 if budget[0] > 0 else 0))
            if is_prompt:
                count = min(count, budget[1])
            if not self.chunked:
                count = max(count, sequence.most)
            if count <= 0 or (draft and count + draft > budget[0] and pieces):
                continue
            count, waits = int(count), False
            while not waits and not self.reserve(sequence, count + draft):
                if self.running[-1] is sequence and count > 1:
                    count //= 2
                    continue
                itself = self.running[-1] is sequence
                if itself and draft and pieces:
                    waits = True
                    continue
                self.preempt_last()
                if itself:
                    return
            if waits:
                continue
            pieces.append((sequence, count))
            budget[0] -= count + draft
            if is_prompt:
                budget[1] -= min(count, budget[1])

    def admit(self, budget: list[float], pieces: list[tuple[PlainSequence, int]]) -> None:
        while self.waiting and min(budget) > 0:
            sequence = self.waiting[0]
            if self.running and len(self.running) + 1 > self.max_num_seqs:
                return
            count, draft = int(min(sequence.most, *budget)), sequence.behind
            if not self.chunked and count < sequence.most:
                if pieces:
                    return
                count = sequence.most
            if draft and count + draft > budget[0] and pieces:
                return
            if self.running:
                needed = max(0, blocks(sequence.computed + count + draft) - sequence.pages)
                if needed + len(self.running) > self.free() or self.outgrows(sequence):
                    return
            while not self.reserve(sequence, count + draft):
                if count == 1:
                    return
                count //= 2
            self.waiting.pop(0)
            for other in self.waiting:
                other.overtaken += other.number < sequence.number
            self.run(sequence)
            pieces.append((sequence, count))
            budget[0] -= count + draft
            budget[1] -= min(count, budget[1])


class Pair:
    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        policy, num_pages, seats = rng.choice(POLICIES), rng.randrange(18, 50), rng.randrange(2, 9)
        budget, chunked, ratio = rng.choice([1, 7, 64, 200]), rng.random() < 0.8, rng.choice([0.0, 0.0, 0.5, 1.0])
        self.core = _core.testing.Scheduler(
            policy,
            windows=[0],
            num_pages=num_pages,
            max_num_seqs=seats,
            max_num_batched_tokens=budget,
            chunked_prefill=chunked,
            with_prefixes=False,
            waiting_served_ratio=ratio,
        )
        self.plain = PlainScheduler(policy, num_pages, seats, budget, chunked, ratio)
        self.alive: dict[int, PlainSequence] = {}
        self.cancels = rng.choice([0.01, 0.1])  # who sees many leave early admits too many
        self.drafted = rng.choice([0, 0, 3, 20])

    def add(self, prompt: int, new: int, priority: int) -> None:
        key = [float(priority), -float(prompt)]
        number = self.core.add([1] * prompt, new, priority, key, self.drafted)
        self.alive[number] = PlainSequence(number, prompt, new, priority, key, most_drafted=self.drafted)
        self.plain.wait(self.alive[number])

    def cancel(self, choice: int) -> None:
        if self.alive:
            number = sorted(self.alive)[choice % len(self.alive)]
            self.core.cancel(number)
            self.plain.remove(self.alive.pop(number))

    def step(self, prompt_budget: int) -> None:
        work, ended = self.core.step(prompt_budget)
        pieces = self.plain.schedule(prompt_budget)
        assert work == [(sequence.number, sequence.computed, count) for sequence, count in pieces]
        over = []
        for sequence, count in pieces:
            sequence.computed += count
            if sequence.missing == 0:
                sequence.pages = blocks(sequence.computed)
                sequence.known += 1
                sequence.left -= 1
                sequence.started = True
                if sequence.left == 0:
                    over.append(sequence.number)
                    self.plain.remove(self.alive.pop(sequence.number))
        assert ended == over

    def check(self) -> None:
        assert self.core.audit() == ""
        assert (self.core.num_running, self.core.num_waiting) == (len(self.plain.running), len(self.plain.waiting))
        assert self.core.num_free == self.plain.free()
        assert self.core.num_preemptions == self.plain.num_preemptions

    def act(self, rng: random.Random) -> None:
        """One random operation."""
        kind = rng.random()
        if kind < 0.12 and len(self.alive) < 20:
            self.add(rng.randrange(1, 120), rng.randrange(1, 150), rng.randrange(4))
        elif kind < 0.12 + self.cancels:
            self.cancel(rng.randrange(100))
        else:
            self.step(rng.choice([1, 10, 1 << 40]))


class SchedulerMachine(RuleBasedStateMachine):
    """The same, shrunk by hypothesis when it fails."""

    @initialize(seed=st.integers(0, 1 << 30))
    def begin(self, seed: int) -> None:
        self.pair = Pair(seed)

    @rule(prompt=st.integers(1, 120), new=st.integers(1, 60), priority=st.integers(0, 3))
    def add(self, prompt: int, new: int, priority: int) -> None:
        self.pair.add(prompt, new, priority)

    @rule(choice=st.integers(0, 100))
    def cancel(self, choice: int) -> None:
        self.pair.cancel(choice)

    @rule(prompt_budget=st.sampled_from([1, 10, 1 << 40]), times=st.integers(1, 20))
    def step(self, prompt_budget: int, times: int) -> None:
        for _ in range(times):
            self.pair.step(prompt_budget)
            self.pair.check()

    @invariant()
    def agrees(self) -> None:
        self.pair.check()


SchedulerMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase


def drive(steps: int, seed: int) -> int:
    """Returns how often a sequence was preempted."""
    rng = random.Random(seed)
    preemptions = 0
    for begin in range(0, steps, 500):  # an engine each
        pair = Pair(rng.randrange(1 << 30))
        for _ in range(min(500, steps - begin)):
            pair.act(rng)
            pair.check()
        preemptions += pair.plain.num_preemptions
    return preemptions


def test_many_random_steps() -> None:
    assert drive(50_000, 1) > 50


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    arguments = parser.parse_args()
    print({"steps": arguments.steps, "preemptions": drive(arguments.steps, 0)})
