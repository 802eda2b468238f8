"""The spec of a model as the core reads it: hostile input, refused by the name of the field or tensor; and what its bindings select."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from bits import assert_same_bits
from llmi import _core
from spec_float64 import Array, Spec
from spec_models import HEADS, HIDDEN, KV_HEADS, LATENT_PARTS, LAYER, MLP, RMS, VOCAB, TinyModel

T = _core.testing
Place = tuple[Any, ...]
TOKENS = [(position * 37 + 11) % VOCAB for position in range(20)]
KINDS = {"model_file", "unsupported_model"}

#: A model with as many parts as fit together, so that most fields are there.
RICH: Spec = {
    "norm": LAYER,
    "places": "both",
    "biases": ("query", "key", "value", "output", "gate", "up", "down", "head"),
    "rows": "interleaved",
    "head_norm": LAYER,
    "own_weights": True,
    "temperature": {"beta": 0.5, "original": 5},
    "sinks": True,
    "linear_biases": True,
    "windows": [7, 0],
    "attention_gate": "element",
    "output_norm": RMS,
    "activation": "xielu",
    "inner_norm": RMS,
    "embedding_norm": LAYER,
    "positions": 2,
    "tied": False,
    "logit_scale": 0.5,
}
ROPE: Spec = {
    "theta": 500.0,
    "rotary_dim": 8,
    "linear_factor": 2.0,
    "llama3_factor": 4.0,
    "llama3_low_freq_factor": 1.0,
    "llama3_high_freq_factor": 4.0,
    "llama3_original_context": 64,
    "yarn_factor": 2.0,
    "yarn_low": 0.5,
    "yarn_high": 2.5,
    "frequency_divisors": [1.0, 1.5, 2.0, 3.0],
    "magnitude": 1.25,
    "reversed": True,
}


def rich() -> TinyModel:
    model = TinyModel(RICH)
    model.spec["ropes"][0] = {"rotary_dim": 16} | ROPE | {"rotary_dim": 8}
    for layer in model.spec["layers"]:
        for which in ("query", "key"):
            for binding in layer["attention"][which].values():
                binding["order"]["adjacent_pairs"] = 8
    model.spec |= {"rope_choice": "short", "ignored_tensors": ["vision.*"]}
    return model


def with_experts() -> TinyModel:
    """A model with all that layers of experts may have."""
    experts = {"stored": "fused", "biases": True, "shared": 48, "gate": True, "activation": "swiglu_clamped"}
    router = {"score": "sigmoid", "choice_bias": True, "num_groups": 4, "used_groups": 2, "group_score": "top2", "renormalise": True}
    numbers = {"least_sum": 0.1, "sum_epsilon": 1e-20, "factor": 1.5, "mixer_threshold": 0.5, "activation_values": [0.7, 1.702, 1.0]}
    return TinyModel({"experts": experts | router | numbers})


def with_latent() -> TinyModel:
    """A model with all that attention out of a latent may have."""
    return TinyModel(LATENT_PARTS["latent beside other parts"] | {"experts": None})


def leaves(node: Any, place: Place = ()) -> Iterator[Place]:
    """The places of all values that are no objects, and of all objects and lists."""
    if place:
        yield place
    for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield from leaves(node[key], (*place, key))


def name_of(place: Place) -> str:
    """As errors name it: layers[0].attention.scale."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).lstrip(".")


def changed(spec: Spec, place: Place, value: object) -> Spec:
    copied: Any = copy.deepcopy(spec)
    node = copied
    for key in place[:-1]:
        node = node.setdefault(key, {}) if isinstance(node, dict) else node[key]
    node[place[-1]] = value
    return copied  # type: ignore[no-any-return]


def place_of(name: str) -> Place:
    return tuple(int(key) if key.isdigit() else key for key in name.replace("[", ".").replace("]", "").split("."))


def refusal(spec: Spec) -> Any:
    with pytest.raises(_core.CoreError) as caught:
        _core.spec_numbers(json.dumps(spec), "model")
    assert caught.value.kind in KINDS and caught.value.field in caught.value.message
    return caught.value


