"""The residual stream of a model in other coordinates: the same function, and no weight on the grid that it was rounded to."""

from __future__ import annotations

import dataclasses
import math
import os
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from llmi.base.kinds import Whole, parse
from llmi.compress.calibration import Calibration
from llmi.compress.made_files import Report, Source
from llmi.compress.rewriting import Edit, float_tensor, rewrite
from llmi.compress.stored_matrices import matrix
from llmi.compress.stored_rows import turned
from llmi.families.spec import LayerSpec, LinearSpec, NormSpec, TensorBinding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]
else:
    from llmi.base.lazy_numpy import np

_ROUNDS = 4
_PIECE = 512  # vectors at once: they stay in a core's cache
SEED = Whole(0, (1 << 31) - 1)


def rotate(model: str | os.PathLike[str], out: str | os.PathLike[str], *, seed: int = 0) -> Report:
    """Writes a model whose residual stream is rotated: norms become part of the matrices behind them, and every matrix that reads or writes
    the stream is turned. It computes the same function up to rounding (Ashkboos et al. 2024, QuaRot, arXiv 2404.00456), and outliers are
    spread over all columns. Equal inputs give equal bytes.

    Parameters
    ----------
    model : path or name
        A GGUF file of one part or a folder of float safetensors, with RMSNorm without a bias before each part and none behind.
    out : path
        A new .gguf file, or of a folder a new one with the same files beside the weights; it is written whole or not at all. Matrices are
        F32 where they were, else F16.
    seed : int
        Of the rotation.

    Returns
    -------
    Report

    Raises
    ------
    InvalidParamsError
        An `out` that exists or cannot be written, a value beyond fp16.
    ModelFileError
        No GGUF file of one part, or a folder whose weights are quantised; UnsupportedModelError names what the method does not know of a
        graph.

    Examples
    --------
    >>> from llmi.compress import rotate
    >>> print(rotate("model.gguf", "rotated.gguf"))  # doctest: +SKIP
    """
    return rewrite(model, out, Rotate.of({"seed": seed}))


@dataclasses.dataclass(frozen=True)
class Rotate:
    """`rotate`."""

    seed: int
    made: ClassVar[str] = "rotate"

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Rotate:
        """From a caller or a receipt. Raises InvalidParamsError."""
        return cls(parse(SEED, "seed", settings["seed"]))

    def settings(self) -> dict[str, object]:
        """For the receipt."""
        return {"seed": self.seed}

    def edit(self, source: Source, calibration: Calibration | None) -> Edit:
        """Every tensor that touches the stream becomes float."""
        del calibration
        spec = source.spec
        head, entries = (spec.head.weight.name, {}) if spec.head.weight.name else source.untied(self.made)
        values = rotated_values(source, self.seed, head)
        new = {}
        for name, tensor in source.tensors.items():
            if name in values:
                new[name] = float_tensor(name, tensor.shape, tensor.type if tensor.type == 0 else 1, values[name])
        tensors = source.with_new(new)
        if head not in source.tensors:
            embedding = source.tensors[spec.embedding.weight.name]
            own = float_tensor(head, embedding.shape, embedding.type if embedding.type == 0 else 1, values[head])
            tensors.insert(1 + list(source.tensors).index(embedding.name), own)
        spec.head.weight.name = head
        return Edit(tensors, entries, spec)


class Rotation:
    """An orthogonal map of vectors: rounds of signs and Hadamard's transform, of as many places as a power of two has. A round takes the
    first places in a new order, the next one the last of them, so that two rounds reach all.

    Only sums and products of two numbers: one order, so equal bits on every machine.
    """

    def __init__(self, seed: int, size: int) -> None:
        numbers = random.Random(seed)  # its random() is the same in all versions of Python
        self._rounds = []
        self._spread = 1 << (size.bit_length() - 1)
        for index in range(_ROUNDS):
            keys = np.array([numbers.random() for _ in range(size)])
            signs = np.array([1.0 if numbers.random() < 0.5 else -1.0 for _ in range(size)])
            order = np.argsort(keys, kind="stable") if index % 2 == 0 else np.arange(size)
            begin = 0 if index % 2 == 0 else size - self._spread
            self._rounds.append((order, signs[:, None], slice(begin, begin + self._spread)))

    def __call__(self, vectors: F64) -> F64:
        """Of [size, count], each column turned."""
        pieces = [self._turned(vectors[:, start : start + _PIECE]) for start in range(0, vectors.shape[1], _PIECE)]
        return np.concatenate(pieces, axis=1)

    def _turned(self, vectors: F64) -> F64:
        count = vectors.shape[1]
        for order, signs, part in self._rounds:
            vectors = vectors[order] * signs
            mixed = vectors[part]
            step = 1
            while step < self._spread:
                pairs = mixed.reshape(-1, 2, step, count)
                mixed = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
                step *= 2
            vectors[part] = mixed.reshape(self._spread, count) * (1 / math.sqrt(self._spread))
        return vectors


