"""A particle as user code sees it."""

from __future__ import annotations

from llmi.lab.sequence import TokenSequence


class Prefix:
    """A particle as a potential sees it.

    Attributes
    ----------
    prompt_token_ids : list of int
    token_ids : tuple of int
        The output so far, with the token that ended it.
    is_finished : bool
        Whether nothing follows: the particle drew end-of-text or a stop token, or has max_tokens.

    Examples
    --------
    >>> def no_e(prefix: Prefix) -> float:
    ...     return -np.inf if "e" in prefix.text else 0.0
    >>> output = ParticleFilter(16, potential=no_e).run(llm, "The sea is", max_tokens=4, seed=1)
    >>> any("e" in text for text in output.texts())
    False
    """

    def __init__(self, root: TokenSequence, token_ids: tuple[int, ...], finish_reason: str | None, skip_special_tokens: bool) -> None:
        self.prompt_token_ids: list[int] = root.token_ids[: root.prompt_len].tolist()
        self.token_ids = token_ids
        self.is_finished = finish_reason is not None
        self._decode = root.llm._decode
        self._skip_special_tokens = skip_special_tokens
        self._num_shown = len(token_ids) - (finish_reason == "stop")

    @property
    def text(self) -> str:
        """The output's text, without what ended it."""
        return self._decode(list(self.token_ids[: self._num_shown]), self._skip_special_tokens)

    def __repr__(self) -> str:
        return f"Prefix({list(self.token_ids)}, is_finished={self.is_finished})"
