"""Rules of verification, enumerated.

The distribution that a Verification emits is summed over all that may happen, and compared with the target.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from llmi.errors import InvalidParamsError
from llmi.llm import LLM
from llmi.params.sampling import SamplingParams
from llmi.speculation.config import SpeculativeConfig
from llmi.speculation.verification import Verification, VerifyContext
from llmi.text.prompts import Prompt

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]

#: Tolerance for rules that compute in float64, in total variation.
ROUNDING = 1e-9
_NUM_PAIRS = 60
_GRID = 16  # parts into which a coin's range is divided before its thresholds are found
_BISECTIONS = 40
_MOST_RUNS = 200_000
_SIBLINGS_AT_MOST = 3
_ENUMERABLE_VOCABULARY = 64

R = TypeVar("R")
Law = dict[tuple[int, ...], float]
Target = Callable[[tuple[int, ...]], "F64"]  # of a path of tokens
Chance = tuple[str | int, ...]  # what is drawn: its kind, and where


# --- accept_probability and residual


def verification_law(
    verification: str | Verification, target: Iterable[Fraction | float], draft: Iterable[Fraction | float], *, num_siblings: int = 1
) -> dict[int, Fraction]:
    """The exact distribution of the token that a verification emits at one position, in fractions.

    Sums over all ordered draws of siblings from `draft`, without replacement: with a lossless rule the result is `target`.

    Parameters
    ----------
    verification : "rejection" or Verification
        Its accept_probability and residual get arrays of Fractions; a rule that cannot compute with these gets float64 ones.
    target, draft : probabilities [vocab_size]
        Fractions, or numbers that are taken as they are.
    num_siblings : int
        Drafted tokens that are tried at the position.

    Returns
    -------
    {int: Fraction}
        Token ids with a probability above 0.

    Raises
    ------
    InvalidParamsError
        A verification that has no rule for one position.

    Examples
    --------
    >>> from fractions import Fraction
    >>> law = verification_law("rejection", [Fraction(1, 4), Fraction(3, 4)], [Fraction(1, 2), Fraction(1, 2)])
    >>> law == {0: Fraction(1, 4), 1: Fraction(3, 4)}
    True
    """
    rule = Verification() if verification == "rejection" else verification
    if not isinstance(rule, Verification) or rule.judges_whole_drafts:
        raise InvalidParamsError(
            f"verification_law needs 'rejection' or accept_probability and residual, not {verification!r}", "verification"
        )
    law: dict[int, Fraction] = {}

    def add(token: int, mass: Fraction) -> None:
        if mass:
            law[token] = law.get(token, Fraction(0)) + mass

    def visit(left: list[Fraction], rest: list[Fraction], mass: Fraction, siblings: int, whole: list[Fraction]) -> None:
        total = sum(rest)
        if siblings == 0 or total == 0:
            final = left if any(left) else whole
            for token, probability in enumerate(final):
                add(token, mass * probability / sum(final))
            return
        row = [probability / total for probability in rest]
        for token, probability in enumerate(row):
            if not probability:
                continue
            accepted = Fraction(_with_fractions(rule.accept_probability, token, left, row))
            add(token, mass * probability * accepted)
            if accepted < 1:
                remaining = [Fraction(value) for value in _with_fractions(rule.residual, left, row)]
                others = [Fraction(0) if other == token else value for other, value in enumerate(rest)]
                visit(remaining, others, mass * probability * (1 - accepted), siblings - 1, whole)

    probabilities = [Fraction(value) for value in target]
    visit(probabilities, [Fraction(value) for value in draft], Fraction(1), num_siblings, probabilities)
    return law


def _with_fractions(function: Callable[..., R], *args: int | list[Fraction]) -> R:
    """Calls with arrays of Fractions, or of float64 where the function cannot compute with them."""
    try:
        return function(*(np.array(arg, object) if isinstance(arg, list) else arg for arg in args))
    except (TypeError, AttributeError):
        return function(*(np.array([float(value) for value in arg]) if isinstance(arg, list) else arg for arg in args))


def _dyadic(rng: np.random.Generator, size: int) -> list[Fraction]:
    cuts = np.sort(rng.integers(0, 4097, size=size - 1))
    return [Fraction(int(value), 4096) for value in np.diff(np.concatenate([[0], cuts, [4096]]))]


def _law_pairs(rng: np.random.Generator, point_masses: bool) -> Iterator[tuple[list[Fraction], list[Fraction]]]:
    """Targets and drafts: near each other and far, sharp and flat, with zeros; few tokens and 64."""

    def draft_for(size: int, target: list[Fraction]) -> list[Fraction]:
        if point_masses:
            token = int(rng.integers(size))
            return [Fraction(int(other == token)) for other in range(size)]
        kind = int(rng.integers(4))
        other = _dyadic(rng, size)
        if kind == 0:  # a little off the target
            return [(9 * a + b) / 10 for a, b in zip(target, other, strict=True)]
        return other if kind < 3 else [Fraction(1, size)] * size

    for _ in range(_NUM_PAIRS):
        size = int(rng.integers(2, 7))
        target = _dyadic(rng, size)
        yield target, draft_for(size, target)
    target = _dyadic(rng, _ENUMERABLE_VOCABULARY)
    yield target, draft_for(_ENUMERABLE_VOCABULARY, target)


def assert_exact_rule(rule: Verification, *, point_masses: bool) -> None:
    """Fails unless the tokens that `rule` emits have the target's distribution, for standing pairs of distributions.

    Parameters
    ----------
    point_masses : bool
        Drafts are point masses alone, as from prompt lookup.
    """
    rng = np.random.default_rng(0)
    for target, draft in _law_pairs(rng, point_masses):
        most = 1 if len(target) > 6 else _SIBLINGS_AT_MOST
        for num_siblings in range(1, most + 1):
            law = verification_law(rule, target, draft, num_siblings=num_siblings)
            distance = sum((abs(law.get(token, Fraction(0)) - wanted) for token, wanted in enumerate(target)), Fraction(0)) / 2
            assert distance <= ROUNDING, (
                f"{type(rule).__name__} is lossy: over {len(target)} tokens its distribution is a total variation of "
                f"{float(distance):.3g} off the target's (exact, {num_siblings} drafted); "
                f"target {[float(x) for x in target[:6]]}, draft {[float(x) for x in draft[:6]]}"
            )


class Listening(Verification):
    """A rule, and whether it has met drafts that were drawn from more than one token."""

    lossless = True

    def __init__(self, rule: Verification) -> None:
        self.rule = rule
        self.met_laws = False

    def accept_probability(self, token_id: int, target_probs: F64, draft_probs: F64) -> float:
        self.met_laws = self.met_laws or bool(draft_probs[token_id] < 1)
        return self.rule.accept_probability(token_id, target_probs, draft_probs)

    def residual(self, target_probs: F64, draft_probs: F64) -> F64:
        return self.rule.residual(target_probs, draft_probs)


class ListeningJudge(Listening):
    """The same for a rule that judges whole drafts."""

    def verify(self, context: VerifyContext) -> tuple[Iterable[int], int]:
        self.met_laws = self.met_laws or context.draft.draft_probs is not None
        return self.rule.verify(context)


def meets_laws(llm: LLM, config: SpeculativeConfig, prompts: list[Prompt], samplers: list[SamplingParams]) -> bool:
    """Whether the drafts of this speculation are drawn from distributions; False: point masses alone."""
    rule = config.verification
    assert isinstance(rule, Verification)
    listening = ListeningJudge(rule) if rule.judges_whole_drafts else Listening(rule)
    params = [sampler.replace(n=4, seed=1, max_tokens=24, ignore_eos=True, detokenize=False) for sampler in samplers]
    for sampler in params:
        llm.generate(prompts, sampler, speculative_config=dataclasses.replace(config, verification=listening), use_tqdm=False)
    return listening.met_laws


# --- verify


class _NotEnumerable(Exception):
    pass


class _Wanted(BaseException):
    """The judge draws a number that the script does not hold; no `except Exception` of its own sees this."""

    def __init__(self, key: Chance, probs: F64 | None) -> None:
        self.key, self.probs = key, probs


class _ScriptedRows:
    """What the core shows of a draft, with all chance taken from a script: {(kind, row, ...): value}."""

    def __init__(self, chain: tuple[int, ...], laws: list[F32], target: Target, script: dict[Chance, float]) -> None:
        self.token_ids, self.parents, self.laws = list(chain), list(range(-1, len(chain) - 1)), laws
        self._target, self._script = target, script
        self._drawn: dict[int, F64] = {}

    def target(self, node: int) -> F64:
        return self._target(tuple(self.token_ids[: node + 1])).copy()

    def logits(self, node: int) -> F32:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.target(node)), np.float32)

    def target_token(self, node: int) -> int:
        return int(self._ask(("target", node), self.target(node)))

    def uniform(self, node: int, lane: int) -> float:
        return self._ask(("coin", node, lane), None)

    def draw(self, probs: ArrayLike, node: int) -> int:
        law = np.asarray(probs, np.float64)
        if node in self._drawn and not np.array_equal(self._drawn[node], law):
            raise _NotEnumerable("two draws of one row share their noise")
        self._drawn[node] = law
        return int(self._ask(("draw", node), law / law.sum()))

    def _ask(self, key: Chance, probs: F64 | None) -> float:
        if key not in self._script:
            raise _Wanted(key, probs)
        return self._script[key]


def judge_law(rule: Verification, chain: tuple[int, ...], laws: list[F32], target: Target) -> Law:
    """The distribution of the tokens that `rule.verify` emits for one drafted chain: summed over its draws, integrated over its coins.

    Parameters
    ----------
    chain : drafted token ids
    laws : arrays [vocab_size]
        That they were drawn from; empty: point masses.
    target : function of a path of tokens that returns float64 [vocab_size]
    """
    runs = 0

    def law_of(script: dict[Chance, float]) -> Law:
        nonlocal runs
        runs += 1
        if runs > _MOST_RUNS:
            raise _NotEnumerable("too many chances")
        rows = _ScriptedRows(chain, laws, target, script)
        try:
            path, token = rule.verify(VerifyContext(rows, np.asarray([1], np.int32), SamplingParams()))
        except _Wanted as wanted:
            if wanted.probs is None:
                return integral(script, wanted.key)
            return _mixture([(float(p), law_of({**script, wanted.key: i})) for i, p in enumerate(wanted.probs) if p > 0])
        return {(*(chain[node] for node in path), int(token)): 1.0}

    def integral(script: dict[Chance, float], key: Chance) -> Law:
        """Over a coin in (0, 1): the distribution is constant between thresholds, which are found by bisection."""

        def at(u: float) -> Law:
            return law_of({**script, key: u})

        def between(low: float, high: float, left: Law, right: Law, steps: int) -> list[tuple[float, Law]]:
            if _apart(left, right) < 1e-9 or steps == 0:
                return [((high - low) / 2, left), ((high - low) / 2, right)]
            middle = (low + high) / 2
            here = at(middle)
            return between(low, middle, left, here, steps - 1) + between(middle, high, here, right, steps - 1)

        edges = [(i + 1e-12 * (i == 0) - 1e-12 * (i == _GRID)) / _GRID for i in range(_GRID + 1)]
        found = [at(edge) for edge in edges]
        parts: list[tuple[float, Law]] = []
        for i in range(_GRID):
            parts += between(edges[i], edges[i + 1], found[i], found[i + 1], _BISECTIONS)
        return _mixture(parts)

    return law_of({})


def _mixture(parts: list[tuple[float, Law]]) -> Law:
    law: Law = {}
    for mass, part in parts:
        for outcome, probability in part.items():
            law[outcome] = law.get(outcome, 0.0) + mass * probability
    return law


def _apart(a: Law, b: Law) -> float:
    return sum(abs(a.get(outcome, 0.0) - b.get(outcome, 0.0)) for outcome in {*a, *b})


def _extended(law: Law, length: int, target: Target) -> Law:
    """The law with the target's own tokens behind what was emitted, up to `length`."""
    while any(len(path) < length for path in law):
        grown: Law = {}
        for path, mass in law.items():
            steps = enumerate(target(path)) if len(path) < length else [(-1, 1.0)]
            for token, probability in steps:
                longer = path if token < 0 else (*path, token)
                grown[longer] = grown.get(longer, 0.0) + mass * float(probability)
        law = grown
    return law