def opened(model: TinyModel, path: Path, **options: Any) -> Any:
    files = _core.ModelFiles(str(model.save(path)))
    return T.Decoder(files, spec=model.json(), **({"dtype": "float32", "kv_dtype": "float32", "num_pages": 64} | options))


def logits(decoder: Any) -> Array:
    result: Array = decoder.forward([(decoder.new_sequence(), TOKENS, None)])[0]
    return result


@pytest.mark.parametrize("model", [rich(), with_experts(), with_latent()], ids=["rich", "experts", "latent"])
def test_every_kind(model: TinyModel) -> None:
    """Each field of a rich spec with values of all other kinds, and each object with a field that it does not have."""
    numbers = _core.spec_numbers(model.json(), "model")
    assert (numbers["num_layers"], numbers["hidden_size"]) == (2, HIDDEN)
    assert numbers["windows"] == ([0, 0] if "moe" in model.spec["layers"][0] else [7, 0])
    count = 0
    for place in leaves(model.spec):
        value: Any = model.spec
        for key in place:
            value = value[key]
        others: list[Any] = [None, "a", 2.5, True, 7, [], {"a": 1}]
        if isinstance(value, dict):
            others[-1] = value | {"a": 1}
        for other in others:
            same = type(other) is type(value) or {type(other), type(value)} == {int, float}
            if same and not (isinstance(value, dict) or (isinstance(value, int) and other == 2.5)):
                continue
            error = refusal(changed(model.spec, place, other))
            expected = name_of(place) + (".a" if isinstance(value, dict) and isinstance(other, dict) else "")
            assert error.field == expected, (place, other)
            count += 1
    assert count > 1000
    assert refusal({"a": 1}).field == "a"


