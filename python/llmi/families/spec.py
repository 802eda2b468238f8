"""A model as plain numbers and tensor bindings. The dataclasses mirror csrc/model/spec.h, whose comments say what each field means.

A family's card makes a `ModelSpec`, and the core, which knows no family, checks it and runs it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from typing import Literal, TypeAlias

NormKind: TypeAlias = Literal["rms", "layer"]
Activation: TypeAlias = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2", "xielu", "swiglu_clamped"]
RouterScore: TypeAlias = Literal["softmax", "softmax_chosen", "sigmoid", "sparse_mixer"]
GroupScore: TypeAlias = Literal["max", "top2"]
HeadNormSpan: TypeAlias = Literal["head", "projection"]
GateKind: TypeAlias = Literal["none", "element", "head"]
LayerOrder: TypeAlias = Literal["sequential", "parallel"]
MixerKind: TypeAlias = Literal["attention", "short_conv", "gated_delta", "mamba2"]


@dataclasses.dataclass
class RowOrder:
    """Rows of a tensor that belong to a role: row r is the file's first_row + (r / head_rows) * head_stride + place of r % head_rows."""

    first_row: int = 0
    head_rows: int = 0
    head_stride: int = 0
    adjacent_pairs: int = 0


@dataclasses.dataclass
class TensorBinding:
    """A tensor by its name in the file; without a name there is none. A vector is multiplied by `times`, and `plus` is added."""

    name: str = ""
    order: RowOrder = dataclasses.field(default_factory=RowOrder)
    transposed: bool = False
    times: float = 1.0
    plus: float = 0.0


@dataclasses.dataclass
class LinearSpec:
    """y = weight x + bias."""

    weight: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    bias: TensorBinding = dataclasses.field(default_factory=TensorBinding)


@dataclasses.dataclass
class NormSpec:
    """out = norm(x) * weight + bias; not present: x itself. A weight without a name is all ones."""

    present: bool = False
    kind: NormKind = "rms"
    eps: float = 1e-5
    weight: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    bias: TensorBinding = dataclasses.field(default_factory=TensorBinding)


@dataclasses.dataclass
class HeadNormsSpec:
    """Norms of queries, keys and values."""

    query: NormSpec = dataclasses.field(default_factory=NormSpec)
    key: NormSpec = dataclasses.field(default_factory=NormSpec)
    value: NormSpec = dataclasses.field(default_factory=NormSpec)
    span: HeadNormSpan = "head"
    own_weights: bool = False
    after_rope: bool = False


@dataclasses.dataclass
class QueryTemperatureSpec:
    """Queries are multiplied by 1 + beta * log(1 + floor(position / original))."""

    beta: float = 0.0
    original: int = 0


@dataclasses.dataclass
class LatentSpec:
    """Keys and values of all heads out of one latent of `rank` values, and a rotated part that they share; rank 0: the layer has none."""

    rank: int = 0
    key_size: int = 0
    rotary_size: int = 0
    value_size: int = 0
    query_rank: int = 0
    query_down: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    query_norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    query: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    query_rotary: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    latent: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    rotary: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    latent_norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    key_up: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    value_up: TensorBinding = dataclasses.field(default_factory=TensorBinding)


@dataclasses.dataclass
class AttentionSpec:
    """softmax(scale * q k) v. `window` counts the query's own token; 0: all tokens. `rope` is an index into ModelSpec.ropes, or -1.

    q, k and v are no farther from 0 than `clip`, if it is not 0. Heads and their size are ModelSpec's where they are 0. A layer with a
    `kv_donor` has no keys and values, and reads those of that layer before it. With `value_is_key` the value is the projected key,
    normed by norms.value alone.
    """

    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    kv_donor: int = -1
    value_is_key: bool = False
    query: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    key: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    value: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    output: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    latent: LatentSpec = dataclasses.field(default_factory=LatentSpec)
    clip: float = 0.0
    norms: HeadNormsSpec = dataclasses.field(default_factory=HeadNormsSpec)
    output_norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    rope: int = -1
    window: int = 0
    scale: float = 0.0
    soft_cap: float = 0.0
    sinks: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    linear_biases: list[float] = dataclasses.field(default_factory=list)
    query_temperature: QueryTemperatureSpec = dataclasses.field(default_factory=QueryTemperatureSpec)
    gate_kind: GateKind = "none"
    gate: LinearSpec = dataclasses.field(default_factory=LinearSpec)


