"""Families with latent attention: keys and values of all heads come out of one latent of a token, which the cache holds.

The norms of latents have an epsilon of 1e-6, whatever rms_norm_eps says: transformers' classes, and DeepSeek's own, do not hand it on.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from llmi.families.config import Config
from llmi.families.dense import Style, Tensors, dense
from llmi.families.experts import HF_EXPERTS, ExpertTensors, between, grouped_sigmoids, groups_of, sizes_of
from llmi.families.layers import bias
from llmi.families.registry import family
from llmi.families.rope import mscale, rope_of
from llmi.families.spec import AttentionSpec, LatentSpec, LinearSpec, ModelSpec, MoeSpec, NormSpec, RouterSpec, RowOrder, TensorBinding

_LATENT_EPS: Final = 1e-6
_HF: Final = {
    "query": "self_attn.q_proj",
    "query_down": "self_attn.q_a_proj",
    "query_norm": "self_attn.q_a_layernorm",
    "query_up": "self_attn.q_b_proj",
    "down": "self_attn.kv_a_proj_with_mqa",
    "latent_norm": "self_attn.kv_a_layernorm",
    "up": "self_attn.kv_b_proj",
}
_GGUF: Final = {
    "query": "attn_q",
    "query_down": "attn_q_a",
    "query_norm": "attn_q_a_norm",
    "query_up": "attn_q_b",
    "down": "attn_kv_a_mqa",
    "latent_norm": "attn_kv_a_norm",
    "up": "attn_kv_b",
    "key_up": "attn_k_b",
    "value_up": "attn_v_b",
}
#: config.json's keys of experts.
_EXPERTS: Final = {"num_experts": ("n_routed_experts", "num_local_experts", "num_experts")}


class _Latents:
    """The attention of every layer."""

    def __init__(self, c: Config, tensors: Tensors, *, pairs: bool) -> None:
        self.c, self.tensors, self.spec = c, tensors, tensors.spec
        self.names = _GGUF if c.is_gguf else _HF
        self.rank, self.rotary = c.positive("kv_lora_rank"), c.positive("qk_rope_head_dim")
        self.query_rank = c.optional_integer("q_lora_rank") or 0
        if c.is_gguf:
            absorbed = c.has("key_length_mla")
            whole = c.positive("key_length_mla" if absorbed else "head_dim")
            for key, size in (("head_dim", self.rank + self.rotary), ("value_head_dim", self.rank)) if absorbed else ():
                if c.integer(key, size) != size:
                    c.refuse(key, f"{c.name(key)} = {c.integer(key)}, but the cache's one head has {size}")
            self.key = whole - self.rotary
            self.value = self._gguf_value_size()
        else:
            self.key = c.positive("qk_nope_head_dim")
            self.value = c.optional_integer("v_head_dim") or self.spec.hidden_size // self.spec.num_heads
        self.pairs = self.rotary if pairs else 0
        self._check()

    def _gguf_value_size(self) -> int:
        """MiniCPM3's files do not say it: the output projection has as many columns as all heads' values."""
        key = "value_length_mla" if self.c.has("value_length_mla") else "value_head_dim"
        if self.c.has(key):
            return self.c.positive(key)
        name = self.tensors.stem("output", 0) + ".weight"
        shape = self.c.tensors.get(name)
        if shape is None or len(shape) != 2:
            self.c.refuse(name, f"tensor '{name}' is missing or no matrix")
        return shape[1] // self.spec.num_heads

    def _check(self) -> None:
        """Keys that say the same once more."""
        c, heads = self.c, self.spec.num_heads
        if self.key < 1:
            c.refuse("head_dim", f"a head's key of {self.key + self.rotary} values has no part beside the {self.rotary} rotated ones")
        if c.is_gguf:
            return
        if self.spec.num_kv_heads != heads:
            c.refuse("num_key_value_heads", f"num_key_value_heads = {self.spec.num_kv_heads}, but a latent serves all {heads} heads")
        for name, allowed in (("head_dim", (self.rotary, self.key + self.rotary)), ("qk_head_dim", (self.key + self.rotary,))):
            value = c.optional_integer(name)
            if value is not None and value not in allowed:
                c.refuse(name, f"{name} = {value}, but heads have {self.key} values and {self.rotary} rotated ones")

    def fill(self, theta: float) -> None:
        """Sets the cache's one head, the rotation and the layers."""
        spec = self.spec
        spec.num_kv_heads, spec.head_dim = 1, self.rotary + self.rank
        spec.ropes = [rope_of(self.c, self.rotary, theta)]
        scale = self.growth() ** 2 / math.sqrt(self.key + self.rotary)
        for index, layer in enumerate(spec.layers):
            output = self.tensors.linear("output", index, "output")
            layer.attention = AttentionSpec(output=output, latent=self.latent(index), rope=0, scale=scale)

    def growth(self) -> float:
        """YaRN's mscale, which the scores have twice: of queries and of keys."""
        c, rope = self.c, self.spec.ropes[0]
        if c.is_gguf:
            return self._gguf_growth() if rope.yarn_factor != 1.0 else 1.0
        scaling = c.object("rope_parameters") or c.object("rope_scaling")
        if scaling is None or rope.yarn_factor == 1.0:
            return 1.0
        all_dims = scaling.optional_number("mscale_all_dim")
        return mscale(rope.yarn_factor, all_dims) if all_dims else 1.0

    def _gguf_growth(self) -> float:
        """Converters store a tenth of mscale_all_dim, and rotated values do not grow (llama.cpp#17945)."""
        c, rope = self.c, self.spec.ropes[0]
        key = c.gguf_key("rope.scaling.yarn_log_multiplier")
        multiplier = c.number(key, 0.0)
        if multiplier == 0:
            c.unsupported(key, f"{key}: YaRN without it, which readers of this family's files do not agree on")
        for name in ("attn_factor", "yarn_attn_factor"):
            own = c.gguf_key(f"rope.scaling.{name}")
            if c.number(own, 1.0) != 1.0:
                c.unsupported(own, f"{own} beside yarn_log_multiplier")
        rope.magnitude = 1.0
        return mscale(rope.yarn_factor, round(multiplier * 10, 6))

    def stem(self, role: str, index: int) -> str:
        """A tensor's name without .weight or .bias."""
        return self.tensors.names["layer"].replace("{}", str(index)) + self.names[role]

    def rows(self, role: str, index: int, first: int, rows: int, stride: int = 0, pairs: int = 0) -> LinearSpec:
        """Rows of a tensor from the first one on; of each head, if there is a stride."""
        stem = self.stem(role, index)
        order = RowOrder(first, rows, stride, pairs) if stride or pairs else RowOrder(first)
        has_bias = stem + ".bias" in self.c.tensors if self.c.is_gguf else bias(self.c, "attention_bias") and role.endswith("down")
        return LinearSpec(TensorBinding(stem + ".weight", order), TensorBinding(stem + ".bias", order) if has_bias else TensorBinding())

    def norm(self, role: str, index: int) -> NormSpec:
        """The norm of a latent."""
        return NormSpec(present=True, eps=_LATENT_EPS, weight=TensorBinding(self.stem(role, index) + ".weight"))

    def latent(self, index: int) -> LatentSpec:
        """The tensors of one layer."""
        key, rotary, value = self.key, self.rotary, self.value
        latent = LatentSpec(self.rank, key, rotary, value, self.query_rank)
        query, stride = "query", key + rotary
        if self.query_rank:
            query = "query_up"
            latent.query_down, latent.query_norm = self.rows("query_down", index, 0, 0), self.norm("query_norm", index)
        latent.query = self.rows(query, index, 0, key, stride)
        latent.query_rotary = self.rows(query, index, key, rotary, stride, self.pairs)
        latent.latent = self.rows("down", index, 0, self.rank)
        latent.rotary = self.rows("down", index, self.rank, rotary, pairs=self.pairs)
        latent.latent_norm = self.norm("latent_norm", index)
        if self.c.is_gguf and self.stem("key_up", index) + ".weight" in self.c.tensors:
            latent.key_up, latent.value_up = (TensorBinding(self.stem(role, index) + ".weight") for role in ("key_up", "value_up"))
        else:
            name = self.stem("up", index) + ".weight"
            latent.key_up = TensorBinding(name, RowOrder(0, key, key + value), transposed=True)
            latent.value_up = TensorBinding(name, RowOrder(key, value, key + value))
        return latent