#: One value out of range, or that does not fit the others, for each field.
BAD: dict[str, list[Any]] = {
    "family": [""],
    "hidden_size": [0, 15, 72, -64, 1 << 21, 1 << 62],
    "num_heads": [0, 5000, -1],
    "num_kv_heads": [0, 3, 8],
    "head_dim": [0, 12, 18, 8192],
    "vocab_size": [0, -1, 1 << 25],
    "max_position": [0, 1 << 40],
    "layers": [[]],
    "embedding.weight.name": [""],
    "embedding.scale": [0, -1, 1e31],
    "embedding.position_offset": [-1, 1 << 40],
    "embedding.norm.eps": [0, -1e-5],
    "embedding.num_token_types": [-1, 1],
    "embedding.weight.plus": [1.0],
    "head.scale": [0.0],
    "head.soft_cap": [-1],
    "head.weight.transposed": [],
    "final_norm.eps": [0],
    "ropes[0].theta": [0, -1, 1e31],
    "ropes[0].rotary_dim": [0, 7, 18, -2],
    "ropes[0].linear_factor": [0],
    "ropes[0].llama3_factor": [0],
    "ropes[0].llama3_low_freq_factor": [0],
    "ropes[0].llama3_high_freq_factor": [0.5],
    "ropes[0].llama3_original_context": [0],
    "ropes[0].yarn_factor": [0],
    "ropes[0].yarn_high": [0.1],
    "ropes[0].magnitude": [0],
    "ropes[0].frequency_divisors": [[1.0], [1.0] * 5],
    "ropes[0].frequency_divisors[1]": [0, -1],
    "ignored_tensors[0]": [""],
    "layers[1].residual_scale": [0],
    "layers[1].mlp_reads_attention_norm": [True],
    "layers[1].attention_norm.eps": [0],
    "layers[1].mlp_norm.eps": [-1],
    "layers[1].post_mlp_norm.eps": [0],
    "layers[1].post_attention_norm.eps": [0],
    "layers[1].attention.num_heads": [-1, 5000],
    "layers[1].attention.num_kv_heads": [-1, 3, 8],
    "layers[1].attention.head_dim": [-1, 12, 18, 8192],
    "layers[1].attention.kv_donor": [-2, 1, 5],
    "layers[1].attention.norms.value.eps": [0],
    "layers[1].input.present": [True],
    "layers[1].input.place": [1, -1],
    "layer_embedding.size": [-16, 1 << 20],
    "layer_embedding.num_places": [1, -1],
    "layers[1].attention_sum_norm.eps": [0],
    "layers[1].mlp_sum_norm.eps": [-1],
    "layers[1].attention.rope": [1, -2, 1 << 40],
    "layers[1].attention.window": [-1, 1 << 40],
    "layers[1].attention.scale": [0, -0.5],
    "layers[1].attention.soft_cap": [-1],
    "layers[1].attention.clip": [-1],
    "layers[1].attention.linear_biases": [[1.0]],
    "layers[1].attention.linear_biases[0]": [1e35],
    "layers[1].attention.query_temperature.beta": [-1],
    "layers[1].attention.query_temperature.original": [0],
    "layers[1].attention.output.weight.name": [""],
    "layers[1].attention.query.weight.order.first_row": [-1, 1 << 40],
    "layers[1].attention.query.weight.order.head_rows": [-1, 7, 1 << 40],
    "layers[1].attention.query.weight.order.head_stride": [-1, 8, 1 << 40],
    "layers[1].attention.query.weight.order.adjacent_pairs": [-1, 7, 32],
    "layers[1].attention.query.bias.transposed": [True],
    "layers[1].attention.norms.query.eps": [0],
    "layers[1].attention.norms.key.eps": [0],
    "layers[1].attention.gate.weight.name": [""],
    "layers[1].attention.output_norm.eps": [0],
    "layers[1].mlp.size": [0, -1, 1 << 30],
    "layers[1].mlp.gate.weight.name": [""],
    "layers[1].mlp.up.weight.name": [""],
    "layers[1].mlp.down.weight.name": [""],
    "layers[1].mlp.activation_scalars": [[{"name": "a"}] * 3],
    "layers[1].mlp.activation_scalars[2].name": [""],
    "layers[1].mlp.inner_norm.eps": [0],
    "layers[1].mlp.activation_values": [[1.0, 1.0, 1.0, 1.0]],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values(name: str) -> None:
    for value in BAD[name]:
        error = refusal(changed(rich().spec, place_of(name), value))
        assert error.field == name and f"the spec's {name} " in error.message, value


#: The same for a model with experts.
BAD_EXPERTS: dict[str, list[Any]] = {
    "num_experts": [-1, 1025, 1 << 40],
    "num_used": [0, 9, -1, 65],
    "router.linear.weight.name": [""],
    "router.num_groups": [0, 3, 9],
    "router.used_groups": [0, 5, 1],  # of which the last holds fewer experts than are used
    "router.least_sum": [-1],
    "router.sum_epsilon": [-1e-20],
    "router.factor": [0, -1, 1e31],
    "router.mixer_threshold": [-1],
    "router.score": ["sparse_mixer"],
    "expert.size": [0, 1 << 30],
    "expert.gate.weight.name": [""],
    "expert.up.weight.name": [""],
    "expert.down.weight.name": [""],
    "expert.gate.weight.order.head_rows": [-1, 7],
    "expert.inner_norm": [{"present": True}],
    "expert.activation": ["silu"],
    "expert.activation_values": [[1.0]],
    "expert.activation_values[0]": [0, -1],
    "expert.gated": [False],
}
#: The field that is named instead, where it is another one.
NAMED = {"expert.activation": "expert.activation_values", "expert.gated": "expert.gate.weight.name"}


@pytest.mark.parametrize("name", BAD_EXPERTS)
def test_bad_values_of_experts(name: str) -> None:
    for value in BAD_EXPERTS[name]:
        error = refusal(changed(with_experts().spec, place_of(f"layers[1].moe.{name}"), value))
        field = f"layers[1].moe.{NAMED.get(name, name)}"
        assert error.field == field and f"the spec's {field} " in error.message, value


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"attention.kv_donor": -3}, "attention.kv_donor"),
        ({"attention.kv_donor": 1}, "attention.kv_donor"),  # itself
        ({"attention.kv_donor": 2}, "attention.kv_donor"),  # behind it
        ({"attention.window": 9}, "attention.kv_donor"),  # of another group
        ({"attention.num_kv_heads": 1}, "attention.kv_donor"),
        ({"attention.head_dim": 32}, "attention.kv_donor"),
        ({"attention.norms.key": {"present": True}}, "attention.norms.key.present"),
        ({"attention.norms.value": {"present": True}}, "attention.norms.value.present"),
        ({"attention.key": {"weight": {"name": "a"}}}, "attention.key.weight.name"),
        ({"attention.value": {"weight": {"name": "a"}}}, "attention.value.weight.name"),
        ({"attention.value_is_key": True}, "attention.value_is_key"),
    ],
)
def test_donors_that_do_not_fit(changes: Spec, field: str) -> None:
    spec = TinyModel({"kv_donors": [-1, 0], "head_norm": RMS}).spec
    for name, value in changes.items():
        spec = changed(spec, place_of(f"layers[1].{name}"), value)
    assert refusal(spec).field == f"layers[1].{field}"


