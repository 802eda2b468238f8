"""Particle filters against enumeration: `python tests/support/smc_enumeration.py --runs 1000` prints the figure of docs/smc.md.

The law of many runs, each weighted by its evidence, is compared with the target's exact law. Its total variation has a part that is chance:
the mean over bootstrap samples of the runs. The mean evidence is compared with the exact one.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from llmi import LLM, Constraint, SamplingParams
from llmi.smc import RESAMPLERS, ParticleFilter, Prefix
from llmi.testing import tiny_model

PROMPT = [1, 2, 3]
LETTERS = (11, 14, 8)
EOS = 0
Outcome = tuple[int, ...]


class NoRepeats(Constraint[Outcome]):
    """One to three letters, no two neighbours equal: 21 texts."""

    def initial_state(self) -> Outcome:
        return ()

    def allowed(self, state: Outcome) -> list[int]:
        return [letter for letter in LETTERS if state[-1:] != (letter,)] if len(state) < 3 else []

    def advance(self, state: Outcome, token_id: int) -> Outcome:
        assert token_id in LETTERS
        return (*state, token_id)

    def is_final(self, state: Outcome) -> bool:
        return len(state) > 0


def changes(prefix: Prefix) -> float:
    """Favours texts whose first letters differ, and later those that end like they begin."""
    ids = prefix.token_ids
    value = 1.5 * sum(a != b for a, b in itertools.pairwise(ids))
    return value + 1.2 * (ids[0] == ids[-1]) if prefix.is_finished else value


@dataclasses.dataclass
class Case:
    """A target whose outcomes can be listed."""

    params: SamplingParams
    settings: dict[str, Any]
    outcomes: list[Outcome]
    log_potential: Callable[[Outcome], float]  # of whole outcomes, written apart from the filter's own

    def exact(self, llm: LLM) -> tuple[dict[Outcome, float], float]:
        """(the target's law, its mass): products of the engine's probabilities, summed over all outcomes."""
        rows: dict[Outcome, Any] = {}
        for outcome in self.outcomes:
            for size in range(len(outcome)):
                if outcome[:size] not in rows:
                    with llm.sequence([*PROMPT, *outcome[:size]]) as sequence:
                        rows[outcome[:size]] = sequence.probs(self.params).astype(np.float64)
        power = self.settings.get("power", 1.0)
        masses = {
            outcome: math.prod(float(rows[outcome[:i]][token]) ** power for i, token in enumerate(outcome))
            * math.exp(self.log_potential(outcome))
            for outcome in self.outcomes
        }
        total = math.fsum(masses.values())
        return {outcome: mass / total for outcome, mass in masses.items()}, total


def _pairs(size: int) -> list[Outcome]:
    return list(itertools.product(LETTERS[:2], repeat=size))


def _words() -> list[Outcome]:
    texts = [text for size in (1, 2, 3) for text in itertools.product(LETTERS, repeat=size)]
    return [(*text, EOS) for text in texts if all(a != b for a, b in itertools.pairwise(text))]


def _of_changes(outcome: Outcome) -> float:
    return 1.5 * sum(outcome[i] != outcome[i + 1] for i in range(len(outcome) - 1)) + 1.2 * (outcome[0] == outcome[-1])


TWO_LETTERS = SamplingParams(temperature=3.0, allowed_token_ids=list(LETTERS[:2]), max_tokens=4, ignore_eos=True)
WORDS = SamplingParams(temperature=3.0, logit_bias={EOS: 3.0}, max_tokens=4)
CASES = {
    "plain": Case(TWO_LETTERS, {"potential": changes}, _pairs(4), _of_changes),
    "power": Case(TWO_LETTERS, {"power": 2.5}, _pairs(4), lambda outcome: 0.0),
    "constrained": Case(WORDS, {"constraint": NoRepeats(), "must_end": True}, _words(), lambda outcome: 0.0),
    "both": Case(WORDS, {"constraint": NoRepeats(), "must_end": True, "power": 1.5}, _words(), lambda outcome: 0.0),
}


@dataclasses.dataclass
class Comparison:
    """Runs of one case against its exact law."""

    distance: float  # total variation
    chance: float  # its mean over bootstrap samples of the runs
    errors: float  # of the mean evidence, in standard errors
    evidence: float
    exact_evidence: float
    resampled: float  # share of the runs that resampled

    def holds(self, bound: float) -> bool:
        """Whether both figures are within their bounds."""
        return self.distance - self.chance <= bound and abs(self.errors) <= 3.0


def threshold_of(llm: LLM, case: Case, num_particles: int, num_pilots: int = 51, num_threads: int = 1) -> float:
    """An ess_threshold at which about half of the runs resample, by runs with other seeds."""
    pilots = ParticleFilter(num_particles, ess_threshold=0.0, **case.settings)

    def least(pilot: int) -> float:
        out = pilots.run(llm, PROMPT, case.params.replace(seed=10**9 + pilot))
        return float(out.ess[:-1].min()) / num_particles

    with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
        return float(np.median(list(pool.map(least, range(num_pilots)))))


def compare(llm: LLM, case: Case, settings: dict[str, Any], seeds: range, num_threads: int = 1) -> Comparison:
    """Runs with these seeds and settings against enumeration. Threads wait for the engine together; they change no run."""
    law, mass = case.exact(llm)
    places = {outcome: place for place, outcome in enumerate(law)}
    weighted, evidence, resampled = np.zeros((len(seeds), len(law))), np.zeros(len(seeds)), np.zeros(len(seeds))
    particles = ParticleFilter(**{**case.settings, **settings})

    def run(row: int) -> None:
        out = particles.run(llm, PROMPT, case.params.replace(seed=seeds[row]))
        evidence[row] = out.evidence
        resampled[row] = out.resampled.any()
        for outcome, weight in out.law().items():
            weighted[row, places[outcome]] = out.evidence * weight  # KeyError: an outcome of probability 0

    with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(run, range(len(seeds))))
    seen = weighted.sum(0) / weighted.sum()
    counts = np.random.default_rng(0).multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), size=400)
    again = counts @ weighted
    again /= again.sum(1, keepdims=True)
    error = evidence.std(ddof=1) / math.sqrt(len(seeds))
    return Comparison(
        distance=0.5 * float(np.abs(seen - np.array(list(law.values()))).sum()),
        chance=float(0.5 * np.abs(again - seen).sum(1).mean()),
        errors=float((evidence.mean() - mass) / error),
        evidence=float(evidence.mean()),
        exact_evidence=mass,
        resampled=float(resampled.mean()),
    )


def comparisons(llm: LLM, args: argparse.Namespace) -> Iterator[tuple[str, str, Comparison, float]]:
    """(case, resampler, comparison, seconds)."""
    num_runs, num_particles, num_threads = args.runs, args.particles, args.threads
    for name in args.cases:
        case = CASES[name]
        threshold = threshold_of(llm, case, num_particles, max(51, num_runs // 4), num_threads)
        for resampler in args.resamplers:
            begin = time.monotonic()
            settings = {"num_particles": num_particles, "ess_threshold": threshold, "resampler": resampler}
            yield name, resampler, compare(llm, case, settings, range(num_runs), num_threads), time.monotonic() - begin


def tiny_llm() -> LLM:
    """The model of all cases."""
    return LLM(tiny_model(vocab_size=16, num_layers=1), kv_cache_memory_bytes=1 << 22, max_model_len=64, num_threads=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--particles", type=int, default=1000)
    parser.add_argument("--resamplers", nargs="+", choices=list(RESAMPLERS), default=["systematic"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bound", type=float, default=0.003)
    args = parser.parse_args()
    failed = 0
    with tiny_llm() as llm:
        for name, resampler, result, seconds in comparisons(llm, args):
            held = result.holds(args.bound)
            failed += not held
            print(
                f"{name:12} {resampler:12} {len(CASES[name].outcomes)} outcomes; total variation {result.distance:.5f}, chance {result.chance:.5f}, "
                f"difference {result.distance - result.chance:+.5f}; evidence {result.evidence:.6g}, exact {result.exact_evidence:.6g}, "
                f"{result.errors:+.2f} standard errors; {result.resampled:.0%} of {args.runs} runs resampled; {seconds:.0f} s{'' if held else '; FAILED'}",
                flush=True,
            )
    return failed > 0


if __name__ == "__main__":
    raise SystemExit(main())
