"""What does not go together is refused by name, or has no effect and says so: each row of the table that docs/parameters.md prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import llmi
from llmi.requests.combinations import COMBINATIONS, Asked, Combination, settle
from llmi.requests.resolve import resolve_params

PLAIN = SimpleNamespace(is_coupled=True, judges_whole_drafts=False, verification_name="coupled")
BLOCK = SimpleNamespace(is_coupled=False, judges_whole_drafts=True, verification_name="block")


class Streamer:
    def put(self, value: Any) -> None: ...
    def end(self) -> None: ...


def sampler(context: Any, logits: Any) -> int:
    return 0


ROWS = {"sampler": sampler, "dola_layers": "low"}
NAMED = {"speculation": PLAIN, "names_drafter": True}
ENGINES = {"speculation": PLAIN, "names_drafter": False}
OTHER = "sampler with guidance_scale or dola_layers"
#: Of each row: parameters, what else is asked, and what the sentence quotes.
CASES: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any], str]] = {
    ("detokenize=False", "tools"): ({"detokenize": False}, {"tools": SimpleNamespace(fields={"structured_outputs": 1})}, "tools: "),
    ("beam_width", "streamer"): ({"beam_width": 2, "stopping_criteria": [Streamer()]}, {}, "Streamer: a streamer"),
    ("beam_width", "speculative_config"): ({"beam_width": 3}, NAMED, "beam_width = 3 and"),
    ("penalty_alpha", "speculative_config"): ({"penalty_alpha": 0.5, "top_k": 4}, NAMED, "penalty_alpha = 0.5 and"),
    (OTHER, "speculative_config"): (ROWS, NAMED, "with dola_layers runs"),
    ("beam_width", "the engine's own speculative_config"): ({"beam_width": 2}, ENGINES, "engine"),
    ("penalty_alpha", "the engine's own speculative_config"): ({"penalty_alpha": 0.5, "top_k": 4}, ENGINES, "engine"),
    (OTHER, "the engine's own speculative_config"): (ROWS, ENGINES, "engine"),
    ("penalty_alpha", "enable_prefix_caching"): ({"penalty_alpha": 0.5, "top_k": 4}, {"caches_prefixes": True}, "True"),
    ("sampler", "verification other than 'coupled'"): ({"sampler": sampler}, {"speculation": BLOCK}, "only verification 'coupled'"),
    ("xtc_probability", "verification of whole drafts"): (
        {"xtc_probability": 0.5, "temperature": 1.0},
        {"speculation": BLOCK},
        "verification 'block' does not",
    ),
}


def asked(params: dict[str, Any], **more: Any) -> Asked:
    none: dict[str, Any] = {"speculation": None, "names_drafter": False, "tools": None, "caches_prefixes": False}
    return Asked(resolve_params(None, params, {}), **(none | more))


def test_every_row_has_a_case() -> None:
    assert {(entry.first, entry.second) for entry in COMBINATIONS} == set(CASES)


@pytest.mark.parametrize("entry", COMBINATIONS, ids=lambda entry: f"{entry.first}, {entry.second}")
def test_what_does_not_go_together(entry: Combination) -> None:
    """And either alone is taken."""
    params, more, quoted = CASES[entry.first, entry.second]
    both = asked(params, **more)
    if entry.left_out is not None:
        assert settle(both) is None and str(both.use.no_effect[entry.left_out[0]]) == quoted
    else:
        with pytest.raises(llmi.UnsupportedCombinationError) as caught:
            settle(both)
        assert quoted in str(caught.value) and (caught.value.feature_a, caught.value.feature_b) == entry.names
        assert "{" not in str(caught.value)
    alone = asked({}, **more)
    assert settle(alone) is more.get("speculation") and not alone.use.no_effect
    if more:
        alone = asked(params)
        assert settle(alone) is None and not alone.use.no_effect


def test_calls_ask_the_table(tiny_path: Callable[..., Path]) -> None:
    drafter = llmi.SpeculativeConfig(llmi.PromptLookup(), 3)
    with llmi.LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_num_seqs=4, speculative_config=drafter) as llm:
        output = llm.generate("ab", beam_width=2, max_tokens=2)[0]
        assert output.params_resolved["speculative_config"] == ("engine", "no effect")
        with pytest.raises(llmi.UnsupportedCombinationError, match="beam search computes the rows of all its beams"):
            llm.generate("ab", beam_width=2, max_tokens=2, speculative_config=drafter)
        with pytest.raises(llmi.InvalidParamsError, match="beam_width = 5 exceeds max_num_seqs = 4"):
            llm.generate("ab", beam_width=5, max_tokens=2)
