"""Files with fewer heads: whole groups of heads of queries, with the keys and values that they read."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable
from typing import Any, ClassVar

from llmi.compress.calibration import Calibration, calibrate
from llmi.compress.cuts import numbers_or_count, places_of
from llmi.compress.least_squares import products
from llmi.compress.made_files import Report, Source
from llmi.compress.rewriting import Edit, rewrite
from llmi.compress.stored_matrices import Role, matrix, num_columns, with_columns, with_roles
from llmi.errors import InvalidParamsError
from llmi.families.spec import AttentionSpec, TensorBinding

_TOKENS = 4096  # of the model's own text, by which heads are chosen


def drop_heads(
    model: str | os.PathLike[str], out: str | os.PathLike[str], *, heads: Iterable[int] | None = None, count: int | None = None
) -> Report:
    """Writes a model without some of its heads, the same in every layer. Heads of queries that share keys and values (grouped-query
    attention) go together, with those: numbers are of heads of keys and values.

    Parameters
    ----------
    model : path or name
        A GGUF file of one part, or a folder of float safetensors.
    out : path
        A new .gguf file, or of a folder a new one with the same files beside the weights; it is written whole or not at all. What stays
        keeps its bytes; output projections whose blocks do not end where heads end become F16.
    heads : iterable of int, optional
        Those that go, counted from 0. Give this or count.
    count : int, optional
        So many go: those whose output, behind the output projection, is least: its share of the squares of all heads' outputs on 4,096
        tokens that the model writes itself, summed over layers.

    Returns
    -------
    Report
        Its remarks name the heads.

    Raises
    ------
    InvalidParamsError
        Both or neither of heads and count, a head twice or one that is not there, all heads, an `out` that exists or cannot be written.
    ModelFileError
        No GGUF file of one part, or a folder whose weights are quantised; UnsupportedModelError names what the method does not know of a
        graph.

    Examples
    --------
    >>> from llmi.compress import drop_heads
    >>> print(drop_heads("model.gguf", "narrow.gguf", count=1))  # doctest: +SKIP
    """
    return rewrite(model, out, DropHeads.of({"heads": None if heads is None else list(heads), "count": count}))


@dataclasses.dataclass(frozen=True)
class DropHeads:
    """`drop_heads`."""

    heads: list[int] | None
    count: int | None
    made: ClassVar[str] = "drop_heads"

    @classmethod
    def of(cls, settings: dict[str, Any]) -> DropHeads:
        """From a caller or a receipt. Raises InvalidParamsError."""
        return cls(*numbers_or_count(settings, "heads"))

    def settings(self) -> dict[str, object]:
        """For the receipt."""
        return dataclasses.asdict(self)

    def edit(self, source: Source, calibration: Calibration | None) -> Edit:
        """Rows of queries, keys and values, columns of output projections, and the numbers of heads."""
        del calibration
        spec = source.spec
        total, size = spec.num_kv_heads, spec.head_dim
        queries = spec.num_heads // total
        attentions = _attentions(source)
        if (len(self.heads) if self.heads is not None else self.count or 0) >= total:
            raise InvalidParamsError(f"heads: all {total} heads of keys and values cannot go", "heads" if self.count is None else "count")
        gone = self._chosen(source, [attention.output.weight for attention in attentions]) if self.heads is None else self.heads
        if gone[-1] >= total:
            raise InvalidParamsError(
                f"heads: there is no head {gone[-1]}: the model has {total} of keys and values, counted from 0", "heads"
            )
        kept = [head for head in range(total) if head not in gone]
        rows = {True: places_of(kept, queries * size), False: places_of(kept, size)}  # of queries, or of keys and values
        new, roles = {}, []
        for attention in attentions:
            for linear in (attention.query, attention.key, attention.value):
                is_query = linear is attention.query
                count = (spec.num_heads if is_query else total) * size
                roles += [Role(each, count, rows[is_query]) for each in (linear.weight, linear.bias) if each.name]
            output = attention.output.weight
            new[output.name] = with_columns(source, output, rows[True])
        new |= with_roles(source, self.made, roles)
        spec.num_heads, spec.num_kv_heads = queries * len(kept), len(kept)
        numbers = {"num_attention_heads": spec.num_heads, "num_key_value_heads": len(kept), "head_dim": size}
        remarks = {"heads": f"{', '.join(map(str, gone))} of {total} left out, with {queries} of queries each"}
        return Edit(source.with_new(new), source.with_numbers(self.made, numbers), spec, remarks)

    def _chosen(self, source: Source, outputs: list[TensorBinding]) -> list[int]:
        """Those of the least output; of equal ones the last."""
        assert self.count is not None
        total = source.spec.num_kv_heads
        sums = calibrate(source.path, tokens=_TOKENS, gram=True)
        shares = [0.0] * total
        for output in outputs:
            values, gram = matrix(source, output), sums.gram(output.name)
            size = len(gram) // total
            squares = []
            for head in range(total):
                part = slice(head * size, (head + 1) * size)
                squares.append(math.fsum((products(values[:, part], values[:, part]) * gram[part, part]).reshape(-1).tolist()))
            for head, own in enumerate(squares):
                shares[head] += own / (math.fsum(squares) or 1.0)
        return sorted(sorted(range(total), key=lambda head: (shares[head], -head))[: self.count])


def _attentions(source: Source) -> list[AttentionSpec]:
    """Of all layers. Raises UnsupportedModelError."""
    spec = source.spec
    size = spec.num_heads * spec.head_dim
    for index, layer in enumerate(spec.layers):
        attention = layer.attention
        own = attention.num_heads or attention.num_kv_heads or attention.head_dim or attention.kv_donor >= 0 or attention.value_is_key
        if layer.mixer != "attention" or attention.latent.rank or own:
            raise source.refuse("drop_heads", f"whose layer {index} has no keys and values of the model's number of heads")
        norms = attention.norms
        if norms.span == "projection" or norms.own_weights or attention.output_norm.present:
            raise source.refuse("drop_heads", f"with norms over all heads of layer {index}, or with weights for each of them")
        if attention.sinks.name or attention.linear_biases or attention.gate.weight.name:
            raise source.refuse("drop_heads", f"with sinks, gates or biases of the heads of layer {index}")
        if num_columns(source, attention.output.weight) != size:
            raise source.refuse("drop_heads", f"whose layer {index} has no output projection of {size} columns")
    return [layer.attention for layer in spec.layers]
