"""Gemma 1 to 3, text. Gemma Team, 2024 and 2025: scaled embeddings; from the second on norms around each block, and windows."""

from __future__ import annotations

import math

from llmi.families.config import Config
from llmi.families.dense import Style, dense
from llmi.families.headless import encoder, without_head
from llmi.families.layers import FULL, SLIDING, every, f32, kinds_of, pattern_of, soft_cap, use_ropes, use_windows
from llmi.families.llama_like import attention_biases
from llmi.families.registry import family
from llmi.families.rope import ropes_by_kind
from llmi.families.spec import ModelSpec

KEYS = {"hidden_act": ("hidden_activation",)}
DEFAULTS = {"tie_word_embeddings": True, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096, "query_pre_attn_scalar": 256}
_LARGEST = {"gemma2": 46, "gemma3": 62}  # layers of the 27B, the only size whose attention scale is not 1/sqrt(head_dim)


def gemma(c: Config, style: Style, largest: int, theta: float | None = 10000.0) -> ModelSpec:
    """The common part of the second and the third."""
    spec = dense(c, style, theta=theta)
    spec.embedding.scale = f32(math.sqrt(spec.hidden_size))
    spec.head.soft_cap = soft_cap(c, "final_logit_softcapping")
    cap = soft_cap(c, "attn_logit_softcapping") if largest == _LARGEST["gemma2"] else 0.0
    size = spec.hidden_size / spec.num_heads if len(spec.layers) == largest else float(spec.head_dim)
    if not c.is_gguf:
        size = c.number("query_pre_attn_scalar")
        if not size > 0:
            c.refuse("query_pre_attn_scalar", "query_pre_attn_scalar must be positive")
    for layer in spec.layers:
        layer.attention.scale, layer.attention.soft_cap = 1.0 / math.sqrt(size), cap
    return spec


def biases_of(c: Config) -> dict[str, bool]:
    """attention_bias of config.json; no GGUF has any."""
    return {} if c.is_gguf else attention_biases(c)


@family(
    "gemma", hf="GemmaForCausalLM", gguf="gemma", defaults={"tie_word_embeddings": True, "head_dim": 256, "max_position_embeddings": 8192}
)
def gemma1(c: Config) -> ModelSpec:
    """Gemma 1 and CodeGemma: a Llama with tanh-GELU and scaled embeddings. Its first files say "gelu" and mean tanh-GELU, as transformers
    reads them."""
    spec = dense(c, Style(plus_one=True, activation="gelu_pytorch_tanh", biases=biases_of(c)))
    spec.embedding.scale = f32(math.sqrt(spec.hidden_size))
    for layer in spec.layers:
        layer.mlp.activation = "gelu_tanh" if layer.mlp.activation == "gelu" else layer.mlp.activation
    named = c.optional_text("hidden_activation")  # of other versions of transformers
    if named is not None and (named not in ("gelu", "gelu_pytorch_tanh") or spec.layers[0].mlp.activation != "gelu_tanh"):
        c.contradiction(c.name("hidden_act"), c.name("hidden_activation"))
    return spec


@family(
    "gemma2",
    hf="Gemma2ForCausalLM",
    gguf="gemma2",
    keys=KEYS,
    defaults=DEFAULTS | {"max_position_embeddings": 8192, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
)
def gemma2(c: Config) -> ModelSpec:
    """Gemma 2: soft caps on attention and logits, a window in every second layer."""
    spec = gemma(c, Style(order="sandwich", plus_one=True, activation="gelu_pytorch_tanh", biases=biases_of(c)), _LARGEST["gemma2"])
    use_windows(c, spec, kinds_of(c, spec, every(2, len(spec.layers))), c.integer("sliding_window", 4096))
    return spec


@family(
    "gemma3",
    hf=["Gemma3ForCausalLM", "Gemma3TextModel"],
    model_type="gemma3_text",
    gguf=["gemma3", "gemma-embedding"],
    keys=KEYS,
    defaults=DEFAULTS | {"max_position_embeddings": 131072, "num_attention_heads": 8, "vocab_size": 262208},
)
def gemma3(c: Config) -> ModelSpec:
    """Gemma 3, text: five local layers to one global, each kind with its rotary base; queries and keys normed by head. EmbeddingGemma is
    one whose tokens see each other in both directions."""
    style = Style(order="sandwich", plus_one=True, activation="gelu_pytorch_tanh", head_norms=True, biases=biases_of(c))
    spec = gemma(c, style, _LARGEST["gemma3"], None)
    ropes = ropes_by_kind(c, dict.fromkeys((FULL, SLIDING), spec.head_dim), {FULL: 1e6, SLIDING: 10000.0})
    two_sided = c.find("general.architecture") == "gemma-embedding" if c.is_gguf else c.boolean("use_bidirectional_attention", False)
    window = c.positive("sliding_window")
    window = window // 2 + 1 if two_sided else window
    pattern = 6 if c.is_gguf else pattern_of(c, 6)
    noted = c.integer("_sliding_window_pattern", pattern)  # transformers writes it together with layer_types, and ignores it without them
    if noted != pattern and not c.has("layer_types"):
        c.unsupported(
            "_sliding_window_pattern",
            f"_sliding_window_pattern = {noted} without layer_types, which transformers reads as a pattern of {pattern}",
        )
    kinds = kinds_of(c, spec, every(pattern, len(spec.layers)))
    use_windows(c, spec, kinds, window)
    use_ropes(spec, kinds, ropes)
    if not two_sided:
        return without_head(c, spec)
    return encoder(spec)
