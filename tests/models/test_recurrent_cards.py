"""Families with recurrences: what the specs say is what transformers computes; planted errors are seen; bits in any pieces and tables;
what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import family_gguf
import llmi
from decoders import logits_of
from family_specs import SEEN, check_meaning, interpreter
from llmi import LLM, SamplingParams, _core
from spec_float64 import Array, Interpreter, Spec
from test_families import assert_near, own_logits
from test_state_cards import changed
from tiny_families import MAMBA, RECURRENT, TOKENS, Family, make

pytestmark = pytest.mark.parity
NAMES = [*RECURRENT, "granite"]
ONE_OF_EACH = ["qwen3_5_text", "granite"]


def made(name: str, families: Path) -> Family:
    return make("granitemoehybrid", families, **MAMBA) if name == "granite" else make(name, families)


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_the_family(name: str, families: Path) -> None:
    family = made(name, families)
    assert_near(own_logits(family.path), family)


@pytest.mark.parametrize("name", NAMES)
def test_the_spec_means_what_transformers_computes(name: str, families: Path) -> None:
    check_meaning(made(name, families))


@pytest.mark.parametrize("name", ["qwen3_5_text", "qwen3_5_moe_text"])
def test_value_heads_of_a_gguf_are_tiled(name: str, families: Path, tmp_path: Path) -> None:
    """Fewer key heads than value heads; and a block behind the last that drafts further tokens."""
    pytest.importorskip("gguf", reason="the extra `test` brings gguf")
    family = made(name, families)
    drafts = {"blk.4.nextn.eh_proj.weight": np.ones((4, 4), np.float32), "blk.4.attn_norm.weight": np.ones(64, np.float32)}
    path = family_gguf.write(name, family.path, tmp_path / "model.gguf", {"block_count": 5, "nextn_predict_layers": 1}, drafts)
    assert_near(logits_of(path, TOKENS), family)


def test_an_older_gguf_of_qwen3_next_has_one_projection(families: Path, tmp_path: Path) -> None:
    """As llama.cpp's first converter of the family wrote it: queries, keys, values and gates of a key head together."""
    pytest.importorskip("gguf", reason="the extra `test` brings gguf")
    directory = made("qwen3_next", families).path
    stored = load_file(directory / "model.safetensors")
    tensors: dict[str, Array | None] = {}
    for layer in (0, 1, 3):
        tensors |= {f"blk.{layer}.attn_qkv.weight": None, f"blk.{layer}.attn_gate.weight": None}
        tensors[f"blk.{layer}.ssm_in.weight"] = stored[f"model.layers.{layer}.linear_attn.in_proj_qkvz.weight"]
    path = family_gguf.write("qwen3_next", directory, tmp_path / "model.gguf", tensors=tensors)
    assert logits_of(path, TOKENS[:40]).tobytes() == logits_of(directory, TOKENS[:40]).tobytes()