def rotated_values(source: Source, seed: int, head: str) -> dict[str, Callable[[], F32]]:
    """Name: what makes the new values, of all tensors that change. head: the name of its own matrix. Raises UnsupportedModelError."""
    spec = source.spec
    _check(source, head)
    turn = Rotation(seed, spec.hidden_size)
    made: dict[str, Callable[[], F32]] = {}
    embedding = spec.embedding.weight
    made[embedding.name] = partial(_read, source, turn, embedding, NormSpec())
    made[head] = partial(_read, source, turn, spec.head.weight if spec.head.weight.name else embedding, spec.final_norm)
    norms = [spec.final_norm]
    for layer in spec.layers:
        for norm, readers in _readers(layer):
            norms.append(norm)
            made.update({linear.weight.name: partial(_read, source, turn, linear.weight, norm) for linear in readers})
        for linear in (layer.attention.output, layer.mlp.down):
            made.update({each.name: partial(_written, source, turn, each) for each in (linear.weight, linear.bias) if each.name})
    made.update({norm.weight.name: partial(_ones, source, norm.weight) for norm in norms if norm.weight.name})
    return made


def _readers(layer: LayerSpec) -> list[tuple[NormSpec, list[LinearSpec]]]:
    """What reads the stream, behind which norm."""
    attention, mlp = layer.attention, layer.mlp
    first = [attention.query, attention.key, attention.value, attention.gate]
    second = [mlp.gate, mlp.up]
    groups = (
        [(layer.attention_norm, first + second)]
        if layer.mlp_reads_attention_norm
        else [
            (layer.attention_norm, first),
            (layer.mlp_norm, second),
        ]
    )
    return [(norm, [linear for linear in linears if linear.weight.name]) for norm, linears in groups]


def _check(source: Source, head: str) -> None:
    spec = source.spec
    if spec.embedding.norm.present or spec.embedding.positions.name or spec.embedding.token_types.name or spec.layer_embedding.size:
        raise source.refuse("rotate", "whose layers read more than a sum of embeddings of tokens")
    if spec.final_norm.kind != "rms" or not spec.final_norm.present or spec.final_norm.bias.name:
        raise source.refuse("rotate", "whose last norm is no RMSNorm without a bias")
    for index, layer in enumerate(spec.layers):
        after = (layer.post_attention_norm, layer.post_mlp_norm, layer.attention_sum_norm, layer.mlp_sum_norm)
        if any(norm.present for norm in after):
            raise source.refuse("rotate", f"with a norm behind attention or MLP (layer {index}), whose weights do not turn")
        if layer.mixer != "attention" or layer.attention.latent.rank or layer.moe.num_experts or layer.input.present:
            raise source.refuse("rotate", f"whose layer {index} is not plain attention and one MLP")
        if layer.output_scale.name:
            raise source.refuse("rotate", f"with a scale of layer {index}")
        for norm, _ in _readers(layer):
            if norm.kind != "rms" or not norm.present or norm.bias.name:
                raise source.refuse("rotate", f"whose norms are no RMSNorm without a bias before each part (layer {index})")
    used = spec.tensor_names() | {head}
    for tensor in source.tensors.values():
        if tensor.name not in used and len(tensor.shape) > 1 and spec.hidden_size in tensor.shape:
            raise source.refuse("rotate", f"with tensors that llmi does not use ({tensor.name}) and would not turn")


def _read(source: Source, turn: Rotation, weight: TensorBinding, norm: NormSpec) -> F32:
    """A matrix whose rows are multiplied with the stream."""
    values = matrix(source, weight).astype(np.float64)
    if norm.weight.name:
        values *= source.values(norm.weight.name).astype(np.float64) * norm.weight.times + norm.weight.plus
    return turned(np.ascontiguousarray(turn(values.T).T, np.float32), weight)


def _written(source: Source, turn: Rotation, weight: TensorBinding) -> F32:
    """A matrix whose columns are added to the stream, or a bias."""
    values = matrix(source, weight).astype(np.float64)
    return turned(turn(values.reshape(len(values), -1)).reshape(values.shape).astype(np.float32), weight)


def _ones(source: Source, weight: TensorBinding) -> F32:
    return np.full(source.tensors[weight.name].shape, (1 - weight.plus) / weight.times, np.float32)
