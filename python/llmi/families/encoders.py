"""Encoders: models whose tokens see each other in both directions, and that make vectors or scores of texts: BERT, RoBERTa and XLM-R,
ModernBERT. EmbeddingGemma is in gemma.py."""

from __future__ import annotations

from llmi.families.config import Config
from llmi.families.dense import Style, Tensors, dense
from llmi.families.headless import encoder
from llmi.families.layers import FULL, SLIDING, kinds_of, pattern_of, use_ropes, use_windows
from llmi.families.parallel import EVERYWHERE, NO_GROUPS
from llmi.families.registry import family
from llmi.families.rope import ropes_by_kind
from llmi.families.spec import ModelSpec, NormSpec, TensorBinding

_BERT = {
    "embedding": "embeddings.word_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "positions": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "layer": "encoder.layer.{}.",
}
_BERT_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}


def bert_like(c: Config, prefix: str) -> ModelSpec:
    """Learned positions and types of tokens, norms after the sums, a plain MLP, biases everywhere."""
    names = {role: f"{prefix}.{name}" for role, name in _BERT.items()} | _BERT_LAYER
    style = Style(norm="layer", norm_bias=True, order="sum", gated=False, activation="gelu", biases=EVERYWHERE, names=names)
    if not c.is_gguf:
        c.choose("position_embedding_type", ["absolute"], "absolute")
        if c.boolean("is_decoder", False):
            c.unsupported("is_decoder", f"is_decoder = true: {prefix} as a decoder is not run")
    spec = dense(c, style, theta=None)
    tensors = Tensors(c, style, spec)
    spec.final_norm = NormSpec()
    spec.embedding.norm = tensors.norm("embedding_norm")
    spec.embedding.positions = tensors.tensor("positions")
    if not c.is_gguf:
        spec.embedding.token_types, spec.embedding.num_token_types = tensors.tensor("token_types"), c.positive("type_vocab_size", 2)
    elif shape := c.tensors.get("token_types.weight"):
        spec.embedding.token_types, spec.embedding.num_token_types = tensors.tensor("token_types"), shape[0]
    if any(name.endswith("LayerNorm.gamma") for name in c.tensors):
        _use_old_names(spec)
    return encoder(spec)


def _use_old_names(spec: ModelSpec) -> None:
    """Weights and biases of norms as files of 2018 to 2020 name them."""
    norms = [spec.embedding.norm, *(norm for layer in spec.layers for norm in (layer.attention_sum_norm, layer.mlp_sum_norm))]
    for norm in norms:
        norm.weight = TensorBinding(norm.weight.name.removesuffix("weight") + "gamma")
        norm.bias = TensorBinding(norm.bias.name.removesuffix("bias") + "beta")


@family(
    "bert",
    hf=["BertModel", "BertForMaskedLM", "BertForSequenceClassification", "BertForPreTraining"],
    gguf="bert",
    keys=NO_GROUPS,
    defaults={"max_position_embeddings": 512, "layer_norm_eps": 1e-12, "vocab_size": 30522},
)
def bert(c: Config) -> ModelSpec:
    """BERT, and the encoders that are made of it. Devlin et al., 2018."""
    return bert_like(c, "bert")


@family(
    "xlm_roberta",
    hf=[f"{stem}{kind}" for stem in ("XLMRoberta", "Roberta") for kind in ("Model", "ForMaskedLM", "ForSequenceClassification")],
    model_type=["xlm-roberta", "roberta"],
    keys=NO_GROUPS,
    defaults={"max_position_embeddings": 512, "layer_norm_eps": 1e-12, "pad_token_id": 1},
)
def xlm_roberta(c: Config) -> ModelSpec:
    """RoBERTa and XLM-R: BERT whose positions begin behind the padding token's id. Liu et al., 2019; Conneau et al., 2019."""
    spec = bert_like(c, "roberta")
    spec.embedding.position_offset = c.integer("pad_token_id") + 1
    spec.max_position -= spec.embedding.position_offset
    if spec.max_position < 1:
        c.refuse(
            "max_position_embeddings",
            f"max_position_embeddings leaves no position behind pad_token_id + 1 = {c.integer('pad_token_id') + 1}",
        )
    return spec


@family(
    "modernbert",
    hf=["ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"],
    gguf="modern-bert",
    keys={
        "layer_norm_eps": "norm_eps",
        "hidden_act": "hidden_activation",
        "rope_theta": "global_rope_theta",
        "rope_local_base_freq": "local_rope_theta",
        "head_dim": (),
        "num_key_value_heads": (),
    },
    defaults={"max_position_embeddings": 8192, "vocab_size": 50368},
)
def modernbert(c: Config) -> ModelSpec:
    """ModernBERT: rotated, norms before the blocks, a gated MLP, and windows in two of three layers. Warner et al., 2024."""
    names = {
        "embedding": "model.embeddings.tok_embeddings",
        "embedding_norm": "model.embeddings.norm",
        "final_norm": "model.final_norm",
        "attention_norm": "attn_norm",
        "qkv": "attn.Wqkv",
        "output": "attn.Wo",
        "mlp_norm": "mlp_norm",
        "gate_up": "mlp.Wi",
        "down": "mlp.Wo",
    }
    has = {name: not c.is_gguf and c.boolean(f"{name}_bias", False) for name in ("attention", "mlp", "norm")}
    style = Style(
        norm="layer",
        norm_bias=has["norm"],
        activation=c.choose(c.gguf_key("hidden_activation"), ["gelu", "silu"], "gelu") if c.is_gguf else "gelu",
        biases={"qkv": has["attention"], "output": has["attention"], "mlp": has["mlp"]},
        names=names,
    )
    spec = dense(c, style, theta=None)
    spec.embedding.norm = Tensors(c, style, spec).norm("embedding_norm")
    spec.layers[0].attention_norm = NormSpec()
    every = pattern_of(c, 3) if c.is_gguf else c.positive("global_attn_every_n_layers", 3)
    rule = [FULL if index % every == 0 else SLIDING for index in range(len(spec.layers))]
    kinds = rule if c.is_gguf else kinds_of(c, spec, rule)  # a GGUF's pattern is a number, and the first layer of each sees all
    use_windows(c, spec, kinds, (c.positive("sliding_window") if c.is_gguf else c.integer("local_attention", 128)) // 2 + 1)
    use_ropes(spec, kinds, ropes_by_kind(c, dict.fromkeys((FULL, SLIDING), spec.head_dim), {FULL: 160000.0, SLIDING: 10000.0}))
    return encoder(spec)