def test_a_gguf_of_granite_4_without_experts(families: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the extra `test` brings gguf")
    changes = {**family_gguf.EXPERTS["granitemoehybrid"][1], "num_local_experts": 0, "position_embedding_type": None}
    directory = make("granitemoehybrid", families, **changes).path
    size = json.loads((directory / "config.json").read_text())["shared_intermediate_size"]
    path = family_gguf.write("granitemoehybrid", directory, tmp_path / "model.gguf", {"feed_forward_length": size})
    assert logits_of(path, TOKENS[:40]).tobytes() == logits_of(directory, TOKENS[:40]).tobytes()


class ShortConvolution(Interpreter):
    """One row too few."""

    def conv(self, spec: Spec, x: Array) -> Array:
        first = self.tensors[spec["weight"]["name"]].astype(np.float64)[:, 0, 0]
        return super().conv(spec, x) - first * np.concatenate([np.zeros((spec["length"] - 1, x.shape[1])), x[: 1 - spec["length"]]])


class WrongSnapshot(Interpreter):
    """A state of one row less than the 48 that it is used for."""

    def recurrence(self, spec: Spec, x: Array, is_delta: bool) -> Array:
        right = super().recurrence(spec, x, is_delta)
        return np.concatenate([right[:48], super().recurrence(spec, np.delete(x, 47, 0), is_delta)[47:]])


Change = Callable[[Spec], object]
PLANTED: dict[str, Change] = {
    "gate": lambda mixer: mixer.update(gate=mixer["value"]),
    "groups": lambda mixer: mixer.update(tiled_groups=True),
    "norm": lambda mixer: mixer.pop("norm"),
    "bias of the time": lambda mixer: mixer.update(time_bias=mixer["decay"]),
    "dt limit": lambda mixer: mixer.pop("least_step"),
    "skip": lambda mixer: mixer.pop("skip"),
    "groups of the norm": lambda mixer: mixer.update(norm_groups=1),
    "write": lambda mixer: mixer.update(write=mixer["time"]),
}
MISTAKES = {"delta": ["gate", "groups", "norm", "bias of the time", "write"]}
MISTAKES["granite"] = ["gate", "groups", "norm", "bias of the time", "dt limit", "skip", "groups of the norm"]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_planted_error_is_seen(name: str, families: Path) -> None:
    model, tokens = interpreter(made(name, families).path), TOKENS[:80]
    right, spec = model.logits(tokens), model.spec
    for kind in (ShortConvolution, WrongSnapshot):
        assert float(np.abs(kind(spec, model.tensors).logits(tokens) - right).max()) > SEEN, kind
    for label in MISTAKES.get(name, MISTAKES["delta"]):
        model.spec = copy.deepcopy(spec)
        for layer in model.spec["layers"]:
            if "recurrence" in layer:
                PLANTED[label](layer["recurrence"])
        assert float(np.abs(model.logits(tokens) - right).max()) > SEEN, label


@pytest.mark.parametrize("table", _core.system_info()["tables"])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_table_has_the_reference_bits(name: str, table: str, families: Path) -> None:
    path = made(name, families).path
    assert logits_of(path, TOKENS[:40], table=table).tobytes() == logits_of(path, TOKENS[:40], table="reference").tobytes()


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_tokens_do_not_depend_on_pieces_batches_hits_or_drafts(name: str, families: Path) -> None:
    path, prompts = made(name, families).path, [TOKENS[:60], TOKENS[:33], [*TOKENS[:50], 7, 9]]
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=5, ignore_eos=True)

    def tokens(**options: Any) -> list[list[int]]:
        with LLM(path, kv_cache_memory_bytes=1 << 24, max_model_len=256, **options) as llm:
            asked: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
            return [list(output.outputs[0].token_ids) for times in range(2) for output in llm.generate(asked, params)]

    with LLM(path, kv_cache_memory_bytes=1 << 24, max_model_len=256, enable_prefix_caching=False) as alone:
        expected = [list(alone.generate({"prompt_token_ids": prompt}, params)[0].outputs[0].token_ids) for prompt in prompts] * 2
    assert tokens() == expected
    assert tokens(max_num_batched_tokens=7) == expected
    assert tokens(speculative_config={"method": "ngram", "num_speculative_tokens": 4}) == expected


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen3_5_text", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim = 1 is outside"),
        ("qwen3_5_text", {"linear_num_key_heads": 3}, "linear_num_key_heads = 3 does not divide the 4 value heads"),
        ("qwen3_5_text", {"linear_key_head_dim": 512}, "linear_key_head_dim = 512"),
        ("qwen3_5_text", {"attn_output_gate": False}, "attn_output_gate"),
        ("qwen3_5_text", {"layer_types": ["rwkv"] * 4}, "layer_types holds 'rwkv'"),
        ("granite", {"time_step_limit": [0.5, 0.1]}, "time_step_limit"),
        ("granite", {"mamba_d_head": 24}, "8 heads of 24 are not mamba_expand"),
        ("granite", {"mamba_n_groups": 3}, "mamba_n_groups = 3 does not divide the 8 heads"),
        ("granite", {"mamba_d_conv": 0}, "mamba_d_conv = 0 is outside"),
        ("granite", {"mamba_rms": True}, "mamba_rms"),
    ],
)
def test_bad_configs_are_refused(name: str, changes: dict[str, Any], message: str, families: Path, tmp_path: Path) -> None:
    with pytest.raises(llmi.LlmiError, match=message):
        LLM(changed(made(name, families).path, tmp_path, **changes), kv_cache_memory_bytes=1 << 22)


Edit = Callable[[Spec], object]
EDITS: dict[str, tuple[Edit, str]] = {
    "heads": (lambda mixer: mixer.update(num_heads=0), r"recurrence.num_heads = 0 is outside"),
    "keys": (lambda mixer: mixer.update(key_size=300), r"recurrence.key_size = 300 is outside \[1, 256\]"),
    "groups": (lambda mixer: mixer.update(num_groups=3), r"recurrence.num_groups = 3 does not divide the 4 heads"),
    "no write": (lambda mixer: mixer.pop("write"), r"recurrence.write.weight.name is missing"),
    "skip": (lambda mixer: mixer.update(skip={"name": "x"}), r"recurrence.skip.name = 'x'"),
    "limits": (lambda mixer: mixer.update(least_step=2.0, most_step=1.0), r"recurrence.most_step is below least_step"),
    "channels": (lambda mixer: mixer.update(value_size=25), r"recurrence.conv has 164 channels"),
    "unknown": (lambda mixer: mixer.update(chunk=2), r"recurrence.*chunk"),
}


@pytest.mark.parametrize("name", EDITS)
def test_bad_specs_are_refused_by_field(name: str, families: Path) -> None:
    path = made("qwen3_5_text", families).path
    spec = json.loads(json.dumps(interpreter(path).spec))
    edit, message = EDITS[name]
    edit(spec["layers"][0]["recurrence"])
    with pytest.raises(_core.CoreError, match=message):
        _core.testing.Decoder(_core.ModelFiles(str(path)), spec=json.dumps(spec))


def test_a_decay_that_is_not_negative_is_refused(families: Path) -> None:
    path = made("qwen3_5_text", families).path
    spec = json.loads(json.dumps(interpreter(path).spec))
    spec["layers"][0]["recurrence"]["decay_is_log"] = False
    with pytest.raises(_core.CoreError, match="a decay must be negative and finite"):
        _core.testing.Decoder(_core.ModelFiles(str(path)), spec=json.dumps(spec))
