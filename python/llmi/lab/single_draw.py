"""Which sampling parameters a single draw cannot honour."""

from __future__ import annotations

from llmi.base.kinds import show
from llmi.errors import UnsupportedCombinationError
from llmi.params.sampling import SamplingParams

_ENDS = "it ends no text; look at the sequence's output_text after each token"
_REFUSED = {
    "n": "it draws one token; fork() the sequence for more, each fork has noise of its own",
    "stop": _ENDS,
    "stop_regex": _ENDS,
    "repetition_detection": _ENDS,
    "stopping_criteria": _ENDS,
}


def check_single_draw(params: SamplingParams) -> None:
    """Raises for the first parameter that `TokenSequence.sample` would drop."""
    for name, why in _REFUSED.items():
        value = getattr(params, name)
        if value != 1 if name == "n" else value:
            raise UnsupportedCombinationError(f"{name} = {show(value)} does not work with sample(): {why}", name, "sample")
