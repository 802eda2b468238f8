"""Families whose layers carry a recurrence instead of keys and values in most places: Qwen's gated delta rule, Granite 4's Mamba-2."""

from __future__ import annotations

from typing import Final

from llmi.families.config import Config
from llmi.families.dense import Style, Tensors, dense, num_layers
from llmi.families.experts import HF_EXPERTS, MAX_SIZE, ExpertTensors, between, every_step, sizes_of
from llmi.families.layers import FULL, kinds_by_kv_heads
from llmi.families.llama_like import attention_biases
from llmi.families.registry import family
from llmi.families.routers import GRANITE_KEYS, granite
from llmi.families.spec import (
    AttentionSpec,
    ConvSpec,
    LinearSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    NormSpec,
    RecurrenceSpec,
    RouterSpec,
    RowOrder,
    TensorBinding,
)

LINEAR: Final = "linear_attention"
#: Of Mamba-2 layers; files whose layers are all attention have them, too.
MAMBA_KEYS: Final = ("n_heads", "n_groups", "d_state", "d_head", "d_conv", "expand", "chunk_size", "conv_bias", "proj_bias")
DELTA_DEFAULTS: Final = {
    "head_dim": 256,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
MOE_DEFAULTS: Final = DELTA_DEFAULTS | {"num_experts_per_tok": 8, "num_experts": 256, "moe_intermediate_size": 512}


def conv_length(c: Config, key: str) -> int:
    """How many rows a convolution reads."""
    length = c.integer(key)
    if not 2 <= length <= 64:
        c.refuse(key, f"{c.name(key)} = {length} is outside [2, 64]: the convolution reads the row itself and those before it")
    return length


def _projected(mixer: RecurrenceSpec, projections: dict[str, LinearSpec]) -> RecurrenceSpec:
    """The same with its projections, by role."""
    for role, projection in projections.items():
        setattr(mixer, role, projection)
    return mixer


def _kinds(c: Config, number: int) -> list[str]:
    """The kind of each layer: by layer_types, else each full_attention_interval-th is attention."""
    interval = c.positive("full_attention_interval", 4)
    kinds = c.listed("layer_types", number)
    for kind in kinds or []:
        if kind not in (FULL, LINEAR):
            c.unsupported("layer_types", f"layer_types holds '{kind}' ({FULL} and {LINEAR} are run)")
    if kinds is not None:
        return [str(kind) for kind in kinds]
    return [LINEAR if (index + 1) % interval else FULL for index in range(number)]


#: Names of a gated delta rule's tensors: a matrix is a name without .weight.
DELTA_NAMES: Final = {
    "prefix": "linear_attn.",
    "qkv": "in_proj_qkv",
    "gate": "in_proj_z",
    "write": "in_proj_b",
    "time": "in_proj_a",
    "conv": "conv1d",
    "time_bias": "dt_bias",
    "decay": "A_log",
    "norm": "norm",
    "output": "out_proj",
}
DELTA_GGUF: Final = {
    "prefix": "",
    "qkv": "attn_qkv",
    "gate": "attn_gate",
    "write": "ssm_beta",
    "time": "ssm_alpha",
    "conv": "ssm_conv1d",
    "time_bias": "ssm_dt.bias",
    "decay": "ssm_a",
    "norm": "ssm_norm",
    "output": "ssm_out",
}


def _delta(c: Config, layer: str, eps: float, *, fused: bool) -> RecurrenceSpec:
    """One layer's gated delta rule. fused: the projections are stored key head by key head, in two tensors.

    A GGUF has the decays themselves. Where the projections are not fused, its value heads are in an order in which those of a key head are
    not together, but tiled; where they are, llama.cpp's converter takes the first of the two tensors apart since early 2026.
    """
    names = DELTA_GGUF if c.is_gguf else DELTA_NAMES
    stem = layer + names["prefix"]
    heads, groups, key_size = (c.positive(f"linear_{part}") for part in ("num_value_heads", "num_key_heads", "key_head_dim"))
    inner = c.positive("linear_inner_size") if c.is_gguf else c.positive("linear_value_head_dim") * heads
    value_size = inner // heads
    if heads % groups:
        c.refuse("linear_num_key_heads", f"{c.name('linear_num_key_heads')} = {groups} does not divide the {heads} value heads")
    if inner % heads:
        c.refuse("linear_inner_size", f"{c.name('linear_inner_size')} = {inner} is no multiple of the {heads} value heads")
    if max(heads, groups) > 4096 or value_size > 4096:
        c.refuse("linear_num_value_heads", "more heads, or larger ones, than 4096")
    if key_size > 256:
        c.unsupported("linear_key_head_dim", f"{c.name('linear_key_head_dim')} = {key_size} (up to 256 are run)")
    length, shared = conv_length(c, "linear_conv_kernel_dim"), heads // groups

    def linear(name: str, order: RowOrder | None = None) -> LinearSpec:
        return LinearSpec(TensorBinding(f"{stem}{name}.weight", order or RowOrder()))

    qkvz, ba = ("ssm_in", "ssm_ba") if c.is_gguf else ("in_proj_qkvz", "in_proj_ba")
    if fused and not (c.is_gguf and f"{stem}attn_qkv.weight" in c.tensors):
        values, row = shared * value_size, 2 * key_size + 2 * shared * value_size
        parts = {
            "query": (0, key_size),
            "key": (key_size, key_size),
            "value": (2 * key_size, values),
            "gate": (2 * key_size + values, values),
        }
        projections = {role: linear(qkvz, RowOrder(first, size, row)) for role, (first, size) in parts.items()}
    else:
        first = {"query": 0, "key": groups * key_size, "value": 2 * groups * key_size}
        projections = {role: linear(names["qkv"], RowOrder(row)) for role, row in first.items()}
        projections["gate"] = linear(names["gate"])
    if fused:
        projections["write"] = linear(ba, RowOrder(0, shared, 2 * shared))
        projections["time"] = linear(ba, RowOrder(shared, shared, 2 * shared))
    else:
        projections |= {role: linear(names[role]) for role in ("write", "time")}
    mixer = RecurrenceSpec(
        num_heads=heads,
        num_groups=groups,
        tiled_groups=c.is_gguf and not fused,
        key_size=key_size,
        value_size=value_size,
        conv=ConvSpec(length, TensorBinding(f"{stem}{names['conv']}.weight")),
        time_bias=TensorBinding(stem + names["time_bias"]),
        decay=TensorBinding(stem + names["decay"]),
        decay_is_log=not c.is_gguf,
        norm=NormSpec(present=True, eps=eps, weight=TensorBinding(f"{stem}{names['norm']}.weight")),
        output=linear(names["output"]),
    )
    return _projected(mixer, projections)


def _qwen(c: Config, *, experts: bool, fused: bool = False) -> tuple[ModelSpec, Tensors]:
    """Gated delta rules, and attention whose queries come with a gate for each element."""
    style = Style(
        plus_one=True, head_norms=True, biases=attention_biases(c), experts=experts, gguf_names={"mlp_norm": "post_attention_norm"}
    )
    spec = dense(c, style, partial=0.25)
    tensors, size = Tensors(c, style, spec), spec.head_dim
    drafts = between(c, "num_nextn_predict_layers", 0) if c.is_gguf else 0
    spec.layers = spec.layers[: max(len(spec.layers) - drafts, 1)]
    if c.boolean("use_sliding_window", False):
        c.unsupported("use_sliding_window", "use_sliding_window: true, which transformers' class of this family does not read")
    if not c.boolean("attn_output_gate", True):
        c.unsupported("attn_output_gate", "attn_output_gate: false, which transformers' class of this family does not read")
    for index, kind in enumerate(_kinds(c, len(spec.layers))):
        layer = spec.layers[index]
        if kind == FULL:
            attention = layer.attention
            attention.gate_kind = "element"
            for role, first in (("query", 0), ("gate", size)):
                setattr(attention, role, tensors.linear("query", index, "qkv", RowOrder(first, size, 2 * size)))
            continue
        layer.mixer, layer.attention = "gated_delta", AttentionSpec()
        layer.recurrence = _delta(c, tensors.names["layer"].replace("{}", str(index)), tensors.eps, fused=fused)
    ignored = [f"blk.{len(spec.layers) + index}.*" for index in range(drafts)] if c.is_gguf else ["mtp.*"]
    spec.ignored_tensors += ignored  # layers that draft further tokens
    return spec, tensors


@family("qwen3_5", hf="Qwen3_5ForCausalLM", model_type="qwen3_5_text", gguf="qwen35", defaults=DELTA_DEFAULTS | {"num_key_value_heads": 4})
def qwen3_5(c: Config) -> ModelSpec:
    """Qwen 3.5 and 3.6: three of four layers are gated delta rules, the others attention with a gate. Qwen Team, 2026."""
    if c.find("mlp_only_layers"):
        c.unsupported("mlp_only_layers", "mlp_only_layers of a family that has no experts")
    return _qwen(c, experts=False)[0]


def _stacked(experts: ExpertTensors, index: int, size: int) -> MlpSpec:
    """Two tensors of all experts, [experts, rows, columns]: gate's rows before up's, and down."""

    def linear(name: str, order: RowOrder) -> LinearSpec:
        return LinearSpec(TensorBinding(experts.stem(f"mlp.experts.{name}_proj", index), order))

    gate, up = (linear("gate_up", RowOrder(first, size, 2 * size)) for first in (0, size))
    return MlpSpec(activation=experts.tensors.activation, size=size, gate=gate, up=up, down=linear("down", RowOrder()))


def _with_experts(c: Config, *, renormalise: bool, layers: str, fused: bool) -> ModelSpec:
    """Experts and a shared one with a gate. layers: "all", or "step" as Qwen 3's."""
    spec, tensors = _qwen(c, experts=True, fused=fused)
    number, used, size = sizes_of(c)
    shared = between(c, "shared_expert_intermediate_size", 512, MAX_SIZE)
    experts = ExpertTensors(tensors, HF_EXPERTS, "mlp.shared_expert")
    is_stacked = not fused and not c.is_gguf
    if c.tensors:
        is_stacked = any(name.endswith("mlp.experts.gate_up_proj") for name in c.tensors)
    count = len(spec.layers)
    for index in range(count) if layers == "all" else every_step(c, count):
        expert = _stacked(experts, index, size) if is_stacked else experts.expert(index, size)
        moe = MoeSpec(number, used, experts.router(index, RouterSpec(renormalise=renormalise)), expert)
        if shared:
            moe.shared_gate = experts.linear(experts.shared_names["shared_gate"], index)
        experts.set(index, moe, experts.shared(index, shared))
    return spec


@family("qwen3_5_moe", hf="Qwen3_5MoeForCausalLM", model_type="qwen3_5_moe_text", gguf="qwen35moe", defaults=MOE_DEFAULTS)
def qwen3_5_moe(c: Config) -> ModelSpec:
    """Qwen 3.5 and 3.6 with experts: weights are renormalised, and a shared expert has a gate. Qwen Team, 2026."""
    if not c.boolean("norm_topk_prob", True):
        c.unsupported("norm_topk_prob", "norm_topk_prob: false, which transformers' class of this family does not read")
    if c.find("mlp_only_layers"):
        c.unsupported("mlp_only_layers", "mlp_only_layers, which transformers' class of this family does not read")
    return _with_experts(c, renormalise=True, layers="all", fused=False)


@family(
    "qwen3_next",
    hf="Qwen3NextForCausalLM",
    gguf="qwen3next",
    defaults=MOE_DEFAULTS | {"num_experts_per_tok": 10, "num_experts": 512},
)
def qwen3_next(c: Config) -> ModelSpec:
    """Qwen3-Next 80B-A3B: as Qwen 3.5, with projections that are stored key head by key head. Qwen Team, 2025."""
    return _with_experts(c, renormalise=c.boolean("norm_topk_prob", True), layers="step", fused=True)


def _limits(c: Config) -> tuple[float, float]:
    """The least and the most of a time step; 0 for no most. transformers writes infinity as an object."""
    limits = c.find("time_step_limit")
    if limits is None:
        return 0.0, 0.0
    if not isinstance(limits, list) or len(limits) != 2:
        c.refuse("time_step_limit", "field 'time_step_limit' is not an array of two numbers")
    least, most = limits
    is_infinite = most == {"__float__": "Infinity"}
    numbers = [least] if is_infinite else [least, most]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in numbers):
        c.refuse("time_step_limit", "field 'time_step_limit' is not an array of two numbers")
    if not 0 <= least < 1e30 or not (is_infinite or max(least, 1e-30) <= most < 1e30):
        c.refuse("time_step_limit", f"time_step_limit = {limits}: the first may not be below 0, nor above the second, which is positive")
    return float(least), 0.0 if is_infinite else float(most)


