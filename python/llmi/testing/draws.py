"""Whether draws follow a distribution, with a stated probability of a false alarm."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from llmi.base.kinds import Real, Whole, parse, show
from llmi.errors import InvalidParamsError

_LEAST_EXPECTED = 10  # draws in a cell, for the chi-square law to hold
_MOST_DRAWS = 1 << 62
_NUM_DRAWS = Whole(1, 2**40, "a positive integer")
_FALSE_ALARM = Real(0, 0.5, "a probability in (0, 0.5]", open_low=True)


def assert_same_distribution(
    draws: Callable[[int], Any] | Mapping[Any, int],
    expected: Mapping[Any, float | Fraction],
    *,
    num_draws: int = 100_000,
    false_alarm: float = 1e-9,
) -> None:
    """Fails if draws do not follow `expected`, by Pearson's chi-square and the G-test, or are too few to tell.

    Parameters
    ----------
    draws : counts by outcome, or a function of the number of a draw that returns its outcome
    expected : probabilities by outcome; they sum to 1
    num_draws : int
        How often a function is called.
    false_alarm : float
        Probability that a right sampler fails, all tests together. Outcomes that are expected less than 10 times are pooled with others, in
        the order of `expected`; the rest, expected less than 10 times as a whole, may not come too often (Chernoff's bound).

    Raises
    ------
    AssertionError
        Also where no counts of this number of draws could fail: it says how many draws are needed.
    InvalidParamsError
        What was given is neither counts nor a function, or `expected` holds no probabilities.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> assert_same_distribution(lambda i: int(rng.integers(2)), {0: 0.5, 1: 0.5}, num_draws=2000)
    """
    false_alarm = parse(_FALSE_ALARM, "false_alarm", false_alarm)
    law = _law(expected)
    counts = _counts(draws, parse(_NUM_DRAWS, "num_draws", num_draws))
    total = sum(counts.values())
    impossible = {outcome for outcome, count in counts.items() if count and not law.get(outcome)}
    assert not impossible, f"outcomes of probability 0 were drawn: {sorted(map(str, impossible))[:5]}"
    if len(law) == 1 and total:
        return  # any other outcome is impossible
    table = _Table.of(law, total)
    assert table.farthest().tails_below(false_alarm / 3), (
        f"{total:,} draws cannot fail this test, whichever outcomes they are: a distribution of {len(law):,} outcomes "
        f"needs at least {_draws_needed(law, false_alarm):,} draws at false_alarm = {false_alarm:g}"
    )
    problems = table.filled(counts).tails_below(false_alarm / 3)
    assert not problems, problems


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """Cells that are each expected often enough, chosen without a look at the draws, and the rest that is not."""

    total: int
    outcomes: list[list[Any]]
    probabilities: list[float]
    rest: list[Any]
    rest_probability: float
    seen: list[int]
    rest_seen: int

    @classmethod
    def of(cls, law: Mapping[Any, float], total: int) -> _Table:
        cells: list[list[Any]] = []
        probabilities: list[float] = []
        pooled: list[Any] = []
        mass = 0.0
        for outcome, probability in law.items():
            if probability * total >= _LEAST_EXPECTED:
                cells.append([outcome])
                probabilities.append(probability)
                continue
            pooled.append(outcome)
            mass += probability
            if mass * total >= _LEAST_EXPECTED:
                cells.append(pooled)
                probabilities.append(mass)
                pooled, mass = [], 0.0
        return cls(total, cells, probabilities, pooled, mass, [0] * len(cells), 0)

    def filled(self, counts: Mapping[Any, int]) -> _Table:
        seen = [sum(counts.get(outcome, 0) for outcome in outcomes) for outcomes in self.outcomes]
        return dataclasses.replace(self, seen=seen, rest_seen=self.total - sum(seen))

    def farthest(self) -> _Table:
        """The draws that are farthest from the law: all of them in the rest, or in the least likely cell."""
        if self.rest or not self.outcomes:
            return dataclasses.replace(self, rest_seen=self.total)
        least = self.probabilities.index(min(self.probabilities))
        return dataclasses.replace(self, seen=[self.total if cell == least else 0 for cell in range(len(self.seen))])

    def tails_below(self, level: float) -> str:
        """Which statistic is less likely than `level` under the distribution, in words; "" if none is."""
        bound = _upper_tail(self.rest_seen, self.total, self.rest_probability)
        if bound < level:
            return (
                f"{len(self.rest)} rare outcomes were drawn {self.rest_seen} times over {self.total} draws, where "
                f"{self.rest_probability * self.total:.2g} are expected: p <= {bound:.2g}"
            )
        degrees = len(self.outcomes) - 1
        if degrees < 1:
            return ""
        cells = [(probability * self.total, seen) for probability, seen in zip(self.probabilities, self.seen, strict=True)]
        distance = 0.5 * sum(abs(seen - wanted) for wanted, seen in cells) / self.total
        chi_square = sum((seen - wanted) ** 2 / wanted for wanted, seen in cells)
        g = 2 * sum(seen * math.log(seen / wanted) for wanted, seen in cells if seen)
        for name, statistic in (("chi-square", chi_square), ("G", g)):
            tail = chi_square_tail(statistic, degrees)
            if tail < level:
                return (
                    f"{name} = {statistic:.1f} with {degrees} degrees of freedom: p = {tail:.2g} over {self.total} draws; "
                    f"total variation seen {distance:.4f}, {math.sqrt(degrees / (2 * math.pi * self.total)):.4f} would be chance"
                )
        return ""


def _law(expected: object) -> dict[Any, float]:
    """The outcomes that have a probability."""
    if not isinstance(expected, Mapping):
        raise InvalidParamsError(f"expected must be a mapping {{outcome: probability}}, not {show(expected)}", "expected")
    for outcome, probability in expected.items():
        if not 0 <= probability <= 1 + 1e-6:
            raise InvalidParamsError(f"expected: {show(outcome)} has the probability {show(probability)}", "expected")
    assert abs(float(sum(expected.values())) - 1) < 1e-3, "the expected probabilities do not sum to 1"
    return {outcome: float(probability) for outcome, probability in expected.items() if probability}


def _counts(draws: object, num_draws: int) -> dict[Any, int]:
    if callable(draws):
        counts: dict[Any, int] = {}
        for number in range(num_draws):
            outcome = draws(number)
            counts[outcome] = counts.get(outcome, 0) + 1
        return counts
    if not isinstance(draws, Mapping):
        raise InvalidParamsError(
            f"draws must be counts {{outcome: number}} or a function, not {show(draws)}: collections.Counter makes counts of a list",
            "draws",
        )
    for outcome, count in draws.items():
        if count < 0 or count != int(count):
            raise InvalidParamsError(f"draws: {show(outcome)} was drawn {show(count)} times", "draws")
    return dict(draws)


def _draws_needed(law: Mapping[Any, float], false_alarm: float) -> int:
    """The fewest draws that can fail, within a factor of about 1.1."""
    if len(law) == 1:
        return 1  # every other outcome is impossible
    total = 2
    while not _Table.of(law, total).farthest().tails_below(false_alarm / 3) and total < _MOST_DRAWS:
        total += max(1, total // 10)
    return total


def _upper_tail(seen: int, total: int, probability: float) -> float:
    """A bound of P(at least `seen` of `total` draws), each with this probability (Chernoff)."""
    share = seen / total if total else 0.0
    if share <= probability or probability >= 1:
        return 1.0
    if probability <= 0:
        return 0.0
    divergence = share * math.log(share / probability)
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - probability))
    return math.exp(-total * divergence)


def chi_square_tail(statistic: float, degrees: int) -> float:
    """P(chi-square >= statistic): the regularised upper incomplete gamma function (series and continued fraction)."""
    a, x = degrees / 2, statistic / 2
    if x <= 0:
        return 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while abs(term) > abs(total) * 1e-15:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1 - front * total)
    # Lentz's continued fraction.
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    h = d
    for i in range(1, 10_000):
        an = -i * (i - a)
        b += 2
        d = 1 / (an * d + b or tiny)
        c = b + an / c or tiny
        h *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return front * h
