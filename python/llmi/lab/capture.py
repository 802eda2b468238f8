"""Which inner values a forward keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from llmi.base.kinds import Listed, Whole, parse
from llmi.errors import InvalidParamsError

_LAYERS = Listed(Whole(-1, 2**31 - 1, "a layer, an integer of -1 or more"), "a list of layers", 1 << 16)


@dataclasses.dataclass(kw_only=True)
class Capture:
    """Inner values that a sequence keeps when it is extended.

    Attributes
    ----------
    hidden_states : iterable of int
        Layers, counted from 1; 0 is the embedding's output, -1 the last layer.
    layer_logits : iterable of int
        Layers, counted likewise, whose output goes through the final norm and the head.
    attention : iterable of int
        Layers whose attention weights are kept; 1 is the first layer.

    Examples
    --------
    >>> with llm.sequence("The sea is", capture=Capture(hidden_states=[1, -1], attention=[1])) as sequence:
    ...     {layer: rows.shape for layer, rows in sequence.hidden_states.items()}, sequence.attention[1].shape
    ({1: (1, 64), 3: (1, 64)}, (1, 4, 10))
    """

    hidden_states: Iterable[int] = ()
    layer_logits: Iterable[int] = ()
    attention: Iterable[int] = ()

    def __post_init__(self) -> None:
        for name in ("hidden_states", "layer_logits", "attention"):
            setattr(self, name, tuple(parse(_LAYERS, name, getattr(self, name))))


def capture_layers(capture: Capture, num_layers: int) -> tuple[list[int], list[int], list[int]]:
    def layers(given: Iterable[int], name: str, first: int = 0) -> list[int]:
        result = []
        for layer in parse(_LAYERS, name, given):
            if layer != -1 and not first <= layer <= num_layers:
                raise InvalidParamsError(f"{name}: layer {layer} is neither -1 nor in [{first}, {num_layers}]", name)
            result.append(num_layers if layer == -1 else layer)
        return result

    return (
        layers(capture.hidden_states, "hidden_states"),
        layers(capture.layer_logits, "layer_logits"),
        layers(capture.attention, "attention", first=1),
    )
