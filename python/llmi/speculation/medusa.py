"""Medusa: heads on the target's last hidden row draft for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from llmi import _core
from llmi.base.kinds import Place, parse
from llmi.errors import InvalidParamsError
from llmi.speculation.choices import Tree, nodes_of, tree_of
from llmi.speculation.drafters import LoadedDrafter
from llmi.speculation.heads import refuse_pickled

if TYPE_CHECKING:
    from llmi.session import Session

#: Heads guess their first token rightly in a quarter to a third of cases, and it is among their three likeliest in nearly half.
DEFAULT_TREE: Tree = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]


class Medusa(LoadedDrafter):
    """Heads, trained for a model, each guess one of the next tokens from the model's last hidden row (Cai et al., Medusa, 2024).

    They are loaded with the model, so give them to LLM: `LLM(model, speculative_config=Medusa(heads))`; a call may then switch them off
    with None, have another tree, or another verification: the paper's own is "typical". They keep no K and V, so prefix hits, preemption
    and other requests leave every draft as it is. A head does not see what the heads before it have guessed.

    Parameters
    ----------
    heads : path
        A folder with config.json and model.safetensors or medusa_lm_head.safetensors, or one .safetensors file whose metadata holds the
        config. `llmi train-heads --kind medusa` makes it. Published heads have the same names: `0.0.linear.weight` and `.bias`, and
        `0.1.weight` for a head's own matrix over the vocabulary; without such matrices the model's own head stands for them. Pickled files
        are refused.
    choices : paths, optional
        The tree of a draft: each path gives ranks from the root, (0,) the likeliest first token, (0, 1) behind it the second likeliest of
        the second head, at most 64 paths, none longer than there are heads. With a smaller num_speculative_tokens the first of them are
        drafted, those of the same depth in order; where the verification takes no trees, the likeliest of each depth. None: up to seven
        tokens in three depths.

    Raises
    ------
    ModelFileError
        At load: the file is of another width or vocabulary, truncated or pickled, or lacks a tensor.
    InvalidParamsError
        A path of `choices` lacks its beginning or a likelier sibling; at load: it is longer than there are heads.

    Examples
    --------
    >>> report = train_heads(llm, "heads", prompts=["The sea is", "The sky is"], steps=2, kind="medusa")
    >>> with LLM(llm.model_info.path, speculative_config=Medusa("heads"), kv_cache_memory_bytes=1 << 24) as quick:
    ...     texts = quick.generate("The sea is", max_tokens=8, seed=1).texts
    >>> texts == llm.generate("The sea is", max_tokens=8, seed=1).texts
    True
    """

    expected_acceptance = 0.3

    def __init__(self, heads: str | os.PathLike[str], *, choices: Iterable[Iterable[int]] | None = None) -> None:
        self.heads = str(parse(Place(), "heads", heads))
        self.choices = None if choices is None else tree_of(choices)
        refuse_pickled(Path(self.heads))

    def _attach(self, llm: Session) -> None:
        path, num_heads = llm._medusa or (None, 0)
        if path != self.heads:
            self._refuse(self.heads, "without heads" if path is None else f"with {path}")
        self._check_depth(num_heads)

    def _check_depth(self, num_heads: int) -> None:
        deepest = max(self.choices or [()], key=len)
        if len(deepest) > num_heads:
            raise InvalidParamsError(f"choices: {deepest} has {len(deepest)} tokens, and {self.heads} has {num_heads} heads", "choices")

    def _core(self) -> _core.MedusaDrafter:
        return _core.MedusaDrafter(nodes_of(DEFAULT_TREE if self.choices is None else self.choices))

    def __repr__(self) -> str:
        return f"Medusa({self.heads!r})" if self.choices is None else f"Medusa({self.heads!r}, choices={self.choices})"