def _standing_laws(rng: np.random.Generator, vocab_size: int, point_masses: bool) -> tuple[Target, Target]:
    """The target's distribution and the draft's at each path of tokens, drawn at its first call."""

    def drawn() -> F64:
        return np.array([float(value) for value in _dyadic(rng, vocab_size)])

    @functools.cache
    def target(path: tuple[int, ...]) -> F64:
        return drawn()

    @functools.cache
    def draft(path: tuple[int, ...]) -> F64:
        other = drawn()
        return np.eye(vocab_size)[rng.integers(vocab_size)] if point_masses else 0.5 * other + 0.5 * target(path)

    return target, draft


def assert_exact_judge(rule: Verification, *, point_masses: bool) -> bool:
    """Fails unless what `rule.verify` emits, the target's tokens behind it, has the target's distribution; False if not enumerable.

    Chains of one and two tokens over a few standing distributions; chance comes through `uniform`, `draw` and `target_token` alone.
    """
    rng = np.random.default_rng(0)
    for vocab_size, depth in [(2, 1), (3, 1), (4, 1), (2, 2), (2, 2), (3, 2)]:
        target, draft = _standing_laws(rng, vocab_size, point_masses)
        emitted: list[tuple[float, Law]] = []
        chains: list[tuple[tuple[int, ...], float, list[F64]]] = [((), 1.0, [])]
        for _ in range(depth):
            chains = [
                ((*chain, token), mass * float(p), [*laws, draft(chain)])
                for chain, mass, laws in chains
                for token, p in enumerate(draft(chain))
                if p > 0
            ]
        try:
            for chain, mass, laws in chains:
                law = judge_law(rule, chain, [] if point_masses else [np.asarray(row, np.float32) for row in laws], target)
                emitted.append((mass, _extended(law, depth + 1, target)))
        except _NotEnumerable:
            return False
        distance = _apart(_mixture(emitted), _extended({(): 1.0}, depth + 1, target)) / 2
        assert distance < 1e-5, (
            f"{type(rule).__name__}.verify is lossy: over {vocab_size} tokens and chains of {depth} its distribution is a total "
            f"variation of {distance:.3g} off the target's (exact)"
        )
    return True


def assert_exact_verification(llm: LLM, config: SpeculativeConfig, prompts: list[Prompt], samplers: list[SamplingParams]) -> None:
    """Enumerates a user's Verification, for drafts of the kind that it meets under this speculation."""
    point_masses = not meets_laws(llm, config, prompts, samplers)
    rule = config.verification
    assert isinstance(rule, Verification)
    if rule.judges_whole_drafts:
        assert_exact_judge(rule, point_masses=point_masses)
    else:
        assert_exact_rule(rule, point_masses=point_masses)
