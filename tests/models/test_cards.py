"""Each family's card, run by the reference of ModelSpec in float64, beside transformers' own float64; mistakes that this comparison must
catch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmi.families import ModelSpec, spec_of
from llmi.families.spec import (
    AttentionSpec,
    EmbeddingSpec,
    HeadNormsSpec,
    HeadSpec,
    LayerSpec,
    LinearSpec,
    MlpSpec,
    NormSpec,
    QueryTemperatureSpec,
    RopeSpec,
    RowOrder,
    TensorBinding,
)
from llmi.models.files import open_model
from spec_reference import Array, SpecModel
from test_families import distances, log_softmax
from tiny_families import FAMILIES, NUM_TOKENS, TOKENS, make

pytestmark = pytest.mark.parity
ALLOWED = 1e-10  # between log-probabilities in float64
BLOOM = 1e-8  # transformers rounds a constant of Bloom's GELU


def read(path: Path) -> ModelSpec:
    return spec_of(open_model(path).core, max_model_len=NUM_TOKENS + 1)


def tensors_of(path: Path) -> dict[str, Array]:
    from safetensors.numpy import load_file

    return load_file(path / "model.safetensors")


@pytest.mark.parametrize("name", FAMILIES)
def test_the_card_says_what_transformers_computes(name: str, families: Path) -> None:
    family = make(name, families)
    spec, tensors = read(family.path), tensors_of(family.path)
    gap = np.abs(log_softmax(SpecModel(spec, tensors).logits(TOKENS)) - log_softmax(family.float64)).max()
    assert gap <= (BLOOM if name == "bloom" else ALLOWED)
    heads = {binding.replace("{head}", str(head)) for binding in spec.tensor_names() for head in range(spec.num_heads)}
    assert set(tensors) <= heads, "every tensor has a role"


# --- planted errors


def edit(part: Any, kind: type, change: Callable[[Any], dict[str, Any]]) -> Any:
    """The same with changed fields in each object of this kind."""
    if isinstance(part, list):
        return [edit(item, kind, change) for item in part]
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    fields = {field.name: edit(getattr(part, field.name), kind, change) for field in dataclasses.fields(part)}
    same = dataclasses.replace(part, **fields)
    return dataclasses.replace(same, **change(same)) if isinstance(same, kind) else same


#: What a reader of the family could get wrong: the kind of object, and its fields after the mistake.
PLANTED: dict[str, tuple[type, Callable[[Any], dict[str, Any]]]] = {
    "llama": (RopeSpec, lambda rope: {"llama3_factor": 1.0}),
    "qwen2": (LinearSpec, lambda linear: {"bias": TensorBinding()}),
    "qwen3": (HeadNormsSpec, lambda norms: {"query": NormSpec(), "key": NormSpec()}),
    "gemma": (EmbeddingSpec, lambda embedding: {"scale": 1.0}),
    "gemma2": (NormSpec, lambda norm: {"weight": dataclasses.replace(norm.weight, plus=0.0)}),
    "gemma3_text": (AttentionSpec, lambda a: {"window": a.window and a.window + 1}),
    "mistral": (AttentionSpec, lambda a: {"window": a.window - 1}),
    "ministral3": (QueryTemperatureSpec, lambda t: {"beta": 0.0}),
    "phi3": (RopeSpec, lambda rope: {"magnitude": 1.0}),
    "smollm3": (AttentionSpec, lambda a: {"rope": 0}),
    "olmo": (AttentionSpec, lambda a: {"clip": 0.0}),
    "olmo2": (LayerSpec, lambda layer: {"attention_norm": layer.post_attention_norm, "post_attention_norm": NormSpec()}),
    "olmo3": (AttentionSpec, lambda a: {"rope": 0}),
    "gpt2": (LinearSpec, lambda linear: {"bias": TensorBinding()}),
    "gpt_neox": (LayerSpec, lambda layer: {"order": "sequential"}),
    "opt": (EmbeddingSpec, lambda embedding: {"position_offset": 0}),
    "granite": (LayerSpec, lambda layer: {"residual_scale": 1.0}),
    "granite_swa": (AttentionSpec, lambda a: {"sinks": TensorBinding()}),
    "glm": (RowOrder, lambda order: {"adjacent_pairs": 0}),
    "glm4": (RowOrder, lambda order: {"adjacent_pairs": 0}),
    "nemotron": (NormSpec, lambda norm: {"weight": dataclasses.replace(norm.weight, plus=0.0)}),
    "cohere": (HeadSpec, lambda head: {"scale": 1 / head.scale}),
    "cohere2": (AttentionSpec, lambda a: {"rope": 0}),
    "exaone4": (AttentionSpec, lambda a: {"rope": 0}),
    "apertus": (MlpSpec, lambda mlp: {"activation_scalars": mlp.activation_scalars[1::-1] + mlp.activation_scalars[2:]}),
    "seed_oss": (MlpSpec, lambda mlp: {"down": LinearSpec(mlp.down.weight)}),
    "hunyuan_v1_dense": (HeadNormsSpec, lambda norms: {"after_rope": False}),
    "ernie4_5": (RowOrder, lambda order: {"adjacent_pairs": 0}),
    "helium": (RowOrder, lambda order: {"adjacent_pairs": 0}),
    "internlm3": (MlpSpec, lambda mlp: {"down": LinearSpec(mlp.down.weight)}),
    "arcee": (MlpSpec, lambda mlp: {"activation": "relu"}),
    "nanochat": (RopeSpec, lambda rope: {"reversed": False}),
    "starcoder2": (AttentionSpec, lambda a: {"window": a.window + 1}),
    "stablelm": (HeadNormsSpec, lambda norms: {"query": dataclasses.replace(norms.query, kind="rms")}),
    "gpt_bigcode": (MlpSpec, lambda mlp: {"activation": "gelu"}),
    "phi": (HeadSpec, lambda head: {"bias": TensorBinding()}),
    "gptj": (RopeSpec, lambda rope: {"rotary_dim": 16}),
    "bitnet": (MlpSpec, lambda mlp: {"inner_norm": NormSpec()}),
    "bloom": (AttentionSpec, lambda a: {"linear_biases": a.linear_biases[::-1]}),
    "persimmon": (HeadNormsSpec, lambda norms: {"query": dataclasses.replace(norms.query, bias=TensorBinding())}),
}


def test_each_family_has_a_planted_error() -> None:
    assert set(PLANTED) == set(FAMILIES)


@pytest.mark.parametrize("name", PLANTED)
def test_the_parity_bound_catches_a_planted_error(name: str, families: Path) -> None:
    family = make(name, families)
    spec = edit(read(family.path), *PLANTED[name])
    shown, own, theirs = distances(SpecModel(spec, tensors_of(family.path)).logits(TOKENS), family)
    assert shown > 1e-4 and own > 2 * theirs


# --- the spec itself


def test_the_text_of_a_spec(families: Path) -> None:
    spec = read(make("stablelm", families).path)
    text = spec.to_json()
    fields = json.loads(text)
    assert list(fields) == sorted(fields) and "rope_choice" not in fields and fields["layers"][0]["order"] == "parallel"
    assert edit(spec, AttentionSpec, lambda a: {"window": a.window}).digest() == spec.digest()
    assert edit(spec, AttentionSpec, lambda a: {"window": 7}).digest() != spec.digest()
    shown = str(spec)
    assert "layers 0-3" in shown and "self_attn.q_layernorm.norms.{head}.weight" in shown and "own_weights = True" in shown
