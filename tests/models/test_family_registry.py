"""Cards: what they refuse, text models inside other files, names of tensors, and cards of users."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llmi
from llmi.errors import InvalidParamsError, ModelFileError, UnsupportedModelError
from llmi.families import Config, ModelSpec, Style, dense, family, forget_family
from llmi.families.inert import matches
from llmi.families.registry import cards
from models_page import page
from read_config import SIZES, read_config, read_metadata

ARCHITECTURES = [name for card in cards() if not card.is_users for name in card.hf]
WITHOUT = dict.fromkeys(SIZES)
#: What some families cannot do without.
NEEDED: dict[str, dict[str, Any]] = {
    "Ministral3ForCausalLM": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    "ApertusForCausalLM": {"hidden_act": "xielu"},
    "Gemma4ForCausalLM": {"vocab_size_per_layer_input": 264},
}
OTHER_NAMES = {"GPT2LMHeadModel", "GPTBigCodeForCausalLM", "GPTJForCausalLM"}


def small(architecture: str, more: dict[str, Any] | None = None, **options: Any) -> ModelSpec:
    gone = dict.fromkeys(("num_key_value_heads", "head_dim", "intermediate_size")) if architecture in OTHER_NAMES else {}
    return read_config(architecture, gone | NEEDED.get(architecture, {}) | (more or {}), **options)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_unknown_key_is_refused_in_every_family(architecture: str) -> None:
    assert small(architecture).layers
    for name, value in (("scale_of_everything", 2), ("Hidden_act", "silu"), ("rope_parameters", {"rope_theta": 1e4, "other": 1})):
        if name == "rope_parameters" and architecture.startswith(
            (
                "GPT2",
                "GPTBig",
                "OPT",
                "Bloom",
                "GPTJ",
                "Gemma3",
                "Gemma4",
                "Olmo3",
                "Ministral",
                "Bert",
                "XLMRoberta",
                "Roberta",
                "ModernBert",
            )
        ):
            continue
        with pytest.raises(UnsupportedModelError, match=r"other' = 1|Hidden_act' = \"silu\"|scale_of_everything' = 2"):
            small(architecture, {name: value})
        if name != "rope_parameters":
            assert small(architecture, {name: value}, changes={name: None}).digest() == small(architecture).digest()


LAYER_NORMS = {
    "olmo",
    "gpt2",
    "gptj",
    "gptneox",
    "starcoder",
    "starcoder2",
    "bloom",
    "stablelm",
    "phi2",
    "command-r",
    "cohere2",
    "nemotron",
}
WINDOWED = {"gemma2", "gemma3", "cohere2", "granite_swa"}


@pytest.mark.parametrize("gguf", [name for card in cards() if not card.is_users for name in card.gguf])
def test_an_unknown_key_is_refused_in_every_gguf(gguf: str) -> None:
    more: dict[str, Any] = {f"{gguf}.attention.sliding_window": 24} if gguf in WINDOWED else {}
    if gguf in LAYER_NORMS:
        more |= {f"{gguf}.attention.layer_norm_epsilon": 1e-5, f"{gguf}.attention.layer_norm_rms_epsilon": None}
    if gguf == "apertus":
        more |= {f"xielu.{name}": [0.5] * 4 for name in ("alpha_p", "alpha_n", "beta", "eps")}
    if gguf == "starcoder":
        more |= {f"{gguf}.attention.head_count_kv": 1}
    assert read_metadata(gguf, more).layers
    for key in (f"{gguf}.scale_of_everything", "my.note", "other.attention.scale"):
        with pytest.raises(UnsupportedModelError, match=re.escape(f"'{key}' = 0.5")):
            read_metadata(gguf, more | {key: 0.5})


def test_an_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(UnsupportedModelError, match=r"unknown architecture 'TernForCausalLM'.*LlamaForCausalLM.*register_family"):
        read_config("TernForCausalLM")
    with pytest.raises(UnsupportedModelError, match=r"unknown architecture 'tern'.*qwen3.*register_family"):
        read_metadata("tern")


# --- text models inside other files

TEXT = {"model_type": "qwen3", **SIZES, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3], "rope_type": "default"}}


def test_a_text_model_beside_others() -> None:
    config = WITHOUT | {
        "model_type": "x",
        "text_config": TEXT,
        "vision_config": {"depth": 4},
        "image_token_id": 7,
        "tie_word_embeddings": True,
    }
    names = {"model.language_model.embed_tokens.weight": (264, 64), "model.visual.patch_embed.weight": (3, 3)}
    spec = read_config("SomeForConditionalGeneration", config, tensors=names)
    assert spec.family == "qwen3" and spec.layers[3].attention.query.weight.name == "model.language_model.layers.3.self_attn.q_proj.weight"
    assert any(matches(pattern, "model.visual.patch_embed.weight") for pattern in spec.ignored_tensors)
    with pytest.raises(UnsupportedModelError, match=r"text_config\.scale"):
        read_config("SomeForConditionalGeneration", config | {"text_config": TEXT | {"scale": 2}})
    with pytest.raises(UnsupportedModelError, match=r"text_config, model_type 'tern'.*register_family"):
        read_config("SomeForConditionalGeneration", config | {"text_config": TEXT | {"model_type": "tern"}})


def test_a_text_model_whose_keys_stand_at_the_top_too() -> None:
    """As transformers 4.52 writes them: equal ones are one, others are named, and what another key switches off may differ."""
    keys = SIZES | {"rms_norm_eps": 1e-6, "use_sliding_window": False, "sliding_window": None}
    both = keys | {"model_type": "qwen2_5_vl", "text_config": keys | {"model_type": "qwen2_5_vl_text", "architectures": ["X"]}}
    name = "Qwen2_5_VLForConditionalGeneration"
    assert read_config(name, both).layers == read_config("Qwen2ForCausalLM", keys).layers
    assert read_config(name, both | {"sliding_window": 32768}).digest() == read_config(name, both).digest()
    for change in ({"rms_norm_eps": 0.1}, {"vocab_size": 265}, {"num_attention_heads": "4"}):
        with pytest.raises(ModelFileError, match=f"'{next(iter(change))}' and 'text_config.{next(iter(change))}'"):
            read_config(name, both | change)


def test_towers_of_published_files() -> None:
    config = WITHOUT | {"model_type": "llava", "vocab_size": 32000, "text_config": {"model_type": "llama", "vocab_size": 32000}}
    spec = read_config("LlavaForConditionalGeneration", config)
    assert (spec.hidden_size, len(spec.layers), spec.layers[0].mlp.size) == (4096, 32, 11008)  # LlamaConfig's own
    for tensor in ("model.connector.modality_projection.proj.weight", "model.image_newline"):
        assert any(matches(pattern, tensor) for pattern in spec.ignored_tensors)
    with pytest.raises(ModelFileError, match=r"'vocab_size' and 'text_config\.vocab_size'"):
        read_config("LlavaForConditionalGeneration", config | {"vocab_size": 32064})
    text = {"model_type": "gemma", **SIZES}
    with pytest.raises(UnsupportedModelError, match=r"PaliGemma.*see those behind them"):
        read_config("PaliGemmaForConditionalGeneration", WITHOUT | {"model_type": "paligemma", "text_config": text})


def test_a_file_without_architectures() -> None:
    keys = {"architectures": None, "model_type": "qwen3"}
    assert read_config("", keys).digest() == read_config("Qwen3ForCausalLM", {"model_type": "qwen3"}).digest()
    for kind in (None, "tern", 3):
        with pytest.raises(ModelFileError, match="'architectures' is missing"):
            read_config("", keys | {"model_type": kind})


def test_internlm3_as_transformers_5_writes_it() -> None:
    keys = {"model_type": "internlm3", "head_dim": None, "hidden_size": 256, "num_key_value_heads": None}
    spec = read_config("LlamaForCausalLM", keys | {"attention_bias": True, "mlp_bias": True})
    assert spec.family == "internlm3" and (spec.head_dim, spec.num_kv_heads) == (128, 2) and spec.layers[0].mlp.down.bias.name
    assert read_config("InternLM3ForCausalLM", keys | {"qkv_bias": True, "bias": True}).digest() == spec.digest()
    with pytest.raises(UnsupportedModelError, match="qkv_bias, bias"):
        read_config("InternLM3ForCausalLM", keys | {"qkv_bias": True})
    assert read_config("LlamaForCausalLM", {"model_type": None}).family == "llama"


def test_gemma_says_gelu_and_means_the_other() -> None:
    old, new = read_config("GemmaForCausalLM", {"hidden_act": "gelu"}), read_config("GemmaForCausalLM")
    assert old.digest() == new.digest() and new.layers[0].mlp.activation == "gelu_tanh"
    assert read_config("GemmaForCausalLM", {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}).digest() == new.digest()
    for keys in ({"hidden_activation": "silu"}, {"hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh"}):
        with pytest.raises(ModelFileError, match="'hidden_act' and 'hidden_activation'"):
            read_config("GemmaForCausalLM", keys)


@pytest.mark.parametrize("clip", [0.0, -1.0])
def test_a_clip_that_leaves_nothing(clip: float) -> None:
    with pytest.raises(ModelFileError, match="clip_qkv must be positive"):
        read_config("OlmoForCausalLM", {"clip_qkv": clip})


def test_a_pad_token_that_is_none() -> None:
    assert read_config("LlamaForCausalLM", {"pad_token_id": 264}).digest() == read_config("LlamaForCausalLM").digest()
    with pytest.raises(ModelFileError, match=r"pad_token_id holds token id 265, outside \[-1, vocab_size = 264\]"):
        read_config("LlamaForCausalLM", {"pad_token_id": 265})


@pytest.mark.parametrize(("architecture", "plain"), [("qwen2vl", "qwen2"), ("qwen3vl", "qwen3")])
def test_text_models_of_ggufs_with_images(architecture: str, plain: str) -> None:
    more = {f"{architecture}.rope.dimension_sections": [2, 3, 3, 0]} | (
        {"qwen3vl.n_deepstack_layers": 3} if architecture == "qwen3vl" else {}
    )
    assert read_metadata(architecture, more).digest() == read_metadata(plain).digest()
    with pytest.raises(UnsupportedModelError, match=r"rope\.dimension_sections"):
        read_metadata("llama", {"llama.rope.dimension_sections": [2, 3, 3, 0]})


@pytest.mark.parametrize(
    ("stored", "query", "head"),
    [
        ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"),
        ("embed_tokens.weight", "layers.0.self_attn.q_proj.weight", "lm_head.weight"),
        (
            "language_model.model.embed_tokens.weight",
            "language_model.model.layers.0.self_attn.q_proj.weight",
            "language_model.lm_head.weight",
        ),
        ("transformer.embed_tokens.weight", "transformer.layers.0.self_attn.q_proj.weight", "lm_head.weight"),
    ],
)
def test_names_that_begin_otherwise(stored: str, query: str, head: str) -> None:
    spec = read_config("LlamaForCausalLM", tensors={stored: (264, 64), head: (264, 64)})
    assert (spec.embedding.weight.name, spec.layers[0].attention.query.weight.name, spec.head.weight.name) == (stored, query, head)


def test_gpt2_without_its_prefix() -> None:
    spec = small("GPT2LMHeadModel", tensors={"wte.weight": (264, 64), "h.0.attn.bias": (1, 1, 8, 8)})
    assert spec.embedding.positions.name == "wpe.weight" and "h.*.attn.bias" in spec.ignored_tensors


def test_two_embeddings() -> None:
    with pytest.raises(ModelFileError, match="several tensors may be the embedding"):
        read_config("LlamaForCausalLM", tensors={"a.embed_tokens.weight": (264, 64), "b.embed_tokens.weight": (264, 64)})


# --- overrides


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"no_such_key": 1}, "no_such_key"),
        ({"no_such_key": None}, "no_such_key"),
        ({"attention_dropout": 0.5}, "attention_dropout.*training"),
        ({"model.norm.weight": None}, "model.norm.weight"),
    ],
    ids=str,
)
def test_an_override_that_changes_nothing(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParamsError, match=message):
        read_config("LlamaForCausalLM", tensors={"model.embed_tokens.weight": (264, 64), "model.norm.weight": (64,)}, changes=changes)


def test_an_override_of_a_key_inside_an_object() -> None:
    """A refusal names the very key, and what it says to do works."""
    scaling = {"type": "linear", "factor": 4.0, "new_key": 3}
    with pytest.raises(UnsupportedModelError, match=r'hf_overrides=\{"rope_scaling.new_key": None\}'):
        read_config("LlamaForCausalLM", {"rope_scaling": scaling})
    found = read_config("LlamaForCausalLM", {"rope_scaling": scaling}, changes={"rope_scaling.new_key": None, "rope_scaling.factor": 8.0})
    assert found.ropes[0].linear_factor == 8.0
    config = WITHOUT | {"text_config": TEXT | {"a": 1, "b": 2}}
    with pytest.raises(UnsupportedModelError, match=r'hf_overrides=\{"text_config.a": None, "text_config.b": None\}'):
        read_config("SomeForConditionalGeneration", config)
    spec = read_config("SomeForConditionalGeneration", config, changes={"text_config.a": None, "text_config.b": None})
    assert spec.family == "qwen3" and config["text_config"]["a"] == 1, "the file's values are left alone"
    for changes in ({"rope_scaling.factor": 8.0}, {"rope_scaling.new_key": None}, {"hidden_size.x": 1}):
        with pytest.raises(InvalidParamsError):
            read_config("LlamaForCausalLM", changes=changes)


def test_an_override_leaves_tensors_out() -> None:
    names = {"model.embed_tokens.weight": (264, 64), "adapter.x": (1,)}
    assert read_config("LlamaForCausalLM", tensors=names, changes={"adapter.*": None}).ignored_tensors == ["adapter.*"]


# --- cards of users


@pytest.fixture
def registered() -> Iterator[None]:
    yield
    for card in cards():
        if card.is_users:
            forget_family(card.name)


def test_a_users_card(registered: None) -> None:
    @family("tern", hf="TernForCausalLM", gguf="tern", keys={"hidden_size": "width"})
    def tern(c: Config) -> ModelSpec:
        return dense(c, Style(gated=False, activation="relu2"))

    assert llmi.register_family(tern) is tern
    spec = read_config("TernForCausalLM", {"hidden_size": None, "width": 64})
    assert spec.family == "tern" and spec.hidden_size == 64 and not spec.layers[0].mlp.gated
    assert read_metadata("tern").layers[0].mlp.activation == "relu2"
    with pytest.raises(UnsupportedModelError, match="the tern family does not read 'x' = 1"):
        read_config("TernForCausalLM", {"x": 1})
    again = family("tern", hf="TernForCausalLM")(lambda c: dense(c, Style()))
    llmi.register_family(again)  # a notebook's cell that is run once more
    assert read_config("TernForCausalLM").layers[0].mlp.gated
    forget_family("tern")
    with pytest.raises(UnsupportedModelError, match="unknown architecture"):
        read_config("TernForCausalLM")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda c: 1 / 0, "the card 'tern' failed: ZeroDivisionError"),
        (lambda c: None, "the card 'tern' failed: TypeError: it returned NoneType"),
        (lambda c: ModelSpec(layers=[object()]), "the card 'tern' failed"),
        (lambda c: c.unsupported("x", "not this one"), "not this one"),
    ],
)
def test_an_error_inside_a_card_names_the_card(read: Any, message: str, registered: None) -> None:
    llmi.register_family(family("tern", hf="TernForCausalLM")(read))
    with pytest.raises(UnsupportedModelError, match=message):
        read_config("TernForCausalLM")


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (lambda c: None, "takes a card"),
        (family("tern")(lambda c: ModelSpec()), "names no architecture"),
        (family("tern", hf="LlamaForCausalLM")(lambda c: ModelSpec()), "has a card already: llama"),
        (family("llama", hf="TernForCausalLM")(lambda c: ModelSpec()), "llmi's own"),
    ],
)
def test_cards_that_are_refused(card: Any, message: str) -> None:
    with pytest.raises(InvalidParamsError, match=message):
        llmi.register_family(card)
    with pytest.raises(InvalidParamsError, match="no card"):
        forget_family("llama")


def test_the_page_of_models() -> None:
    path = Path(__file__).parents[2] / "docs" / "models.md"
    if not path.is_file():
        pytest.skip("the documents are not beside the tests")
    assert path.read_text() == page(), "python tests/support/models_page.py > docs/models.md"


# --- hostile files

HOSTILE: list[Any] = [
    None,
    -1,
    0,
    2**62,
    10**400,
    1e308,
    -0.5,
    "",
    "x" * 100,
    True,
    [],
    [None] * 4,
    [{}] * 4,
    {},
    {"rope_type": []},
    {"rope_theta": -1.0},
    {"full_attention": 3},
]
KEYS = [
    *SIZES,
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "sliding_window",
    "layer_types",
    "rms_norm_eps",
    "layer_norm_eps",
    "hidden_act",
    "tie_word_embeddings",
    "max_position_embeddings",
    "no_rope_layers",
    "logits_scaling",
    "layer_rope_theta",
    "eos_token_id",
    "original_max_position_embeddings",
    "sliding_window_pattern",
    "n_head",
    "n_embd",
    "n_layer",
    "rotary_dim",
    "attention_bias",
    "query_pre_attn_scalar",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_shared_experts",
    "n_group",
    "topk_group",
    "first_k_dense_replace",
    "moe_layer_end_index",
    "mlp_only_layers",
    "decoder_sparse_step",
    "num_nextn_predict_layers",
    "swiglu_limit",
    "router_jitter_noise",
    "text_config",
    "model_type",
]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hostile_values_are_refused_or_read(architecture: str) -> None:
    """Whatever a config holds, an error is one of llmi's own, and not the card's."""
    for key in KEYS:
        for value in HOSTILE:
            try:
                small(architecture, {key: value}, max_model_len=4096).to_json()
            except (ModelFileError, InvalidParamsError) as error:
                assert "the card '" not in str(error), (key, value, error)


def test_hostile_metadata() -> None:
    for gguf in (
        "llama",
        "gemma3",
        "phi3",
        "apertus",
        "granite_swa",
        "mistral3",
        "exaone4",
        "qwen3moe",
        "gpt-oss",
        "glm4moe",
        "qwen3next",
        "granitehybrid",
    ):
        for key in (
            "ssm.conv_kernel",
            "ssm.state_size",
            "ssm.group_count",
            "ssm.inner_size",
            "block_count",
            "attention.head_count",
            "attention.head_count_kv",
            "attention.key_length",
            "rope.dimension_count",
            "rope.freq_base",
            "rope.scaling.type",
            "rope.scaling.factor",
            "attention.sliding_window",
            "attention.sliding_window_pattern",
            "attention.scale",
            "xielu.alpha_p",
            "attention.rope_pattern",
            "rope.scaling.original_context_length",
            "context_length",
            "vocab_size",
            "expert_count",
            "expert_used_count",
            "expert_feed_forward_length",
            "expert_shared_count",
            "expert_group_count",
            "leading_dense_block_count",
            "nextn_predict_layers",
        ):
            for value in HOSTILE:
                more = {f"{gguf}.rope.scaling.type": "yarn", f"{gguf}.rope.scaling.factor": 4.0}
                try:
                    read_metadata(
                        gguf,
                        more | {key if key.startswith("xielu") else f"{gguf}.{key}": value},
                        tensors={"rope_factors_long.weight": (8,), "rope_factors_short.weight": (8,)},
                    )
                except (ModelFileError, InvalidParamsError) as error:
                    assert "the card '" not in str(error), (gguf, key, value, error)
