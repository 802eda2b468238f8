"""What a ModelSpec means, in NumPy's float64: slow, readable, and made without llmi's kernels, loader or decoder.

Only the spec and the tensors of the file come in. The order of sums is NumPy's, so results differ from llmi's in the last bits of fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from llmi.families.spec import (
    AttentionSpec,
    HeadNormsSpec,
    LayerSpec,
    LinearSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    RopeSpec,
    RowOrder,
    TensorBinding,
)

Array = np.ndarray[Any, Any]


def rows_of(order: RowOrder, count: int) -> Array:
    """The file's row for each of a role's `count` rows."""
    row = np.arange(count)
    if not order.head_rows:
        return order.first_row + row
    head, place = np.divmod(row, order.head_rows)
    half = order.adjacent_pairs // 2
    in_pairs = place < order.adjacent_pairs
    place = np.where(in_pairs, 2 * (place % max(half, 1)) + place // max(half, 1), place)
    result: Array = order.first_row + head * (order.head_stride or order.head_rows) + place
    return result


class SpecModel:
    """The model of a spec.

    tensors: by their names, as the file has them.
    """

    def __init__(self, spec: ModelSpec, tensors: Mapping[str, Array]) -> None:
        self.spec, self.tensors = spec, tensors

    # -- tensors

    def matrix(self, binding: TensorBinding, rows: int) -> Array:
        whole = np.asarray(self.tensors[binding.name], np.float64)
        return (whole.T if binding.transposed else whole)[rows_of(binding.order, rows)]

    def vector(self, binding: TensorBinding, size: int, heads: int = 1) -> Array:
        if "{head}" in binding.name:
            parts = [np.asarray(self.tensors[binding.name.replace("{head}", str(head))], np.float64) for head in range(heads)]
            whole = np.concatenate(parts)
        else:
            whole = np.asarray(self.tensors[binding.name], np.float64).reshape(-1)
        return whole[rows_of(binding.order, size)] + binding.plus

    def linear(self, x: Array, linear: LinearSpec, rows: int) -> Array:
        y = x @ self.matrix(linear.weight, rows).T
        return y + self.vector(linear.bias, rows) if linear.bias.name else y

    def norm(self, x: Array, norm: NormSpec, *, heads: int = 0) -> Array:
        """Over the last axis; heads: each row of the axis before has its own weights."""
        if not norm.present:
            return x
        centred = x - x.mean(-1, keepdims=True) if norm.kind == "layer" else x
        y = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + norm.eps)
        shape = (heads, x.shape[-1]) if heads else (x.shape[-1],)
        if norm.weight.name:
            y = y * self.vector(norm.weight, math.prod(shape), heads).reshape(shape)
        return y + self.vector(norm.bias, math.prod(shape), heads).reshape(shape) if norm.bias.name else y

    # -- the pass

    def logits(self, tokens: list[int]) -> Array:
        """[len(tokens), vocab_size]."""
        spec, positions = self.spec, np.arange(len(tokens))
        embedding = np.asarray(self.tensors[spec.embedding.weight.name], np.float64)
        x = self.norm(embedding[np.array(tokens)] * spec.embedding.scale, spec.embedding.norm)
        if spec.embedding.positions.name:
            x = x + np.asarray(self.tensors[spec.embedding.positions.name], np.float64)[positions + spec.embedding.position_offset]
        tables = [frequencies(rope, self.tensors) for rope in spec.ropes]
        for layer in spec.layers:
            x = self.layer(x, layer, tables, positions)
        x = self.norm(x, spec.final_norm)
        head = spec.head.weight if spec.head.weight.name else spec.embedding.weight
        y = x @ self.matrix(head, spec.vocab_size).T
        y = (y + self.vector(spec.head.bias, spec.vocab_size) if spec.head.bias.name else y) * spec.head.scale
        return spec.head.soft_cap * np.tanh(y / spec.head.soft_cap) if spec.head.soft_cap else y

    def layer(self, x: Array, layer: LayerSpec, tables: list[Array], positions: Array) -> Array:
        read = self.norm(x, layer.attention_norm)
        attended = self.norm(self.attention(read, layer.attention, tables, positions), layer.post_attention_norm) * layer.residual_scale
        if layer.order == "sequential":
            x = x + attended
            return x + self.norm(self.mlp(self.norm(x, layer.mlp_norm), layer.mlp), layer.post_mlp_norm) * layer.residual_scale
        other = read if layer.mlp_reads_attention_norm else self.norm(x, layer.mlp_norm)
        return x + attended + self.norm(self.mlp(other, layer.mlp), layer.post_mlp_norm) * layer.residual_scale

    def mlp(self, x: Array, mlp: MlpSpec) -> Array:
        act = self.activation(mlp)
        up = self.linear(x, mlp.up, mlp.size)
        hidden = act(self.linear(x, mlp.gate, mlp.size)) * up if mlp.gated else act(up)
        return self.linear(self.norm(hidden, mlp.inner_norm), mlp.down, self.spec.hidden_size)

    def activation(self, mlp: MlpSpec) -> Callable[[Array], Array]:
        if mlp.activation != "xielu":
            return ACTIVATIONS[mlp.activation]
        scalars = mlp.activation_values or [
            float(np.asarray(self.tensors[scalar.name]).reshape(-1)[0]) for scalar in mlp.activation_scalars
        ]
        alpha_p, alpha_n, beta, eps = (float(scalar) for scalar in scalars)
        positive, negative = np.logaddexp(0, alpha_p), beta + np.logaddexp(0, alpha_n)
        return lambda x: np.where(x > 0, positive * x * x + beta * x, (np.expm1(np.minimum(x, eps)) - x) * negative + beta * x)

    def head_norms(self, x: Array, norm: NormSpec, norms: HeadNormsSpec) -> Array:
        """x: [rows, heads, head_dim]."""
        if norms.span == "projection":
            return self.norm(x.reshape(len(x), -1), norm).reshape(x.shape)
        return self.norm(x, norm, heads=x.shape[1] if norms.own_weights else 0)

    def attention(self, x: Array, a: AttentionSpec, tables: list[Array], positions: Array) -> Array:
        spec, rows = self.spec, len(x)
        nh, nk, hd = spec.num_heads, spec.num_kv_heads, spec.head_dim
        q = self.linear(x, a.query, nh * hd).reshape(rows, nh, hd)
        k = self.linear(x, a.key, nk * hd).reshape(rows, nk, hd)
        v = self.linear(x, a.value, nk * hd).reshape(rows, nk, hd)
        if a.clip:
            q, k, v = (np.clip(heads, -a.clip, a.clip) for heads in (q, k, v))
        if not a.norms.after_rope:
            q, k = self.head_norms(q, a.norms.query, a.norms), self.head_norms(k, a.norms.key, a.norms)
        if a.rope >= 0:
            rope = spec.ropes[a.rope]
            q, k = rotated(q, tables[a.rope], rope, positions), rotated(k, tables[a.rope], rope, positions)
        if a.norms.after_rope:
            q, k = self.head_norms(q, a.norms.query, a.norms), self.head_norms(k, a.norms.key, a.norms)
        if a.query_temperature.beta:
            growth = 1 + a.query_temperature.beta * np.log1p(positions // a.query_temperature.original)
            q = q * growth[:, None, None]
        scores = np.einsum("qhd,khd->hqk", q, k.repeat(nh // nk, 1)) * a.scale
        if a.soft_cap:
            scores = a.soft_cap * np.tanh(scores / a.soft_cap)
        if a.linear_biases:
            scores = scores + np.asarray(a.linear_biases)[:, None, None] * positions
        distance = positions[:, None] - positions
        scores = np.where((distance < 0) | ((distance >= a.window) if a.window else False), -np.inf, scores)
        sinks = self.vector(a.sinks, nh)[:, None, None] if a.sinks.name else np.full((nh, 1, 1), -np.inf)
        top = np.maximum(scores.max(-1, keepdims=True), sinks)
        weights = np.exp(scores - top)
        weights = weights / (weights.sum(-1, keepdims=True) + np.exp(sinks - top))
        out = np.einsum("hqk,khd->qhd", weights, v.repeat(nh // nk, 1))
        if a.gate_kind != "none":
            gates = self.linear(x, a.gate, nh * hd if a.gate_kind == "element" else nh).reshape(rows, nh, -1)
            out = out / (1 + np.exp(-gates))
        return self.linear(self.norm(out.reshape(rows, -1), a.output_norm), a.output, spec.hidden_size)


def frequencies(rope: RopeSpec, tensors: Mapping[str, Array]) -> Array:
    """[rotary_dim / 2] angles of one position."""
    f = rope.theta ** -(np.arange(0, rope.rotary_dim, 2, dtype=np.float64) / rope.rotary_dim)
    if rope.divisors_tensor:
        f = f / np.asarray(tensors[rope.divisors_tensor], np.float64)
    if rope.frequency_divisors:
        f = f / np.array(rope.frequency_divisors, np.float64)
    if rope.llama3_factor != 1.0:
        waves = rope.llama3_original_context * f / (2 * math.pi)  # of the original length
        low, high = rope.llama3_low_freq_factor, rope.llama3_high_freq_factor
        share = np.clip((waves - low) / (high - low), 0, 1)
        f = (1 - share) * f / rope.llama3_factor + share * f
    if rope.yarn_factor != 1.0:
        stretched = np.clip((np.arange(len(f)) - rope.yarn_low) / (rope.yarn_high - rope.yarn_low), 0, 1)
        f = stretched * f / rope.yarn_factor + (1 - stretched) * f
    result: Array = f / rope.linear_factor
    return result


def rotated(x: Array, table: Array, rope: RopeSpec, positions: Array) -> Array:
    """x: [rows, heads, head_dim]; element i of the first half turns with element i of the second."""
    half = rope.rotary_dim // 2
    angles = positions[:, None, None] * table
    cosine, sine = np.cos(angles) * rope.magnitude, np.sin(angles) * rope.magnitude * (-1 if rope.reversed else 1)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine, rest], -1)


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu": gelu,
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}
