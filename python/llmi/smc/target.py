"""The target of a particle filter: the model's distribution, a power of it, a constraint, a potential."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np

from llmi.base.kinds import plain, show
from llmi.errors import HookError, LlmiError
from llmi.hooks.constraint import ConstraintMasks
from llmi.lab.sequence import TokenSequence
from llmi.params.sampling import SamplingParams
from llmi.smc.numeric import F64, I64, exp, log, total
from llmi.smc.prefix import Prefix
from llmi.smc.settings import Settings
from llmi.structured import constraint_of
from llmi.structured.thinking import written

P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(eq=False, slots=True)
class History:
    """The output of one or more particles."""

    token_ids: tuple[int, ...]
    state: object  # of the constraint
    log_potential: float
    finish_reason: str | None = None
    killed_by: str = ""  # the argument that made the weight 0
    sequence: TokenSequence | None = None  # of a history that goes on; it lacks `pending`
    pending: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Proposal:
    """The distribution of a history's next token: running sums of masses, float64 [vocab_size], and the factor of the weight."""

    ends: F64
    log_factor: float

    def draw(self, numbers: F64) -> I64:
        """A token for each number in (0, 1)."""
        drawn: I64 = np.searchsorted(self.ends, numbers * self.ends[-1], side="right")
        return drawn


class Target:
    """The target of a run: its factors for one token."""

    def __init__(self, settings: Settings, root: TokenSequence, params: SamplingParams) -> None:
        self.settings = settings
        self.root = root
        self.params = params
        self._ends = frozenset(root.llm._builder.ends(params))
        self._stops = frozenset([*(() if params.ignore_eos else self._ends), *(params.stop_token_ids or [])])
        self._constraint = constraint_of(
            settings.constraint, root.llm.tokenizer, lambda: written(root.llm.tokenizer, root.token_ids.tolist())
        )
        self._masks = None if self._constraint is None else ConstraintMasks(self._constraint, self._ends)

    def prefix(self, token_ids: tuple[int, ...], reason: str | None) -> Prefix:
        """A history as user code sees it."""
        return Prefix(self.root, token_ids, reason, self.params.skip_special_tokens)

    def first(self) -> History:
        """The history without tokens."""
        state = None if self._constraint is None else _ask("constraint", self._constraint.initial_state)
        log_potential = self._potential((), None)
        killed_by = "potential" if log_potential == -math.inf else ""
        return History((), state, log_potential, "dead" if killed_by else None, killed_by, self.root)

    def proposal(self, history: History, law: F64) -> Proposal:
        """The distribution to the power, where the constraint allows it. law: float64 [vocab_size], -inf where cut.

        With p = exp(law) / sum of exp(law), the factor is the sum of p^power over the allowed tokens: exactly 1 for a power of 1
        without a constraint, 0 in a dead end.
        """
        power = self.settings.power
        if self.params.temperature == 0.0:  # all mass is on the likeliest
            law = np.where(np.arange(len(law)) == int(law.argmax()), 0.0, -math.inf)
        peak = float(law.max())
        if self._masks is None and power == 1.0:
            return Proposal(np.cumsum(exp(law - peak)), 0.0)
        allowed = law
        if self._masks is not None:
            allowed = np.where(_ask("constraint", self._masks.mask, history.state, len(law)), law, -math.inf)
        top = float(allowed.max())
        if top == -math.inf:
            return Proposal(np.zeros(1), -math.inf)
        ends = np.cumsum(exp(power * (allowed - top)))
        log_mass = log(float(ends[-1])) + power * (top - peak)  # before the distribution's own division
        return Proposal(ends, log_mass - power * log(total(exp(law - peak))))

    def dead_end(self, parent: History) -> History:
        """The history where nothing is allowed."""
        return History(parent.token_ids, parent.state, -math.inf, "dead", "constraint")

    def child(self, parent: History, token: int) -> History:
        """The history that continues with a token."""
        token_ids = (*parent.token_ids, token)
        reason = "stop" if token in self._stops else "length" if len(token_ids) == self.params.max_tokens else None
        if reason == "length" and self.settings.must_end:
            return History(token_ids, parent.state, -math.inf, "dead", "must_end")
        state = parent.state
        if self._constraint is not None and token not in self._ends:
            state = _ask("constraint", self._constraint.advance, state, token)
        log_potential = self._potential(token_ids, reason)
        if log_potential == -math.inf:
            return History(token_ids, state, log_potential, "dead", "potential")
        return History(token_ids, state, log_potential, reason, pending=(token,))

    def _potential(self, token_ids: tuple[int, ...], reason: str | None) -> float:
        if self.settings.potential is None:
            return 0.0
        value = plain(_ask("potential", self.settings.potential, self.prefix(token_ids, reason)))
        if isinstance(value, bool) or not isinstance(value, int | float) or not value < math.inf:
            raise HookError(f"potential returns a number below infinity, the logarithm of a weight, not {show(value)}", "potential")
        return float(value)


def _ask(name: str, hook: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """The answer of the user's code. What goes wrong in it names the argument."""
    try:
        return hook(*args, **kwargs)
    except LlmiError:
        raise
    except Exception as error:
        raise HookError(f"{name} raised {type(error).__name__}: {error}", name) from error