@dataclasses.dataclass
class ConvSpec:
    """A causal convolution of each channel over the last `length` rows; weight [channels, length] or [channels, 1, length]."""

    length: int = 0
    weight: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    bias: TensorBinding = dataclasses.field(default_factory=TensorBinding)


@dataclasses.dataclass
class ShortConvSpec:
    """output(c * conv(b * x)), where `input` makes b, c and x of a row, one after the other."""

    input: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    output: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    conv: ConvSpec = dataclasses.field(default_factory=ConvSpec)


@dataclasses.dataclass
class RecurrenceSpec:
    """A gated delta rule or Mamba-2's scan, behind a convolution with SiLU: csrc/kernels/ops/recurrence.h.

    `decay_is_log`: the tensor holds log(-decay). `most_step` 0: no limit.
    """

    num_heads: int = 0
    num_groups: int = 0
    tiled_groups: bool = False
    key_size: int = 0
    value_size: int = 0
    query: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    key: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    value: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    gate: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    time: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    write: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    conv: ConvSpec = dataclasses.field(default_factory=ConvSpec)
    time_bias: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    decay: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    decay_is_log: bool = False
    skip: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    least_step: float = 0.0
    most_step: float = 0.0
    norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    norm_groups: int = 1
    output: LinearSpec = dataclasses.field(default_factory=LinearSpec)


@dataclasses.dataclass
class MlpSpec:
    """down(act(gate x) * up x), or without a gate down(act(up x))."""

    gated: bool = True
    activation: Activation = "silu"
    activation_scalars: list[TensorBinding] = dataclasses.field(default_factory=list)
    activation_values: list[float] = dataclasses.field(default_factory=list)
    size: int = 0
    gate: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    up: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    down: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    inner_norm: NormSpec = dataclasses.field(default_factory=NormSpec)


@dataclasses.dataclass
class RouterSpec:
    """Which experts a row takes, and with which weights: csrc/kernels/ops/route.h."""

    norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    linear: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    score: RouterScore = "softmax"
    choice_bias: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    num_groups: int = 1
    used_groups: int = 1
    group_score: GroupScore = "max"
    renormalise: bool = False
    sum_epsilon: float = 0.0
    least_sum: float = 0.0
    factor: float = 1.0
    mixer_threshold: float = 0.0
    expert_scales: TensorBinding = dataclasses.field(default_factory=TensorBinding)


@dataclasses.dataclass
class MoeSpec:
    """Experts of a layer, if there are any. The layer's MLP is then the shared one, of size 0 if there is none, times sigmoid(shared_gate).

    Bindings of `expert` name a tensor for each expert where they have "{expert}", or one tensor [num_experts, rows, columns].
    """

    num_experts: int = 0
    num_used: int = 0
    router: RouterSpec = dataclasses.field(default_factory=RouterSpec)
    expert: MlpSpec = dataclasses.field(default_factory=MlpSpec)
    shared_gate: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    post_norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    shared_post_norm: NormSpec = dataclasses.field(default_factory=NormSpec)


@dataclasses.dataclass
class LayerInputSpec:
    """x = x + norm(projection(act(gate x) * the values of `place` in ModelSpec.layer_embedding)), at the end of a layer."""

    present: bool = False
    place: int = 0
    activation: Activation = "gelu_tanh"
    gate: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    projection: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    norm: NormSpec = dataclasses.field(default_factory=NormSpec)


@dataclasses.dataclass
class LayerSpec:
    """x = x + residual_scale * f(x) for the mixer and for the MLP, one after the other or both of the same x.

    The mixer is attention or another one, whose part of the spec is then the one in use; attention's norms are those of any mixer.
    """

    order: LayerOrder = "sequential"
    attention_norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    post_attention_norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    mlp_norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    post_mlp_norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    attention_sum_norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    mlp_sum_norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    mlp_reads_attention_norm: bool = False
    residual_scale: float = 1.0
    mixer: MixerKind = "attention"
    attention: AttentionSpec = dataclasses.field(default_factory=AttentionSpec)
    short_conv: ShortConvSpec = dataclasses.field(default_factory=ShortConvSpec)
    recurrence: RecurrenceSpec = dataclasses.field(default_factory=RecurrenceSpec)
    mlp: MlpSpec = dataclasses.field(default_factory=MlpSpec)
    moe: MoeSpec = dataclasses.field(default_factory=MoeSpec)
    input: LayerInputSpec = dataclasses.field(default_factory=LayerInputSpec)
    output_scale: TensorBinding = dataclasses.field(default_factory=TensorBinding)