def _with_latents(c: Config, style: Style, *, theta: float = 10000.0, pairs: bool = True) -> tuple[ModelSpec, Tensors]:
    spec = dense(c, style, theta=None)
    drafts = between(c, "num_nextn_predict_layers", 0)
    if c.is_gguf:
        del spec.layers[max(len(spec.layers) - drafts, 1) :]
    tensors = Tensors(c, style, spec)
    _Latents(c, tensors, pairs=pairs).fill(theta)
    spec.ignored_tensors += [tensors.names["layer"].replace("{}", str(len(spec.layers) + index)) + "*" for index in range(drafts)]
    spec.rope_choice = c.rope_choice
    return spec, tensors


def _latent_style(c: Config, *, experts: bool = True) -> Style:
    return Style(biases={"output": bias(c, "attention_bias"), "mlp": bias(c, "mlp_bias")}, experts=experts, latent=True)


def _set_experts(c: Config, tensors: Tensors, router: RouterSpec, layers: list[int]) -> None:
    """Experts of these layers, with the shared one. A router of sigmoids has a bias for the choice."""
    number, used, size = sizes_of(c)
    if not c.is_gguf and c.integer("moe_layer_freq", 1) != 1:
        c.unsupported("moe_layer_freq", f"moe_layer_freq = {c.integer('moe_layer_freq', 1)} (1 is run)")
    experts = ExpertTensors(tensors, HF_EXPERTS)
    shared = (c.optional_integer("n_shared_experts") or 0) * size
    choice_bias = "mlp.gate.e_score_correction_bias" if router.score == "sigmoid" else ""
    for index in layers:
        own = experts.router(index, dataclasses.replace(router), choice_bias)
        experts.set(index, MoeSpec(number, used, own, experts.expert(index, size)), experts.shared(index, shared))


