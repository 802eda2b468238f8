"""User turns of training text: seeded, in any number, a function of (seed, index) alone."""

from __future__ import annotations

import dataclasses

import numpy as np

from llmi.training.frames import ALONE, AROUND, SHARES, TOPICS


@dataclasses.dataclass(frozen=True)
class Turn:
    """One user turn.

    Attributes
    ----------
    kind : str
        A key of SHARES.
    text : str
        What the user says; of kind "begun" empty: the model begins the turn itself.
    around : str
        A frame with {x}: the turn is this frame around the answer to `text`. Empty: the turn is `text`.
    """

    kind: str
    text: str
    around: str = ""


def _filled(frame: str, rng: np.random.Generator) -> str:
    """Topics and numbers are drawn in one order, whichever of them the frame has."""
    first, second = rng.choice(len(TOPICS), 2, replace=False)
    larger, smaller = int(rng.integers(11, 400)), int(rng.integers(2, 12))
    return frame.format(t=TOPICS[first], u=TOPICS[second], n=larger, m=smaller, x="{x}")


def _kinds() -> list[str]:
    """100 kinds in a fixed order in which each kind is spread evenly."""
    total = sum(SHARES.values())
    places = [((index + 0.5) * total / share, kind) for kind, share in SHARES.items() for index in range(share)]
    return [kind for _, kind in sorted(places)]


KINDS = _kinds()


def turn(seed: int, index: int) -> Turn:
    """Turn number `index` of the text that `seed` names."""
    kind = KINDS[index % len(KINDS)]
    rng = np.random.default_rng([seed, index])
    if kind == "begun":
        return Turn(kind, "")
    if kind in ALONE:
        frames = ALONE[kind]
        return Turn(kind, _filled(frames[int(rng.integers(len(frames)))], rng))
    first, around = AROUND[kind]
    text = _filled(first[int(rng.integers(len(first)))], rng)
    return Turn(kind, text, around[int(rng.integers(len(around)))])


def turns(seed: int, first: int, count: int) -> list[Turn]:
    """`count` turns from number `first` on."""
    return [turn(seed, index) for index in range(first, first + count)]
