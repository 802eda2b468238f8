"""Eagle: a trained layer on the target's own hidden rows drafts for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from llmi import _core
from llmi.base.kinds import Place, Whole, parse
from llmi.speculation.choices import nodes_of, tree_of
from llmi.speculation.draft_model import SHORTLIST, checked_shortlist
from llmi.speculation.drafters import LoadedDrafter
from llmi.speculation.heads import refuse_pickled

if TYPE_CHECKING:
    from llmi.session import Session

_NUM_TOKENS = Whole(1, 16)


class Eagle(LoadedDrafter):
    """One decoder layer, trained for a model, drafts from the model's own last hidden rows (Li et al., EAGLE, 2024).

    It is loaded with the model, so give it to LLM: `LLM(model, speculative_config=Eagle(path))`; a call may then switch it off with
    None, or have another verification. Its K and V are stored in the cache's blocks next to the model's, and are shared and given back with
    them.

    Parameters
    ----------
    path : path
        A folder with config.json and model.safetensors, or one .safetensors file whose metadata holds the config, or a folder with such an
        eagle.safetensors. `llmi train-heads` makes it; published EAGLE-1 files have the same names. EAGLE-3 files: folders as SpecForge and
        speculators write them, with EAGLE-3.1's norms, or a .gguf file as llama.cpp's converter makes it. A matrix may be stored in Q4_0,
        as `name.q4_0` of uint8 [rows, columns / 32 * 18]; it is then used as it is. Pickled files are refused.
    num_draft_tokens : int
        Most tokens of a draft, in [1, 16]: a chain.
    choices : paths, optional
        A tree instead of the chain: each path gives ranks from the root, (0,) the likeliest first token, (0, 1) behind it the second
        likeliest, at most 64 paths; num_draft_tokens is then their number.
    shortlist : int, optional
        Where the file lists no tokens and the vocabulary has more than twice as many: drafts are chosen from this number of its first.
        None: from all.

    Raises
    ------
    ModelFileError
        At load: the file is of another width or vocabulary, truncated or pickled, lacks a tensor, has a packed one with NaN or
        together with the same one unpacked, or has a key or a tensor that llmi does not know.

    Examples
    --------
    >>> report = llmi.train_heads(llm, "heads", prompts=["The sea is", "The sky is"], steps=2)  # many more, for heads that help
    >>> with LLM(llm.model_info.path, speculative_config=Eagle("heads"), kv_cache_memory_bytes=1 << 24) as quick:
    ...     texts = quick.generate("The sea is", max_tokens=8, seed=1).texts
    >>> texts == llm.generate("The sea is", max_tokens=8, seed=1).texts
    True
    """

    expected_acceptance = 0.4

    def __init__(
        self,
        path: str | os.PathLike[str],
        num_draft_tokens: int = 2,
        *,
        choices: Iterable[Iterable[int]] | None = None,
        shortlist: int | None = SHORTLIST,
    ) -> None:
        self.path = str(parse(Place(), "path", path))
        self.choices = None if choices is None else tree_of(choices)
        self.num_draft_tokens: int = (
            parse(_NUM_TOKENS, "num_draft_tokens", num_draft_tokens) if choices is None else len(self.choices or ())
        )
        self.shortlist = checked_shortlist(shortlist)
        refuse_pickled(Path(self.path))

    def _attach(self, llm: Session) -> None:
        if llm._eagle != (self.path, self.shortlist):
            self._refuse(self.path, "without one" if llm._eagle is None else f"with {llm._eagle[0]}")

    def _core(self) -> _core.EagleDrafter:
        chain = [(node - 1, 0) for node in range(self.num_draft_tokens)]
        return _core.EagleDrafter(chain if self.choices is None else nodes_of(self.choices))

    def __repr__(self) -> str:
        return f"Eagle({self.path!r}, {self.num_draft_tokens})" if self.choices is None else f"Eagle({self.path!r}, choices={self.choices})"