def test_a_donor_without_keys() -> None:
    spec = TinyModel({"kv_donors": [-1, 0]}).spec
    spec["layers"].append(changed(spec["layers"][1], ("attention", "kv_donor"), 1))
    error = refusal(spec)
    assert error.field == "layers[2].attention.kv_donor" and "no keys of its own" in error.message


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"layers[0].attention.norms": {}}, "layers[0].attention.value_is_key"),
        ({"layers[0].attention.value": {"weight": {"name": "a"}}}, "layers[0].attention.value.weight.name"),
        (
            {"layers[0].attention.gate_kind": "head", "layers[0].attention.gate": {"weight": {"name": "a"}}},
            "layers[0].attention.value_is_key",
        ),
        ({"layer_embedding.norm": {}}, "layer_embedding.norm.present"),
        ({"layer_embedding.weight.name": ""}, "layer_embedding.weight.name"),
        ({"layer_embedding.num_places": 1}, "layers[0].input.place"),
        ({"layer_embedding.scale": 0}, "layer_embedding.scale"),
        ({"layers[0].input.gate": {}}, "layers[0].input.gate.weight.name"),
        ({"layers[0].input.activation": "xielu"}, "layers[0].input.activation"),
        ({"layers[0].output_scale.plus": 1e31}, "layers[0].output_scale.plus"),
        ({"layers[0].output_scale.times": 1e31}, "layers[0].output_scale.times"),
        ({"embedding.weight.times": 2.0}, "embedding.weight.times"),
    ],
)
def test_parts_of_gemma4_that_do_not_fit(changes: Spec, field: str) -> None:
    spec = TinyModel({"value_is_key": True, "value_norm": RMS, "layer_embedding": 16, "output_scale": True}).spec
    for name, value in changes.items():
        spec = changed(spec, place_of(name), value)
    assert refusal(spec).field == field


#: The same for a model with a latent.
BAD_LATENT: dict[str, list[Any]] = {
    "rank": [-32, 8, 48, 1 << 20],
    "key_size": [0, 24, -16],
    "rotary_size": [0, 8, 1 << 20],
    "value_size": [0, 20],
    "query_rank": [-16, 8],
    "query_norm.eps": [0],
    "latent_norm.eps": [-1],
    "query_down.weight.name": [""],
    "query.weight.name": [""],
    "query_rotary.weight.name": [""],
    "latent.weight.name": [""],
    "rotary.weight.name": [""],
    "key_up.name": [""],
    "value_up.name": [""],
    "value_up.transposed": [True],
    "key_up.order.head_rows": [-1, 7],
    "value_up.order.head_stride": [-1, 8],
}


@pytest.mark.parametrize("name", BAD_LATENT)
def test_bad_values_of_a_latent(name: str) -> None:
    for value in BAD_LATENT[name]:
        error = refusal(changed(with_latent().spec, place_of(f"layers[1].attention.latent.{name}"), value))
        field = f"layers[1].attention.latent.{name}"
        assert error.field == field and f"the spec's {field} " in error.message, value