#: Names of a scan's tensors, and the keys of its sizes, in config.json and in a GGUF.
MAMBA_NAMES: Final = {"input": "in_proj", "conv": "conv1d", "time_bias": "dt_bias", "decay": "A_log", "skip": "D", "norm": "norm"}
MAMBA_GGUF: Final = {
    "input": "ssm_in",
    "conv": "ssm_conv1d",
    "time_bias": "ssm_dt.bias",
    "decay": "ssm_a",
    "skip": "ssm_d",
    "norm": "ssm_norm",
}
MAMBA_SIZES: Final = {"heads": "mamba_n_heads", "groups": "mamba_n_groups", "state": "mamba_d_state", "conv": "mamba_d_conv"}
MAMBA_GGUF_SIZES: Final = {
    "heads": "linear_num_value_heads",
    "groups": "linear_num_key_heads",
    "state": "linear_key_head_dim",
    "conv": "linear_conv_kernel_dim",
}


def _mamba(c: Config, stem: str, hidden: int, eps: float) -> RecurrenceSpec:
    """One layer's scan; its projections are rows of one tensor: gate, x, B, C, dt. A GGUF has the decays themselves."""
    names, keys = (MAMBA_GGUF, MAMBA_GGUF_SIZES) if c.is_gguf else (MAMBA_NAMES, MAMBA_SIZES)
    heads, groups, state = (c.positive(keys[part]) for part in ("heads", "groups", "state"))
    inner = c.positive("linear_inner_size") if c.is_gguf else c.positive("mamba_expand", 2) * hidden
    size = inner // heads if c.is_gguf or c.find("mamba_d_head") in (None, "auto") else c.positive("mamba_d_head")
    if heads > 4096 or heads * size != inner:
        inner_key, whole = ("linear_inner_size", "its inner size") if c.is_gguf else ("mamba_d_head", "mamba_expand * hidden_size")
        c.refuse(inner_key, f"{heads} heads of {size} are not {whole} = {inner}")
    if heads % groups:
        c.refuse(keys["groups"], f"{c.name(keys['groups'])} = {groups} does not divide the {heads} heads")
    if state > 256:
        c.unsupported(keys["state"], f"{c.name(keys['state'])} = {state} (up to 256 are run)")

    def has_bias_of(name: str, key: str, *, default: bool) -> bool:
        return f"{stem}{names[name]}.bias" in c.tensors if c.is_gguf else c.boolean(key, default)

    (least, most), has_bias = (0.0, 0.0) if c.is_gguf else _limits(c), has_bias_of("input", "mamba_proj_bias", default=False)
    conv = ConvSpec(conv_length(c, keys["conv"]), TensorBinding(f"{stem}{names['conv']}.weight"))
    if has_bias_of("conv", "mamba_conv_bias", default=True):
        conv.bias = TensorBinding(f"{stem}{names['conv']}.bias")

    def linear(name: str, order: RowOrder | None = None) -> LinearSpec:
        parts = {part: TensorBinding(f"{stem}{name}.{part}", order or RowOrder()) for part in ("weight", "bias")[: 1 + has_bias]}
        return LinearSpec(**parts)

    sizes = {"gate": inner, "value": inner, "key": groups * state, "query": groups * state, "time": heads}
    roles = list(sizes)
    mixer = RecurrenceSpec(
        num_heads=heads,
        num_groups=groups,
        key_size=state,
        value_size=size,
        conv=conv,
        time_bias=TensorBinding(stem + names["time_bias"]),
        decay=TensorBinding(stem + names["decay"]),
        decay_is_log=not c.is_gguf,
        skip=TensorBinding(stem + names["skip"]),
        least_step=least,
        most_step=most,
        norm=NormSpec(present=True, eps=eps, weight=TensorBinding(f"{stem}{names['norm']}.weight")),
        norm_groups=groups,
        output=linear("ssm_out" if c.is_gguf else "out_proj"),
    )
    return _projected(
        mixer, {role: linear(names["input"], RowOrder(sum(sizes[name] for name in roles[:place]))) for place, role in enumerate(roles)}
    )


