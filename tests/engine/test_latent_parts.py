"""Layers with a latent: the absorbed form against float64 by the definition, and the same bits on every table, in pieces and in batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from bits import assert_same_bits
from features import has_bits_of_its_own
from spec_float64 import Interpreter
from spec_models import LATENT_PARTS, TinyModel
from test_decoder_parts import TOKENS, TOLERANCE, check_against_float64, decoder_of, off, prefill, stepwise


@pytest.mark.parametrize("name", LATENT_PARTS)
def test_each_kind(name: str, tmp_path: Path) -> None:
    model = TinyModel(LATENT_PARTS[name])
    check_against_float64(model, model.save(tmp_path))


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
