"""Runs texts: the vector or score of each, here or in the processes that hold the model."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from llmi import _core
from llmi.base.progress import progress
from llmi.errors import OutOfMemoryError, UnsupportedModelError, call_core
from llmi.pooling import settings
from llmi.pooling.inputs import Input
from llmi.pooling.settings import Classifier, PoolingSettings, Tokens
from llmi.pooling.steps import Normalize, pooled, sigmoid

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.session import Session

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]
else:
    from llmi.base.lazy_numpy import np

T = TypeVar("T")
_MOST_AT_ONCE = 256  # texts of one call into the core


def vectors(llm: Session, inputs: list[Input], size: int | None, shown: bool | None) -> list[F64]:
    """Each input's vector, of which size says how many values are taken; None: all."""
    if not isinstance(llm._engine, _core.Engine):
        return _elsewhere(llm, inputs, {"size": size, "scores": False})
    found = pooling_of(llm)
    return _each(llm, inputs, lambda given, rows: _vector(found, given, rows, size), shown)


def scores(llm: Session, inputs: list[Input], shown: bool | None) -> list[float]:
    """Each pair's score."""
    if not isinstance(llm._engine, _core.Engine):
        return [float(values[0]) for values in _elsewhere(llm, inputs, {"size": None, "scores": True})]
    found = pooling_of(llm)
    return _each(llm, inputs, lambda given, rows: _score(llm, found, rows), shown)


def _elsewhere(llm: Session, inputs: list[Input], asked: dict[str, Any]) -> list[F64]:
    """The values that other processes make of the inputs: a part is what one step takes."""
    assert llm._router is not None
    groups = _groups(inputs, llm._engine_args.max_num_batched_tokens)
    parts = [{"inputs": [[given.ids, given.second, given.num_unpooled] for given in group], **asked} for group in groups]
    return [np.frombuffer(values, "<f8") for part in llm._router.pool(parts) for values in part]


def answer(llm: Session, message: dict[str, Any]) -> list[str]:
    """A part that has come from another process, which is of the same version: base64 of the float64 values of each input."""
    inputs = [Input(ids, second, num_unpooled) for ids, second, num_unpooled in message["inputs"]]
    if message["scores"]:
        found = [np.array([value]) for value in scores(llm, inputs, False)]
    else:
        found = vectors(llm, inputs, message["size"], False)
    return [base64.b64encode(values.astype("<f8").tobytes()).decode() for values in found]


def pooling_of(llm: Session) -> PoolingSettings:
    """The model's settings, read once."""
    found: PoolingSettings | None = vars(llm).get("_pooling")
    if found is None:
        found = vars(llm)["_pooling"] = settings.settings_of(llm)
    return found


def _vector(found: PoolingSettings, given: Input, rows: F32, size: int | None) -> F64:
    steps, is_normal = found.steps, bool(found.steps) and isinstance(found.steps[-1], Normalize)
    vector = pooled(found.kind, rows[given.num_unpooled :], steps[:-1] if is_normal else steps)[:size]
    return Normalize().apply(vector) if is_normal else vector


def _score(llm: Session, found: PoolingSettings, rows: F32) -> float:
    scorer = found.scorer
    if isinstance(scorer, Tokens):
        _, [logits] = llm.head(rows[-1:], shortlist=[scorer.no, scorer.yes])
        return sigmoid(float(logits[1]) - float(logits[0]))
    assert isinstance(scorer, Classifier)
    if scorer.num_labels != 1:
        raise UnsupportedModelError(
            f"{llm._files.path}: its head has {scorer.num_labels} labels, and a score is of one", llm._files.path, "num_labels"
        )
    value = float(pooled(found.kind, rows, scorer.steps)[0])
    return sigmoid(value) if scorer.sigmoid else value


def _each(llm: Session, inputs: list[Input], work: Callable[[Input, F32], T], shown: bool | None) -> list[T]:
    """What `work` makes of the hidden states of each input, some of which run together."""
    results: list[T] = []
    shown = shown if shown is not None or len(inputs) > 1 else False
    with progress(len(inputs), "embed", "text", shown) as bar:
        for group in _groups(inputs, llm._engine_args.max_num_batched_tokens):
            results += [work(given, rows) for given, rows in zip(group, _rows(llm, group), strict=True)]
            bar.update(len(group))
    return results


def _groups(inputs: list[Input], num_tokens: int) -> Iterator[list[Input]]:
    """The inputs in their order, as many at once as one step takes."""
    group: list[Input] = []
    total = 0
    for given in inputs:
        if group and (total + len(given.ids) > num_tokens or len(group) == _MOST_AT_ONCE):
            yield group
            group, total = [], 0
        group.append(given)
        total += len(given.ids)
    if group:
        yield group


def _rows(llm: Session, group: list[Input]) -> list[F32]:
    last = llm.model_info.num_layers
    try:
        rows = call_core(_core.hidden_rows, llm._engine, [given.ids for given in group], [last], True, [given.second for given in group])
        return [each[last] for each in rows]
    except OutOfMemoryError:  # of KV cache, for all of them at once
        if len(group) == 1:
            raise
    return [row for given in group for row in _rows(llm, [given])]