@dataclasses.dataclass
class RopeSpec:
    """One rotary table; see rope.py."""

    theta: float = 10000.0
    rotary_dim: int = 0
    linear_factor: float = 1.0
    llama3_factor: float = 1.0
    llama3_low_freq_factor: float = 1.0
    llama3_high_freq_factor: float = 4.0
    llama3_original_context: int = 8192
    yarn_factor: float = 1.0
    yarn_low: float = 0.0
    yarn_high: float = 0.0
    frequency_divisors: list[float] = dataclasses.field(default_factory=list)
    divisors_tensor: str = ""
    magnitude: float = 1.0
    reversed: bool = False


@dataclasses.dataclass
class EmbeddingSpec:
    """x = norm(scale * weight[token] + positions[position + position_offset] + token_types[type])."""

    weight: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    scale: float = 1.0
    norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    positions: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    position_offset: int = 0
    token_types: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    num_token_types: int = 0


@dataclasses.dataclass
class LayerEmbeddingSpec:
    """Embeddings for the layers: `size` values of each token and place, scale * weight[token] + norm(projection x)."""

    size: int = 0
    num_places: int = 0
    weight: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    scale: float = 1.0
    projection: LinearSpec = dataclasses.field(default_factory=LinearSpec)
    norm: NormSpec = dataclasses.field(default_factory=NormSpec)


@dataclasses.dataclass
class HeadSpec:
    """logits = cap(scale * (weight x + bias)); a weight without a name is the embedding's."""

    weight: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    bias: TensorBinding = dataclasses.field(default_factory=TensorBinding)
    scale: float = 1.0
    soft_cap: float = 0.0


