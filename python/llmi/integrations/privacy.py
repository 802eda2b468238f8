"""Private inference as an example, to be measured and not to be trusted: parties are honest, keys and random numbers are nobody's care.

The client of a *split model* keeps embedding, norms, attention and activations (`SplitModel`) and asks others for each product with a
matrix of a layer: in the clear (`in_the_clear`), of a server that sees ciphertexts (`CkksServer`, `CkksClient`: the extra `privacy`), or of
two servers of which neither sees anything (`TwoServers`). `recover_matrix` is what such a client can learn of the weights.
notebooks/privacy.ipynb uses them all.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Client, Listener

import numpy as np
from numpy.typing import NDArray

from llmi.errors import InvalidParamsError, UnsupportedModelError, import_extra
from llmi.families import spec as parts
from llmi.llm import LLM

F64 = NDArray[np.float64]
U64 = NDArray[np.uint64]
#: A matrix's name and rows [n, columns] -> rows times the matrix transposed, [n, rows of the matrix].
Multiply = Callable[[str, F64], F64]
_FRACTION = 20  # bits behind the point of a number in a share
_LARGEST = 2.0 ** (62 - 2 * _FRACTION)  # of a product


def silu(x: F64) -> F64:
    """x times the logistic function of x."""
    result: F64 = x / (1 + np.exp(-np.clip(x, -700, 700)))
    return result


def softmax(scores: F64) -> F64:
    """exp(score) over their sum, along the last axis."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    result: F64 = powers / powers.sum(-1, keepdims=True)
    return result


def in_the_clear(llm: LLM) -> Multiply:
    """Products in float32; each matrix is read once."""
    known: dict[str, NDArray[np.float32]] = {}

    def multiply(name: str, rows: F64) -> F64:
        if name not in known:
            known[name] = llm.weights[name]
        return (rows.astype(np.float32) @ known[name].T).astype(np.float64)

    return multiply


