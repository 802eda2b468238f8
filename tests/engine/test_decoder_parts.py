"""The decoder computes what a spec says: each part of a ModelSpec and mixtures of them, against float64 (spec_float64.py)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from features import has_bits_of_its_own
from llmi import _core
from spec_float64 import Array, Interpreter, Spec
from spec_models import LAYERS, PARTS, PLAIN, TinyModel, mixture

T = _core.testing
TOKENS = [(position * 37 + 11) % 101 for position in range(40)]
#: Of the largest logit. A plain model of fp32 weights is 4e-7 off at most.
TOLERANCE = 4e-6

Made = Callable[[Spec, int], tuple[TinyModel, Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Makes (once for equal arguments) a model of some choices."""
    known: dict[str, tuple[TinyModel, Path]] = {}

    def make(choices: Spec, seed: int = 0) -> tuple[TinyModel, Path]:
        key = f"{choices} {seed}"
        if key not in known:
            model = TinyModel(choices, seed)
            known[key] = model, model.save(tmp_path_factory.mktemp("parts"))
        return known[key]

    return make


def decoder_of(model: TinyModel, path: Path, table: str = "", dtype: str = "float32", kv_dtype: str = "float32") -> Any:
    return T.Decoder(_core.ModelFiles(str(path)), spec=model.json(), table=table, dtype=dtype, kv_dtype=kv_dtype, num_pages=256)


def prefill(decoder: Any, tokens: list[int] = TOKENS) -> Array:
    return np.asarray(decoder.forward([(decoder.new_sequence(), tokens, None)])[0])


def stepwise(decoder: Any, count: int, step: int = 1) -> Array:
    sequence = decoder.new_sequence()
    rows = [decoder.forward([(sequence, TOKENS[begin : begin + step], None)])[0] for begin in range(0, count, step)]
    return np.concatenate(rows)


def off(actual: Array, exact: Array) -> float:
    assert np.isfinite(actual).all()
    return float(np.abs(actual - exact).max() / np.abs(exact).max())


def check_against_float64(model: TinyModel, path: Path) -> None:
    """Logits and hidden states of every layer; one token at a time, or many sequences at once, the same bits."""
    oracle = Interpreter(model.spec, model.tensors)
    decoder = decoder_of(model, path)
    logits, taps = decoder.forward([(decoder.new_sequence(), TOKENS, None)], tap_layers=list(range(LAYERS + 1)))
    for tap, state in zip(taps, oracle.states(TOKENS), strict=True):
        assert off(tap, state) < TOLERANCE
    assert off(logits, oracle.logits(TOKENS)) < TOLERANCE
    assert_same_bits(stepwise(decoder, 12), logits[:12])
    # More rows than the MLP, or the matrices of single heads, take at once on a CPU, and none at the same place as alone.
    pieces = [(decoder.new_sequence(), TOKENS[first:], None) for first in range(9)]
    many = decoder.forward([(decoder.new_sequence(), TOKENS[3:8], None), *pieces])[0]
    assert len(many) > 300
    assert_same_bits(many[5 : 5 + len(TOKENS)], logits)
    assert_same_bits(many[-len(TOKENS[8:]) :], prefill(decoder, TOKENS[8:]))
    assert decoder.audit() == ""


@pytest.mark.parametrize("name", ["plain", *PARTS])
def test_each_part(made: Made, name: str) -> None:
    """Logits and hidden states of every layer against float64; one token at a time, or many sequences at once, the same bits."""
    model, path = made(PARTS.get(name, {}), 0)
    check_against_float64(model, path)


@pytest.mark.parametrize("seed", range(12))
def test_mixtures(made: Made, table: str, seed: int) -> None:
    """On every table and device: the reference's bits, in a whole and step by step; and near float64."""
    model, path = made(mixture(seed), seed)
    decoder = decoder_of(model, path, table)
    count = 12 if table in ("reference", "emulated") else len(TOKENS)
    whole = prefill(decoder, TOKENS[:count])
    assert off(whole, Interpreter(model.spec, model.tensors).logits(TOKENS[:count])) < TOLERANCE
    assert_same_bits(prefill(decoder_of(model, path, "reference"), TOKENS[:12]), whole[:12])
    assert_same_bits(stepwise(decoder, 5), whole[:5])
    assert_same_bits(stepwise(decoder, 12, 4), whole[:12])


