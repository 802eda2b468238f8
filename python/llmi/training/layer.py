"""One Llama layer behind EAGLE's fully connected one: forward and backward, by hand, over packed rows.

A grid is [num_rows, row_len] positions, each row holding parts of several sequences; a query sees the keys of its own part up to itself.
With (h, e) = (hidden row of position t, embedding of token t + 1), depth 0 computes

    x = [gain e, h] fc^T;  y = x + attention(x) o^T;  out = y + (silu(z gate^T) * (z up^T)) down^T,  z = rms_norm(y) norm

at rotary position t (Li et al., EAGLE, 2024: no input norm). `out` is a guess of the hidden row of position t + 1. Depth k repeats this
with depth k - 1's output as h and token t + 1 + k, at position t + k; it sees the keys of depth 0 up to t, and its own of depths 1 to k.
Rows of a depth are named by their flat places in the grid; those of a depth are among those of the one before. All in one dtype:
float32, or float64 where gradients are checked.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Any: float32 or float64, whichever the parameters are.
Float = NDArray[Any]
Int = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of the layer, as config.json of a Llama has them."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float

    @property
    def groups(self) -> int:
        """Query heads that share a KV head."""
        return self.num_attention_heads // self.num_key_value_heads

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes, in the order in which they stand one after the other in the optimizer's vector."""
        hidden, query, kv = self.hidden_size, self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        return {
            "fc": (hidden, 2 * hidden),
            "q": (query, hidden),
            "kv": (2 * kv, hidden),
            "o": (hidden, query),
            "norm": (hidden,),
            "gate_up": (2 * self.intermediate_size, hidden),
            "down": (hidden, self.intermediate_size),
        }


@dataclasses.dataclass(frozen=True)
class Grid:
    """Where the positions of a batch stand.

    Attributes
    ----------
    positions : int [num_rows, row_len]
        Of each place in its sequence.
    mask : float [num_rows, 1, 1, row_len, row_len]
        0 where a query (row) may see a key (column), -inf elsewhere; a query sees itself.
    """

    positions: Int
    mask: Float


def grid_of(parts: Int, positions: Int, dtype: type) -> Grid:
    """From the number of each place's part: those of one part are neighbours."""
    same = parts[:, :, None] == parts[:, None, :]
    row_len = parts.shape[1]
    visible = same & (np.arange(row_len)[:, None] >= np.arange(row_len))
    mask: Float = np.where(visible, 0.0, -np.inf).astype(dtype)
    return Grid(positions, mask[:, None, None])


def angles(shape: Shape, positions: Int, dtype: type) -> tuple[Float, Float]:
    """Cosine and sine [.., head_dim / 2] of rotary positions."""
    inverse = 1.0 / shape.rope_theta ** (np.arange(0, shape.head_dim, 2) / shape.head_dim)
    turned = positions[..., None] * inverse
    return np.cos(turned).astype(dtype), np.sin(turned).astype(dtype)


def rotate(heads: Float, cos: Float, sin: Float) -> Float:
    """[n, num_heads, head_dim], pairs (i, i + head_dim / 2); by -sin it is its own transpose."""
    half = heads.shape[-1] // 2
    first, second = heads[..., :half], heads[..., half:]
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


@dataclasses.dataclass
class Depth:
    """What the backward pass of one depth needs."""

    places: Int  # [n], flat places in the grid that have an output
    rows: Int  # [n], which of the depth's inputs these are
    given: Float  # [m, 2 hidden], the inputs of fc
    x: Float  # [m, hidden]
    cos_sin: tuple[Float, Float]  # of the inputs
    query: Float  # [num_rows, kv_heads, groups * row_len, head_dim], zero where no output is
    probs: Float  # [num_rows, kv_heads, groups, row_len, row_len + depth]
    context: Float  # [n, heads * head_dim]
    y: Float  # [n, hidden]
    scale: Float  # [n, 1], 1 / rms of y
    gate: Float  # [n, inner]
    up: Float  # [n, inner]
    sigmoid: Float  # [n, inner]
    out: Float  # [n, hidden]


