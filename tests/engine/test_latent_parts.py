"""Layers with a latent: the absorbed form against float64 by the definition, and the same bits on every table, in pieces and in batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from bits import assert_same_bits
from features import has_bits_of_its_own
from spec_float64 import Interpreter
from spec_models import LATENT_PARTS, LAYERS, TinyModel
from test_decoder_parts import TOKENS, TOLERANCE, decoder_of, off, prefill, stepwise


@pytest.mark.parametrize("name", LATENT_PARTS)
def test_each_kind(name: str, tmp_path: Path) -> None:
    model = TinyModel(LATENT_PARTS[name])
    oracle = Interpreter(model.spec, model.tensors)
    decoder = decoder_of(model, model.save(tmp_path))
    logits, taps = decoder.forward([(decoder.new_sequence(), TOKENS, None)], tap_layers=list(range(LAYERS + 1)))
    for tap, state in zip(taps, oracle.states(TOKENS), strict=True):
        assert off(tap, state) < TOLERANCE
    assert off(logits, oracle.logits(TOKENS)) < TOLERANCE
    assert_same_bits(stepwise(decoder, 12), logits[:12])
    # More rows than the matrices of single heads take at once, and none at the same place as alone.
    pieces = [(decoder.new_sequence(), TOKENS[first:], None) for first in range(9)]
    many = decoder.forward([(decoder.new_sequence(), TOKENS[3:8], None), *pieces])[0]
    assert len(many) > 300
    assert_same_bits(many[5 : 5 + len(TOKENS)], logits)
    assert_same_bits(many[-len(TOKENS[8:]) :], prefill(decoder, TOKENS[8:]))
    assert decoder.audit() == ""


@pytest.mark.parametrize("kind", ["float32-float32", "q8_0-int8", "bfloat16-bfloat16", "bfloat16-float16"])
@pytest.mark.parametrize("name", LATENT_PARTS)
def test_tables(name: str, kind: str, table: str, tmp_path: Path) -> None:
    """The reference's bits, in a whole and step by step."""
    dtype, kv_dtype = kind.split("-")
    model = TinyModel(LATENT_PARTS[name])
    path = model.save(tmp_path)
    decoder = decoder_of(model, path, table, dtype, kv_dtype)
    whole = prefill(decoder, TOKENS[:14])
    assert_same_bits(stepwise(decoder, 6, 2), whole[:6])
    exact = Interpreter(model.spec, model.tensors).logits(TOKENS[:14])
    assert off(whole, exact) < (TOLERANCE if kind == "float32-float32" else 0.2)
    if not has_bits_of_its_own(table, kv_dtype):
        assert_same_bits(prefill(decoder_of(model, path, "reference", dtype, kv_dtype), TOKENS[:14]), whole)
