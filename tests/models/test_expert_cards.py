"""Cards of families with experts: what their specs say, by the tests' float64 interpreter, is what transformers computes in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from family_specs import SEEN, check_meaning, interpreter
from spec_float64 import Spec
from tiny_families import EXPERTS, TOKENS, make

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("name", EXPERTS)
def test_the_spec_means_what_transformers_computes(name: str, families: Path) -> None:
    check_meaning(make(name, families))


Change = Callable[[Spec], object]


def of_experts(change: Change) -> Change:
    """A change of each layer that has experts."""
    return lambda spec: [change(layer) for layer in spec["layers"] if "moe" in layer]


def of_router(**fields: Any) -> Change:
    return of_experts(lambda layer: layer["moe"]["router"].update(fields))


def flip_renormalise(layer: Spec) -> None:
    router = layer["moe"]["router"]
    router["renormalise"] = not router.get("renormalise", False)


def unclamp(layer: Spec) -> None:
    layer["moe"]["expert"]["activation_values"][0] = 1e9


def swap(layer: Spec) -> None:
    expert = layer["moe"]["expert"]
    expert["gate"], expert["up"] = expert["up"], expert["gate"]


def widen(spec: Spec) -> bool:
    attentions = [layer["attention"] for layer in spec["layers"] if "window" in layer["attention"]]
    for attention in attentions:
        attention["window"] += 1
    return bool(attentions)


PLANTED: dict[str, Change] = {
    "router's bias": of_experts(lambda layer: layer["moe"]["router"]["linear"].pop("bias")),
    "bias of the choice": of_experts(lambda layer: layer["moe"]["router"].pop("choice_bias")),
    "renormalisation": of_experts(flip_renormalise),
    "softmax before the choice": of_router(score="softmax"),
    "softmax behind the choice": of_router(score="softmax_chosen"),
    "sigmoid": of_router(score="sigmoid"),
    "groups": of_experts(lambda layer: layer["moe"]["router"].pop("num_groups")),
    "score of a group": of_experts(lambda layer: layer["moe"]["router"].pop("group_score")),
    "factor": of_experts(lambda layer: layer["moe"]["router"].pop("factor")),
    "threshold of the mixer": of_experts(
        lambda layer: layer["moe"]["router"].update(mixer_threshold=layer["moe"]["router"]["mixer_threshold"] / 4)
    ),
    "one expert more": of_experts(lambda layer: layer["moe"].update(num_used=layer["moe"]["num_used"] + 1)),
    "gate and up": of_experts(swap),
    "clamp": of_experts(unclamp),
    "an expert's bias": of_experts(lambda layer: layer["moe"]["expert"]["down"].pop("bias")),
    "shared expert": of_experts(lambda layer: layer.pop("mlp")),
    "gate of the shared expert": of_experts(lambda layer: layer["moe"].pop("shared_gate")),
    "window": widen,
    "sinks": lambda spec: [layer["attention"].pop("sinks") for layer in spec["layers"]],
}
#: The mistakes that change what a family computes; all have one expert more, and gate and up in each other's place.
MISTAKES = {
    "mixtral": ["renormalisation", "window"],
    "qwen2_moe": ["shared expert", "gate of the shared expert", "renormalisation", "sigmoid"],
    "qwen3_moe": ["renormalisation", "sigmoid"],
    "olmoe": ["renormalisation", "softmax behind the choice"],
    "gpt_oss": ["router's bias", "sinks", "window", "clamp", "an expert's bias", "softmax before the choice"],
    "granitemoe": ["softmax before the choice"],
    "granitemoeshared": ["softmax before the choice", "shared expert"],
    "granitemoehybrid": ["shared expert"],
    "phimoe": ["threshold of the mixer", "window", "softmax behind the choice"],
    "ernie4_5_moe": ["bias of the choice", "renormalisation", "shared expert"],
    "glm4_moe": ["bias of the choice", "groups", "score of a group", "factor", "renormalisation", "shared expert"],
}


@pytest.mark.parametrize("name", EXPERTS)
def test_a_planted_error_is_seen(name: str, families: Path) -> None:
    """It moves the logits by more than the comparison with transformers allows."""
    model, tokens = interpreter(make(name, families).path), TOKENS[:80]
    right, spec = model.logits(tokens), model.spec
    for label in ["one expert more", "gate and up", *MISTAKES[name]]:
        if label == "one expert more" and name == "phimoe":
            continue  # the sparse mixer takes two
        model.spec = copy.deepcopy(spec)
        assert PLANTED[label](model.spec) is not False, label
        moved = float(np.abs(model.logits(tokens) - right).max())
        print(f"{name}, {label}: {moved:.1e}")
        assert moved > SEEN, label
