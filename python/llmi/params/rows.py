"""Parameters that make the row before the masks of several rows: guidance by a second prompt, and layers that are contrasted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from llmi.base.kinds import show
from llmi.errors import InvalidParamsError, UnsupportedCombinationError

_MOST_SHALLOW = 40  # layers: deeper models contrast the first 20 or the last 20


class RowParams(Protocol):
    """What the functions here read of SamplingParams."""

    @property
    def guidance_scale(self) -> float | None:
        """The weight of the difference of two rows."""

    @property
    def dola_layers(self) -> str | list[int] | None:
        """Layers whose rows are contrasted with the last one's."""


def is_guided(params: RowParams) -> bool:
    """Whether a second sequence takes part."""
    return params.guidance_scale is not None and params.guidance_scale != 1


def combined(params: RowParams) -> str | None:
    """The name of the parameter that combines rows, or None."""
    return "guidance_scale" if is_guided(params) else "dola_layers" if params.dola_layers is not None else None


def check_rows(params: RowParams) -> None:
    """Raises for two ways to combine rows, and for a layer that is named twice."""
    layers = params.dola_layers
    if is_guided(params) and layers is not None:
        raise UnsupportedCombinationError(
            f"guidance_scale = {show(params.guidance_scale)} and dola_layers = {show(layers)} cannot be set together: the contrast of"
            " layers cuts tokens to -inf, and no difference of two such rows is defined",
            "guidance_scale",
            "dola_layers",
        )
    named = layers if isinstance(layers, list) else []
    for layer in named:
        if named.count(layer) > 1:
            raise InvalidParamsError(f"dola_layers holds {layer} twice", "dola_layers")


def layers_of(dola_layers: str | list[int] | None, num_layers: int, tied: bool) -> list[int]:
    """The layers to contrast with the last one, by number: 0 is the embedding's output, i that of layer i.

    "low" and "high" are transformers' (4.52.4): every other layer of the lower or of the upper half. tied: the head is the embedding,
    whose own output is then left out.
    """
    if dola_layers is None:
        return []
    if not isinstance(dola_layers, str):
        return list(dola_layers)
    half = num_layers // 2
    if dola_layers == "high":
        return list(range(half if num_layers <= _MOST_SHALLOW else num_layers - 20, num_layers, 2))
    start = 0 if not tied else 2 if num_layers > 2 else 1 if num_layers == 2 else 0
    low = [start] if start == half else list(range(start, half if num_layers <= _MOST_SHALLOW else 20, 2))
    if not low:
        raise InvalidParamsError(
            f"dola_layers = 'low': a model of {num_layers} layers has none between its embedding and its upper half", "dola_layers"
        )
    return low


def is_message(value: object) -> bool:
    """Whether it is a message of a chat."""
    return isinstance(value, Mapping) and "role" in value
