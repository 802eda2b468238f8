"""The result of a particle filter: weighted texts, the evidence, and how the run went."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from llmi.base.travel import Record
from llmi.errors import Travels, import_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

K = TypeVar("K")


@dataclasses.dataclass(eq=False)
class Particle(Record):
    """One text and its weight.

    Attributes
    ----------
    token_ids : list of int
        The output, with the token that ended it.
    text : str
        The output's text, without what ended it.
    weight : float
        Its share of all particles' weights, in [0, 1].
    finish_reason : {"stop", "length", "dead", "abort"}
        "stop": end-of-text or a stop token; "length": max_tokens; "dead": its weight became 0; "abort": the run was interrupted.

    Examples
    --------
    >>> output = ParticleFilter(8).run(llm, "The sea is", max_tokens=4, seed=1)
    >>> round(sum(particle.weight for particle in output.particles), 6)
    1.0
    """

    token_ids: list[int]
    text: str
    weight: float
    finish_reason: str


@dataclasses.dataclass(eq=False)
class ParticleOutput(Record):
    """The result of `ParticleFilter.run`.

    Attributes
    ----------
    prompt_token_ids : list of int
    particles : list of Particle
    log_evidence : float
        The logarithm of an unbiased estimate of the target's total mass: under a constraint, of the probability that the model
        keeps to it; under a potential, of the mean of exp(potential).
    ess : float64 array [num_steps]
        Effective sample size after each step, before resampling.
    resampled : bool array [num_steps]
        Whether the particles were resampled after the step.
    ancestors : int64 array [num_steps, num_particles]
        Which particle of the step each one went on from; its own index where there was no resampling.
    step_weights : float64 array [num_steps, num_particles]
        Normalised weights after each step, before resampling.
    seed : int
        A run with this seed, the same prompt and parameters gives the same result.
    num_rows : int
        Rows that the model computed after the prompt: particles with equal histories share one.

    Examples
    --------
    >>> output = ParticleFilter(16, constraint={"regex": "[ab]+"}).run(llm, "The sea is", max_tokens=4, seed=1)
    >>> output.log_evidence < 0, output.ess.shape
    (True, (4,))
    """

    prompt_token_ids: list[int]
    particles: list[Particle]
    log_evidence: float
    ess: NDArray[np.float64]
    resampled: NDArray[np.bool_]
    ancestors: NDArray[np.int64]
    step_weights: NDArray[np.float64]
    seed: int
    num_rows: int

    @property
    def evidence(self) -> float:
        """exp(log_evidence)."""
        return float(np.exp(self.log_evidence))

    def law(self) -> dict[tuple[int, ...], float]:
        """The weight of each distinct output, the largest first. Its sum is 1."""
        return self._sums(lambda particle: tuple(particle.token_ids))

    def texts(self) -> dict[str, float]:
        """The weight of each distinct text, the largest first."""
        return self._sums(lambda particle: particle.text)

    def mean(self, function: Callable[[Particle], float]) -> float:
        """The weighted mean of a function of the particles."""
        return float(sum(particle.weight * function(particle) for particle in self.particles if particle.weight))

    def _sums(self, key: Callable[[Particle], K]) -> dict[K, float]:
        sums: dict[K, float] = {}
        for particle in self.particles:
            if particle.weight:
                sums[key(particle)] = sums.get(key(particle), 0.0) + particle.weight
        return dict(sorted(sums.items(), key=lambda entry: -entry[1]))

    def plot(self) -> Figure:
        """Effective sample size by step, and below it the ancestry: a dot's area is its weight (needs matplotlib)."""
        pyplot = import_extra("matplotlib.pyplot", "plot")
        figure: Figure
        figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 6), height_ratios=(1, 2))
        steps, count = np.arange(1, len(self.ess) + 1), len(self.particles)
        above.plot(steps, self.ess, marker=".")
        for step in steps[self.resampled]:
            above.axvline(step, linestyle=":", color="grey")
        above.set(ylabel="effective sample size", ylim=(0, count * 1.05), title=f"log evidence {self.log_evidence:.3f}; dotted: resampled")
        alive = self._alive()
        for i, step in enumerate(steps):
            seen = alive[i]
            below.scatter(np.full(count, step)[seen], np.arange(count)[seen], s=3000 / count * self.step_weights[i][seen], color="C0")
            if i + 1 < len(steps):
                for child in np.flatnonzero(alive[i + 1]):
                    below.plot((step, step + 1), (self.ancestors[i, child], child), color="C0", linewidth=0.5, alpha=0.6)
        below.set(xlabel="step", ylabel="particle")
        return figure

    def _alive(self) -> NDArray[np.bool_]:
        """Which particles of each step have descendants among the last ones, bool [num_steps, num_particles]."""
        alive = np.ones(self.ancestors.shape, np.bool_)
        for i in range(len(alive) - 2, -1, -1):
            alive[i] = False
            alive[i, self.ancestors[i][alive[i + 1]]] = True
        return alive


class ParticlesInterrupted(Travels, KeyboardInterrupt):
    """Ctrl-C during a run. `output` holds the particles after the last whole step; the engine stays usable."""

    def __init__(self, output: ParticleOutput) -> None:
        super().__init__("the particle filter was interrupted; .output holds the particles after the last whole step")
        self.output = output
