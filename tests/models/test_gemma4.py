"""Gemma 4: what its card says, beside transformers in float64; mistakes that this must catch; folders and GGUF; its bits under load."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from family_specs import SEEN, check_meaning, interpreter
from features import there
from llmi import LLM, PromptLookup, SamplingParams, SpeculativeConfig
from llmi.errors import LlmiError
from llmi.families.reader import Reading
from llmi.models.inspection import inspect_model
from spec_float64 import Spec
from test_expert_cards import swap
from test_families import distances, own_logits
from tiny_families import GEMMA4, NUM_TOKENS, TOKENS, make

pytestmark = pytest.mark.parity
Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("name", GEMMA4)
def test_the_spec_means_what_transformers_computes(name: str, families: Path) -> None:
    family = make(name, families)
    check_meaning(family, most=1e-9)
    named = {name.replace("{expert}", "0") for name in Reading(*_read(family.path)).of_config_json().tensor_names()}
    assert named == set(load_file(family.path / "model.safetensors")), "every tensor has a role"


def _read(path: Path, **changes: Any) -> Any:
    config = json.loads((path / "config.json").read_text()) | changes
    shapes = {name: tensor.shape for name, tensor in load_file(path / "model.safetensors").items()}
    return config, "config.json", shapes, {}, NUM_TOKENS + 1


@pytest.mark.parametrize("name", GEMMA4)
def test_logits(name: str, families: Path) -> None:
    family = make(name, families)
    shown, own, theirs = distances(own_logits(family.path), family)
    print(f"{name}: label and top 20 {shown:.1e}, whole rows {own:.1e}, transformers' fp32 {theirs:.1e}")
    assert shown <= 1e-4 or own <= 2 * theirs


Change = Callable[[Spec], object]


def in_layers(change: Change) -> Change:
    return lambda spec: [change(layer) for layer in spec["layers"]]


def of_readers(change: Change) -> Change:
    return lambda spec: [change(layer) for layer in spec["layers"] if "kv_donor" in layer["attention"]]


def drop(*path: str) -> Change:
    def change(layer: Spec) -> None:
        for key in path[:-1]:
            layer = layer[key]
        layer.pop(path[-1])

    return change


def earlier(layer: Spec) -> None:
    """The first layer of the same kind, not the last."""
    layer["attention"]["kv_donor"] -= 2


#: What a reader could get wrong (models.md, section 6, row 28: a donor that is not the last layer of its kind).
PLANTED: dict[str, list[tuple[str, Change]]] = {
    "gemma4_text-e2b": [
        ("donor of keys and values", of_readers(earlier)),
        ("layer scalar", in_layers(drop("output_scale"))),
        ("norm of values", in_layers(lambda layer: layer["attention"].get("norms", {}).pop("value", None))),
        ("scale of the layers' embeddings", lambda spec: spec["layer_embedding"].pop("scale")),
        ("factor of their norm", lambda spec: spec["layer_embedding"]["norm"]["weight"].pop("times")),
        ("place of a layer", in_layers(lambda layer: layer["input"].update(place=0))),
        ("still frequencies", lambda spec: spec["ropes"][0].pop("frequency_divisors")),
    ],
    "gemma4_text-31b": [
        ("layer scalar", in_layers(drop("output_scale"))),
        ("window", in_layers(lambda layer: layer["attention"].get("window") and layer["attention"].update(window=25))),
        ("cap", lambda spec: spec["head"].pop("soft_cap")),
    ],
    "gemma4_text-26b": [
        ("scales of experts", in_layers(drop("moe", "router", "expert_scales"))),
        ("norm of the router", in_layers(drop("moe", "router", "norm"))),
        ("norm of experts", in_layers(drop("moe", "norm"))),
        ("norm of their sum", in_layers(drop("moe", "post_norm"))),
        ("norm of the MLP beside", in_layers(drop("moe", "shared_post_norm"))),
        ("gate and up", in_layers(swap)),
    ],
}


@pytest.mark.parametrize("name", GEMMA4)
def test_a_planted_error_is_seen(name: str, families: Path) -> None:
    model, tokens = interpreter(make(name, families).path), TOKENS[:80]
    right, spec = model.logits(tokens), model.spec
    for label, change in PLANTED[name]:
        model.spec = copy.deepcopy(spec)
        change(model.spec)
        moved = float(np.abs(model.logits(tokens) - right).max())
        assert moved > SEEN, label


def write_gguf(directory: Path, path: Path) -> Path:
    """In the conventions of llama.cpp's converter."""
    import gguf

    config, stored = json.loads((directory / "config.json").read_text()), load_file(directory / "model.safetensors")
    number, heads = config["num_hidden_layers"], config["per_layer_config"]
    sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    of_full = heads[str(sliding.index(False))]
    first = number - config["num_kv_shared_layers"]
    wide = 2 if config["use_double_wide_mlp"] else 1
    ropes = config["rope_parameters"]
    fields: dict[str, Any] = {
        "block_count": number,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "feed_forward_length": [config["intermediate_size"] * (1 if index < first else wide) for index in range(number)],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": [
            config["num_key_value_heads"] if local else of_full.get("num_key_value_heads", config["num_key_value_heads"])
            for local in sliding
        ],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.key_length": of_full["head_dim"],
        "attention.value_length": of_full["head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": sliding,
        "rope.freq_base": ropes["full_attention"]["rope_theta"],
        "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
        "rope.dimension_count": of_full["head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
        "final_logit_softcapping": config["final_logit_softcapping"],
    }
    if config["enable_moe_block"]:
        fields |= {"expert_count": config["num_experts"], "expert_used_count": config["top_k_experts"]}
        fields |= {"expert_feed_forward_length": config["moe_intermediate_size"]}
    writer = gguf.GGUFWriter(path, "gemma4")
    add = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
    for key, value in fields.items():
        add[type(value)](f"gemma4.{key}", value)
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, number)
    for name, tensor in stored.items():
        layer = name.split(".")[2] if ".layers." in name else ""
        special = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
        part = next((part for part in special if name.endswith(part)), None)
        target = f"blk.{layer}.{special[part]}" if part else f"{table.get_name(name.removesuffix('.weight'))}.weight"
        writer.add_tensor(target, tensor)
    half = of_full["head_dim"] // 2
    turning = int(half * ropes["full_attention"]["partial_rotary_factor"])
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * turning + [1e30] * (half - turning), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", GEMMA4)
def test_gguf_has_the_bits_of_the_folder(name: str, families: Path, tmp_path: Path) -> None:
    family = make(name, families)
    file = write_gguf(family.path, tmp_path / "model.gguf")
    with open_llm(family.path) as folder, open_llm(file, tokenizer=str(family.path)) as own:
        rows = [llm.sequence(TOKENS[:80]).logits for llm in (folder, own)]
    assert np.array_equal(*rows)


