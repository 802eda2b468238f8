"""The particles of a run. Those with equal histories share one sequence and one row of the model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from llmi.errors import ConstraintError, HookError, OutOfMemoryError
from llmi.lab.memory import Draw, Memory
from llmi.lab.sequence import TokenSequence, extend
from llmi.smc.numeric import F64, I64, RESAMPLING_NOISE, TOKEN_NOISE, exp, log, total, uniforms
from llmi.smc.resampling import RESAMPLERS, effective_sample_size
from llmi.smc.result import Particle, ParticleOutput
from llmi.smc.target import History, Proposal, Target


@dataclasses.dataclass(frozen=True)
class Step:
    """How one step went."""

    ess: float
    resampled: bool
    ancestors: I64
    weights: F64


@dataclasses.dataclass(frozen=True)
class Weighted:
    """Particles after whole steps: owner[i] is the history of particle i."""

    histories: list[History]
    owner: I64
    log_weights: F64
    log_evidence: float  # of the steps up to the last resampling
    steps: tuple[Step, ...]


class Grown:
    """Particles in the middle of a step."""

    def __init__(self, before: Weighted) -> None:
        self.histories: list[History] = []
        self.parents: list[History] = []
        self.owner = before.owner.copy()
        self.log_weights = before.log_weights.copy()

    def add(self, history: History, parent: History, particles: I64) -> None:
        """Gives these particles a history."""
        self.owner[particles] = len(self.histories)
        self.histories.append(history)
        self.parents.append(parent)


class Population:
    """The weighted particles of a run, `now`, and the sequences of those that go on.

    A step replaces `now` at its end: what comes in the middle of one leaves the particles of the step before.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.settings = target.settings
        self.root = target.root
        self.num_rows = 0
        self._open: set[TokenSequence] = {self.root}
        first = target.first()
        count = self.settings.num_particles
        self.now = Weighted([first], np.zeros(count, np.int64), np.full(count, first.log_potential), 0.0, ())
        self._check_alive([first], first.log_potential, "before the first token")

    @property
    def is_finished(self) -> bool:
        """Whether no particle goes on."""
        return all(history.finish_reason is not None for history in self.now.histories)

    def close(self) -> None:
        """Gives the caches back."""
        while self._open:
            self._open.pop().close()

    def step(self) -> None:
        """Every particle that goes on gets a token and a weight; then all are resampled if too few of them count."""
        now, target = self.now, self.target
        numbers = uniforms(self.root.seed, TOKEN_NOISE, self.root.prompt_len + len(now.steps), len(now.owner))
        members = _members(now.owner, len(now.histories))
        grown = Grown(now)
        for history, particles in zip(now.histories, members, strict=True):
            if history.finish_reason is not None:
                grown.add(history, history, particles)
        for index, proposal in self._proposals():
            history, particles = now.histories[index], members[index]
            grown.log_weights[particles] += proposal.log_factor
            if proposal.log_factor == -math.inf:
                grown.add(target.dead_end(history), history, particles)
                continue
            tokens = proposal.draw(numbers[particles])
            for token in np.unique(tokens).tolist():
                child = target.child(history, token)
                theirs = particles[tokens == token]
                grown.log_weights[theirs] += child.log_potential - history.log_potential
                grown.add(child, history, theirs)
        self._end_step(grown)

    def output(self) -> ParticleOutput:
        """The particles as they are."""
        now = self.now
        peak = float(now.log_weights.max())
        weights = exp(now.log_weights - peak)
        mass, count = total(weights), len(weights)
        texts = [self.target.prefix(history.token_ids, history.finish_reason).text for history in now.histories]
        particles = []
        for owner, weight in zip(now.owner.tolist(), (weights / mass).tolist(), strict=True):
            history = now.histories[owner]
            particles.append(Particle(list(history.token_ids), texts[owner], weight, history.finish_reason or "abort"))
        return ParticleOutput(
            prompt_token_ids=self.root.token_ids[: self.root.prompt_len].tolist(),
            particles=particles,
            log_evidence=now.log_evidence + peak + log(mass / count),
            ess=np.array([step.ess for step in now.steps], np.float64),
            resampled=np.array([step.resampled for step in now.steps], np.bool_),
            ancestors=np.array([step.ancestors for step in now.steps], np.int64).reshape(-1, count),
            step_weights=np.array([step.weights for step in now.steps], np.float64).reshape(-1, count),
            seed=self.root.seed,
            num_rows=self.num_rows,
        )

    # --- inside a step

    def _proposals(self) -> Iterator[tuple[int, Proposal]]:
        """The proposal of each history that goes on. Rows are computed for max_num_seqs sequences at a time, fewer if memory is short."""
        histories = self.now.histories
        going = [index for index, history in enumerate(histories) if history.finish_reason is None]
        size = int(str(self.root.llm._engine_args.passed_on["max_num_seqs"]))
        begin = 0
        while begin < len(going):
            batch = {sequence: index for index in going[begin : begin + size] if (sequence := histories[index].sequence) is not None}
            try:
                extend({sequence: histories[index].pending for sequence, index in batch.items()})
            except OutOfMemoryError:
                if len(batch) == 1:
                    raise
                size = len(batch) // 2
                continue
            self.num_rows += sum(len(histories[index].pending) for index in batch.values())
            for sequence, index in batch.items():
                drawn = sequence._drawn(self.target.params, sequence.logits)
                sequence._draws.note(Draw(len(sequence), None, Memory(drawn.core.sampler_state, drawn.hooks)))
                sequence._forget()  # a row is as long as the vocabulary
                yield index, self.target.proposal(histories[index], drawn.core.law.astype(np.float64))
            begin += len(batch)

    def _end_step(self, grown: Grown) -> None:
        """Normalises, resamples, and gives each history that is left and goes on a sequence."""
        now, count = self.now, len(grown.owner)
        owner, log_weights = grown.owner, grown.log_weights
        peak = float(log_weights.max())
        self._check_alive(grown.histories, peak, f"after {len(now.steps) + 1} tokens")
        weights = exp(log_weights - peak)
        mass, ess = total(weights), effective_sample_size(weights)
        ancestors, log_evidence = np.arange(count), now.log_evidence
        going = any(history.finish_reason is None for history in grown.histories)
        resampled = going and ess < self.settings.ess_threshold * count
        if resampled:
            numbers = uniforms(self.root.seed, RESAMPLING_NOISE, self.root.prompt_len + len(now.steps), count)
            ancestors = RESAMPLERS[self.settings.resampler](weights / mass, numbers)
            log_evidence += peak + log(mass / count)
            log_weights = np.zeros(count)
            owner = owner[ancestors]
        kept = np.unique(owner)
        self._hand_on([(grown.histories[i], grown.parents[i]) for i in kept])
        step = Step(ess, resampled, ancestors, weights / mass)
        histories = [grown.histories[i] for i in kept]
        self.now = Weighted(histories, np.searchsorted(kept, owner), log_weights, log_evidence, (*now.steps, step))

    def _hand_on(self, kept: list[tuple[History, History]]) -> None:
        """The last child of a history takes its sequence, the others fork it; a sequence without a child is closed."""
        heirs: dict[int, list[History]] = {id(history): [] for history in self.now.histories}
        for history, parent in kept:
            if history.finish_reason is None:
                heirs[id(parent)].append(history)
        for history in self.now.histories:
            sequence, children = history.sequence, heirs[id(history)]
            if sequence is None:
                continue
            for child in children[:-1]:
                child.sequence = sequence.fork()
                self._open.add(child.sequence)
            if children:
                children[-1].sequence = sequence
            elif sequence is not self.root:
                self._open.discard(sequence)
                sequence.close()

    def _check_alive(self, histories: list[History], peak: float, when: str) -> None:
        """Raises if the largest log-weight is -inf, with the arguments that made it so."""
        if peak > -math.inf:
            return
        names = sorted({history.killed_by for history in histories})
        kind = ConstraintError if names == ["constraint"] else HookError
        raise kind(f"{' and '.join(names)}: the weights of all {self.settings.num_particles:,} particles are 0 {when}", names[-1])


def _members(owner: I64, count: int) -> list[I64]:
    """The particles of each of `count` histories, ascending."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, count)))
