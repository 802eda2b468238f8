"""Llama and the families that differ from it in names, biases, windows, multipliers or the MLP."""

from __future__ import annotations

from llmi.families.config import Config
from llmi.families.dense import Style, Tensors, dense
from llmi.families.experts import use_mixtral_experts
from llmi.families.headless import without_head
from llmi.families.layers import FULL, SLIDING, bias, kinds_of, multiply, soft_cap, switched_windows, use_one_window, use_windows
from llmi.families.registry import family
from llmi.families.spec import ModelSpec, NormSpec, RopeSpec, TensorBinding


def attention_biases(c: Config, default: bool = False) -> dict[str, bool]:
    """attention_bias is of queries, keys, values and the output."""
    has = bias(c, "attention_bias", default)
    return {"qkv": has, "output": has}


#: LlamaConfig's own sizes, which LLaVA's text_config leaves out.
LLAMA_7B = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}


@family("llama", hf=["LlamaForCausalLM", "LLaMAForCausalLM"], gguf="llama", text_defaults=LLAMA_7B)
def llama(c: Config) -> ModelSpec:
    """Llama 2 and 3, SmolLM2, Yi, Falcon 3; a GGUF with experts is a Mixtral. Touvron et al., 2023; Grattafiori et al., 2024."""
    if not c.is_gguf and c.find("use_sliding_window") is False:
        c.find("sliding_window"), c.find("max_window_layers")  # switched off
    has_experts = c.is_gguf and (c.optional_integer("num_experts") or 0) > 0
    style = Style(biases=attention_biases(c) | {"mlp": bias(c, "mlp_bias")}, gguf_pairs=True, experts=has_experts)
    spec = dense(c, style)
    if has_experts:
        use_mixtral_experts(c, spec, style)
    return spec


@family(
    "internlm3",
    hf=["InternLM3ForCausalLM", "LlamaForCausalLM"],
    keys={"attention_bias": "qkv_bias", "mlp_bias": "bias"},
    defaults={"head_dim": 128, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 32768},
)
def internlm3(c: Config) -> ModelSpec:
    """InternLM 3: a Llama with names of its own for the biases. transformers 5 writes it as a LlamaForCausalLM of its own model_type.
    InternLM Team, 2025."""
    biases = attention_biases(c)
    if bias(c, "mlp_bias") != biases["qkv"]:
        c.unsupported("mlp_bias", "biases of the MLP without those of attention, or the other way round (qkv_bias, bias)")
    return dense(c, Style(biases=biases | {"mlp": biases["qkv"]}))


