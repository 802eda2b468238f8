"""Cards of families with states: what their specs say, by the tests' float64 interpreter, is what transformers computes; what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from decoders import logits_of
from family_specs import SEEN, check_meaning, interpreter
from llmi import LLM, _core
from spec_float64 import Array, Interpreter, Spec
from spec_models import MIXERS, VOCAB, TinyModel
from tiny_families import STATES, TOKENS, make

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("name", STATES)
def test_the_spec_means_what_transformers_computes(name: str, families: Path) -> None:
    check_meaning(make(name, families))


@pytest.mark.parametrize("table", _core.system_info()["tables"])
def test_every_table_has_the_reference_bits(table: str, families: Path) -> None:
    path = make("lfm2", families).path
    assert logits_of(path, TOKENS[:40], table=table).tobytes() == logits_of(path, TOKENS[:40], table="reference").tobytes()


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_mixer_beside_attention(mixer: str, tmp_path: Path) -> None:
    """In one of two layers, in a model that no family has: as the interpreter says, and with the same bits in other pieces."""
    model = TinyModel({"norm": {"kind": "layer", "bias": True}, "biases": ("gate", "output"), "tied": False})
    model.mix(1, mixer)
    path, tokens = model.save(tmp_path), TOKENS[:40]
    tokens = [token % VOCAB for token in tokens]

    def rows(pieces: list[int]) -> Array:
        decoder = _core.testing.Decoder(_core.ModelFiles(str(path)), spec=model.json(), num_pages=16, dtype="float32", kv_dtype="float32")
        sequence, found, begin = decoder.new_sequence(), [], 0
        for size in pieces:
            found.append(decoder.forward([(sequence, tokens[begin : begin + size], None)])[0])
            begin += size
        result: Array = np.concatenate([np.asarray(part).reshape(-1, VOCAB) for part in found])
        return result

    whole = rows([40])
    assert np.abs(whole - Interpreter(model.spec, model.tensors).logits(tokens)).max() < 1e-4
    assert rows([3, 1, 20, 16]).tobytes() == whole.tobytes()


class ShortConvolution(Interpreter):
    """One row too few."""

    def conv(self, spec: Spec, x: Array) -> Array:
        return super().conv(spec, x) - self.tensors[spec["weight"]["name"]].astype(np.float64)[:, 0, 0] * np.concatenate(
            [np.zeros((spec["length"] - 1, x.shape[-1])), x[: len(x) - spec["length"] + 1]]
        )


class OtherOrder(Interpreter):
    """c, b and x."""

    def short_conv(self, spec: Spec, x: Array) -> Array:
        size: int = self.spec["hidden_size"]
        c, b, x = np.split(self.linear(spec["input"], x, 3 * size), 3, -1)
        return self.linear(spec["output"], c * self.conv(spec["conv"], b * x), size)


class WrongSnapshot(Interpreter):
    """A state of one row less than the 48 that it is used for."""

    def conv(self, spec: Spec, x: Array) -> Array:
        return np.concatenate([super().conv(spec, x[:48]), super().conv(spec, np.delete(x, 47, 0))[47:]])


@pytest.mark.parametrize("mistake", [ShortConvolution, OtherOrder, WrongSnapshot])
@pytest.mark.parametrize("name", STATES)
def test_a_mistake_is_seen(name: str, mistake: type[Interpreter], families: Path) -> None:
    family = make(name, families)
    right = interpreter(family.path)
    assert float(np.abs(mistake(right.spec, right.tensors).logits(TOKENS) - family.float64).max()) > SEEN


def changed(path: Path, folder: Path, **changes: Any) -> Path:
    for file in path.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((path / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conv_L_cache": 0}, "conv_L_cache = 0 must be 2 or more"),
        ({"conv_L_cache": 1}, "conv_L_cache = 1 must be 2 or more"),
        ({"conv_L_cache": 5}, "conv.conv.weight' has shape"),
        ({"conv_dilation": 2}, "conv_dilation"),
        ({"layer_types": ["conv", "full_attention", "mamba", "conv"]}, "layer_types holds 'mamba'"),
        ({"layer_types": ["conv", "full_attention", "full_attention", "conv"]}, "tensor"),
    ],
)
def test_bad_configs_are_refused(families: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(llmi.LlmiError, match=message):
        LLM(changed(make("lfm2", families).path, tmp_path, **changes), kv_cache_memory_bytes=1 << 22)


Edit = Callable[[dict[str, Any]], object]
EDITS: dict[str, tuple[Edit, str]] = {
    "no length": (lambda layer: layer["short_conv"]["conv"].pop("length"), r"layers\[0\].short_conv.conv.length = 0 is outside \[2, 64\]"),
    "length 1": (lambda layer: layer["short_conv"]["conv"].update(length=1), r"layers\[0\].short_conv.conv.length = 1 is outside"),
    "no weight": (lambda layer: layer["short_conv"]["conv"].pop("weight"), r"layers\[0\].short_conv.conv.weight.name is missing"),
    "an unknown mixer": (lambda layer: layer.update(mixer="rwkv"), r"layers\[0\].mixer is 'rwkv', none of attention, short_conv"),
    "two mixers": (lambda layer: layer.update(attention={"query": {"weight": {"name": "q"}}}), r"layers\[0\].attention.weight.name = 'q'"),
    "attention without tensors": (lambda layer: layer.pop("mixer"), r"layers\[0\].attention.query.weight.name is missing"),
}


@pytest.mark.parametrize("name", EDITS)
def test_bad_specs_are_refused_by_field(name: str, families: Path) -> None:
    path = make("lfm2", families).path
    spec = json.loads(json.dumps(interpreter(path).spec))
    edit, message = EDITS[name]
    edit(spec["layers"][0])
    with pytest.raises(_core.CoreError, match=message):
        _core.testing.Decoder(_core.ModelFiles(str(path)), spec=json.dumps(spec))


def test_states_beyond_memory_are_refused_with_the_sum(families: Path) -> None:
    with pytest.raises(llmi.OutOfMemoryError, match=r"needs .* MB of KV cache \(.* bytes a token, and .* MB of states\), 0 MB are given"):
        LLM(make("lfm2", families).path, kv_cache_memory_bytes=1 << 16, max_model_len=256)