class Roll:
    """One batch through the layer, depth after depth, and back.

    Parameters
    ----------
    weights : dict
        By the names of Shape.parameters.
    gain : float
        Factor on embeddings, so that they are as large as hidden rows.
    """

    def __init__(self, shape: Shape, weights: dict[str, Float], grid: Grid, gain: float) -> None:
        self.shape, self.weights, self.grid, self.gain = shape, weights, grid, gain
        self.depths: list[Depth] = []
        self._keys: list[Float] = []  # depth 0: [num_rows, kv_heads, row_len, head_dim]; also the deeper ones, zero where nothing is
        self._values: list[Float] = []
        self.num_rows, self.row_len = grid.positions.shape

    def _grid_of(self, heads: Float, places: Int) -> Float:
        """[n, num_heads, head_dim] to [num_rows, num_heads, row_len, head_dim], zero elsewhere."""
        full = np.zeros((self.num_rows * self.row_len, *heads.shape[1:]), heads.dtype)
        full[places] = heads
        return np.ascontiguousarray(full.reshape(self.num_rows, self.row_len, *heads.shape[1:]).swapaxes(1, 2))

    def _places_of(self, full: Float, places: Int) -> Float:
        """The reverse."""
        flat = full.swapaxes(1, 2).reshape(self.num_rows * self.row_len, full.shape[1], full.shape[3])
        return flat[places]

    def forward(self, hidden: Float, embeddings: Float, places: Int, rows: Int) -> Float:
        """One depth more.

        Parameters
        ----------
        hidden, embeddings : [m, hidden]
            Inputs: at depth 0 of all places of the grid, deeper of `places` alone.
        places : int [n]
            The places with an output.
        rows : int [n]
            Which inputs these are.

        Returns
        -------
        [n, hidden]
        """
        shape, weights, depth = self.shape, self.weights, len(self.depths)
        heads, kv_heads, size = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        given = np.concatenate((embeddings * self.gain, hidden), axis=1)
        x = given @ weights["fc"].T
        inputs = places if depth else np.arange(self.num_rows * self.row_len)
        cos, sin = angles(shape, self.grid.positions.reshape(-1)[inputs] + depth, x.dtype.type)
        kv = (x @ weights["kv"].T).reshape(len(x), 2 * kv_heads, size)
        self._keys.append(self._grid_of(rotate(kv[:, :kv_heads], cos, sin), inputs))
        self._values.append(self._grid_of(kv[:, kv_heads:], inputs))
        query = rotate((x[rows] @ weights["q"].T).reshape(len(rows), heads, size), cos[rows], sin[rows])
        query = self._grid_of(query, places).reshape(self.num_rows, kv_heads, shape.groups * self.row_len, size)
        probs, context = self._attend(query)
        context = self._places_of(context, places).reshape(len(places), heads * size)
        y = x[rows] + context @ weights["o"].T
        scale = 1.0 / np.sqrt(np.mean(y * y, axis=1, keepdims=True) + y.dtype.type(shape.rms_norm_eps))
        gate_up = (y * scale * weights["norm"]) @ weights["gate_up"].T
        gate, up = np.split(gate_up, 2, axis=1)
        sigmoid = 1.0 / (1.0 + np.exp(-gate))
        out: Float = y + (gate * sigmoid * up) @ weights["down"].T
        self.depths.append(Depth(places, rows, given, x, (cos, sin), query, probs, context, y, scale, gate, up, sigmoid, out))
        return out

    def _attend(self, query: Float) -> tuple[Float, Float]:
        """(probabilities, contexts [num_rows, heads, row_len, head_dim])."""
        shape, own = self.shape, len(self._keys) - 1
        grouped = (self.num_rows, shape.num_key_value_heads, shape.groups, self.row_len)
        scores = np.empty((*grouped, self.row_len + own), query.dtype)
        scores[..., : self.row_len] = (query @ self._keys[0].swapaxes(2, 3)).reshape(*grouped, self.row_len)
        scores[..., : self.row_len] += self.grid.mask
        split = query.reshape(*grouped, shape.head_dim)
        for depth in range(1, own + 1):
            np.einsum("rkgld,rkld->rkgl", split, self._keys[depth], out=scores[..., self.row_len + depth - 1])
        scores *= query.dtype.type(shape.head_dim**-0.5)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        true = np.ascontiguousarray(scores[..., : self.row_len]) if own else scores
        context = (true.reshape(*query.shape[:3], self.row_len) @ self._values[0]).reshape(*grouped, shape.head_dim)
        for depth in range(1, own + 1):
            context += scores[..., self.row_len + depth - 1, None] * self._values[depth][:, :, None]
        return scores, context.reshape(self.num_rows, shape.num_attention_heads, self.row_len, shape.head_dim)

    def backward(self, gradients: list[Float], result: dict[str, Float]) -> None:
        """Adds the gradients of the weights to `result`, from those of each depth's output."""
        d_keys = [np.zeros_like(value) for value in self._keys]
        d_values = [np.zeros_like(value) for value in self._values]
        later: tuple[Int, Float] | None = None
        for depth in range(len(self.depths) - 1, -1, -1):
            at = self.depths[depth]
            d_out = gradients[depth]
            if later is not None:
                d_out = d_out.copy()
                d_out[np.searchsorted(at.places, later[0])] += later[1]
            d_x = self._backward_outputs(at, d_out, result, d_keys, d_values, depth)
            d_given = self._backward_inputs(at, d_x, result, d_keys[depth], d_values[depth], depth)
            later = (at.places, d_given[:, self.shape.hidden_size :]) if depth else None

    def _backward_outputs(
        self, at: Depth, d_out: Float, result: dict[str, Float], d_keys: list[Float], d_values: list[Float], depth: int
    ) -> Float:
        """From the outputs of a depth to the rows that the layer read for them [n, hidden]; keys and values get theirs."""
        weights, shape = self.weights, self.shape
        silu = at.gate * at.sigmoid
        result["down"] += d_out.T @ (silu * at.up)
        d_inner = d_out @ weights["down"]
        d_gate = d_inner * at.up * (at.sigmoid + silu * (1.0 - at.sigmoid))
        d_gate_up = np.concatenate((d_gate, d_inner * silu), axis=1)
        normal = at.y * at.scale
        result["gate_up"] += d_gate_up.T @ (normal * weights["norm"])
        d_normed = d_gate_up @ weights["gate_up"]
        result["norm"] += np.sum(d_normed * normal, axis=0)
        d_normal = d_normed * weights["norm"]
        d_y = d_out + (d_normal - normal * np.mean(d_normal * normal, axis=1, keepdims=True)) * at.scale
        result["o"] += d_y.T @ at.context
        d_context = (d_y @ weights["o"]).reshape(len(d_y), shape.num_attention_heads, shape.head_dim)
        d_query = self._backward_attention(at, self._grid_of(d_context, at.places), d_keys, d_values, depth)
        cos, sin = at.cos_sin
        d_query = rotate(self._places_of(d_query, at.places), cos[at.rows], -sin[at.rows]).reshape(len(d_y), -1)
        result["q"] += d_query.T @ at.x[at.rows]
        d_read: Float = d_y + d_query @ weights["q"]
        return d_read

    def _backward_attention(self, at: Depth, d_context: Float, d_keys: list[Float], d_values: list[Float], depth: int) -> Float:
        """Gradient of the queries [num_rows, heads, row_len, head_dim]."""
        shape, row_len = self.shape, self.row_len
        grouped = (self.num_rows, shape.num_key_value_heads, shape.groups, row_len)
        flat = (*grouped[:2], shape.groups * row_len)
        split = d_context.reshape(*grouped, shape.head_dim)
        d_context = d_context.reshape(*flat, shape.head_dim)
        d_scores = np.empty_like(at.probs)
        d_scores[..., :row_len] = (d_context @ self._values[0].swapaxes(2, 3)).reshape(*grouped, row_len)
        for own in range(1, depth + 1):
            d_scores[..., row_len + own - 1] = np.einsum("rkgld,rkld->rkgl", split, self._values[own])
            d_values[own] += np.einsum("rkgl,rkgld->rkld", at.probs[..., row_len + own - 1], split)
        probs = np.ascontiguousarray(at.probs[..., :row_len]).reshape(*flat, row_len)
        d_values[0] += probs.swapaxes(2, 3) @ d_context
        d_scores -= np.einsum("rkglm,rkglm->rkgl", d_scores, at.probs)[..., None]
        d_scores *= at.probs
        d_scores *= d_scores.dtype.type(shape.head_dim**-0.5)
        true = np.ascontiguousarray(d_scores[..., :row_len]).reshape(*flat, row_len)
        d_query: Float = true @ self._keys[0]
        d_keys[0] += true.swapaxes(2, 3) @ at.query
        d_split, query = d_query.reshape(*grouped, shape.head_dim), at.query.reshape(*grouped, shape.head_dim)
        for own in range(1, depth + 1):
            column = d_scores[..., row_len + own - 1]
            d_split += column[..., None] * self._keys[own][:, :, None]
            d_keys[own] += np.einsum("rkgl,rkgld->rkld", column, query)
        return d_query.reshape(self.num_rows, shape.num_attention_heads, row_len, shape.head_dim)

    def _backward_inputs(self, at: Depth, d_read: Float, result: dict[str, Float], d_key: Float, d_value: Float, depth: int) -> Float:
        """On through keys, values and fc; the gradient of fc's inputs [m, 2 hidden] where a depth before wants it, else nothing."""
        inputs = at.places if depth else np.arange(self.num_rows * self.row_len)
        cos, sin = at.cos_sin
        d_heads = (rotate(self._places_of(d_key, inputs), cos, -sin), self._places_of(d_value, inputs))
        d_kv = np.concatenate(d_heads, axis=1).reshape(len(inputs), -1)
        result["kv"] += d_kv.T @ at.x
        d_x = d_kv @ self.weights["kv"]
        d_x[at.rows] += d_read
        result["fc"] += d_x.T @ at.given
        given: Float = d_x @ self.weights["fc"] if depth else np.zeros((0, 2 * self.shape.hidden_size), d_x.dtype)
        return given
