"""Rotary tables of specs beside those that transformers works out of the same keys."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from llmi.errors import ModelFileError, UnsupportedModelError
from read_config import SIZES, read_config, read_metadata
from spec_reference import frequencies

pytestmark = pytest.mark.parity
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 64,
    "short_factor": [1.0 + i / 20 for i in range(8)],
    "long_factor": [1.5 + i / 2 for i in range(8)],
}
#: What rope_parameters holds, and the context of the engine.
CASES: list[tuple[dict[str, Any], int]] = [
    ({"rope_type": "default"}, 512),
    ({"rope_type": "linear", "factor": 8.0}, 512),
    (LLAMA3, 512),
    (LLAMA3 | {"low_freq_factor": 2.0, "high_freq_factor": 16.0}, 512),
    (YARN, 512),
    (YARN | {"beta_fast": 4.0, "beta_slow": 0.5}, 512),
    (YARN | {"truncate": False}, 512),
    (YARN | {"attention_factor": 1.7}, 512),
    (YARN | {"mscale": 0.7, "mscale_all_dim": 1.0}, 512),
    (YARN | {"factor": 1.0}, 512),
    (YARN | {"original_max_position_embeddings": 8}, 512),
    (YARN | {"partial_rotary_factor": 0.5}, 512),
    (LONGROPE, 64),
    (LONGROPE, 65),
    (LONGROPE | {"attention_factor": 1.1}, 512),
    (LONGROPE | {"factor": 3.0}, 512),
    ({"rope_type": "dynamic", "factor": 4.0}, 512),
    ({"rope_type": "dynamic", "factor": 4.0}, 2048),
    ({"rope_type": "dynamic", "factor": 4.0}, 16),
]


@pytest.mark.parametrize("old", [False, True], ids=["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize(("parameters", "length"), CASES, ids=str)
def test_a_table_is_transformers(parameters: dict[str, Any], length: int, old: bool) -> None:
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = parameters["rope_type"]
    config = transformers.LlamaConfig(**SIZES, max_position_embeddings=512, rope_parameters=parameters | {"rope_theta": 5000.0})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "default":
            exact, magnitude = 5000.0 ** -(np.arange(0, 16, 2) / 16), 1.0
        else:
            inverse, magnitude = ROPE_INIT_FUNCTIONS[kind](config, seq_len=length)
            exact = inverse.double().numpy()
    top = {"max_position_embeddings": 512}
    if old:
        partial = {key: value for key, value in parameters.items() if key == "partial_rotary_factor"}
        named = {key: value for key, value in parameters.items() if key not in ("rope_type", "partial_rotary_factor")}
        more = top | partial | {"rope_theta": 5000.0, "rope_scaling": named | {"type": "su" if kind == "longrope" else kind}}
    else:
        more = top | {"rope_parameters": parameters | {"rope_theta": 5000.0}}
    spec = read_config("LlamaForCausalLM", more, max_model_len=length)
    np.testing.assert_allclose(frequencies(spec.ropes[0], {}), exact, rtol=3e-6)
    assert spec.ropes[0].magnitude == pytest.approx(magnitude, rel=1e-12)
    assert bool(spec.rope_choice) == (kind in ("longrope", "dynamic"))


def test_hunyuans_fixed_alpha() -> None:
    spec = read_config("HunYuanDenseV1ForCausalLM", {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}})
    assert spec.ropes[0].theta == pytest.approx(10000.0 * 1000 ** (16 / 14)) and not spec.rope_choice


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rope_scaling": {"rope_type": "ntk"}}, "'ntk' is not run"),
        ({"rope_scaling": {"rope_type": "yarn", "type": "linear", "factor": 2.0}}, "different things"),
        ({"rope_scaling": YARN | {"factor": 0}}, "factor"),
        ({"rope_scaling": YARN | {"factor": "4"}}, "rope_scaling.factor.*a number"),
        ({"rope_scaling": LONGROPE | {"long_factor": [1.0] * 7}}, "long_factor.*7"),
        ({"rope_scaling": LONGROPE | {"short_factor": 1.0}}, "short_factor"),
        ({"rope_scaling": YARN | {"extrapolation": 1}}, "rope_scaling.extrapolation"),
        ({"rope_scaling": {"type": "dynamic", "factor": 0.5}}, "factor must be 1 or more"),
        ({"rope_scaling": [1]}, "not an object"),
        ({"partial_rotary_factor": 0.0}, "partial_rotary_factor"),
        (
            {"rope_theta": None, "rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "different things",
        ),
    ],
    ids=str,
)
def test_parameters_that_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises((ModelFileError, UnsupportedModelError), match=message):
        read_config("LlamaForCausalLM", more, max_model_len=2048)


def test_yarn_of_a_gguf() -> None:
    """llama.cpp works the factor of cosine and sine out of the scaling; a multiplier of its logarithm makes it the quotient that Ministral
    3 has."""
    keys = {"rope.freq_base": 5000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
    spec = read_metadata("llama", {f"llama.{key}": value for key, value in keys.items()})
    same = read_config("LlamaForCausalLM", {"max_position_embeddings": 512, "rope_parameters": YARN | {"rope_theta": 5000.0}})
    assert spec.ropes == same.ropes
    even = read_metadata("llama", {f"llama.{key}": value for key, value in (keys | {"rope.scaling.yarn_log_multiplier": 1.0}).items()})
    assert even.ropes[0].magnitude == 1.0


def test_longrope_of_a_gguf() -> None:
    keys = {"phi3.rope.scaling.original_context_length": 64, "phi3.rope.scaling.attn_factor": 1.25}
    tensors = {f"rope_factors_{name}.weight": (8,) for name in ("long", "short")}
    for length, name, other in ((64, "short", "long"), (65, "long", "short")):
        spec = read_metadata("phi3", keys, tensors=tensors, max_model_len=length)
        assert spec.ropes[0].divisors_tensor == f"rope_factors_{name}.weight" and spec.ropes[0].magnitude == 1.25
        assert spec.ignored_tensors == [f"rope_factors_{other}.weight"] and spec.rope_choice == f"longrope_{name}"