def test_a_latent_beside_what_it_does_not_fit() -> None:
    spec, other = with_latent().spec, rich().spec["layers"][1]["attention"]
    for part, named in (("query", "query.weight.name"), ("clip", "latent"), ("gate_kind", "latent"), ("norms", "latent")):
        error = refusal(changed(spec, place_of(f"layers[1].attention.{part}"), other.get(part, 0.5)))
        assert error.field == f"layers[1].attention.{named}", part
    assert refusal(changed(spec, ("num_kv_heads",), 2)).field == "layers[0].attention.latent.rank"
    assert refusal(changed(spec, ("head_dim",), 64)).field == "layers[0].attention.latent.rank"
    assert refusal(changed(spec, ("ropes", 0, "rotary_dim"), 32)).field == "layers[0].attention.latent.rotary_size"
    assert refusal(changed(rich().spec, place_of("layers[1].attention.latent"), {"rank": 16})).field.startswith("layers[1].attention")


def test_experts_beside_what_they_do_not_fit() -> None:
    spec = with_experts().spec
    layer = spec["layers"][1]
    for change, field in (
        ({"order": "parallel"}, "moe.num_experts"),
        ({"mlp": {}}, "moe.shared_gate.weight.name"),
        ({"mlp": {"up": layer["mlp"]["up"]}, "moe": layer["moe"] | {"shared_gate": {}}}, "moe.mlp.weight.name"),
        ({"moe": layer["moe"] | {"num_experts": 0}}, "moe.num_used"),
        ({"moe": layer["moe"] | {"num_experts": 0, "num_used": 0}}, "moe.router.linear.weight.name"),
        ({"moe": {"router": {"choice_bias": {"name": "a"}}}}, "moe.router.choice_bias.name"),
        ({"moe": {"expert": {"up": {"weight": {"name": "a"}}}}}, "moe.expert.weight.name"),
    ):
        assert refusal(changed(spec, ("layers", 1), layer | change)).field == f"layers[1].{field}", change
    apart = TinyModel({"experts": {}}).spec
    error = refusal(changed(apart, place_of("layers[0].moe.expert.up.weight.order"), {"first_row": 1}))
    assert error.field == "layers[0].moe.expert.up.weight.order"


@pytest.mark.parametrize(
    "changes, field",
    [
        (
            {"layers[0].attention.norms.own_weights": True, "layers[0].attention.norms.span": "projection"},
            "layers[0].attention.norms.own_weights",
        ),
        ({"layers[0].attention.norms.query.present": False}, "layers[0].attention.norms.query.weight.name"),
        ({"layers[0].attention.gate_kind": "none"}, "layers[0].attention.gate.weight.name"),
        ({"layers[0].mlp.gated": False}, "layers[0].mlp.gate.weight.name"),
        ({"layers[0].mlp.activation": "silu"}, "layers[0].mlp.activation_scalars"),
        ({"layers[0].mlp.activation_scalars": []}, "layers[0].mlp.activation_values"),
        ({"ropes[0].divisors_tensor": "a"}, "ropes[0].frequency_divisors"),
        ({"two_sided": True}, "generates"),
        ({"two_sided": True, "generates": False, "layers[0].mixer": "short_conv"}, "layers[0].mixer"),
        ({"embedding.token_types": {"name": "types"}}, "embedding.num_token_types"),
        ({"layers[0].attention.query.weight.order": {"head_stride": 16}}, "layers[0].attention.query.weight.order.head_stride"),
        ({"layers[0].attention.query.weight.order": {"adjacent_pairs": 2}}, "layers[0].attention.query.weight.order.adjacent_pairs"),
        (
            {"layers[0].attention.norms.key.weight": {"name": "a.{head}", "order": {"first_row": 1}}},
            "layers[0].attention.norms.key.weight.order",
        ),
    ],
)
def test_fields_that_do_not_fit(changes: dict[str, Any], field: str) -> None:
    spec = rich().spec
    for name, value in changes.items():
        spec = changed(spec, place_of(name), value)
    assert refusal(spec).field == field


