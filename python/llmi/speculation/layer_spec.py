"""The one layer of a drafter's file as a spec, whatever its tensors are called; and the rule that every key of its config is read, known to
change nothing, or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from llmi.errors import UnsupportedModelError
from llmi.families.config import Config
from llmi.families.inert import CONFIG_JSON, GGUF, Rule, inert_reason
from llmi.families.rope import rope_of
from llmi.families.spec import (
    AttentionSpec,
    EmbeddingSpec,
    HeadNormsSpec,
    LayerSpec,
    LinearSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    RowOrder,
    TensorBinding,
)

_MOST_NAMED: Final = 8
_STORED: Final = "biases are added where the file has them"
_TOKENS: Final = "the target's tokenizer counts"
_WINDOW: Final = "no layer slides"
_RULES: Final = [
    Rule("architectures", "the tensors say what the layer is"),
    Rule("model_type", "the tensors say what the layer is"),
    Rule("llmi", "the receipt of a training run"),
    Rule("tie_word_embeddings", "what the file stores decides"),
    Rule("attention_bias", _STORED),
    Rule("qkv_bias", _STORED),
    Rule("mlp_bias", _STORED),
    Rule("bias", _STORED),
    Rule("bos_token_id", _TOKENS),
    Rule("eos_token_id", _TOKENS),
    Rule("pad_token_id", _TOKENS),
    Rule("use_sliding_window", _WINDOW),
    Rule("sliding_window", _WINDOW),
    Rule("max_window_layers", _WINDOW),
    Rule("embed_requires_grad", "for training only"),
    Rule("speculators_version", "a library's note on where the file comes from"),
    Rule("speculators_config", "how a server may draft, and the name of the target"),
    Rule("eagle_config.use_aux_hidden_state", "EAGLE-3 does", (True,)),
]


def layer_spec(c: Config, target: ModelSpec, stems: Mapping[str, str]) -> ModelSpec:
    """The layer that `c` describes.

    Parameters
    ----------
    stems : mapping of str to str
        {role: its tensor's name without .weight}: query, key, value, output, gate, up, down, mlp_norm, embedding; query_norm and key_norm
        are optional.

    Raises
    ------
    ModelFileError, UnsupportedModelError
        It does not fit the target, or is no such layer.
    """
    for key, wanted in (("hidden_size", target.hidden_size), ("vocab_size", target.vocab_size)):
        if c.positive(key) != wanted:
            c.refuse(key, f"{c.name(key)} = {c.positive(key)}, the model's is {wanted}: this drafter was trained for another model")
    num_heads = c.positive("num_attention_heads")
    num_kv_heads = c.optional_integer("num_key_value_heads") or num_heads
    head_dim = c.optional_integer("head_dim") or target.hidden_size // num_heads
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        c.refuse("num_key_value_heads", f"num_key_value_heads = {num_kv_heads} does not divide num_attention_heads = {num_heads}")
    if (c.optional_integer("value_head_dim") or head_dim) != head_dim:
        c.unsupported("value_head_dim", f"{c.name('value_head_dim')}: keys and values of an EAGLE layer have one size")
    c.choose("hidden_act", ("silu", "swish"), "silu")
    _check_kinds(c)
    c.find("max_position_embeddings")  # the target's length counts
    rope = rope_of(c, head_dim)
    order = RowOrder(0, head_dim, head_dim, rope.rotary_dim) if c.is_gguf else RowOrder()
    norm = NormSpec(True, "rms", c.number("rms_norm_eps", 1e-6), TensorBinding(f"{stems['mlp_norm']}.weight"))

    def linear(role: str, order: RowOrder | None = None) -> LinearSpec:
        bias = f"{stems[role]}.bias"
        rows = order or RowOrder()
        return LinearSpec(TensorBinding(f"{stems[role]}.weight", rows), TensorBinding(bias, rows) if bias in c.tensors else TensorBinding())

    def head_norm(role: str) -> NormSpec:
        name = f"{stems.get(role, '')}.weight"
        return NormSpec(True, "rms", norm.eps, TensorBinding(name)) if name in c.tensors else NormSpec()

    attention = AttentionSpec(
        query=linear("query", order),
        key=linear("key", order),
        value=linear("value"),
        output=linear("output"),
        norms=HeadNormsSpec(head_norm("query_norm"), head_norm("key_norm")),
        rope=0,
        scale=head_dim**-0.5,
    )
    mlp = MlpSpec(size=c.positive("intermediate_size"), gate=linear("gate"), up=linear("up"), down=linear("down"))
    return ModelSpec(
        family="eagle",
        hidden_size=target.hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=target.vocab_size,
        max_position=target.max_position,
        embedding=EmbeddingSpec(TensorBinding(f"{stems['embedding']}.weight")),
        layers=[LayerSpec(mlp_norm=norm, attention=attention, mlp=mlp)],
        ropes=[rope],
    )


def _check_kinds(c: Config) -> None:
    """One layer, of full attention."""
    if c.optional_integer("num_hidden_layers") not in (None, 1):
        c.unsupported("num_hidden_layers", f"{c.name('num_hidden_layers')} = {c.find('num_hidden_layers')}: drafters of one layer are run")
    kinds = c.find("layer_types")
    if kinds not in (None, ["full_attention"]):
        c.unsupported("layer_types", f"{c.name('layer_types')} = {kinds!r:.60}: a drafter's layer attends to all tokens")


def refuse_unread(c: Config, architecture: str = "", inner: str = "") -> None:
    """Raises UnsupportedModelError that names all keys that are neither read nor inert.

    architecture: of a GGUF file. inner: the key of the object that holds the layer's config.
    """
    rules = [*_RULES, *(GGUF if architecture else CONFIG_JSON)]
    unknown = [
        (name, value)
        for name, value in c.unread().items()
        if not (architecture and name.startswith("tokenizer."))
        and inert_reason(rules, "llama", architecture, name.removeprefix(f"{inner}."), value) is None
    ]
    if not unknown:
        return
    shown = ", ".join(f"'{name}' = {json.dumps(value, ensure_ascii=False)[:120]}" for name, value in unknown[:_MOST_NAMED])
    more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
    raise UnsupportedModelError(
        f"{c.source}: keys that llmi does not know of a drafter, so that its drafts could be wrong: {shown}{more}", c.source, unknown[0][0]
    )
