"""The common part of dense decoders: sizes, tensors by role, and one LayerSpec for each layer. A card says in a Style how its family
differs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Final, Literal

from llmi.families.config import Config
from llmi.families.rope import rope_of
from llmi.families.spec import (
    Activation,
    AttentionSpec,
    HeadNormsSpec,
    LayerSpec,
    LinearSpec,
    MlpSpec,
    ModelSpec,
    NormKind,
    NormSpec,
    RowOrder,
    TensorBinding,
)

Order = Literal["pre", "post", "sandwich", "sum", "parallel", "shared"]
MAX_LAYERS: Final = 1024
MAX_HEADS: Final = 4096

#: Names of config.json's activations.
ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
}

HF_NAMES: Final = {
    "embedding": "model.embed_tokens",
    "final_norm": "model.norm",
    "head": "lm_head",
    "layer": "model.layers.{}.",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
#: The norms that each order of a layer has; "shared": attention and MLP read one norm.
HF_NORMS: Final[Mapping[Order, Mapping[str, str]]] = {
    "pre": {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    "post": {"post_attention_norm": "post_attention_layernorm", "post_mlp_norm": "post_feedforward_layernorm"},
    "sandwich": {
        "attention_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    },
    "sum": {"attention_sum_norm": "attention.output.LayerNorm", "mlp_sum_norm": "output.LayerNorm"},
    "parallel": {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    "shared": {"attention_norm": "input_layernorm"},
}
GGUF_NAMES: Final = {
    "embedding": "token_embd",
    "positions": "position_embd",
    "token_types": "token_types",
    "embedding_norm": "token_embd_norm",
    "final_norm": "output_norm",
    "head": "output",
    "layer": "blk.{}.",
    "attention_norm": "attn_norm",
    "qkv": "attn_qkv",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "output": "attn_output",
    "query_norm": "attn_q_norm",
    "key_norm": "attn_k_norm",
    "post_attention_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "gate_up": "ffn_up",
    "post_mlp_norm": "post_ffw_norm",
    "attention_sum_norm": "attn_output_norm",
    "mlp_sum_norm": "layer_output_norm",
    "sinks": "attn_sinks",
    "attention_output_norm": "attn_sub_norm",
    "mlp_inner_norm": "ffn_sub_norm",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Style:
    """How a family's decoder is made; the defaults are Llama's.

    Attributes
    ----------
    norm, norm_bias, norm_weight
        Kind of norms, and which vectors they have.
    plus_one : bool
        config.json's files store norm weights minus 1; GGUF's do not.
    order : str
        Where norms stand: before, after or around each block; "sum": after the block was added; "parallel": both blocks read the same x,
        "shared": also one norm.
    gated : bool
        act(gate x) * up x, not act(up x).
    activation : str
        config.json's name, where the file has none.
    biases : mapping of str to bool
        Of "qkv", "output", "mlp" and "head": whether config.json's files have them. A GGUF may have those that are listed here.
    fused_heads : bool
        A fused tensor of queries, keys and values is stored head by head.
    pairs, gguf_pairs : bool
        Rotated rows are stored as adjacent pairs in config.json's files, in GGUF.
    transposed : bool
        config.json's files store matrices as [columns, rows].
    head_norms : bool
        Queries and keys are normed.
    experts, latent : bool
        Layers may have experts; attention reads a latent: the card sets them.
    names, gguf_names : mapping of str to str
        Names by role in config.json's files, where they differ from Llama's; in GGUF.
    """

    norm: NormKind = "rms"
    norm_bias: bool = False
    norm_weight: bool = True
    plus_one: bool = False
    order: Order = "pre"
    gated: bool = True
    activation: str = "silu"
    biases: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    fused_heads: bool = False
    pairs: bool = False
    gguf_pairs: bool = False
    transposed: bool = False
    head_norms: bool = False
    experts: bool = False
    latent: bool = False
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gguf_names: Mapping[str, str] = dataclasses.field(default_factory=dict)


def dense(c: Config, style: Style, *, theta: float | None = 10000.0, partial: float = 1.0) -> ModelSpec:
    """The spec of a dense decoder; a card changes it where that does not suffice.

    Parameters
    ----------
    c : Config
    style : Style
    theta, partial : float
        The family's rotary base and rotated part of a head, where the file has none. theta None: positions are not rotated.

    Raises
    ------
    ModelFileError, UnsupportedModelError
        A key is missing, of another kind or out of range.
    """
    spec = _sizes(c, style)
    if not style.experts:
        _refuse_experts(c)
    if theta is not None:
        spec.ropes = [rope_of(c, spec.head_dim, theta, partial)]
    return Tensors(c, style, spec).fill()


def num_layers(c: Config) -> int:
    """num_hidden_layers, refused where no model has as many."""
    layers = c.integer("num_hidden_layers")
    if not 1 <= layers <= MAX_LAYERS:
        c.refuse("num_hidden_layers", f"num_hidden_layers = {layers} is outside [1, {MAX_LAYERS}]")
    return layers


def _sizes(c: Config, style: Style) -> ModelSpec:
    spec = ModelSpec(hidden_size=c.positive("hidden_size"), num_heads=c.positive("num_attention_heads"))
    if spec.num_heads > MAX_HEADS:
        c.refuse("num_attention_heads", f"num_attention_heads = {spec.num_heads} is outside [1, {MAX_HEADS}]")
    spec.layers = [LayerSpec() for _ in range(num_layers(c))]
    kv_heads = c.integer("num_key_value_heads", spec.num_heads) if c.is_gguf else c.optional_integer("num_key_value_heads")
    spec.num_kv_heads = spec.num_heads if kv_heads is None else kv_heads
    if spec.num_kv_heads < 1 or spec.num_heads % spec.num_kv_heads != 0:
        name = c.name("num_key_value_heads")
        c.refuse("num_key_value_heads", f"{name} = {spec.num_kv_heads} does not divide the {spec.num_heads} heads")
    head_dim = c.optional_integer("head_dim")
    spec.head_dim = spec.hidden_size // spec.num_heads if head_dim is None else head_dim
    if not 1 <= spec.head_dim < 1 << 20:
        c.refuse("head_dim", f"{c.name('head_dim')} = {spec.head_dim} is outside [1, 2^20)")
    if c.is_gguf and not style.latent and c.integer("value_head_dim", spec.head_dim) != spec.head_dim:
        c.unsupported("value_head_dim", "key and value heads of different sizes")
    if c.is_gguf:
        shape = c.tensors.get("token_embd.weight")
        if shape is None or len(shape) != 2:
            c.refuse("token_embd.weight", "tensor 'token_embd.weight' is missing or no matrix")
        spec.vocab_size = c.integer("vocab_size", shape[0])
        spec.max_position = c.integer("max_position_embeddings")
    else:
        spec.vocab_size = c.integer("vocab_size")
        spec.max_position = c.integer("max_position_embeddings", 2048)
        _check_token_ids(c, spec.vocab_size)
    return spec


def _refuse_experts(c: Config) -> None:
    keys = ["num_experts"] if c.is_gguf else ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"]
    experts = max(c.optional_integer(key) or 0 for key in keys)
    if experts > 0:
        c.unsupported("num_experts", f"{c.name('num_experts')}: {experts} experts of a family that has none")


def _check_token_ids(c: Config, vocab_size: int) -> None:
    """The tokenizer and requests use these ids as indices of logits. llmi pads nothing; -1 stands for "none" in older files."""
    for key, lowest in (("bos_token_id", 0), ("eos_token_id", 0), ("pad_token_id", -1)):
        end = vocab_size + (key == "pad_token_id")  # one that stands for none, too
        value = c.find(key)
        for token in value if isinstance(value, list) and key != "pad_token_id" else [] if value is None else [value]:
            is_whole = isinstance(token, float) and token.is_integer() and abs(token) < 2**53
            if isinstance(token, bool) or not (isinstance(token, int) or is_whole):
                c.refuse(key, f"field '{c.name(key)}' is not an integer")
            if not lowest <= token < end:
                c.refuse(
                    key,
                    f"{c.name(key)} holds token id {int(token)}, outside [{lowest}, vocab_size ="
                    f" {vocab_size}{']' if end > vocab_size else ')'}",
                )


class Tensors:
    """Binds the tensors of a model by their roles."""

    def __init__(self, c: Config, style: Style, spec: ModelSpec) -> None:
        self.c, self.style, self.spec = c, style, spec
        own = {} if c.is_gguf else {**HF_NAMES, **HF_NORMS[style.order], **style.names}
        self.names: Mapping[str, str] = {**GGUF_NAMES, **style.gguf_names} if c.is_gguf else own
        key, default = ("rms_norm_eps", 1e-6) if style.norm == "rms" else ("layer_norm_eps", 1e-5)
        self.eps = c.number(key) if c.is_gguf else c.number(key, default)
        if self.eps <= 0:
            c.refuse(key, f"{c.name(key)} = {self.eps} must be positive")
        self.activation = ACTIVATIONS[c.choose("hidden_act", ACTIVATIONS, style.activation)]
        self.size = c.optional_integer("intermediate_size") or 4 * spec.hidden_size
        self.rotary_dim = spec.ropes[0].rotary_dim if spec.ropes else 0

    def fill(self) -> ModelSpec:
        """Sets what all layers and their surroundings have."""
        c, spec = self.c, self.spec
        spec.embedding.weight = self.tensor("embedding")
        spec.final_norm = self.norm("final_norm")
        if not (self.names["head"] + ".weight" not in c.tensors if c.is_gguf else c.boolean("tie_word_embeddings", False)):
            spec.head.weight = self.tensor("head")
        if self.has_bias("head", self.names["head"]):
            spec.head.bias = TensorBinding(self.names["head"] + ".bias")
        for index, layer in enumerate(spec.layers):
            self.fill_layer(layer, index)
        spec.rope_choice, spec.ignored_tensors = c.rope_choice, list(c.ignored)
        return spec

    def fill_layer(self, layer: LayerSpec, index: int) -> None:
        """Sets one layer."""
        style = self.style
        layer.order = "parallel" if style.order in ("parallel", "shared") else "sequential"
        layer.mlp_reads_attention_norm = style.order == "shared"
        for role in HF_NORMS[style.order]:
            setattr(layer, role, self.norm(role, index))
        layer.attention = self.attention(index)
        layer.mlp = self.mlp(index)

    def stem(self, role: str, index: int | None = None) -> str:
        """A tensor's name without .weight or .bias."""
        return self.names[role] if index is None else self.names["layer"].replace("{}", str(index)) + self.names[role]

    def tensor(self, role: str, index: int | None = None) -> TensorBinding:
        """The weight of a role."""
        return TensorBinding(self.stem(role, index) + ".weight")

    def norm(self, role: str, index: int | None = None) -> NormSpec:
        """A norm of the family's kind."""
        style, norm = self.style, NormSpec(present=True, kind=self.style.norm, eps=self.eps)
        if style.norm_weight:
            norm.weight = self.tensor(role, index)
            norm.weight.plus = 1.0 if style.plus_one and not self.c.is_gguf else 0.0
        if style.norm_bias:
            norm.bias = TensorBinding(self.stem(role, index) + ".bias")
        return norm

    def has_bias(self, group: str, stem: str) -> bool:
        """Whether linears of this group have biases; of a GGUF the stored ones count."""
        if group not in self.style.biases:
            return False
        return stem + ".bias" in self.c.tensors if self.c.is_gguf else self.style.biases[group]

    def linear(self, role: str, index: int, group: str, order: RowOrder | None = None) -> LinearSpec:
        """A linear layer; order: its rows, if they are not the whole tensor's."""
        stem, order = self.stem(role, index), order or RowOrder()
        weight = TensorBinding(stem + ".weight", order, transposed=self.style.transposed and not self.c.is_gguf)
        return LinearSpec(weight, TensorBinding(stem + ".bias", order) if self.has_bias(group, stem) else TensorBinding())

    def head_order(self, first_head: int = 0, *, rotated: bool, part: int = 0) -> RowOrder:
        """Rows of query or key heads. part: of three parts that are stored head by head."""
        hd, is_gguf = self.spec.head_dim, self.c.is_gguf
        pairs = self.rotary_dim if rotated and (self.style.gguf_pairs if is_gguf else self.style.pairs) else 0
        by_heads = self.style.fused_heads and not is_gguf
        if by_heads:
            return RowOrder(part * hd, hd, 3 * hd, pairs)
        return RowOrder(first_head * hd, hd, hd, pairs) if pairs else RowOrder(first_head * hd)

    def attention(self, index: int) -> AttentionSpec:
        """Linear layers and head norms; the one rotary table, no window, scale 1/sqrt(head_dim)."""
        spec, nh, nk = self.spec, self.spec.num_heads, self.spec.num_kv_heads
        attention = AttentionSpec(rope=0 if spec.ropes else -1, scale=1.0 / math.sqrt(max(spec.head_dim, 1)))
        if "qkv" in self.names and (not self.c.is_gguf or self.stem("qkv", index) + ".weight" in self.c.tensors):
            for part, (role, first) in enumerate({"query": 0, "key": nh, "value": nh + nk}.items()):
                order = self.head_order(first, rotated=role != "value", part=part)
                setattr(attention, role, self.linear("qkv", index, "qkv", order))
        else:
            for role in ("query", "key", "value"):
                rows = self.head_order(rotated=True) if role != "value" else None
                setattr(attention, role, self.linear(role, index, "qkv", rows))
        attention.output = self.linear("output", index, "output")
        if self.style.head_norms:
            attention.norms = HeadNormsSpec(self.norm("query_norm", index), self.norm("key_norm", index))
            order = RowOrder() if self.style.fused_heads else self.head_order(rotated=True)
            for norm in (attention.norms.query, attention.norms.key):
                norm.weight.order = order if norm.weight.name else RowOrder()
        return attention

    def mlp(self, index: int) -> MlpSpec:
        """Gated or plain, with gate and up in one tensor or in two."""
        mlp = MlpSpec(gated=self.style.gated, activation=self.activation, size=self.size, down=self.linear("down", index, "mlp"))
        is_fused = "gate_up" in self.names and (not self.c.is_gguf or self.stem("gate", index) + ".weight" not in self.c.tensors)
        if self.style.gated and is_fused:
            mlp.gate = self.linear("gate_up", index, "mlp")
            mlp.up = self.linear("gate_up", index, "mlp", RowOrder(first_row=self.size))
            return mlp
        if self.style.gated:
            mlp.gate = self.linear("gate", index, "mlp")
        mlp.up = self.linear("up", index, "mlp")
        return mlp
