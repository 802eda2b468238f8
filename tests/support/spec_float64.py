"""What a ModelSpec says, computed in float64 with NumPy and nothing of the core: the meaning that the engine is held against.

A spec here is the JSON that a card writes (csrc/model/spec.h): nested dicts, absent fields at their defaults.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Spec = dict[str, Any]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    x = np.exp(x - x.max(-1, keepdims=True))
    result: Array = x / x.sum(-1, keepdims=True)
    return result


def erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def xielu(x: Array, scalars: list[float]) -> Array:
    alpha_p, alpha_n, beta, eps = scalars
    a_p, a_n = np.log1p(np.exp(alpha_p)), beta + np.log1p(np.exp(alpha_n))
    return np.where(x > 0, a_p * x * x + beta * x, (np.expm1(np.minimum(x, eps)) - x) * a_n + beta * x)


def activate(name: str, x: Array, scalars: list[float]) -> Array:
    if name == "xielu":
        return xielu(x, scalars)
    return {
        "silu": lambda: x * sigmoid(x),
        "gelu_tanh": lambda: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "gelu": lambda: 0.5 * x * (1 + erf(x / math.sqrt(2))),
        "relu": lambda: np.maximum(x, 0),
        "relu2": lambda: np.maximum(x, 0) ** 2,
    }[name]()


class Interpreter:
    """Runs a spec on tensors by name; the steps are listed as spec.h lists the fields.

    `margin` is how near a router came to another choice so far: of scores, of groups, of the sparse mixer's threshold.
    """

    def __init__(self, spec: Spec, tensors: dict[str, Array]) -> None:
        self.spec, self.tensors = spec, tensors
        self.kept: list[tuple[Array, Array]] = []  # keys and values of the layers so far
        self.margin = math.inf

    def rows(self, binding: Spec, count: int, expert: int = 0) -> Array:
        """The first `count` rows of a role's matrix, or elements of its vector; of one expert, if the tensor is all experts'."""
        stored = self.tensors[binding["name"].replace("{expert}", str(expert))].astype(np.float64)
        if stored.ndim == 3:
            stored = stored.swapaxes(1, 2) if binding.get("transposed") else stored
            stored = stored.reshape(-1, stored.shape[-1])
            return self.ordered(stored, binding, (expert + 1) * count)[expert * count :]
        return self.ordered(stored.T if binding.get("transposed") else stored, binding, count)

    def ordered(self, stored: Array, binding: Spec, count: int) -> Array:
        """The first `count` rows in a role's order."""
        order = binding.get("order", {})
        head_rows, pairs = order.get("head_rows", 0), order.get("adjacent_pairs", 0)
        places = np.arange(count)
        if head_rows:
            within = places % head_rows
            halves = np.where(within < pairs // 2, 2 * within, 2 * (within - pairs // 2) + 1)
            places = places // head_rows * order.get("head_stride", 0) + np.where(within < pairs, halves, within)
        result: Array = stored[order.get("first_row", 0) + places] * binding.get("times", 1.0) + binding.get("plus", 0.0)
        return result

    def linear(self, spec: Spec, x: Array, size: int, expert: int = 0) -> Array:
        out = x @ self.rows(spec["weight"], size, expert).T
        if "bias" not in spec:
            return out
        return out + self.bias(spec["bias"], size, expert)

    def bias(self, binding: Spec, size: int, expert: int) -> Array:
        """A vector; of all experts' [experts, size] this one's."""
        stored = self.tensors[binding["name"].replace("{expert}", str(expert))].astype(np.float64)
        if stored.ndim == 1:
            return self.ordered(stored, binding, size)
        return self.ordered(stored.reshape(-1), binding, (expert + 1) * size)[expert * size :]

    def norm(self, spec: Spec, x: Array, own_weights: bool = False) -> Array:
        """Over the last axis. own_weights: x is [rows, heads, size], and each head has weights of its own."""
        if not spec.get("present"):
            return x
        if spec.get("kind") == "layer":
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + spec.get("eps", 1e-5))
        shape = x.shape[-2:] if own_weights else x.shape[-1:]
        if "weight" in spec:
            x = x * self.rows(spec["weight"], math.prod(shape)).reshape(shape)
        return x + self.rows(spec["bias"], math.prod(shape)).reshape(shape) if "bias" in spec else x

    def head_norm(self, norms: Spec, which: str, x: Array) -> Array:
        spec = norms.get(which, {})
        if norms.get("span") == "projection":
            return self.norm(spec, x.reshape(len(x), -1)).reshape(x.shape)
        return self.norm(spec, x, norms.get("own_weights", False))

    def rotate(self, rope: Spec, x: Array) -> Array:
        size = rope["rotary_dim"]
        frequencies = rope.get("theta", 10000.0) ** (-np.arange(0, size, 2) / size) / rope.get("linear_factor", 1.0)
        if "yarn_factor" in rope:
            low, high = rope.get("yarn_low", 0.0), rope.get("yarn_high", 0.0)
            stretched = np.clip((np.arange(size // 2) - low) / (high - low), 0, 1)
            frequencies = frequencies * (1 - stretched) + frequencies / rope["yarn_factor"] * stretched
        if "frequency_divisors" in rope:
            frequencies = frequencies / np.array(rope["frequency_divisors"])
        angles = np.arange(len(x))[:, None] * frequencies
        magnitude = rope.get("magnitude", 1.0)
        cosine, sine = (np.cos(angles) * magnitude)[:, None], (np.sin(angles) * magnitude)[:, None]
        sine = -sine if rope.get("reversed") else sine
        first, second, rest = x[..., : size // 2], x[..., size // 2 : size], x[..., size:]
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine, rest], -1)

    def weights(self, spec: Spec, q: Array, k: Array) -> Array:
        """[heads, queries, keys] of the softmax; with sinks a row sums to less than 1."""
        positions = np.arange(len(q))
        scores = np.einsum("qhd,khd->hqk", q, k) * spec["scale"]
        if spec.get("soft_cap"):
            scores = spec["soft_cap"] * np.tanh(scores / spec["soft_cap"])
        if "linear_biases" in spec:
            scores = scores + np.array(spec["linear_biases"])[:, None, None] * positions
        distance = positions[:, None] - positions[None]
        hidden = (distance < 0) | (distance >= (spec.get("window") or len(q)))
        scores = np.where(hidden, -np.inf, scores)
        heads = q.shape[1]
        sinks = self.rows(spec["sinks"], heads) if "sinks" in spec else np.full(heads, -np.inf)
        scores = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (heads, len(q), 1))], -1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        result: Array = (scores / scores.sum(-1, keepdims=True))[..., :-1]
        return result

    def latent_heads(self, spec: Spec, x: Array) -> tuple[Array, Array, Array]:
        """Queries, keys and values of a layer with a latent, by the definition: keys and values of all heads are made."""
        latent, count = spec["latent"], self.sizes(spec)[0]
        rank, key, rotary = latent["rank"], latent["key_size"], latent["rotary_size"]

        def heads(values: Array) -> Array:
            return values.reshape(len(x), -1, values.shape[-1] // count)

        source = x
        if query_rank := latent.get("query_rank"):
            source = self.norm(latent.get("query_norm", {}), self.linear(latent["query_down"], x, query_rank))
        q = heads(self.linear(latent["query"], source, count * key))
        q_rotary = heads(self.linear(latent["query_rotary"], source, count * rotary))
        k_rotary = self.linear(latent["rotary"], x, rotary)[:, None]
        if spec.get("rope", -1) >= 0:
            q_rotary, k_rotary = (self.rotate(self.spec["ropes"][spec["rope"]], part) for part in (q_rotary, k_rotary))
        c = self.norm(latent.get("latent_norm", {}), self.linear(latent["latent"], x, rank))
        key_up = latent["key_up"]
        if key_up.get("transposed"):
            k = heads(c @ self.ordered(self.tensors[key_up["name"]].astype(np.float64), key_up, count * key).T)
        else:
            k = np.einsum("tr,hrk->thk", c, self.tensors[key_up["name"]].astype(np.float64))
        up = self.tensors[latent["value_up"]["name"]].astype(np.float64).reshape(-1, rank)
        v = heads(c @ self.ordered(up, latent["value_up"], count * latent["value_size"]).T)
        k_rotary = np.repeat(k_rotary, count, 1)
        q = self.warmed(spec, np.concatenate([q_rotary, q], -1))
        return q, np.concatenate([k_rotary, k], -1), v

    def warmed(self, spec: Spec, q: Array) -> Array:
        """Queries times the factor of their position."""
        temperature = spec.get("query_temperature")
        if not temperature:
            return q
        grown = np.log1p(np.floor(np.arange(len(q)) / temperature["original"]))
        result: Array = q * (1 + temperature["beta"] * grown)[:, None, None]
        return result

    def sizes(self, spec: Spec) -> tuple[int, int, int]:
        """Heads, KV heads and head size of a layer."""
        heads, kv_heads, size = (spec.get(name, self.spec[name]) for name in ("num_heads", "num_kv_heads", "head_dim"))
        return heads, kv_heads, size

    def turned(self, spec: Spec, which: str, x: Array) -> Array:
        """Queries or keys, normed and rotated."""
        norms = spec.get("norms", {})
        if not norms.get("after_rope"):
            x = self.head_norm(norms, which, x)
        if spec.get("rope", -1) >= 0:
            x = self.rotate(self.spec["ropes"][spec["rope"]], x)
        return self.head_norm(norms, which, x) if norms.get("after_rope") else x

    def projected(self, spec: Spec, which: str, x: Array, heads: int, size: int) -> Array:
        made = self.linear(spec[which], x, heads * size).reshape(len(x), heads, size)
        limit = spec.get("clip")
        return np.clip(made, -limit, limit) if limit else made

    def heads_of(self, spec: Spec, x: Array) -> tuple[Array, Array, Array]:
        """Queries, keys and values, each [rows, heads, head_dim]: normed, rotated, those of key heads repeated."""
        if "latent" in spec:
            return self.latent_heads(spec, x)
        heads, kv_heads, size = self.sizes(spec)
        q = self.warmed(spec, self.turned(spec, "query", self.projected(spec, "query", x, heads, size)))
        donor = spec.get("kv_donor", -1)
        if donor >= 0:
            k, v = self.kept[donor]
        else:
            k = self.turned(spec, "key", self.projected(spec, "key", x, kv_heads, size))
            v = self.projected(spec, "key" if spec.get("value_is_key") else "value", x, kv_heads, size)
            v = self.norm(spec.get("norms", {}).get("value", {}), v)
        self.kept.append((k, v))
        k, v = (np.repeat(kept, heads // kv_heads, 1) for kept in (k, v))
        return q, k, v

    def first_weights(self, tokens: list[int]) -> Array:
        """The first layer's attention weights, [heads, queries, keys]."""
        layer = self.spec["layers"][0]
        q, k, _ = self.heads_of(layer["attention"], self.norm(layer.get("attention_norm", {}), self.embed(tokens)))
        return self.weights(layer["attention"], q, k)

    def attention(self, spec: Spec, x: Array) -> Array:
        num_rows, (heads, _, size) = len(x), self.sizes(spec)
        q, k, v = self.heads_of(spec, x)
        out = np.einsum("hqk,khd->qhd", self.weights(spec, q, k), v)
        kind = spec.get("gate_kind", "none")
        if kind != "none":
            gates = sigmoid(self.linear(spec["gate"], x, heads * (size if kind == "element" else 1)))
            out = out * gates.reshape(num_rows, heads, -1)
        out = self.norm(spec.get("output_norm", {}), out.reshape(num_rows, -1))
        return self.linear(spec["output"], out, self.spec["hidden_size"])

    def mixer(self, spec: Spec, x: Array) -> Array:
        kind = spec.get("mixer", "attention")
        if kind in ("gated_delta", "mamba2"):
            return self.recurrence(spec["recurrence"], x, kind == "gated_delta")
        result: Array = getattr(self, kind)(spec[kind], x)
        return result

    def recurrence(self, spec: Spec, x: Array, is_delta: bool) -> Array:
        """Row by row: S = a S + k w, out = S q, for each head."""
        heads, groups, key_size, value_size = (spec[name] for name in ("num_heads", "num_groups", "key_size", "value_size"))
        sizes = {"query": groups * key_size, "key": groups * key_size, "value": heads * value_size}
        order = ("query", "key", "value") if is_delta else ("value", "key", "query")
        mixed = self.conv(spec["conv"], np.concatenate([self.linear(spec[role], x, sizes[role]) for role in order], -1))
        mixed = mixed * sigmoid(mixed)
        parts = dict(zip(order, np.split(mixed, np.cumsum([sizes[role] for role in order])[:-1], -1), strict=True))
        of_head = np.arange(heads) % groups if spec.get("tiled_groups") else np.arange(heads) // (heads // groups)
        query, key = (parts[role].reshape(len(x), groups, key_size)[:, of_head] for role in ("query", "key"))
        value = parts["value"].reshape(len(x), heads, value_size)
        decay = self.rows(spec["decay"], heads)
        decay = -np.exp(decay) if spec.get("decay_is_log") else decay
        step = np.logaddexp(0, self.linear(spec["time"], x, heads) + self.rows(spec["time_bias"], heads))
        step = np.clip(step, spec.get("least_step", 0.0), spec.get("most_step") or np.inf)
        beta = sigmoid(self.linear(spec["write"], x, heads)) if is_delta else step
        if is_delta:
            query, key = (v / np.sqrt((v * v).sum(-1, keepdims=True) + 1e-6) for v in (query, key))
            query = query / np.sqrt(key_size)
        state, out = np.zeros((heads, value_size, key_size)), np.zeros((len(x), heads, value_size))
        for t in range(len(x)):
            state = state * np.exp(step[t] * decay)[:, None, None]
            written = value[t] - (state * key[t, :, None]).sum(-1) if is_delta else value[t]
            state = state + (written * beta[t, :, None])[:, :, None] * key[t, :, None]
            out[t] = (state * query[t, :, None]).sum(-1)
        if "skip" in spec:
            out = out + self.rows(spec["skip"], heads)[:, None] * value
        gate = self.linear(spec["gate"], x, heads * value_size)
        gate = gate * sigmoid(gate)
        if is_delta:
            mixed = self.norm(spec.get("norm", {}), out).reshape(len(x), -1) * gate
        else:
            mixed = (out.reshape(len(x), -1) * gate).reshape(len(x), spec.get("norm_groups", 1), -1)
            mixed = self.norm(spec.get("norm", {}), mixed, True).reshape(len(x), -1)
        return self.linear(spec["output"], mixed, self.spec["hidden_size"])

    def short_conv(self, spec: Spec, x: Array) -> Array:
        size: int = self.spec["hidden_size"]
        b, c, x = np.split(self.linear(spec["input"], x, 3 * size), 3, -1)
        return self.linear(spec["output"], c * self.conv(spec["conv"], b * x), size)

    def conv(self, spec: Spec, x: Array) -> Array:
        """Each channel over the last `length` rows, the oldest first."""
        length, channels = spec["length"], x.shape[-1]
        weight = self.tensors[spec["weight"]["name"]].astype(np.float64).reshape(channels, length)
        padded = np.concatenate([np.zeros((length - 1, channels)), x])
        out = sum(weight[:, t] * padded[t : t + len(x)] for t in range(length))
        result: Array = out + self.rows(spec["bias"], channels) if "bias" in spec else out
        return result

    def mlp(self, spec: Spec, x: Array, expert: int = 0) -> Array:
        scalars = [float(self.rows(binding, 1)[0]) for binding in spec.get("activation_scalars", [])] or spec.get("activation_values", [])
        name = spec.get("activation", "silu")
        up = self.linear(spec["up"], x, spec["size"], expert)
        if name == "swiglu_clamped":
            limit, alpha, plus = scalars
            gate = np.minimum(self.linear(spec["gate"], x, spec["size"], expert), limit)
            inner = (np.clip(up, -limit, limit) + plus) * gate * sigmoid(alpha * gate)
        elif spec.get("gated", True):
            inner = activate(name, self.linear(spec["gate"], x, spec["size"], expert), scalars) * up
        else:
            inner = activate(name, up, scalars)
        return self.linear(spec["down"], self.norm(spec.get("inner_norm", {}), inner), self.spec["hidden_size"], expert)

    def routed(self, spec: Spec, logits: Array, used: int) -> Array:
        """Each expert's weight, [rows, experts]; 0 where it is not chosen."""
        kind = spec.get("score", "softmax")
        bias = self.tensors[spec["choice_bias"]["name"]].reshape(-1).astype(np.float64) if "choice_bias" in spec else 0.0
        if kind == "sparse_mixer":
            return self.mixed(logits, spec["mixer_threshold"])
        scores = {"softmax": softmax, "sigmoid": sigmoid, "softmax_chosen": lambda logits: logits}[kind](logits)
        allowed = self.grouped(spec, scores + bias)
        chosen = self.largest(np.where(allowed, scores + bias, -np.inf), used)
        if kind == "softmax_chosen":
            return softmax(np.where(chosen, scores, -np.inf))
        weights = np.where(chosen, scores, 0.0)
        if spec.get("renormalise"):
            total = np.maximum(weights.sum(-1, keepdims=True), spec.get("least_sum", 0.0)) + spec.get("sum_epsilon", 0.0)
            weights = weights / total
        weights = weights * spec.get("factor", 1.0)
        result: Array = weights * self.rows(spec["expert_scales"], weights.shape[-1]) if "expert_scales" in spec else weights
        return result

    def largest(self, scores: Array, count: int) -> Array:
        """Which are among the `count` largest of a row; of equal ones the first."""
        order = np.argsort(-scores, axis=-1, kind="stable")
        if count < scores.shape[-1]:
            self.margin = min(self.margin, float(-np.diff(np.take_along_axis(scores, order[:, count - 1 : count + 1], -1)).max()))
        chosen = np.zeros(scores.shape, bool)
        np.put_along_axis(chosen, order[:, :count], True, -1)
        return chosen

    def grouped(self, spec: Spec, scores: Array) -> Array:
        """Which experts are in the best groups."""
        number, used = spec.get("num_groups", 1), spec.get("used_groups", 1)
        parts = np.sort(scores.reshape(len(scores), number, -1), -1)
        best = parts[..., -2:].sum(-1) if spec.get("group_score") == "top2" else parts[..., -1]
        return np.repeat(self.largest(best, used), parts.shape[-1], -1) if used < number else np.ones(scores.shape, bool)

    def mixed(self, logits: Array, threshold: float) -> Array:
        """Phi-MoE's two: the best, then the best of the others; each weighs its softmax among those within the threshold."""
        weights, left = np.zeros(logits.shape), logits
        for _ in range(2):
            best = self.largest(left, 1)
            top = left.max(-1, keepdims=True)
            far = (top - logits) / np.maximum(np.abs(logits), top)
            self.margin = min(self.margin, float(np.abs(far - threshold).min()))
            weights += np.where(best, softmax(np.where(far > threshold, -np.inf, left)), 0.0)
            left = np.where(best, -np.inf, left)
        return weights

    def moe(self, layer: Spec, x: Array, stream: Array) -> Array:
        """The chosen experts' outputs by weight, and the shared expert's. x: what mlp_norm makes of the stream."""
        spec, router = layer["moe"], layer["moe"]["router"]
        read = self.norm(spec["norm"], stream) if "norm" in spec else x
        routed = self.norm(router["norm"], stream) if "norm" in router else read
        weights = self.routed(router, self.linear(router["linear"], routed, spec["num_experts"]), spec["num_used"])
        out = sum(weights[:, [expert]] * self.mlp(spec["expert"], read, expert) for expert in range(spec["num_experts"]))
        out = self.norm(spec.get("post_norm", {}), np.asarray(out))
        if layer.get("mlp", {}).get("size"):
            gate = sigmoid(self.linear(spec["shared_gate"], x, 1)) if "shared_gate" in spec else 1.0
            out = out + gate * self.norm(spec.get("shared_post_norm", {}), self.mlp(layer["mlp"], x))
        result: Array = out
        return result

    def block(self, spec: Spec, x: Array, stream: Array) -> Array:
        return self.moe(spec, x, stream) if "moe" in spec else self.mlp(spec["mlp"], x)

    def layer_values(self, tokens: list[int], x: Array) -> Array:
        """[rows, places, size] of embeddings for the layers."""
        spec = self.spec["layer_embedding"]
        width = spec["num_places"] * spec["size"]
        looked_up = self.rows(spec["weight"], self.spec["vocab_size"])[tokens] * spec.get("scale", 1.0)
        projected = self.linear(spec["projection"], x, width).reshape(len(x), spec["num_places"], spec["size"])
        result: Array = looked_up.reshape(projected.shape) + self.norm(spec["norm"], projected)
        return result

    def end_of_layer(self, spec: Spec, x: Array) -> Array:
        if given := spec.get("input"):
            gate = activate(given.get("activation", "gelu_tanh"), self.linear(given["gate"], x, self.spec["layer_embedding"]["size"]), [])
            inner = gate * self.given[:, given.get("place", 0)]
            x = x + self.norm(given.get("norm", {}), self.linear(given["projection"], inner, self.spec["hidden_size"]))
        return x * self.rows(spec["output_scale"], 1) if "output_scale" in spec else x

    def layer(self, spec: Spec, x: Array) -> Array:
        scale = spec.get("residual_scale", 1.0)

        def norm(place: str, values: Array) -> Array:
            return self.norm(spec.get(place, {}), values)

        before = norm("attention_norm", x)
        attended = scale * norm("post_attention_norm", self.mixer(spec, before))
        if spec.get("order") != "parallel":
            x = norm("attention_sum_norm", x + attended)
            return norm("mlp_sum_norm", x + scale * norm("post_mlp_norm", self.block(spec, norm("mlp_norm", x), x)))
        read = before if spec.get("mlp_reads_attention_norm") else norm("mlp_norm", x)
        return x + attended + scale * norm("post_mlp_norm", self.block(spec, read, x))

    def embed(self, tokens: list[int]) -> Array:
        spec = self.spec["embedding"]
        x = self.rows(spec["weight"], self.spec["vocab_size"])[tokens] * spec.get("scale", 1.0)
        if "positions" in spec:
            first = spec.get("position_offset", 0)
            x = x + self.rows(spec["positions"], first + len(tokens))[first:]
        return self.norm(spec.get("norm", {}), x)

    def states(self, tokens: list[int]) -> list[Array]:
        """[len(tokens), hidden_size] after the embedding and after each layer."""
        states = [self.embed(tokens)]
        self.kept.clear()
        if "layer_embedding" in self.spec:
            self.given = self.layer_values(tokens, states[0])
        for layer in self.spec["layers"]:
            states.append(self.end_of_layer(layer, self.layer(layer, states[-1])))
        return states

    def logits(self, tokens: list[int]) -> Array:
        """[len(tokens), vocab_size]."""
        head = self.spec.get("head", {})
        x = self.norm(self.spec.get("final_norm", {}), self.states(tokens)[-1])
        tied = {"weight": self.spec["embedding"]["weight"]}
        out = self.linear(tied | head, x, self.spec["vocab_size"]) * head.get("scale", 1.0)
        cap = head.get("soft_cap", 0.0)
        return cap * np.tanh(out / cap) if cap else out