@family(
    "mistral",
    hf="MistralForCausalLM",
    text_defaults=LLAMA_7B | {"intermediate_size": 14336},
    defaults={"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072},
)
def mistral(c: Config) -> ModelSpec:
    """Mistral 7B, Nemo, Small: a window in every layer, or none. Its GGUF files are Llama's. Jiang et al., 2023."""
    spec = dense(c, Style())
    use_one_window(c, spec, c.optional_integer("sliding_window"))
    return spec


@family(
    "ministral3", hf="Ministral3ForCausalLM", gguf="mistral3", defaults={"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5}
)
def ministral3(c: Config) -> ModelSpec:
    """Ministral 3: YaRN, and queries that grow with the position."""
    spec = dense(c, Style(biases={"qkv": False, "output": False, "mlp": False}, gguf_pairs=True), theta=1e6)
    use_one_window(c, spec, c.optional_integer("sliding_window"))
    rope, key = c if c.is_gguf else c.object("rope_parameters"), "rope.scaling.original_context_length"
    beta = c.number("temperature_scale", 0.0) if c.is_gguf else rope.number("llama_4_scaling_beta", 0.0) if rope else 0.0
    for layer in spec.layers if beta and rope else []:
        original = c.positive(c.gguf_key(key)) if c.is_gguf else rope.positive("original_max_position_embeddings") if rope else 0
        layer.attention.query_temperature.beta, layer.attention.query_temperature.original = beta, original
    return spec


@family(
    "qwen2",
    hf=["Qwen2ForCausalLM", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"],
    model_type=["qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_vl", "qwen2_5_vl"],
    gguf=["qwen2", "qwen2vl"],
    defaults={"max_position_embeddings": 32768},
    text_defaults=LLAMA_7B | {"intermediate_size": 22016, "num_key_value_heads": 32, "vocab_size": 151936},
)
def qwen2(c: Config) -> ModelSpec:
    """Qwen 2 and 2.5, and models distilled into them: biases of queries, keys and values. Yang et al., 2024."""
    spec = dense(c, Style(biases={"qkv": True}))
    switched_windows(c, spec)
    return spec


@family(
    "qwen3",
    hf=["Qwen3ForCausalLM", "Qwen3Model", "Qwen3ForSequenceClassification"],
    model_type=["qwen3", "qwen3_vl_text"],
    gguf=["qwen3", "qwen3vl"],
    defaults={"head_dim": 128, "max_position_embeddings": 32768},
)
def qwen3(c: Config) -> ModelSpec:
    """Qwen 3: queries and keys normed by head. Yang et al., 2025."""
    spec = dense(c, Style(head_norms=True, biases=attention_biases(c)))
    switched_windows(c, spec)
    c.find("classifier_from_token")  # llmi.pooling reads it
    return without_head(c, spec)


@family(
    "phi3",
    hf="Phi3ForCausalLM",
    gguf="phi3",
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096},
)
def phi3(c: Config) -> ModelSpec:
    """Phi 3, 3.5 and 4: fused tensors, LongRoPE. Abdin et al., 2024."""
    names = {"qkv": "self_attn.qkv_proj", "gate_up": "mlp.gate_up_proj"}
    spec = dense(c, Style(names=names))
    use_one_window(c, spec, c.optional_integer("sliding_window") or None)
    c.find("original_max_position_embeddings")
    return spec


@family(
    "smollm3",
    hf="SmolLM3ForCausalLM",
    gguf="smollm3",
    defaults={"tie_word_embeddings": True, "num_key_value_heads": 4, "max_position_embeddings": 32768},
)
def smollm3(c: Config) -> ModelSpec:
    """SmolLM3: each fourth layer is not rotated; an entry of 1 in no_rope_layers means that the layer is rotated."""
    spec = dense(c, Style(biases=attention_biases(c) | {"mlp": bias(c, "mlp_bias")}, gguf_pairs=True), theta=2e6)
    number, step = len(spec.layers), c.integer("no_rope_layer_interval", 4)
    rotated = c.listed("no_rope_layers", number) or [step < 1 or (index + 1) % step != 0 for index in range(number)]
    for layer, is_rotated in zip(spec.layers, rotated, strict=True):
        layer.attention.rope = 0 if is_rotated else -1
    if not c.is_gguf:
        is_on, window = c.boolean("use_sliding_window", False), c.optional_integer("sliding_window")
        rule = [FULL if is_rotated or not is_on or window is None else SLIDING for is_rotated in rotated]
        use_windows(c, spec, kinds_of(c, spec, rule), window)
    return spec


@family("granite", hf="GraniteForCausalLM", gguf="granite")
def granite(c: Config) -> ModelSpec:
    """Granite 3 and 4.1, dense: four multipliers. Granite Team, 2024."""
    is_rotated = not c.is_gguf or c.boolean(c.gguf_key("rope.scaling.finetuned"), True)
    spec = dense(c, Style(biases=attention_biases(c) | {"mlp": bias(c, "mlp_bias")}, gguf_pairs=True))
    multiply(c, spec)
    for layer in spec.layers:
        layer.attention.rope = 0 if is_rotated else -1
    return spec


@family(
    "granite_swa",
    hf="GraniteSWAForCausalLM",
    gguf="granite_swa",
    defaults={
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
        "sliding_window": 128,
    },
)
def granite_swa(c: Config) -> ModelSpec:
    """Granite with windows, attention sinks and a rotary base of its own in each layer; a base of 0 means no rotation."""
    style = Style(biases=attention_biases(c) | {"mlp": bias(c, "mlp_bias")}, gguf_pairs=True, names={"sinks": "self_attn.sinks"})
    spec = dense(c, style)
    number, tensors, table = len(spec.layers), Tensors(c, style, spec), spec.ropes[0]
    multiply(c, spec)
    use_windows(
        c, spec, kinds_of(c, spec, [FULL if index % 4 == 0 else SLIDING for index in range(number)]), c.optional_integer("sliding_window")
    )
    thetas = [table.theta] * number
    if c.is_gguf and (rotated := c.listed("layer_rope_theta", number)):
        thetas = [table.theta if is_rotated is True else 0.0 for is_rotated in rotated]
    elif not c.is_gguf and c.has("layer_rope_theta"):
        thetas = c.numbers("layer_rope_theta", number)
    spec.ropes = [RopeSpec(**{**vars(table), "theta": theta}) for theta in sorted({theta for theta in thetas if theta})]
    for index, (layer, theta) in enumerate(zip(spec.layers, thetas, strict=True)):
        layer.attention.rope = next((number for number, rope in enumerate(spec.ropes) if rope.theta == theta), -1)
        layer.attention.sinks = TensorBinding(tensors.stem("sinks", index) + (".weight" if c.is_gguf else ""))
    return spec


@family("helium", hf="HeliumForCausalLM", defaults={"head_dim": 128, "rms_norm_eps": 1e-8, "max_position_embeddings": 4096})
def helium(c: Config) -> ModelSpec:
    """Helium: interleaved rotation."""
    return dense(c, Style(pairs=True, biases={"qkv": bias(c, "attention_bias"), "mlp": bias(c, "mlp_bias")}), theta=100000.0)


@family(
    "ernie4_5",
    hf=["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"],
    gguf="ernie4_5",
    defaults={
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
)
def ernie4_5(c: Config) -> ModelSpec:
    """ERNIE 4.5, dense: interleaved rotation."""
    has = bias(c, "use_bias")
    return dense(c, Style(pairs=True, gguf_pairs=True, biases={"qkv": has, "output": has, "mlp": has}), theta=500000.0)


@family("arcee", hf="ArceeForCausalLM", gguf="arcee", defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096})
def arcee(c: Config) -> ModelSpec:
    """Arcee AFM: a plain MLP with squared ReLU."""
    biases = attention_biases(c) | {"mlp": bias(c, "mlp_bias")}
    return dense(c, Style(gated=False, activation="relu2", biases=biases, gguf_pairs=True))


@family(
    "seed_oss",
    hf="SeedOssForCausalLM",
    gguf="seed_oss",
    defaults={"head_dim": 128, "num_key_value_heads": 8, "max_position_embeddings": 524288},
)
def seed_oss(c: Config) -> ModelSpec:
    """Seed-OSS: biases of its own."""
    biases = {"qkv": bias(c, "attention_bias", True), "output": bias(c, "attention_out_bias"), "mlp": bias(c, "mlp_bias")}
    return dense(c, Style(biases=biases, gguf_names={"mlp_norm": "post_attention_norm"}))


@family("hunyuan_v1_dense", hf="HunYuanDenseV1ForCausalLM", gguf="hunyuan-dense", defaults={"rms_norm_eps": 1e-5})
def hunyuan_v1_dense(c: Config) -> ModelSpec:
    """Hunyuan, dense: queries and keys are normed after the rotation."""
    names = {"query_norm": "self_attn.query_layernorm", "key_norm": "self_attn.key_layernorm"}
    spec = dense(c, Style(head_norms=True, biases=attention_biases(c), names=names))
    for layer in spec.layers:
        layer.attention.norms.after_rope = True
    return spec


@family("apertus", hf="ApertusForCausalLM", gguf="apertus", defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 65536})
def apertus(c: Config) -> ModelSpec:
    """Apertus: a plain MLP with xIELU, whose four numbers are tensors in config.json's files and metadata in a GGUF."""
    names = {"attention_norm": "attention_layernorm", "mlp_norm": "feedforward_layernorm"}
    spec = dense(c, Style(gated=False, activation="xielu", head_norms=True, biases=attention_biases(c), names=names), theta=12e6)
    scalars = ("alpha_p", "alpha_n", "beta", "eps")
    values = {name: c.per_layer(f"xielu.{name}", len(spec.layers)) for name in scalars} if c.is_gguf else {}
    for index, layer in enumerate(spec.layers):
        stem = f"model.layers.{index}.mlp.act_fn."
        layer.mlp.activation_scalars = [TensorBinding(stem + name) for name in scalars if not c.is_gguf]
        layer.mlp.activation_values = [values[name][index] for name in scalars if c.is_gguf]
    return spec


@family("bitnet", hf=["BitNetForCausalLM", "BitnetForCausalLM"], gguf="bitnet", defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 5})
def bitnet(c: Config) -> ModelSpec:
    """BitNet b1.58: norms before the output and before the way down. Wang et al., 2023."""
    names = {"attention_output_norm": "self_attn.attn_sub_norm", "mlp_inner_norm": "mlp.ffn_sub_norm"}
    style = Style(activation="relu2", biases=attention_biases(c), names=names)
    spec = dense(c, style, theta=500000.0)
    tensors = Tensors(c, style, spec)
    for index, layer in enumerate(spec.layers):
        layer.attention.output_norm = tensors.norm("attention_output_norm", index)
        layer.mlp.inner_norm = tensors.norm("mlp_inner_norm", index)
    return spec


@family("nanochat", hf="NanoChatForCausalLM", defaults={"final_logit_softcapping": 15.0})
def nanochat(c: Config) -> ModelSpec:
    """nanochat: norms without weights, also on the embedding; rotation of the other sign, then norms of queries and keys."""
    style = Style(
        norm_weight=False,
        gated=False,
        activation="relu2",
        head_norms=True,
        biases=attention_biases(c),
        names={"up": "mlp.fc1", "down": "mlp.fc2"},
    )
    spec = dense(c, style)
    spec.embedding.norm = NormSpec(present=True, eps=spec.final_norm.eps)
    spec.head.soft_cap = soft_cap(c, "final_logit_softcapping")
    spec.ropes[0].reversed = True
    for layer in spec.layers:
        layer.attention.norms.after_rope = True
    return spec
