"""Beam search in NumPy over a function from tokens to a row of logits: transformers' rule, with llmi's order of ties.

The rule is that of `_beam_search` in transformers 5.24, in each group by itself. It has no groups: their penalty is that of 4.52.4.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from llmi import _core, log_softmax

T = _core.testing
Array = np.ndarray[Any, Any]
#: A row of logits after these tokens (prompt and output), and what processing makes of its log-probabilities, for a beam of this rank.
Rows = Callable[[list[int]], Array]
Process = Callable[[list[int], Array, int], Array]


@dataclasses.dataclass(frozen=True)
class Rules:
    """BeamSearchParams, with the ids that end a text."""

    width: int
    max_tokens: int
    ends: frozenset[int] = frozenset()
    length_penalty: float = 1.0
    length_includes_prompt: bool = False
    early_stopping: bool | Literal["never"] = False
    do_sample: bool = False
    seed: int = 0
    num_groups: int = 1
    diversity_penalty: float = 0.0
    stops: Callable[[list[int]], bool] = lambda output: False  # stop strings and criteria

    @property
    def group_size(self) -> int:
        return self.width // self.num_groups

    @property
    def num_candidates(self) -> int:
        return max(2, 1 + len(self.ends)) * self.group_size


class Candidate(NamedTuple):
    """A token after a running beam."""

    total: float
    rank: int  # of the beam among the running ones
    logit: float
    token: int
    base: float  # the beam's sum, less what normalises the row
    value: float  # of the row before it is normalised

    @property
    def key(self) -> tuple[float, int, float, int]:
        return (-self.total, self.rank, -self.logit, self.token)


@dataclasses.dataclass
class Beam:
    """A running beam or a hypothesis."""

    tokens: list[int]  # of the output
    total: float
    indices: list[int]  # for each token, the rank of the beam that it continues
    score: float = math.nan
    reason: str = ""

    def after(self, candidate: Candidate) -> Beam:
        return Beam([*self.tokens, candidate.token], candidate.total, [*self.indices, candidate.rank])


@dataclasses.dataclass
class Found:
    """What a search ends with: hypotheses, best first, the smallest gap at any of its choices, and how many steps it took."""

    hypotheses: list[Beam]
    gap: float = math.inf
    steps: int = 0

    def choose(self, chosen: float, other: float) -> None:
        """Notes a choice between two numbers."""
        if math.isfinite(chosen) and math.isfinite(other):
            self.gap = min(self.gap, abs(chosen - other))


def length(rules: Rules, prompt_len: int, num_tokens: int, ended: bool) -> int:
    """The length in the penalty of an output of `num_tokens`, whose last one is an end-of-text or not."""
    return prompt_len + num_tokens - ended if rules.length_includes_prompt else num_tokens


def penalised(total: float, length: int, penalty: float) -> float:
    return total / power(float(length), penalty)


def power(base: float, exponent: float) -> float:
    """Without a libm, whose last bits differ from one machine to the next."""
    magnitude, result = abs(exponent), 1.0
    if magnitude == int(magnitude):
        for _ in range(int(magnitude)):
            result *= base
    else:
        result = float(T.scalar_math("exp64", magnitude * T.scalar_math("log64", base)))
    return 1 / result if exponent < 0 else result


def candidates(rows: Rows, process: Process | None, prompt: list[int], beam: Beam, rank: int, most: int | None = None) -> list[Candidate]:
    """The tokens that may follow a beam; the best `most` of them, where only these can matter."""
    tokens = [*prompt, *beam.tokens]
    logits = rows(tokens)
    added = log_softmax(logits)
    values, norm = logits, np.float32(_core.log_sum_exp(logits))
    if process is not None:
        values = added = process(tokens, added.copy(), rank)
        norm = np.float32(0)
    kept = np.flatnonzero(added > -np.inf)
    if most is not None:
        kept = kept[np.lexsort((kept, -logits[kept], -added[kept]))][:most]
    base = beam.total - float(norm)
    return [
        Candidate(beam.total + float(added[token]), rank, float(logits[token]), int(token), base, float(values[token])) for token in kept
    ]


def race(rules: Rules, position: int, candidate: Candidate) -> float:
    """Of beam-sample: the first K by this number are drawn without replacement, in proportion to exp(total)."""
    word = T.philox([candidate.token // 4, position, candidate.rank, 5], rules.seed)[candidate.token % 4]
    v = min((float(word) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    time = float(T.scalar_math("log64", -T.scalar_math("log1p64", -v)))
    return -(candidate.base - (time - candidate.value))


def first(found: list[Candidate], rules: Rules, position: int) -> list[Candidate]:
    """The K candidates of a step, best first."""
    if rules.do_sample:
        found = sorted(found, key=lambda candidate: (race(rules, position, candidate), candidate.key))[: rules.num_candidates]
    return sorted(found, key=lambda candidate: candidate.key)[: rules.num_candidates]


def search(rows: Rows, prompt: Sequence[int], rules: Rules, process: Process | None = None) -> Found:
    """The whole search."""
    if rules.num_groups > 1:
        return grouped(rows, list(prompt), rules, process)
    found = Found([])
    running, finished = [Beam([], 0.0, [])], found.hypotheses
    most = None if rules.do_sample else rules.num_candidates + 1
    for step in range(rules.max_tokens):
        found.steps += 1
        everything = [entry for rank, beam in enumerate(running) for entry in candidates(rows, process, list(prompt), beam, rank, most)]
        best = first(everything, rules, len(prompt) + step)
        note_choices(found, everything, best, rules)
        following: list[Beam] = []
        for place, candidate in enumerate(best):
            beam = running[candidate.rank].after(candidate)
            if reason := ending(beam, rules):
                if place < rules.width:
                    finish(beam, reason, rules, len(prompt), finished)
            elif len(following) < rules.width:
                following.append(beam)
        keep_best(found, rules.width)
        running = following
        if not running or is_over(found, running[0].total, step + 1, rules, len(prompt)):
            break
    return found


def ending(beam: Beam, rules: Rules) -> str:
    """Why a candidate leaves the running beams; "" if it stays."""
    if beam.tokens[-1] in rules.ends or rules.stops(beam.tokens):
        return "stop"
    return "length" if len(beam.tokens) >= rules.max_tokens else ""


def finish(beam: Beam, reason: str, rules: Rules, prompt_len: int, finished: list[Beam]) -> None:
    counted = length(rules, prompt_len, len(beam.tokens), beam.tokens[-1] in rules.ends)
    finished.append(dataclasses.replace(beam, score=penalised(beam.total, counted, rules.length_penalty), reason=reason))


def keep_best(found: Found, width: int) -> None:
    """Keeps the best hypotheses; those with equal scores in the order in which they were finished."""
    found.hypotheses.sort(key=lambda beam: -beam.score)  # stable
    if len(found.hypotheses) > width:
        found.choose(found.hypotheses[width - 1].score, found.hypotheses[width].score)
    del found.hypotheses[width:]


def is_over(found: Found, best: float, num_tokens: int, rules: Rules, prompt_len: int) -> bool:
    """Whether no running beam can improve on the finished ones, as far as early_stopping looks. best: of the running sums."""
    if len(found.hypotheses) < rules.width:
        return False
    if rules.early_stopping is True:
        return True
    longest = rules.early_stopping == "never" and rules.length_penalty > 0
    bound = penalised(best, length(rules, prompt_len, rules.max_tokens if longest else num_tokens, False), rules.length_penalty)
    found.choose(bound, found.hypotheses[-1].score)
    return bound <= found.hypotheses[-1].score


def note_choices(found: Found, everything: list[Candidate], best: list[Candidate], rules: Rules) -> None:
    """The gaps at a step's borders: who is among the first B, and who runs on."""
    order = sorted(everything, key=lambda candidate: candidate.key)[: rules.num_candidates + 1]
    totals = [candidate.total for candidate in order]
    for a, b in itertools.pairwise(totals[: rules.width + 1]):
        found.choose(a, b)  # ranks of the first B, which beam_indices show
    open_ones = [candidate.total for candidate in order if candidate.token not in rules.ends]
    if len(open_ones) > rules.width:
        for a, b in itertools.pairwise(open_ones[: rules.width + 1]):
            found.choose(a, b)