def _rotates(c: Config) -> bool:
    """Whether attention has positions: where a config.json says so, and in a GGUF unless it says that it has none."""
    if c.is_gguf:
        return c.boolean(c.gguf_key("rope.scaling.finetuned"), True)
    kinds = ["rope", "nope"]
    return c.has("position_embedding_type") and c.choose("position_embedding_type", kinds, "nope") == "rope"


@family(
    "granitemoehybrid",
    hf="GraniteMoeHybridForCausalLM",
    gguf="granitehybrid",
    keys=GRANITE_KEYS | {"layer_types": ("layer_types", "layers_block_type")},
    defaults={
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 1024,
        "mamba_n_heads": 128,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
    },
)
def granitemoehybrid(c: Config) -> ModelSpec:
    """Granite 4: Mamba-2 in most layers, attention in the others or, in the dense sizes, in all; experts in some. Granite Team, 2025."""
    shared = between(c, "shared_expert_intermediate_size", 0, MAX_SIZE)
    has_experts = between(c, "num_experts", 0) > 0
    kinds = kinds_by_kv_heads(c, num_layers(c), "mamba") if c.is_gguf else None
    spec = granite(c, shared, has_experts=has_experts)
    if not has_experts:
        c.find("num_experts_per_tok"), c.find("intermediate_size")  # of no layer
    if not c.is_gguf:
        for key in (*(f"mamba_{name}" for name in MAMBA_KEYS), "time_step_limit"):
            c.find(key)
        kinds = [str(kind) for kind in c.listed("layer_types", len(spec.layers)) or ["mamba"] * len(spec.layers)]
    for index, kind in enumerate(kinds or []):
        layer = spec.layers[index]
        if kind in ("mamba", LINEAR):
            layer.mixer, layer.attention = "mamba2", AttentionSpec()
            stem = f"blk.{index}." if c.is_gguf else f"model.layers.{index}.mamba."
            layer.recurrence = _mamba(c, stem, spec.hidden_size, spec.final_norm.eps)
        elif kind in ("attention", FULL):
            layer.attention.rope = 0 if _rotates(c) else -1
        else:
            c.unsupported("layer_types", f"layer_types holds '{kind}' (mamba, attention, {LINEAR} and {FULL} are run)")
    return spec