def _sparse_layers(c: Config, spec: ModelSpec, default: int) -> list[int]:
    return list(range(between(c, "first_k_dense_replace", default), len(spec.layers)))


def _softmax(c: Config) -> RouterSpec:
    """V2's: groups by their best expert. Weights are not renormalised: DeepSeek's code and transformers' differ where they would be."""
    method = "greedy"
    if c.is_gguf:
        method = "group_limited_greedy" if c.positive("n_group", 1) > 1 else method
    else:
        method = c.choose("topk_method", ("greedy", "group_limited_greedy"), method)
        c.choose("scoring_func", ("softmax",), "softmax")
    if c.boolean("norm_topk_prob", False):
        c.unsupported("norm_topk_prob", f"{c.name('norm_topk_prob')}: true with a softmax, which libraries do not agree on")
    groups, used = (1, 1) if method == "greedy" else groups_of(c, c.positive("num_experts"))
    for key in ("n_group", "topk_group"):
        c.find(key)  # a greedy choice has no groups
    return RouterSpec(num_groups=groups, used_groups=used, factor=c.number("routed_scaling_factor", 1.0) or 1.0)


def _sigmoid(c: Config) -> RouterSpec:
    """V3's."""
    if not c.is_gguf:
        c.choose("topk_method", ("noaux_tc",), "noaux_tc")
        c.choose("scoring_func", ("sigmoid",), "sigmoid")
    return grouped_sigmoids(c, c.positive("num_experts"), c.number("routed_scaling_factor", 1.0) or 1.0)


