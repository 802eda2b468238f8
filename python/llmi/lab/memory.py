"""The memory of samplers and hooks along a sequence, by the draws that its tokens come from."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from llmi import _core
from llmi.errors import HookError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Memory(NamedTuple):
    """The state of mirostat and adaptive_p, and `context.state` of processors and samplers. Nobody changes it: hooks get a copy."""

    sampler: _core.SamplerState
    hooks: dict[str, Any]

    def copy_for_hooks(self) -> dict[str, Any]:
        """`context.state` for one more call. Raises HookError if a value cannot be copied."""
        try:
            return copy.deepcopy(self.hooks)
        except Exception as error:
            raise HookError(
                f"context.state cannot be copied ({type(error).__name__}: {error}): a look at the "
                "distribution works on a copy, so keep values in it that copy.deepcopy takes"
            ) from None


def at_the_beginning() -> Memory:
    """Before the first draw."""
    return Memory(_core.SamplerState(), {})


class Draw(NamedTuple):
    """A token that was drawn for a position, and the memory once it is appended. token_id None: whichever token follows."""

    position: int
    token_id: int | None
    after: Memory


class Draws:
    """The draws of one sequence, in the order of positions."""

    def __init__(self, draws: list[Draw] | None = None) -> None:
        self._draws = draws or []

    def copied(self) -> Draws:
        """A copy for a fork."""
        return Draws(list(self._draws))

    def note(self, draw: Draw) -> None:
        """The latest draw for a position replaces others there."""
        self._draws = [known for known in self._draws if known.position < draw.position]
        self._draws.append(draw)

    def shorten(self, num_before: int, num_kept: int) -> None:
        """Tokens that are taken back take their draws along. Where none is, the draw of the next token stays: it may still be appended."""
        if num_kept < num_before:
            self._draws = [draw for draw in self._draws if draw.position < num_kept]

    def memory(self, token_ids: NDArray[Any]) -> Memory:
        """After the last token that is in the sequence as it was drawn."""
        for draw in reversed(self._draws):
            if draw.position < len(token_ids) and draw.token_id in (None, int(token_ids[draw.position])):
                return draw.after
        return at_the_beginning()