def open_llm(path: Path, **options: Any) -> LLM:
    sizes = {"dtype": "float32", "kv_cache_memory_bytes": 1 << 24, "max_model_len": NUM_TOKENS + 1, "num_threads": 1}
    return LLM(path, **(sizes | options))


def answers(llm: LLM, prompts: list[list[int]], **parameters: Any) -> list[list[int]]:
    params = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.9, seed=5, **parameters)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("name", GEMMA4)
def test_tokens_are_those_of_a_lone_run(name: str, families: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of 7 tokens, after warm beginnings, in a batch, preempted, with drafts, and on the emulated device."""
    path = make(name, families).path
    prompts = [TOKENS[:90], TOKENS[:60] + TOKENS[120:140], TOKENS[30:75], TOKENS[:33]]
    with open_llm(path) as llm:
        alone = [answers(llm, [prompt])[0] for prompt in prompts]
        assert answers(llm, prompts) == alone  # warm, and in a batch
    for options in (
        {"max_num_batched_tokens": 7},
        {"kv_cache_memory_bytes": 700_000, "max_model_len": 120},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}},
        there(monkeypatch, "emulated"),
    ):
        with open_llm(path, **options) as llm:
            assert answers(llm, prompts) == alone, options
            assert answers(llm, prompts[:2]) == alone[:2], options


@pytest.mark.parametrize("verification", ["rejection", "typical"])
def test_judged_drafts_do_not_depend_on_the_batch(verification: str, families: Path) -> None:
    """Nor on pieces or known beginnings; layers that read another's keys and values do not draft otherwise."""
    path = make("gemma4_text-e2b", families).path
    prompts = [(TOKENS[:7] * 9)[:60], (TOKENS[20:25] * 9)[:33], TOKENS[:45]]
    config = SpeculativeConfig(PromptLookup(), 4, verification)
    with open_llm(path, speculative_config=config) as llm:
        alone = [answers(llm, [prompt])[0] for prompt in prompts]
        assert answers(llm, prompts) == alone
        drafted = llm.generate(prompts, SamplingParams(max_tokens=20, temperature=0.9, seed=5, ignore_eos=True), use_tqdm=False)
        assert sum(output.outputs[0].spec_decode_metrics.num_draft_tokens for output in drafted) > 0
    with open_llm(path, speculative_config=config, max_num_batched_tokens=7) as llm:
        assert answers(llm, prompts) == alone


def test_a_fork_and_a_rollback(families: Path) -> None:
    with open_llm(make("gemma4_text-e2b", families).path) as llm:
        sequence = llm.sequence(TOKENS[:70])
        fork = sequence.fork()
        fork.extend(TOKENS[100:110])
        rows = sequence.extend(TOKENS[70:90])
        sequence.rollback(20)
        assert np.array_equal(sequence.extend(TOKENS[70:90]), rows)


def test_layers_left_out(families: Path) -> None:
    """A model of some layers: readers keep their donors by their new numbers, and places of embeddings; a donor cannot be left out."""
    path = make("gemma4_text-e2b", families).path
    model = interpreter(path)
    kept = [0, 2, 3, 5]
    layers = [copy.deepcopy(model.spec["layers"][index]) for index in kept]
    assert layers[3]["attention"]["kv_donor"] == 3
    layers[3]["attention"]["kv_donor"] = 2
    model.spec = model.spec | {"layers": layers}
    with open_llm(path, _layers=kept) as llm:
        rows = llm.sequence(TOKENS[:1]).extend(TOKENS[1:40])
    assert float(np.abs(rows - model.logits(TOKENS[:40])[1:]).max()) < 1e-3
    with pytest.raises(LlmiError, match="layers leaves out layer 3, whose keys and values layer 5 reads"):
        open_llm(path, _layers=[0, 1, 2, 4, 5])


@pytest.mark.parametrize("name", GEMMA4)
def test_with_quantised_layers(name: str, families: Path) -> None:
    """Quantised at load: near the float64 of the plain weights, and the same bits in one piece and step by step."""
    wide = {"hidden_size_per_layer_input": 32} if name == "gemma4_text-e2b" else {}  # whole blocks of 32 columns
    family = make(name, families, **wide)
    with open_llm(family.path, dtype="auto", quantization="q8_0") as llm:
        sequence = llm.sequence(TOKENS[:1])
        rows = sequence.extend(TOKENS[1:40])
        steps = llm.sequence(TOKENS[:1])
        assert np.array_equal(np.concatenate([np.atleast_2d(steps.extend([token])) for token in TOKENS[1:12]]), rows[:11])
    assert 1e-5 < float(np.abs(rows - family.float64[1:40]).mean()) < 0.2


@pytest.mark.parametrize(
    "changes, key",
    [
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers"),
        (
            {"layer_types": ["sliding_attention"] * 4 + ["full_attention"] * 2, "per_layer_config": None, "global_head_dim": 32},
            "num_kv_shared_layers",
        ),
        ({"layer_types": ["full_attention"] * 5 + ["sliding_attention"]}, "layer_types"),
        ({"vocab_size_per_layer_input": 100}, "vocab_size_per_layer_input"),
        ({"per_layer_config": {"1": {"num_key_value_heads": 3}}}, "num_key_value_heads"),
        ({"per_layer_config": {"1": {"window": 3}}}, "per_layer_config.1.window"),
        ({"per_layer_config": {"1": {"head_dim": 32}, "3": {"head_dim": 48}, "5": {"head_dim": 32}}}, "per_layer_config"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
    ],
)
def test_keys_that_cannot_be(changes: dict[str, Any], key: str, families: Path) -> None:
    path = make("gemma4_text-e2b", families).path
    with pytest.raises(LlmiError) as caught:
        Reading(*_read(path, **changes)).of_config_json()
    assert caught.value.field == key  # type: ignore[attr-defined]


def test_the_old_names_of_heads(families: Path) -> None:
    """global_head_dim and num_global_key_value_heads, which transformers makes per_layer_config of."""
    path = make("gemma4_text-31b", families).path
    own = {"per_layer_config": None, "global_head_dim": 32, "num_global_key_value_heads": 1}
    specs = [Reading(*_read(path, **changes)).of_config_json().to_json() for changes in ({}, own)]
    assert specs[0] == specs[1]


def test_a_folder_with_towers(families: Path, tmp_path: Path) -> None:
    """The text model of a folder of images and sound, which also has the keys of layers that read others'."""
    path = make("gemma4_text-e2b", families).path
    config, stored = json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")
    moved = {name.replace("model.", "model.language_model."): tensor for name, tensor in stored.items()}
    for name in ("self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm"):
        moved[f"model.language_model.layers.5.{name}.weight"] = np.ones((32, 64) if "proj" in name else 32, np.float32)
    for name in (
        "vision_tower.encoder.layers.0.mlp.up_proj.linear.weight",
        "audio_tower.layers.0.x",
        "embed_vision.embedding_projection.weight",
    ):
        moved[f"model.{name}"] = np.zeros((2, 2), np.float32)
    save_file(moved, tmp_path / "model.safetensors")
    outer = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": config | {"architectures": None}}
    outer |= {"vision_config": {}, "audio_config": {}, "boa_token_id": 256000, "eoa_token_index": 258883, "video_token_id": 258884}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    with open_llm(path) as one, open_llm(tmp_path, tokenizer=str(path)) as other:
        assert np.array_equal(one.sequence(TOKENS[:40]).logits, other.sequence(TOKENS[:40]).logits)


def test_pages_of_layers_that_do_not_fill_them(families: Path) -> None:
    """Four layers of 2 heads of 16 beside two of one head of 48: pages of four layers of the first kind hold two of the second."""
    path = make("gemma4_text-31b", families, global_head_dim=48).path
    with open_llm(path, kv_cache_dtype="float16") as llm:
        info = llm._engine.info()
    assert info["page_bytes"] % (4 * 2 * 2 * 16 * 2) == 0 and info["kv_wasted_share"] == 0.125


def test_inspect(families: Path) -> None:
    report = inspect_model(make("gemma4_text-e2b", families).path)
    text = str(report)
    assert "2 layers x 2 KV heads x 16" in text and "2 layers x 2 KV heads x 32" in text and "2 layers read another layer's" in text
    with open_llm(report.path, kv_cache_dtype="float16") as llm:
        per_token = llm.model_info.kv_bytes_per_token
    assert per_token == 2 * 2 * 2 * (16 + 32) * 2