def test_heads_that_cannot_be_padded() -> None:
    model = TinyModel({"head_norm": RMS, "span": "projection", "head_dim": 20, "ropes": [{"rotary_dim": 20}]})
    error = refusal(model.spec)
    assert error.kind == "unsupported_model" and error.field == "layers[0].attention.norms.span"


@pytest.mark.parametrize("model", [rich(), with_experts(), with_latent()], ids=["rich", "experts", "latent"])
def test_flipped_bits(tmp_path: Path, model: TinyModel) -> None:
    """A spec of which one bit is another: refused by a CoreError, or a model that runs."""
    rng = random.Random(7)
    files = _core.ModelFiles(str(model.save(tmp_path)))
    text = model.json().encode()
    digits = [place for place, byte in enumerate(text) if 48 <= byte < 58]
    ran = refused = 0
    for case in range(400):
        data = bytearray(text)
        data[rng.choice(digits) if case % 2 else rng.randrange(len(data))] ^= 1 << rng.randrange(7)
        try:
            decoder = T.Decoder(files, spec=data.decode("ascii"), dtype="float32", num_pages=8)
            assert logits(decoder).shape[0] == len(TOKENS)
            ran += 1
        except _core.CoreError as error:
            assert error.kind in KINDS and len(error.message) > 20
            refused += 1
    assert ran > 10 and refused > 200


# --- bindings


def located(model: TinyModel, path: Path, spec: Spec | None = None) -> Any:
    """The CoreError of a model that cannot be loaded."""
    files = _core.ModelFiles(str(model.save(path)))
    with pytest.raises(_core.CoreError) as caught:
        T.Decoder(files, spec=json.dumps(spec if spec is not None else model.spec))
    return caught.value


@pytest.mark.parametrize(
    "choices",
    [
        RICH | {"rows": "fused", "transposed": True},
        *({"experts": {"stored": stored}} for stored in ("apart", "fused", "interleaved", "transposed")),
    ],
    ids=str,
)
def test_expected_tensors(choices: Spec) -> None:
    """Names and shapes of the file's tensors, which a spec with fused, transposed, one-value and experts' tensors has."""
    model = TinyModel(choices)
    shapes = {name: list(value.shape) for name, value in model.tensors.items()}
    assert _core.expected_tensors(model.json(), "model") == shapes


@pytest.mark.parametrize("choices", [{"rows": "fused"}, {"rows": "by head"}, {"rows": "fused", "transposed": True}], ids=str)
def test_rows_that_nobody_reads(choices: Spec, tmp_path: Path) -> None:
    """A fused tensor with more rows, or fewer, than its bindings read, or with a gap between them."""
    model = TinyModel(choices)
    name = "layers.1.attention.qkv.weight"
    whole = model.tensors[name]
    axis = 1 if choices.get("transposed") else 0
    for other in (np.concatenate([whole, whole], axis), np.delete(whole, 0, axis)):
        model.tensors[name] = np.ascontiguousarray(other)
        error = located(model, tmp_path)
        assert error.kind == "model_file" and error.field == name and "has shape" in error.message
    model.tensors[name] = whole
    value = model.spec["layers"][1]["attention"]["value"]["weight"]
    spec = changed(model.spec, ("layers", 1, "attention", "value", "weight", "order", "first_row"), value["order"]["first_row"] + 16)
    error = located(model, tmp_path, spec)
    assert error.field == name and "reads no row from" in error.message


def test_a_tensor_of_two_shapes(tmp_path: Path) -> None:
    model = TinyModel({})
    spec = changed(model.spec, place_of("layers[0].mlp.down.weight.name"), "layers.0.mlp.up.weight")
    error = located(model, tmp_path, spec)
    assert error.field == "layers.0.mlp.up.weight" and "layers[0].mlp.up.weight and layers[0].mlp.down.weight" in error.message.replace(
        "down.weight and layers[0].mlp.up", "up.weight and layers[0].mlp.down"
    )


