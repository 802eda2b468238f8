"""Checkpoints whose tensor names do not begin as the family's do: those saved without the head, or as a part of a larger model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from llmi.errors import ModelFileError
from llmi.families.config import Shape
from llmi.families.spec import ModelSpec, TensorBinding


def rename(spec: ModelSpec, tensors: Mapping[str, Shape], source: str) -> None:
    """Changes the names of a spec's bindings to those that the file has.

    The embedding shows how a file's names begin: "model.embed_tokens.weight" of the family may be "embed_tokens.weight" or
    "language_model.model.embed_tokens.weight". Raises ModelFileError if several tensors may be it.
    """
    embedding = spec.embedding.weight.name
    base, dot, rest = embedding.partition(".")
    if not tensors or embedding in tensors or not rest:
        return
    base += dot
    found = sorted(name[: len(name) - len(rest)] for name in tensors if name == rest or name.endswith("." + rest))
    if len(found) > 1:
        message = f"{source}: several tensors may be the embedding: '{found[0]}{rest}' and '{found[1]}{rest}'"
        raise ModelFileError(message, source, found[0] + rest)
    if not found:
        return
    prefix = found[0]
    outer = prefix.removesuffix(base) if prefix.endswith(base) else ""  # what is before "model." is also before the head's name
    for binding in bindings(spec):
        if binding.name.startswith(base):
            binding.name = prefix + binding.name.removeprefix(base)
        elif outer + binding.name in tensors:
            binding.name = outer + binding.name
    spec.ignored_tensors = [prefix + name.removeprefix(base) if name.startswith(base) else name for name in spec.ignored_tensors]


def bindings(part: object) -> Iterator[TensorBinding]:
    """All named tensors of a spec or of a part of it."""
    if isinstance(part, TensorBinding):
        if part.name:
            yield part
    elif isinstance(part, list):
        for item in part:
            yield from bindings(item)
    elif dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            yield from bindings(getattr(part, field.name))
