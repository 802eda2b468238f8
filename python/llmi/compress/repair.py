"""Layers that go, replaced by what the down projection before them can do in their place (after ReplaceMe: Shopkhoev et al., 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmi import _core
from llmi.base.progress import progress
from llmi.compress.calibration import Calibration, own_windows
from llmi.compress.least_squares import mean_square, over_columns, products, solve
from llmi.compress.made_files import Source
from llmi.compress.stored_matrices import matrix
from llmi.compress.stored_rows import turned
from llmi.errors import InvalidParamsError, call_core
from llmi.llm import LLM

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np

_LEAST_SQUARES = 1e-30
DAMPING = 0.1  # of the mean square of a column, added to each
_TOKENS, _SEED = 20_000, 0


def runs_of(layers: Sequence[int]) -> list[tuple[int, int]]:
    """(first, behind the last) of layers in a row, in order."""
    runs: list[tuple[int, int]] = []
    for layer in layers:
        if runs and runs[-1][1] == layer:
            runs[-1] = runs[-1][0], layer + 1
        else:
            runs.append((layer, layer + 1))
    return runs


def check_repairable(source: Source, layers: Sequence[int]) -> None:
    """Raises UnsupportedModelError: what the down projection makes is not added to the stream as it is; InvalidParamsError: there is none
    before a run."""
    for first, _ in runs_of(layers):
        if first == 0:
            raise InvalidParamsError("repair: before layer 0 there is no down projection that could stand in for it", "layers")
        layer = source.spec.layers[first - 1]
        if layer.moe.num_experts or not layer.mlp.down.weight.name:
            raise source.refuse("repair", f"whose layer {first - 1} has no down projection of its own")
        norms = (layer.post_mlp_norm, layer.mlp_sum_norm)
        if any(norm.present for norm in norms) or layer.output_scale.name or layer.input.present:
            raise source.refuse("repair", f"whose layer {first - 1} does more to what its down projection makes than add it")


def repaired(source: Source, layers: Sequence[int], calibration: Calibration | None) -> dict[str, F32]:
    """Name: the new values of the down projection before each run. With H what it reads and D what the run adds to the stream, the change
    of the weight is the least squares map from H to D, with damping; a row's error counts over the size of the stream behind the run."""
    tokens, seed = _text_of(calibration)
    changed: dict[str, F32] = {}
    with LLM(source.path, enable_prefix_caching=False) as llm:
        windows = own_windows(llm, tokens, seed)
        for first, behind in runs_of(layers):
            layer = source.spec.layers[first - 1]
            down = layer.mlp.down.weight
            read, added = _rows(llm, windows, down.name, first, behind)
            squares = products(read, read)
            change = solve(products(added, read), squares, DAMPING * mean_square(squares), down.name)
            changed[down.name] = turned((matrix(source, down) + change / layer.residual_scale).astype(np.float32), down)
    return changed


def _text_of(calibration: Calibration | None) -> tuple[int, int]:
    """(tokens, seed) of the model's own text. Raises InvalidParamsError: sums of a text that is not known do not do."""
    if calibration is None:
        return _TOKENS, _SEED
    made = calibration.made
    if made.get("text") != "own":
        raise InvalidParamsError(
            "calibration: repair reads the rows of a text, and this calibration has sums of a given one: make it on the model's own"
            " text, or leave it out",
            "calibration",
        )
    return int(made["tokens"]), int(made["seed"])


def _rows(llm: LLM, windows: Sequence[list[int]], name: str, first: int, behind: int) -> tuple[F32, F32]:
    """What the matrix reads [tokens, columns], and what layers [first, behind) add to the stream [tokens, hidden_size], of rows whose root
    mean square behind the layers is 1."""
    call_core(_core.gather_inputs, llm._engine, -1, name)
    added, sizes = [], []
    with progress(len(windows), "windows") as bar:
        for window in windows:
            rows = llm.hidden_states([window], layers=[first, behind])[0]
            added.append(rows[behind] - rows[first])
            sizes.append(over_columns(rows[behind].astype(np.float64) ** 2))
            bar.update(1)
    inputs = call_core(_core.gathered_inputs, llm._engine)
    difference = np.concatenate(added)
    scales = np.sqrt(difference.shape[1] / np.maximum(np.concatenate(sizes), _LEAST_SQUARES))[:, None].astype(np.float32)
    return inputs[0][4].reshape(len(difference), -1) * scales, difference * scales
