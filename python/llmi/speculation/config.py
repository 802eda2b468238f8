"""Speculation of one LLM: its configuration, and what stands between the core and drafters written in Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

from llmi.base.kinds import Choice, Either, Object, Whole, callable_object, dimensions, parse
from llmi.errors import InvalidParamsError
from llmi.speculation.drafters import DrafterLike
from llmi.speculation.methods import drafter_of
from llmi.speculation.named import as_drafter
from llmi.speculation.verification import Typical, Verification

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    I32 = NDArray[np.int32]
else:
    from llmi.base.lazy_numpy import np

#: What may be given as speculative_config.
SpeculationLike: TypeAlias = "SpeculativeConfig | DrafterLike | Sequence[DrafterLike] | Mapping[str, object] | None"
MAX_SPECULATIVE_TOKENS = 256
MAX_JUDGED_TOKENS = 64  # where verification looks at the whole draft
_VERIFICATION = Either(
    (Choice(("coupled", "rejection", "block", "typical")), Object("", lambda value: isinstance(value, Verification))),
    "'coupled', 'rejection', 'block', 'typical' or a Verification",
)


class LengthPolicy(Protocol):
    """Chooses how many tokens to draft; may not look at drawn tokens.

    Under verification other than "coupled", lengths enter the result: tokens then depend on costs and on other sequences exactly as far
    as the policy looks at `cost_curve` and `num_running`.

    Examples
    --------
    >>> class WhileLikely:
    ...     def choose(self, acceptance, cost_curve, num_running):
    ...         return int((np.cumprod(acceptance) > 0.5).sum())
    >>> config = SpeculativeConfig(PromptLookup(), num_speculative_tokens=WhileLikely())
    >>> params = SamplingParams(max_tokens=16, seed=1)
    >>> llm.generate("one two one", params, speculative_config=config).texts == llm.generate("one two one", params).texts
    True
    """

    def choose(self, acceptance: F32, cost_curve: F32, num_running: int) -> int:
        """A length.

        Parameters
        ----------
        acceptance : float32 array [32]
            Probability that the draft's token at each depth is accepted, given those before it were.
        cost_curve : float32 array [32]
            Seconds of a step of 1, 2, ... rows on this machine.
        num_running : int
            Sequences that run.
        """
        ...


def _is_length_policy(value: object) -> bool:
    return callable_object(getattr(value, "choose", None)) and not isinstance(value, type) and dimensions(value) is None


@dataclasses.dataclass
class SpeculativeConfig:
    """How a request speculates.

    Parameters
    ----------
    drafter : Drafter, callable, "auto", or a list of them
        Several propose one merged tree, earlier ones first. "auto": what there is for the model: the heads that were loaded with it (LLM
        given "auto" loads those that come with llmi), a table, prompt lookup.
    num_speculative_tokens : int, "auto", or LengthPolicy
        Most tokens in a draft. "auto" picks, at each step, the length with the most expected tokens per second from the cost of a step
        and the acceptance seen, down to none; under verification other than "coupled" from a fixed table of costs and this sequence's
        own acceptance.
    verification : {"coupled", "rejection", "block", "typical"} or Verification
        "coupled": the very tokens of plain decoding, at any temperature. "rejection": accepts with probability
        min(1, target / draft), else draws from the rest; the distribution is exactly the target's. "block": the
        same distribution, chains only, judged as a whole: accepts more. "typical", and a Verification of your own, may change
        the distribution. All but "coupled" make tokens depend on the drafter and on num_speculative_tokens too, and on nothing else of
        the run: a draft goes whole into a step that has room for it.

    Examples
    --------
    >>> config = SpeculativeConfig(PromptLookup(), num_speculative_tokens=4)
    >>> params = SamplingParams(max_tokens=16, seed=1)
    >>> llm.generate("one two one", params, speculative_config=config).texts == llm.generate("one two one", params).texts
    True
    """

    drafter: DrafterLike | Sequence[DrafterLike]
    num_speculative_tokens: int | Literal["auto"] | LengthPolicy = "auto"
    verification: str | Verification = "coupled"

    #: Whether the drafter "auto" was among them: a lone drafter is then sized by token, too.
    _is_auto = False

    def __post_init__(self) -> None:
        drafters = self.drafter if isinstance(self.drafter, list | tuple) else [self.drafter]
        self._drafters = [as_drafter(entry) for entry in drafters]
        if not self._drafters:
            raise InvalidParamsError("drafter is an empty list", "drafter")
        self.verification = parse(_VERIFICATION, "verification", self.verification)
        if isinstance(self.verification, str) and self.verification == "typical":
            self.verification = Typical()
        if _is_length_policy(self.num_speculative_tokens):
            return
        longest = MAX_JUDGED_TOKENS if self._judges_whole_drafts else MAX_SPECULATIVE_TOKENS
        number = Whole(1, longest)
        rule = f"'auto', a LengthPolicy, or an integer in [1, {longest}] with verification {self.verification_name!r}"
        self.num_speculative_tokens = parse(
            Either((Choice(("auto",)), number), rule), "num_speculative_tokens", self.num_speculative_tokens
        )

    @property
    def _judges_whole_drafts(self) -> bool:
        return self.verification == "block" or (isinstance(self.verification, Verification) and self.verification.judges_whole_drafts)

    @property
    def verification_name(self) -> str:
        """As metrics and receipts show it."""
        return self.verification if isinstance(self.verification, str) else type(self.verification).__name__

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> SpeculativeConfig:
        """vLLM's keys: method ("ngram", "suffix", "draft_model", "eagle", "eagle3", "medusa", or llmi's own "auto"), model,
        num_speculative_tokens, and those of the methods."""
        drafter = drafter_of(config)
        length, verification = config.get("num_speculative_tokens"), config.get("verification")
        return cls(drafter, "auto" if length is None else length, "coupled" if verification is None else verification)


def parse_speculation(value: object) -> SpeculativeConfig | None:
    """The SpeculativeConfig for a value of the argument speculative_config, in any form that users may give."""
    if value is None or isinstance(value, SpeculativeConfig):
        return value
    if isinstance(value, Mapping):
        return SpeculativeConfig.from_dict(value)
    return SpeculativeConfig(cast("DrafterLike", value))  # which refuses what is no drafter