# --- groups


def grouped(rows: Rows, prompt: list[int], rules: Rules, process: Process | None) -> Found:
    """Groups choose in turn; each has its own finished hypotheses, and ends by itself."""
    found = Found([])
    groups = rules.num_groups
    running = [[Beam([], 0.0, [])] for _ in range(groups)]
    finished: list[list[Beam]] = [[] for _ in range(groups)]
    done = [False] * groups
    for step in range(rules.max_tokens):
        found.steps += 1
        taken: list[int] = []
        for g in range(groups):
            if done[g]:
                continue
            running[g] = group_step(rows, process, prompt, rules, running[g], finished[g], taken, g)
            taken += [beam.tokens[-1] for beam in running[g]]
            done[g] = not running[g] or group_is_done(finished[g], running[g][0].total, step + 1, rules, len(prompt))
        if all(done):
            break
    everyone = [beam for group in finished for beam in group]
    found.hypotheses = sorted(everyone, key=lambda beam: -beam.score)
    return found


def group_step(
    rows: Rows,
    process: Process | None,
    prompt: list[int],
    rules: Rules,
    running: list[Beam],
    finished: list[Beam],
    taken: list[int],
    g: int,
) -> list[Beam]:
    """The group's running beams after a step."""
    size, first_rank = rules.group_size, g * rules.group_size
    everything = []
    for rank, beam in enumerate(running):
        for entry in candidates(rows, process, prompt, beam, first_rank + rank):
            everything.append(entry._replace(total=entry.total - rules.diversity_penalty * taken.count(entry.token)))
    best = first(everything, rules, len(prompt) + len(running[0].tokens))
    following: list[Beam] = []
    for place, candidate in enumerate(best):
        beam = running[candidate.rank - first_rank].after(candidate)
        if reason := ending(beam, rules):
            if place < size:
                group_add(beam, reason, rules, len(prompt), finished)
        elif len(following) < size:
            following.append(beam)
    return following


