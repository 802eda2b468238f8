"""What one request cannot ask for together, and what one feature leaves without effect: one table, which docs/parameters.md prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from llmi.errors import UnsupportedCombinationError
from llmi.params.options import is_streamer
from llmi.params.rows import combined
from llmi.params.sampling import SAMPLING, SamplingParams
from llmi.requests.resolve import Resolved
from llmi.requests.submission import Speculation
from llmi.tools.chat import ToolChat


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What one request asks for. names_drafter: `speculation` is the call's, not the engine's; caches_prefixes: the engine does."""

    use: Resolved
    speculation: Speculation | None
    names_drafter: bool
    tools: ToolChat | None
    caches_prefixes: bool

    @property
    def params(self) -> SamplingParams:
        """Its parameters."""
        return self.use.params

    @property
    def streamer(self) -> str:
        """The name of its streamer; "" without one."""
        hooks = SAMPLING["stopping_criteria"].parse(self.params.stopping_criteria)
        return next((type(hook).__name__ for hook in hooks if is_streamer(hook)), "")

    @property
    def drafts(self) -> Speculation | None:
        """Its speculation, None where another feature leaves it out."""
        return None if any(_FEATURES[name](self) for name in _WITHOUT_DRAFTS) else self.speculation

    def words(self) -> dict[str, str]:
        """What the sentences of the table quote."""
        drafts = self.drafts
        return {
            "beam_width": "" if self.use.beams is None else str(self.use.beams.beam_width),
            "penalty_alpha": "" if self.params.penalty_alpha is None else f"{self.params.penalty_alpha:g}",
            "streamer": self.streamer,
            "combined": combined(self.params) or "",
            "verification": "" if drafts is None else repr(drafts.verification_name),
        }


#: Features, by the names that the table and docs give them.
_FEATURES: dict[str, Callable[[Asked], bool]] = {
    "beam_width": lambda asked: asked.use.beams is not None,
    "penalty_alpha": lambda asked: asked.use.beams is None and asked.params.penalty_alpha is not None,
    "sampler": lambda asked: asked.params.sampler is not None,
    "sampler with guidance_scale or dola_layers": lambda asked: asked.params.sampler is not None and combined(asked.params) is not None,
    "xtc_probability": lambda asked: bool(asked.params.xtc_probability and asked.params.temperature),
    "streamer": lambda asked: bool(asked.streamer),
    "detokenize=False": lambda asked: not asked.params.detokenize,
    "tools": lambda asked: asked.tools is not None and bool(asked.tools.fields),
    "speculative_config": lambda asked: asked.speculation is not None and asked.names_drafter,
    "the engine's own speculative_config": lambda asked: asked.speculation is not None and not asked.names_drafter,
    "verification other than 'coupled'": lambda asked: asked.drafts is not None and not asked.drafts.is_coupled,
    "verification of whole drafts": lambda asked: asked.drafts is not None and asked.drafts.judges_whole_drafts,
    "enable_prefix_caching": lambda asked: asked.caches_prefixes,
}
_WITHOUT_DRAFTS = ("beam_width", "penalty_alpha", "sampler with guidance_scale or dola_layers")


@dataclasses.dataclass(frozen=True, slots=True)
class Combination:
    """Two features that do not go together.

    names : as the error has them.
    why : the error's sentence; "{...}" quotes a value (Asked.words).
    left_out : instead of an error, the option that has no effect then, and its value in `params_resolved`.
    """

    first: str
    second: str
    names: tuple[str, str]
    why: str
    left_out: tuple[str, Any] | None = None


_ENGINES = ("speculative_config", "engine")
#: In the order in which they are found.
COMBINATIONS = (
    Combination(
        "detokenize=False", "tools", ("detokenize", "tools"), "tools: detokenize=False gives no text in which calls could be found"
    ),
    Combination(
        "beam_width",
        "streamer",
        ("streamer", "beam_width"),
        "{streamer}: a streamer gets tokens as they come, and beams come whole at the end",
    ),
    Combination(
        "beam_width",
        "speculative_config",
        ("beam_width", "speculative_config"),
        "beam_width = {beam_width} and speculative_config: beam search computes the rows of all its beams, and verifies no drafts",
    ),
    Combination(
        "penalty_alpha",
        "speculative_config",
        ("penalty_alpha", "speculative_config"),
        "penalty_alpha = {penalty_alpha} and speculative_config: its candidates are a draft already",
    ),
    Combination(
        "sampler with guidance_scale or dola_layers",
        "speculative_config",
        ("sampler", "speculative_config"),
        "a custom sampler with {combined} runs without speculation: give speculative_config=None",
    ),
    *(
        Combination(name, "the engine's own speculative_config", (name, "speculative_config"), "it verifies no drafts", _ENGINES)
        for name in _WITHOUT_DRAFTS
    ),
    Combination(
        "penalty_alpha",
        "enable_prefix_caching",
        ("penalty_alpha", "enable_prefix_caching"),
        "the hidden states of the whole prompt are wanted",
        ("enable_prefix_caching", True),
    ),
    Combination(
        "sampler",
        "verification other than 'coupled'",
        ("sampler", "verification"),
        "a custom sampler draws its own tokens: only verification 'coupled' honours it",
    ),
    Combination(
        "xtc_probability",
        "verification of whole drafts",
        ("xtc_probability", "verification"),
        "xtc_probability: a row after the cut comes again with the same coin, which verification {verification} does not allow for: use"
        " 'coupled' or 'rejection'",
    ),
)


def settle(asked: Asked) -> Speculation | None:
    """The speculation of a request, of which `use.no_effect` gets what has none. Raises UnsupportedCombinationError for what does not go
    together."""
    for entry in COMBINATIONS:
        if not (_FEATURES[entry.first](asked) and _FEATURES[entry.second](asked)):
            continue
        if entry.left_out is None:
            raise UnsupportedCombinationError(entry.why.format(**asked.words()), *entry.names)
        name, value = entry.left_out
        asked.use.no_effect[name] = value
    return asked.drafts