@dataclasses.dataclass
class ModelSpec:
    """All that the core knows of a model.

    >>> print(spec_of(open_model(path)))  # doctest: +SKIP
    llama: 4 layers of 64, 4 heads (2 for keys and values) of 16, 264 tokens, 512 positions
    """

    family: str = ""
    hidden_size: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    vocab_size: int = 0
    max_position: int = 0
    two_sided: bool = False
    generates: bool = True
    embedding: EmbeddingSpec = dataclasses.field(default_factory=EmbeddingSpec)
    layer_embedding: LayerEmbeddingSpec = dataclasses.field(default_factory=LayerEmbeddingSpec)
    layers: list[LayerSpec] = dataclasses.field(default_factory=list)
    final_norm: NormSpec = dataclasses.field(default_factory=NormSpec)
    head: HeadSpec = dataclasses.field(default_factory=HeadSpec)
    ropes: list[RopeSpec] = dataclasses.field(default_factory=list)
    rope_choice: str = ""
    quantization: str = ""
    ignored_tensors: list[str] = dataclasses.field(default_factory=list)

    def to_json(self) -> str:
        """What the core reads: keys sorted, fields at their default left out."""
        return json.dumps(_changed(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    def digest(self) -> str:
        """SHA-256 of to_json."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def tensor_names(self) -> set[str]:
        """Names of all tensors that the model has."""
        return set(_names(self))

    def used_shares(self) -> dict[str, float]:
        """Names of experts' tensors: the share of each that a token uses."""
        moes = [layer.moe for layer in self.layers if layer.moe.num_experts]
        return {name: moe.num_used / moe.num_experts for moe in moes for name in _of_experts(moe)}

    def __str__(self) -> str:
        kv = "" if self.num_kv_heads == self.num_heads else f" ({self.num_kv_heads} for keys and values)"
        lines = [
            f"{self.family}: {len(self.layers)} layers of {self.hidden_size}, {self.num_heads} heads{kv} of {self.head_dim},"
            f" {self.vocab_size:,} tokens, {self.max_position:,} positions"
        ]
        outside = {"embedding": self.embedding, "final norm": self.final_norm, "head": self.head}
        if self.layer_embedding.size:
            outside["of layers"] = self.layer_embedding
        lines += [f"  {name:12} {_text(part)}" for name, part in outside.items()]
        lines += [f"  rope {index:<7} {_text(rope)}" for index, rope in enumerate(self.ropes)]
        if self.rope_choice:
            lines.append(f"  rope choice  {self.rope_choice}")
        numbered = [(index, _shown(layer).replace(f".{index}.", ".{}.")) for index, layer in enumerate(self.layers)]
        seen: set[str] = set()
        for shown in [text for _, text in numbered]:
            if shown in seen:
                continue
            seen.add(shown)
            lines += [f"  layers {_ranges([index for index, text in numbered if text == shown])}", shown]
        if self.ignored_tensors:
            lines.append(f"  ignored      {', '.join(self.ignored_tensors)}")
        return "\n".join(lines)


def _changed(part: object) -> object:
    """A dataclass as a dict of the fields that are not at their default; lists of them."""
    if isinstance(part, list):
        return [_changed(item) for item in part]
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    default = type(part)()
    fields = [(field.name, getattr(part, field.name)) for field in dataclasses.fields(part)]
    return {name: _changed(value) for name, value in fields if value != getattr(default, name)}


def _names(part: object) -> list[str]:
    if isinstance(part, MoeSpec):
        others = (part.router, part.shared_gate, part.norm, part.post_norm, part.shared_post_norm)
        return [*_of_experts(part), *itertools.chain.from_iterable(map(_names, others))]
    if isinstance(part, TensorBinding):
        return [part.name] if part.name else []
    if isinstance(part, RopeSpec):
        return [part.divisors_tensor] if part.divisors_tensor else []
    if isinstance(part, list):
        return list(itertools.chain.from_iterable(map(_names, part)))
    if dataclasses.is_dataclass(part):
        return list(itertools.chain.from_iterable(_names(getattr(part, field.name)) for field in dataclasses.fields(part)))
    return []


def _of_experts(moe: MoeSpec) -> list[str]:
    """Tensors of the experts."""
    return list(dict.fromkeys(name.replace("{expert}", str(i)) for name in _names(moe.expert) for i in range(moe.num_experts)))


def _text(part: object) -> str:
    """One part in one line: a tensor by its name, other fields as name = value."""
    if isinstance(part, TensorBinding):
        order = _text(part.order) if part.order != RowOrder() else ""
        marks = [
            f"* {part.times:g}" * (part.times != 1),
            f"+ {part.plus:g}" * bool(part.plus),
            "transposed" * part.transposed,
            f"[{order}]" * bool(order),
        ]
        return " ".join([part.name or "none", *filter(None, marks)])
    if isinstance(part, float):
        return f"{part:.9g}"
    if isinstance(part, list):
        return f"[{', '.join(map(_text, part))}]"
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return str(part)
    default = type(part)()
    found = []
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if value != getattr(default, field.name) and field.name != "present":
            shown = _text(value)
            found.append(f"{field.name} ({shown})" if dataclasses.is_dataclass(value) else f"{field.name} = {shown}")
    return ", ".join(found) or "default"


def _shown(layer: LayerSpec) -> str:
    """The lines of one layer."""
    lines = []
    moe = layer.moe
    mixers = (
        ("attention.", layer.attention),
        ("attention.latent.", layer.attention.latent),
        ("short_conv.", layer.short_conv),
        ("recurrence.", layer.recurrence),
    )
    parts = (*mixers, ("mlp.", layer.mlp), ("moe.", moe), ("moe.router.", moe.router), ("moe.expert.", moe.expert))
    for name, part in (("", layer), *parts):
        default = type(part)()
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if value != getattr(default, field.name) and not isinstance(
                value, AttentionSpec | LatentSpec | ShortConvSpec | RecurrenceSpec | MlpSpec | MoeSpec | RouterSpec
            ):
                lines.append(f"    {name + field.name:32} {_text(value)}")
    return "\n".join(lines)


def _ranges(numbers: list[int]) -> str:
    """0-2, 4 for 0, 1, 2, 4."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