@family(
    "deepseek_v2",
    hf="DeepseekV2ForCausalLM",
    gguf="deepseek2",
    keys=_EXPERTS,
    defaults={
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
        "num_experts": 64,
    },
)
def deepseek_v2(c: Config) -> ModelSpec:
    """DeepSeek V2 and V2-Lite; in GGUF also V3 and GLM-4.7-Flash, whose experts have sigmoids. DeepSeek-AI, 2024."""
    spec, tensors = _with_latents(c, _latent_style(c))
    scores = 1
    if c.is_gguf:
        key, last = c.gguf_key("expert_gating_func"), len(spec.layers) - 1
        has_bias = f"blk.{last}.exp_probs_b.bias" in c.tensors
        scores = c.integer(key, 0) or (2 if has_bias else 1)
        if scores not in (1, 2):
            c.unsupported(key, f"{key} = {scores}: scores that are neither the softmax (1) nor sigmoids (2)")
    _set_experts(c, tensors, _softmax(c) if scores == 1 else _sigmoid(c), _sparse_layers(c, spec, 0))
    return spec


@family(
    "deepseek_v3",
    hf="DeepseekV3ForCausalLM",
    model_type=("deepseek_v3", "kimi_k2"),
    keys=_EXPERTS,
    defaults={
        "num_experts": 256,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "first_k_dense_replace": 3,
    },
)
def deepseek_v3(c: Config) -> ModelSpec:
    """DeepSeek V3, R1, Moonlight and Kimi K2: sigmoid scores with a bias for the choice alone. DeepSeek-AI, 2024."""
    spec, tensors = _with_latents(c, _latent_style(c), pairs=c.boolean("rope_interleave", True))
    _set_experts(c, tensors, _sigmoid(c), _sparse_layers(c, spec, 3))
    return spec


@family(
    "glm4_moe_lite",
    hf="Glm4MoeLiteForCausalLM",
    keys=_EXPERTS,
    defaults={
        "num_experts": 64,
        "n_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "num_experts_per_tok": 4,
        "routed_scaling_factor": 1.8,
        "q_lora_rank": 768,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "rms_norm_eps": 1e-5,
    },
)
def glm4_moe_lite(c: Config) -> ModelSpec:
    """GLM-4.7-Flash: V3's attention and experts. GLM Team, 2025."""
    spec, tensors = _with_latents(c, _latent_style(c), pairs=c.boolean("rope_interleave", True))
    layers = _sparse_layers(c, spec, 1)
    kinds = c.listed("mlp_layer_types", len(spec.layers))
    if kinds is not None:
        if any(kind not in ("dense", "sparse") for kind in kinds):
            c.unsupported("mlp_layer_types", "mlp_layer_types holds another kind than dense and sparse")
        layers = [index for index, kind in enumerate(kinds) if kind == "sparse"]
    _set_experts(c, tensors, _sigmoid(c), layers)
    return spec


@family(
    "minicpm3",
    hf="MiniCPM3ForCausalLM",
    gguf="minicpm3",
    defaults={
        "q_lora_rank": 768,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
        "max_position_embeddings": 32768,
    },
)
def minicpm3(c: Config) -> ModelSpec:
    """MiniCPM3: dense layers, scaled embedding, residuals and logits, which its GGUF files do not tell (llama.cpp's are these). 2024."""
    spec, _ = _with_latents(c, _latent_style(c, experts=False), pairs=False)
    hidden, layers = spec.hidden_size, len(spec.layers)
    spec.embedding.scale = 12.0 if c.is_gguf else c.number("scale_emb")
    depth = 1.4 if c.is_gguf else c.optional_number("scale_depth")
    base = 256.0 if c.is_gguf else c.optional_number("dim_model_base")
    spec.head.scale = (base or hidden) / hidden
    for layer in spec.layers:
        layer.residual_scale = 1.0 if depth is None else depth / math.sqrt(layers)
    return spec