class SplitModel:
    """The client's part of a Llama, in NumPy: everything but the products with the matrices of the layers.

    `multiply` is asked for each product; the default computes in the clear. `silu` and `softmax` may be stand-ins, such as polynomials.
    Raises UnsupportedModelError for all but plain Llamas (RMSNorm, rotary positions, a gated MLP with SiLU, no bias).
    """

    def __init__(
        self, llm: LLM, multiply: Multiply | None = None, *, silu: Callable[[F64], F64] = silu, softmax: Callable[[F64], F64] = softmax
    ) -> None:
        self.multiply, self._silu, self._softmax = multiply or in_the_clear(llm), silu, softmax
        self._llm, self._spec = llm, llm._spec
        if self._spec != _plain(self._spec):
            raise UnsupportedModelError("privacy: this example knows plain Llamas alone", llm.model_info.path)
        names = {norm.weight.name for layer in self._spec.layers for norm in (layer.attention_norm, layer.mlp_norm)}
        self._vectors = {name: llm.weights[name].astype(np.float64) for name in names | {self._spec.final_norm.weight.name}}
        self._embedding = llm.weights[self._spec.embedding.weight.name]
        head = self._spec.head.weight.name
        self._head = llm.weights[head] if head else self._embedding
        self.reset()

    def reset(self) -> None:
        """Forgets all tokens."""
        shape = (self._spec.num_kv_heads, 0, self._spec.head_dim)
        self._cache = [(np.zeros(shape), np.zeros(shape)) for _ in self._spec.layers]

    def extend(self, token_ids: Sequence[int]) -> F64:
        """Reads further tokens; returns the logits behind the last one."""
        x = self._embedding[list(token_ids)].astype(np.float64)
        for number, layer in enumerate(self._spec.layers):
            x = x + self._attention(number, layer.attention, self._norm(x, layer.attention_norm))
            rows = self._norm(x, layer.mlp_norm)
            gate, up = (self.multiply(linear.weight.name, rows) for linear in (layer.mlp.gate, layer.mlp.up))
            x = x + self.multiply(layer.mlp.down.weight.name, self._silu(gate) * up)
        last = self._norm(x[-1:], self._spec.final_norm)
        logits: F64 = (last.astype(np.float32) @ self._head.T)[0].astype(np.float64)
        return logits

    def _norm(self, x: F64, norm: parts.NormSpec) -> F64:
        result: F64 = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + norm.eps) * self._vectors[norm.weight.name]
        return result

    def _attention(self, number: int, attention: parts.AttentionSpec, rows: F64) -> F64:
        heads, kv_heads, size = self._spec.num_heads, self._spec.num_kv_heads, self._spec.head_dim
        known_keys, known_values = self._cache[number]
        begin, count = known_keys.shape[1], len(rows)
        query, key, value = (
            self.multiply(linear.weight.name, rows).reshape(count, -1, size).swapaxes(0, 1)
            for linear in (attention.query, attention.key, attention.value)
        )
        keys = np.concatenate([known_keys, self._turned(key, attention.key, begin)], 1)
        values = np.concatenate([known_values, value], 1)
        self._cache[number] = (keys, values)
        grouped = self._turned(query, attention.query, begin).reshape(kv_heads, heads // kv_heads, count, size)
        scores = np.einsum("kgns,kms->kgnm", grouped, keys) * (attention.scale or size**-0.5)
        seen = np.arange(begin + count) <= np.arange(begin, begin + count)[:, None]
        mixed = np.einsum("kgnm,kms->kgns", self._softmax(np.where(seen, scores, -1e9)), values)
        return self.multiply(attention.output.weight.name, mixed.reshape(heads, count, size).swapaxes(0, 1).reshape(count, -1))

    def _turned(self, rows: F64, linear: parts.LinearSpec, begin: int) -> F64:
        """Rotary positions. GGUF files hold the two halves of a pair beside each other, others half a head apart."""
        size = rows.shape[-1]
        angles = np.arange(begin, begin + rows.shape[1])[:, None] * self._spec.ropes[0].theta ** (-np.arange(0, size, 2) / size)
        adjacent = bool(linear.weight.order.adjacent_pairs)
        first, second = (rows[..., ::2], rows[..., 1::2]) if adjacent else (rows[..., : size // 2], rows[..., size // 2 :])
        return np.concatenate([first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles)], -1)


def _plain(spec: parts.ModelSpec) -> parts.ModelSpec:
    """A plain Llama of this one's names and sizes."""

    def linear(given: parts.LinearSpec) -> parts.LinearSpec:
        order = dataclasses.replace(given.weight.order, first_row=0)
        return parts.LinearSpec(weight=parts.TensorBinding(given.weight.name, order))

    def norm(given: parts.NormSpec) -> parts.NormSpec:
        return parts.NormSpec(present=True, eps=given.eps, weight=parts.TensorBinding(given.weight.name))

    layers = []
    for layer in spec.layers:
        own, mlp = layer.attention, layer.mlp
        query, key, value, output = (linear(given) for given in (own.query, own.key, own.value, own.output))
        attention = parts.AttentionSpec(query=query, key=key, value=value, output=output, rope=0, scale=own.scale)
        gate, up, down = (linear(given) for given in (mlp.gate, mlp.up, mlp.down))
        gated = parts.MlpSpec(gate=gate, up=up, down=down, size=mlp.size, gated=True, activation="silu")
        bare = parts.LayerSpec(attention=attention, mlp=gated)
        layers.append(dataclasses.replace(bare, attention_norm=norm(layer.attention_norm), mlp_norm=norm(layer.mlp_norm)))
    ropes = [parts.RopeSpec(theta=rope.theta, rotary_dim=spec.head_dim) for rope in spec.ropes[:1]]
    head = parts.HeadSpec(weight=parts.TensorBinding(spec.head.weight.name))
    plain = dataclasses.replace(spec, layers=layers, ropes=ropes, head=head, final_norm=norm(spec.final_norm))
    embedding = parts.EmbeddingSpec(weight=parts.TensorBinding(spec.embedding.weight.name))
    return dataclasses.replace(plain, embedding=embedding, layer_embedding=parts.LayerEmbeddingSpec())


class CkksServer:
    """Multiplies ciphertexts by its matrices for one client, in a thread behind a loopback socket. It never holds the secret key."""

    def __init__(self, matrices: Mapping[str, NDArray[np.floating]]) -> None:
        self._tenseal = import_extra("tenseal", "privacy")
        self._columns = {name: matrix.T.tolist() for name, matrix in matrices.items()}
        self._listener = Listener(("127.0.0.1", 0))
        self.address = self._listener.address
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self._listener, self._listener.accept() as connection:
            context = self._tenseal.context_from(connection.recv_bytes())
            while name := connection.recv_bytes().decode():
                row = self._tenseal.ckks_vector_from(context, connection.recv_bytes())
                connection.send_bytes(row.matmul(self._columns[name]).serialize())


class CkksClient:
    """`Multiply` by a CkksServer, which sees ciphertexts, one a row. seconds and bytes are of all products; keys are sent once."""

    def __init__(self, address: str | tuple[str, int]) -> None:
        self._tenseal = import_extra("tenseal", "privacy")
        self._context = self._tenseal.context(self._tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 60])
        self._context.global_scale = 2.0**40
        self._context.generate_galois_keys()
        self.seconds, self.sent_bytes, self.received_bytes = 0.0, 0, 0
        self._connection = Client(address)
        public: bytes = self._context.serialize(save_secret_key=False)
        self.key_bytes = len(public)
        self._connection.send_bytes(public)

    def __call__(self, name: str, rows: F64) -> F64:
        begin = time.perf_counter()
        results = []
        for row in rows:
            sent = self._tenseal.ckks_vector(self._context, row.tolist()).serialize()
            self._connection.send_bytes(name.encode())
            self._connection.send_bytes(sent)
            received = self._connection.recv_bytes()
            self.sent_bytes, self.received_bytes = self.sent_bytes + len(sent), self.received_bytes + len(received)
            results.append(self._tenseal.ckks_vector_from(self._context, received).decrypt())
        self.seconds += time.perf_counter() - begin
        return np.array(results)

    def close(self) -> None:
        """Ends the server's thread, too."""
        self._connection.send_bytes(b"")
        self._connection.close()


@dataclasses.dataclass
class TwoServers:
    """`Multiply` by two servers that do not talk behind the client's back: each holds one of two shares of rows and weights, alone random
    numbers. A dealer's triples (Beaver, 1991) let them multiply.

    `matrix` gives a matrix by its name, such as `llm.weights.__getitem__`. Shares and triples are made again for each product.
    """

    matrix: Callable[[str], NDArray[np.floating]]
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def __call__(self, name: str, rows: F64) -> F64:
        weights = self.matrix(name)
        reach = float(np.linalg.norm(rows, axis=1).max() * np.linalg.norm(weights, axis=1).max())
        if not reach < _LARGEST:
            raise InvalidParamsError(f"{name}: products up to {reach:g} do not fit into shares, which hold {_LARGEST:g}")
        x, w = self.split(fixed_point(rows)), self.split(fixed_point(weights))
        a, b = self._uniform(rows.shape, 2), self._uniform(weights.shape, 2)  # the dealer's: two shares of two random factors
        c = self.split(a.sum(0, dtype=np.uint64) @ b.sum(0, dtype=np.uint64).T)  # and of their product
        masked_rows = (x - a).sum(0, dtype=np.uint64)  # the servers tell each other this and the next, which tell nothing
        masked_weights = (w - b).sum(0, dtype=np.uint64)
        z = [c[i] + masked_rows @ (b[i] + (masked_weights if i == 0 else np.uint64(0))).T + a[i] @ masked_weights.T for i in (0, 1)]
        result: F64 = (z[0] + z[1]).view(np.int64) / 2.0 ** (2 * _FRACTION)
        return result

    def split(self, values: U64) -> U64:
        """[2, ...]: two shares, each of which alone is uniform, whose sum modulo 2^64 is the values."""
        first = self._uniform(values.shape)
        return np.stack([first, values - first])

    def _uniform(self, shape: tuple[int, ...], *count: int) -> U64:
        return self._random.integers(0, 2**64, (*count, *shape), dtype=np.uint64)


def fixed_point(values: NDArray[np.floating]) -> U64:
    """Whole numbers modulo 2^64: values times 2^20, rounded."""
    return np.rint(values.astype(np.float64) * 2.0**_FRACTION).astype(np.int64).view(np.uint64)


def recover_matrix(multiply: Multiply, name: str, num_columns: int, *, seed: int = 0) -> F64:
    """A matrix, solved from as many questions as it has columns: rows that are orthogonal, and look like any others."""
    questions = np.linalg.qr(np.random.default_rng(seed).normal(size=(num_columns, num_columns)))[0] * np.sqrt(num_columns)
    result: F64 = multiply(name, questions).T @ questions / num_columns
    return result
