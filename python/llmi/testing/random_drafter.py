"""A drafter of known quality."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmi.llm import LLM
from llmi.session import Session
from llmi.speculation.context import DraftContext
from llmi.speculation.draft_model import DraftModel
from llmi.speculation.drafters import Drafter


class RandomDrafter(Drafter):
    """Drafts the target's own next token with probability `quality`, else a random one: known acceptance."""

    def __init__(self, quality: float, seed: int) -> None:
        self.quality = quality
        self.seed = seed
        self._model: DraftModel | None = None

    def _attach(self, llm: Session) -> None:
        if self._model is None:  # a second engine of the target's own model, with the target's bits
            self._model = DraftModel(
                LLM(
                    llm.model_info.path,
                    **llm._engine_args.same_bits(),
                    kv_cache_memory_bytes=1 << 26,
                    max_model_len=llm.model_info.max_model_len,
                    tokenizer=llm.tokenizer,
                    _files=llm._files,
                )
            )

    def propose_batch(self, contexts: list[DraftContext]) -> list[Any]:
        assert self._model is not None
        drafts = []
        for context, draft in zip(contexts, self._model.propose_batch(contexts), strict=True):
            tokens = draft.token_ids.tolist()  # type: ignore[union-attr]
            rng = np.random.default_rng([self.seed, len(context.token_ids), context.index, int(context.token_ids[-1])])
            vocab_size = context._llm.model_info.vocab_size
            drafts.append([token if rng.random() < self.quality else int(rng.integers(vocab_size)) for token in tokens])
        return drafts


def random_drafter(quality: float, *, seed: int = 0) -> Drafter:
    """A drafter of known quality: proposes the target's own next token with probability `quality`, else a random one.

    Parameters
    ----------
    quality : float
        In [0, 1].
    seed : int
        Of its own noise.

    Returns
    -------
    Drafter

    Raises
    ------
    ValueError
        A quality outside [0, 1].

    Examples
    --------
    >>> drafter = random_drafter(0.8, seed=1)
    >>> params = SamplingParams(max_tokens=16, seed=1)
    >>> llm.generate("The sea is", params, speculative_config=drafter).texts == llm.generate("The sea is", params).texts
    True
    """
    if not 0 <= quality <= 1:
        raise ValueError("quality must lie in [0, 1]")
    return RandomDrafter(quality, seed)