@pytest.mark.parametrize("kind", [("q8_0", "int8"), ("bfloat16", "bfloat16"), ("bfloat16", "float16")], ids="-".join)
@pytest.mark.parametrize("seed", range(4))
def test_mixtures_in_other_types(made: Made, table: str, seed: int, kind: tuple[str, str]) -> None:
    """The converted inputs of layers reach them from every norm, gate and kept row: the reference's bits, in a whole and step by step."""
    dtype, kv_dtype = kind
    choices = mixture(seed + 100) | {"head_dim": 16, "ropes": PLAIN["ropes"], "rope_of_layers": [0, -1]}
    if choices.get("experts") is not None:  # whole blocks of 32 columns
        choices["experts"] = choices["experts"] | {"size": 64, "shared": 96 * bool(choices["experts"].get("shared"))}
    model, path = made(choices, seed)
    decoder = decoder_of(model, path, table, dtype, kv_dtype)
    whole = prefill(decoder, TOKENS[:20])
    assert_same_bits(stepwise(decoder, 6, 2), whole[:6])
    exact = Interpreter(model.spec, model.tensors).logits(TOKENS[:20])
    assert 1e-5 < off(whole, exact) < 0.2
    if not has_bits_of_its_own(table, kv_dtype):
        assert_same_bits(prefill(decoder_of(model, path, "reference", dtype, kv_dtype), TOKENS[:20]), whole)


def differences(spec: Any, other: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places where two specs differ: the outermost of each."""
    if isinstance(spec, dict) and isinstance(other, dict):
        for key in spec.keys() | other.keys():
            yield from differences(spec.get(key), other.get(key), (*place, key))
    elif isinstance(spec, list) and isinstance(other, list) and len(spec) == len(other):
        for index, (value, its) in enumerate(zip(spec, other, strict=True)):
            yield from differences(value, its, (*place, index))
    elif spec != other:
        yield place


def exchanged(spec: Spec, other: Spec, place: tuple[Any, ...]) -> Spec:
    """The spec with what the other one has at a place."""
    changed: Any = copy.deepcopy(spec)
    holder, its = changed, other
    for key in place[:-1]:
        holder, its = holder[key], its[key]
    if isinstance(its, dict) and place[-1] not in its:
        del holder[place[-1]]
    else:
        holder[place[-1]] = its[place[-1]]
    return changed  # type: ignore[no-any-return]


def is_read(spec: Spec, place: tuple[Any, ...]) -> bool:
    layer = spec["layers"][0]
    unread = {"gate"} if not layer.get("mlp", {}).get("gated", True) else set()
    attention = spec["layers"][place[1]]["attention"] if place[0] == "layers" else {}
    if "kv_donor" in attention:
        unread |= {"key", "value"}
    if "value_is_key" in attention:
        unread |= {"value"}
    return place[-1] not in (unread | {"mlp_norm"} if layer.get("mlp_reads_attention_norm") else unread)


@pytest.mark.parametrize("name", PARTS)
def test_each_field_matters(name: str) -> None:
    """A spec without one field of the part means something else, by much more than the tolerance: test_each_part would notice."""
    model, plain = TinyModel(PARTS[name]), TinyModel({})
    tensors = plain.tensors | model.tensors
    exact = Interpreter(model.spec, tensors).logits(TOKENS)
    compared = 0
    for place in filter(lambda place: is_read(model.spec, place), differences(model.spec, plain.spec)):
        try:
            other = Interpreter(exchanged(model.spec, plain.spec, place), tensors).logits(TOKENS)
        except (KeyError, ValueError, IndexError):
            continue  # no model: its tensors have other shapes
        compared += 1
        assert off(other, exact) > 100 * TOLERANCE, place
    assert compared > 0 or name == "plain MLP", "a model with a gate has one more tensor"
