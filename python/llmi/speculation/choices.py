"""Trees of fixed shape, as paths of ranks: (0, 1) is the second likeliest token behind the likeliest."""

from __future__ import annotations

from collections.abc import Iterable

from llmi.base.kinds import Listed, Whole, parse
from llmi.errors import InvalidParamsError

_MAX_PATHS, _MAX_DEPTH, _MAX_RANK = 64, 16, 31
_PATHS = Listed(Listed(Whole(0, _MAX_RANK), "a path of ranks", _MAX_DEPTH), "a list of paths", _MAX_PATHS)

Tree = list[tuple[int, ...]]


def tree_of(choices: Iterable[Iterable[int]]) -> Tree:
    """The paths, those of the same depth together and in order. Raises InvalidParamsError where one has no parent or earlier sibling."""
    paths = sorted({tuple(path) for path in parse(_PATHS, "choices", choices)}, key=lambda path: (len(path), path))
    if not paths or not paths[0]:
        raise InvalidParamsError("choices holds no path, or an empty one", "choices")
    for path in paths:
        if len(path) > 1 and path[:-1] not in paths:
            raise InvalidParamsError(f"choices holds {path}, and not {path[:-1]}, behind which it stands", "choices")
        if path[-1] > 0 and (before := (*path[:-1], path[-1] - 1)) not in paths:
            raise InvalidParamsError(f"choices holds {path}, and not {before}, which is likelier", "choices")
    return paths


def nodes_of(tree: Tree) -> list[tuple[int, int]]:
    """(parent, rank) of each path; -1: the root."""
    places = {path: place for place, path in enumerate(tree)}
    return [(places.get(path[:-1], -1), path[-1]) for path in tree]
