"""thinking_token_budget of one request: the tokens that begin and end its thinking, and where its prompt leaves off."""

from __future__ import annotations

import math

from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.params.structured import StructuredOutputsParams
from llmi.requests.submission import Submission
from llmi.structured.thinking import MARKERS, state_behind, thinking_of_model
from llmi.text.tokenizer import Tokenizer


def thinking_limits(tokenizer: Tokenizer, submission: Submission) -> tuple[int | None, int, int, bool] | None:
    """(token that begins thinking, or None where no block begins in the output; token that ends it; budget; whether the prompt is inside).

    None without a budget. Raises InvalidParamsError or UnsupportedCombinationError where it cannot be kept.
    """
    params = submission.params
    budget = params.thinking_token_budget
    if budget is None:
        return None
    thinking = thinking_of_model(tokenizer)
    if thinking is None:
        raise InvalidParamsError(
            f"thinking_token_budget = {budget}: neither the chat template nor the special tokens of this model name thinking "
            f"({', '.join(thinking.ends for thinking in MARKERS)}): leave it out",
            "thinking_token_budget",
        )
    begins, ends = (_token_of(tokenizer, text) for text in (thinking.begins, thinking.ends))
    if ends is None:
        raise InvalidParamsError(
            f"thinking_token_budget = {budget}: {thinking.ends!r} is no token of this model, which may spell it in several ways: leave"
            " it out",
            "thinking_token_budget",
        )
    state = state_behind(submission.prompt or "", thinking, tokenizer.special_pattern)
    _check_together(submission, thinking.ends, ends)
    return begins, ends, budget, state == "open"


def _token_of(tokenizer: Tokenizer, text: str) -> int | None:
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
    return ids[0] if len(ids) == 1 else None


def _check_together(submission: Submission, text: str, ends: int) -> None:
    """Refuses what never lets the mark follow."""
    params = submission.params
    banned = (
        ("logit_bias", (params.logit_bias or {}).get(ends) == -math.inf),
        ("allowed_token_ids", params.allowed_token_ids is not None and ends not in params.allowed_token_ids),
        ("bad_words", any(word in (text, [ends]) for word in params.bad_words or ())),
    )
    for name, bans in banned:
        if bans:
            raise UnsupportedCombinationError(
                f"thinking_token_budget: {name} bans {text!r} (token id {ends}), which must follow", "thinking_token_budget", name
            )
    what = params.structured_outputs
    if isinstance(what, StructuredOutputsParams) and not what.after_thinking:
        raise UnsupportedCombinationError(
            "thinking_token_budget: structured_outputs constrains the output from its first token, so there is no thinking: give"
            " after_thinking=True",
            "thinking_token_budget",
            "structured_outputs",
        )