def test_too_many_pieces() -> None:
    """Rows of a tensor in millions of pieces are refused at once, not after a minute."""
    spec = TinyModel({}).spec | {"vocab_size": 1 << 24, "head": {"weight": {"name": "h", "order": {"head_rows": 1, "head_stride": 2}}}}
    with pytest.raises(_core.CoreError) as caught:
        _core.expected_tensors(json.dumps(spec), "model")
    assert caught.value.kind == "unsupported_model" and caught.value.field == "head.weight"


def test_tensors_that_nobody_reads(tmp_path: Path) -> None:
    """A bias, too: named, unless the spec ignores it or nobody needs it."""
    model = TinyModel({})
    logits_without = logits(opened(model, tmp_path))
    model.tensors |= {"layers.0.mlp.up.bias": np.ones(MLP, np.float32), "layers.0.rotary_emb.inv_freq": np.ones(8, np.float32)}
    error = located(model, tmp_path)
    assert error.kind == "unsupported_model" and error.field == "layers.0.mlp.up.bias"
    model.spec["ignored_tensors"] = ["vision.*", "layers.*.up.bias"]
    assert_same_bits(logits(opened(model, tmp_path)), logits_without)
    del model.tensors["layers.1.mlp.up.weight"]
    error = located(model, tmp_path)
    assert error.kind == "model_file" and error.field == "layers.1.mlp.up.weight" and "missing" in error.message


def test_a_tied_head_that_is_stored(tmp_path: Path) -> None:
    """It must be the embedding again."""
    model = TinyModel({"tied": True})
    tied = logits(opened(model, tmp_path))
    model.tensors["any.name"] = model.tensors["embedding.weight"].copy()
    assert_same_bits(logits(opened(model, tmp_path)), tied)
    model.tensors["any.name"][3, 5] += 1
    error = located(model, tmp_path)
    assert error.kind == "unsupported_model" and error.field == "any.name" and "differs from the embedding" in error.message


def test_a_norm_tensor_for_each_head(tmp_path: Path) -> None:
    """[heads, head_dim], flat, or a tensor for each head: the same bits."""
    model = TinyModel({"head_norm": {"kind": "layer"}, "own_weights": True})
    flat = logits(opened(model, tmp_path / "flat"))
    for index, layer in enumerate(model.spec["layers"]):
        for which, heads in (("query", HEADS), ("key", KV_HEADS)):
            name = f"layers.{index}.attention.{which}_norm.weight"
            rows = model.tensors.pop(name).reshape(heads, -1)
            model.tensors |= {f"norms.{index}.{which}.{head}.weight": row for head, row in enumerate(rows)}
            model.tensors[name] = rows
            layer["attention"]["norms"][which]["weight"]["name"] = f"norms.{index}.{which}.{{head}}.weight"
    matrices = TinyModel({"head_norm": {"kind": "layer"}, "own_weights": True})
    matrices.tensors = {name: value for name, value in model.tensors.items() if not name.startswith("norms.")}
    assert_same_bits(logits(opened(matrices, tmp_path / "matrices")), flat)
    model.tensors = {name: value for name, value in model.tensors.items() if not name.endswith(("query_norm.weight", "key_norm.weight"))}
    assert_same_bits(logits(opened(model, tmp_path / "each")), flat)
    del model.tensors["norms.1.query.3.weight"]
    assert located(model, tmp_path / "each").field == "norms.1.query.3.weight"


def test_some_layers(tmp_path: Path) -> None:
    """An engine of some layers reads their tensors, and every other is still accounted for."""
    model = TinyModel({"windows": [7, 0]})
    files = _core.ModelFiles(str(model.save(tmp_path)))
    options: dict[str, Any] = {"spec": model.json(), "dropped": _core.DropFlag(), "kv_cache_memory_bytes": 1 << 22}
    whole = _core.Engine(files, **options).info()["weight_bytes"]
    assert _core.Engine(files, **options, layers=[1]).info()["weight_bytes"] < whole
    for layers in ([2], [1, 0], [-1]):
        with pytest.raises(_core.CoreError, match="layers must ascend"):
            _core.Engine(files, **options, layers=layers)
    with pytest.raises(_core.CoreError, match="spec"):
        _core.Engine(files, dropped=_core.DropFlag())


