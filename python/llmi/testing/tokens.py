"""Outputs that must be equal."""

from __future__ import annotations

from llmi.outputs.results import Outputs


def assert_same_tokens(actual: Outputs, expected: Outputs, *, logprobs: bool = True) -> None:
    """Fails at the first token, text, score or log-probability that differs, and says which.

    Parameters
    ----------
    actual, expected : Outputs
    logprobs : bool
        Compare log-probabilities too, where both have them, bit for bit.

    Raises
    ------
    AssertionError

    Examples
    --------
    >>> assert_same_tokens(llm.generate("The sea is", max_tokens=8, seed=1), llm.generate("The sea is", max_tokens=8, seed=1))
    """
    assert len(actual) == len(expected), f"{len(actual)} outputs, expected {len(expected)}"
    for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
        assert a.prompt_token_ids == b.prompt_token_ids, f"prompt {i} differs"
        assert len(a.outputs) == len(b.outputs), f"request {i}: {len(a.outputs)} continuations, expected {len(b.outputs)}"
        for x, y in zip(a.outputs, b.outputs, strict=True):
            where = f"request {i}, continuation {x.index}"
            for position, (token, wanted) in enumerate(zip(x.token_ids, y.token_ids, strict=False)):
                if token != wanted:
                    gap = ""
                    if x.logprobs and y.logprobs and wanted in x.logprobs[position]:
                        gap = f"; log-probability gap {x.logprobs[position][token].logprob - x.logprobs[position][wanted].logprob:.3g}"
                    raise AssertionError(f"{where}: position {position} is token {token}, expected {wanted}{gap}")
            assert len(x.token_ids) == len(y.token_ids), f"{where}: {len(x.token_ids)} tokens, expected {len(y.token_ids)}"
            assert (x.text, x.finish_reason, x.stop_reason) == (y.text, y.finish_reason, y.stop_reason), f"{where}: text or end differs"
            assert (x.score, x.beam_indices) == (y.score, y.beam_indices), f"{where}: score or beam indices differ: {x.score} != {y.score}"
            if logprobs and x.logprobs is not None and y.logprobs is not None:
                for position, (p, q) in enumerate(zip(x.logprobs, y.logprobs, strict=True)):
                    assert p == q, f"{where}: log-probabilities differ at position {position}: {p} != {q}"
        if logprobs:
            assert a.prompt_logprobs == b.prompt_logprobs, f"request {i}: prompt log-probabilities differ"
