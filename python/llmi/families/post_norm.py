"""Families whose norms stand after the blocks, or on both sides of them: OLMo 2 and 3, EXAONE 4, GLM-4."""

from __future__ import annotations

from llmi.families.config import Config
from llmi.families.dense import Order, Style, dense
from llmi.families.layers import FULL, SLIDING, bias, every, kinds_of, pattern_of, use_ropes, use_windows
from llmi.families.llama_like import attention_biases
from llmi.families.registry import family
from llmi.families.rope import ropes_by_kind
from llmi.families.spec import ModelSpec, RopeSpec


def olmo(c: Config, theta: float | None) -> ModelSpec:
    """Norms after each block; queries and keys are normed as a whole."""
    spec = dense(c, Style(order="post", head_norms=True, biases=attention_biases(c)), theta=theta)
    for layer in spec.layers:
        layer.attention.norms.span = "projection"
    return spec


@family("olmo2", hf="Olmo2ForCausalLM", gguf="olmo2", defaults={"rms_norm_eps": 1e-5})
def olmo2(c: Config) -> ModelSpec:
    """OLMo 2; a GGUF with windows is an OLMo 3, whose windowed layers take the plain frequencies. OLMo Team, 2025."""
    spec = olmo(c, 10000.0)
    if c.is_gguf and (window := c.integer("sliding_window", 0)) > 0:
        kinds = kinds_of(c, spec, every(4, len(spec.layers)))
        use_windows(c, spec, kinds, window)
        plain = RopeSpec(theta=c.number(c.gguf_key("rope.freq_base_swa"), spec.ropes[0].theta), rotary_dim=spec.ropes[0].rotary_dim)
        use_ropes(spec, kinds, {FULL: spec.ropes[0], SLIDING: plain})
    return spec


@family("olmo3", hf="Olmo3ForCausalLM", defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096})
def olmo3(c: Config) -> ModelSpec:
    """OLMo 3: windows in three of four layers, YaRN in the others."""
    spec = olmo(c, None)
    kinds = kinds_of(c, spec, every(4, len(spec.layers)))
    use_windows(c, spec, kinds, c.optional_integer("sliding_window"))
    theta = c.number("rope_theta", 500000.0)
    use_ropes(spec, kinds, ropes_by_kind(c, dict.fromkeys((FULL, SLIDING), spec.head_dim), {FULL: theta, SLIDING: theta}))
    return spec


@family(
    "exaone4",
    hf="Exaone4ForCausalLM",
    model_type=["exaone4", "exaone4_5_text"],
    gguf="exaone4",
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4},
)
def exaone4(c: Config) -> ModelSpec:
    """EXAONE 4, and the text model of 4.5: norms after each block; where there are windows, only their layers are rotated. LG AI Research,
    2025."""
    spec = dense(c, Style(order="post", head_norms=True))
    window, number = c.optional_integer("sliding_window") or None, len(spec.layers)
    kinds = [FULL] * number
    if window is not None:
        named = c.find("sliding_window_pattern")
        if isinstance(named, str) and named.strip("LG") == "":  # LLLG
            rule = [SLIDING if named[index % len(named)] == "L" else FULL for index in range(number)] if named else kinds
        else:
            rule = every(4 if c.is_gguf else pattern_of(c, 4), number)
        kinds = kinds_of(c, spec, rule)
        use_windows(c, spec, kinds, window)
        use_ropes(spec, kinds, {SLIDING: spec.ropes[0]})
    elif not c.is_gguf:
        kinds_of(c, spec, kinds), c.find("sliding_window_pattern")
    spec.ignored_tensors.append("mtp.*")  # layers that draft further tokens
    return spec


GLM = {"head_dim": 128, "num_key_value_heads": 2, "rms_norm_eps": 1.5625e-07, "max_position_embeddings": 131072}


def glm_style(c: Config, order: Order, names: dict[str, str]) -> Style:
    """Half of each head is rotated in pairs; gate and up are one tensor."""
    biases = {"qkv": bias(c, "attention_bias", True)}
    return Style(order=order, pairs=True, gguf_pairs=True, biases=biases, names=names | {"gate_up": "mlp.gate_up_proj"})


@family("glm", hf="GlmForCausalLM", gguf="chatglm", defaults=GLM)
def glm(c: Config) -> ModelSpec:
    """GLM-4-9B of 2024 and GLM-Edge: half of each head rotated in pairs, gate and up in one tensor. GLM Team, 2024."""
    return dense(c, glm_style(c, "pre", {}), partial=0.5)


@family(
    "glm4",
    hf="Glm4ForCausalLM",
    gguf="glm4",
    defaults=GLM,
)
def glm4(c: Config) -> ModelSpec:
    """GLM-4: GLM with norms on both sides. GLM Team, 2024."""
    names = {
        "post_attention_norm": "post_self_attn_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "post_mlp_norm": "post_mlp_layernorm",
    }
    return dense(c, glm_style(c, "sandwich", names), partial=0.5)
