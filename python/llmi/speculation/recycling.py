"""TokenRecycling: the target's own choices, used again."""

from __future__ import annotations

from llmi import _core
from llmi.base.travel import Alike
from llmi.speculation.drafters import Drafter


class TokenRecycling(Alike, Drafter):
    """Proposes a tree of the tokens that the model found likeliest after each token when it last saw it.

    The eight likeliest after every token that was computed are remembered, drafted ones included; the tree grows along the likeliest
    paths (Luo et al., Token Recycling, 2024). Chains where the verification takes no trees. Needs no training; gains where a text returns
    to what it has said.

    Under coupled verification all requests with this drafter share one memory. Under any other each continuation starts with an empty one
    and learns from its own rows alone, so that what others did reaches none of its tokens. `LLM.memory_report` counts the shared memory.

    Rows are read in fp32 on the CPU, about 0.02 ms a row for 50,000 ids; on a device each row comes to the host.

    Examples
    --------
    >>> config = SpeculativeConfig(TokenRecycling(), num_speculative_tokens=6)
    >>> params = SamplingParams(max_tokens=16, seed=1)
    >>> llm.generate("The sea is", params, speculative_config=config).texts == llm.generate("The sea is", params).texts
    True
    """

    expected_acceptance = 0.5

    def _core(self) -> _core.TokenRecycling:
        return _core.TokenRecycling()

    def __repr__(self) -> str:
        return "TokenRecycling()"