# --- rotary tables


def test_yarn() -> None:
    """Frequencies between low and high are blended; cosines and sines are multiplied by the magnitude."""
    fields: dict[str, Any] = {"theta": 10000.0, "rotary_dim": 64, "yarn_factor": 8.0, "yarn_low": 4.0, "yarn_high": 12.5, "magnitude": 1.2}
    frequencies, cosine, sine = T.rope_table([0, 3, 500], **fields)
    i = np.arange(32)
    plain = 10000.0 ** (-i / 32)
    ramp = np.clip((i - 4.0) / 8.5, 0, 1)
    exact = plain / 8 * ramp + plain * (1 - ramp)
    np.testing.assert_allclose(frequencies, exact, rtol=3e-7)
    assert frequencies[:5] == T.rope_table([0], theta=10000.0, rotary_dim=64)[0][:5]
    angles = np.array([0, 3, 500], np.float32)[:, None] * np.array(frequencies, np.float32)
    np.testing.assert_allclose(cosine, 1.2 * np.cos(angles.astype(np.float64)), atol=3e-7)
    np.testing.assert_allclose(sine, 1.2 * np.sin(angles.astype(np.float64)), atol=3e-7)
    step = T.rope_table([1], **(fields | {"yarn_high": 4.0}))[0]  # no width: a step
    np.testing.assert_allclose(step, np.where(i > 4, plain / 8, plain), rtol=3e-7)


def test_divisors_and_direction() -> None:
    plain, cosine, sine = T.rope_table([5, 9], theta=100.0, rotary_dim=8)
    divisors = [1.0, 2.0, 4.0, 8.0]
    assert T.rope_table([1], theta=100.0, rotary_dim=8, frequency_divisors=divisors)[0] == [
        f / d for f, d in zip(plain, divisors, strict=True)
    ]
    reversed_cosine, reversed_sine = T.rope_table([5, 9], theta=100.0, rotary_dim=8, reversed=True)[1:]
    assert reversed_cosine.tobytes() == cosine.tobytes() and reversed_sine.tobytes() == (-sine).tobytes()


def test_divisors_in_a_tensor(tmp_path: Path) -> None:
    """Read when the model is loaded; a wrong size or value is named."""
    model = TinyModel({"ropes": [{"rotary_dim": 8}]})
    listed = copy.deepcopy(model)
    listed.spec["ropes"][0]["frequency_divisors"] = [1.0, 1.5, 2.0, 7.0]
    model.spec["ropes"][0]["divisors_tensor"] = "rope_freqs.weight"
    model.tensors["rope_freqs.weight"] = np.array([1.0, 1.5, 2.0, 7.0], np.float32)
    assert_same_bits(logits(opened(model, tmp_path / "tensor")), logits(opened(listed, tmp_path / "listed")))
    for wrong in ([1.0, 1.5, 2.0], [1.0, 1.5, 2.0, 0.0], [1.0, 1.5, 2.0, float("nan")]):
        model.tensors["rope_freqs.weight"] = np.array(wrong, np.float32)
        assert located(model, tmp_path / "tensor").field == "rope_freqs.weight"


# --- what Python asks of the files


def test_model_tensors(tmp_path: Path) -> None:
    model = TinyModel({})
    files = _core.ModelFiles(str(model.save(tmp_path)))
    listed = sorted((tensor.name, tensor.dtype, tensor.shape) for tensor in _core.model_tensors(files))
    assert listed == sorted((name, "F32", list(value.shape)) for name, value in model.tensors.items())
    assert _core.model_fields(files) is None and files.config is not None and files.config.read(0, 10) == b"{}"
    save_file({"a.base_layer.weight": np.zeros((2, 2), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(_core.CoreError, match="adapter"):
        T.Decoder(_core.ModelFiles(str(tmp_path)), spec=model.json())
