"""A tree of tokens to try after a sequence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from llmi.base.kinds import Listed, Maybe, Whole, entries_of, parse, refuse
from llmi.base.travel import Alike
from llmi.errors import InvalidParamsError
from llmi.text.prompts import token_list

_PARENTS = Listed(Whole(-1, 2**31 - 1, "a parent, an integer of -1 or more"), "a list of parents", 1 << 20)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    I32 = NDArray[np.int32]
else:
    from llmi.base.lazy_numpy import np


class TokenTree(Alike):
    """Tokens to try behind a sequence: a chain, or a tree.

    Parameters
    ----------
    token_ids : ids [num_nodes]
    parents : ints [num_nodes], optional
        parents[i] < i is the node before node i; -1 = after the last committed token. None: a chain.

    Examples
    --------
    >>> tree = TokenTree([5, 7, 9], parents=[-1, 0, 0])  # 5, and behind it 7 or 9
    >>> with llm.sequence("The sea is") as sequence:
    ...     sequence.extend(tree).shape[0]
    3
    """

    def __init__(self, token_ids: Iterable[int], parents: Iterable[int] | None = None) -> None:
        self.token_ids: I32 = np.asarray(token_list(token_ids, "token_ids"), np.int32)
        chain = np.arange(-1, len(self.token_ids) - 1, dtype=np.int32)
        self.parents: I32 = chain if parents is None else np.asarray(parse(_PARENTS, "parents", parents), np.int32)
        if len(self.parents) != len(self.token_ids):
            raise InvalidParamsError(f"{len(self.parents)} parents for {len(self.token_ids)} tokens", "parents")

    @classmethod
    def from_paths(cls, paths: Iterable[Iterable[int]], max_nodes: int | None = None) -> TokenTree:
        """The tree of these paths: shared beginnings are merged, earlier paths first, cut to max_nodes nodes."""
        nodes: dict[tuple[int, int], int] = {}
        token_ids: list[int] = []
        parents: list[int] = []
        max_nodes = parse(Maybe(Whole(0, 2**31 - 1, "None or an integer of 0 or more")), "max_nodes", max_nodes)
        listed = entries_of("paths", paths)
        if listed is None:
            raise refuse("paths", "a list of lists of token ids", paths)
        for path in listed:
            node = -1
            for token in token_list(path, "paths"):
                key = (node, token)
                if key not in nodes:
                    if max_nodes is not None and len(token_ids) >= max_nodes:
                        break
                    nodes[key] = len(token_ids)
                    token_ids.append(token)
                    parents.append(node)
                node = nodes[key]
        return cls(token_ids, parents)

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.token_ids.tolist()}, parents={self.parents.tolist()})"