def group_add(beam: Beam, reason: str, rules: Rules, prompt_len: int, finished: list[Beam]) -> None:
    finish(beam, reason, rules, prompt_len, finished)
    finished.sort(key=lambda entry: -entry.score)  # stable: those with equal scores in the order in which they were finished
    del finished[rules.group_size :]


def group_is_done(finished: list[Beam], best: float, num_tokens: int, rules: Rules, prompt_len: int) -> bool:
    if len(finished) < rules.group_size:
        return False
    if rules.early_stopping is True:
        return True
    longest = rules.early_stopping == "never" and rules.length_penalty > 0
    bound = penalised(best, length(rules, prompt_len, rules.max_tokens if longest else num_tokens, False), rules.length_penalty)
    return min(beam.score for beam in finished) >= bound


def exhaustive(rows: Rows, prompt: Sequence[int], rules: Rules) -> Beam:
    """The best of all texts of up to max_tokens tokens."""
    best: list[Beam] = []
    open_beams = [Beam([], 0.0, [])]
    while open_beams:
        following = []
        for beam in open_beams:
            for candidate in candidates(rows, None, list(prompt), beam, 0):
                longer = beam.after(candidate)
                if reason := ending(longer, rules):
                    finish(longer, reason, rules, len(prompt), best)
                else:
                    following.append(longer)
        open_beams = following
    return max(best, key=lambda beam: beam.score)
