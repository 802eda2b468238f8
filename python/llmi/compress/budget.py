"""Types for a number of bytes: what each matrix costs alone, and where a byte more wins most."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from llmi.base.progress import progress
from llmi.compress.blocks import BLOCK_TYPES, row_sum
from llmi.compress.calibration import Calibration
from llmi.compress.chosen_types import Settings
from llmi.compress.evaluation import Judged, divergence
from llmi.compress.gguf_file import StoredTensor, num_bytes, write_gguf
from llmi.compress.grids import GRIDS, rounded
from llmi.compress.made_files import FLOATS, Report, Source, float_bytes
from llmi.compress.mixtures import MIXTURES, of_mixture
from llmi.compress.own_text import own_text
from llmi.compress.rewriting import float_tensor
from llmi.compress.rounding import column_weights
from llmi.errors import InvalidParamsError
from llmi.llm import LLM

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np

_TYPES = ("Q3_K", "IQ4_NL", "Q4_K", "Q4_1", "Q5_0", "Q5_K", "Q6_K", "Q8_0")
_WINDOW, _WINDOWS = 256, 10  # of the model's own text: the first of its chats and of its raw text measure, the others judge
_SEED = 1  # calibrations have 0
_EVERY_ROW = 4  # tells how errors of types compare
_PER_TENSOR = 128  # bytes of a file for each tensor: its rule in the receipt, alignment
_RECEIPT = 4096  # bytes of the rest of the receipt


@dataclasses.dataclass(frozen=True)
class Option:
    """A type for a matrix: the bytes that it takes, the KL that it costs alone."""

    type: str
    bytes: int
    cost: float


class Writes(Protocol):
    """Writes a file by settings."""

    def __call__(self, source: Source, target: Path, settings: Settings, calibration: Calibration | None) -> Report: ...


class Bench:
    """The model in floats, with one matrix rounded at a time, on a text that it wrote.

    Attributes
    ----------
    path : Path
        The model in floats.
    judging : list of list of int
        Windows that did not measure.
    """

    def __init__(self, source: Source, names: Sequence[str], folder: Path) -> None:
        self.path = folder / "floats.gguf"
        tensors = []
        for tensor in source.gguf.tensors:
            kind = tensor.type if tensor.type in FLOATS.values() else FLOATS["F16"]
            made = float_tensor(tensor.name, tensor.shape, kind, partial(source.values, tensor.name))
            tensors.append(made if tensor.name in names else source.copied(tensor.name))
        try:
            write_gguf(self.path, source.gguf.entries, tensors, lambda: None)
        except OSError as error:
            raise InvalidParamsError(f"budget: {self.path} cannot be written: {error.strerror}", "budget_bytes") from None
        self._floats = Source(self.path)
        self._base = Judged(LLM(self.path, enable_prefix_caching=False), _WINDOW, _WINDOW // 2)
        try:
            texts = own_text(self._base.llm, _SEED, _WINDOW * _WINDOWS)
            windows = [[text[start : start + _WINDOW] for start in range(0, len(text) - _WINDOW + 1, _WINDOW)] for text in texts]
            self._measuring = [of_text[0] for of_text in windows if of_text]
            self.judging = [window for of_text in windows for window in of_text[1:]]
            for window in self._measuring + self.judging:
                self._base.rows(window)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets go of the model."""
        self._base.llm.close()

    def cost(self, name: str, values: F32) -> float:
        """The KL of the model with this tensor instead."""
        tensor = self._floats.tensors[name]
        kept = self._floats.gguf.bytes_of(tensor)
        changed = self.path.with_name("changed.gguf")
        if not changed.exists():
            changed.write_bytes(self.path.read_bytes())
        with _patched(changed, tensor.offset, float_bytes(values, tensor.type, name, "budget_bytes"), kept):
            return divergence(changed, self._base, self._measuring)

    def judge(self, path: Path) -> float:
        """The KL of a file on the text that did not measure."""
        return divergence(path, self._base, self.judging)


@contextlib.contextmanager
def _patched(path: Path, offset: int, data: bytes, kept: bytes) -> Iterator[None]:
    """These bytes of a file for as long as it is read."""
    number = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(number, data, offset)
        yield
    finally:
        os.pwrite(number, kept, offset)
        os.close(number)


def write_within(source: Source, target: Path, settings: Settings, calibration: Calibration | None, writes: Writes) -> Report:
    """Writes a file of at most `settings.budget_bytes`: types chosen matrix by matrix, or the largest mixture that fits where that is
    better. Raises InvalidParamsError: nothing fits."""
    budget, method = settings.budget_bytes, settings.method
    assert budget is not None
    fixed, _ = settings.types(source, calibration is not None)
    mixed = of_mixture("Q4_K_M", source.gguf.tensors, source.spec, calibration is not None)
    free = [name for name in mixed if name not in fixed and kinds_of(source.tensors[name], method)]
    room = room_for(source, [*free, *fixed], budget)
    options = {name: [_sized(source.tensors[name], kind)] for name, kind in fixed.items()}
    smallest = {name: [_sized(source.tensors[name], kinds_of(source.tensors[name], method)[0])] for name in free}
    assign({**options, **smallest}, room)  # raises before minutes pass
    with _opened(source, free, target.parent) as bench:
        with progress(len(free), "matrices") as bar:
            for name in free:
                options[name] = _options(source, source.tensors[name], method, bench, calibration)
                bar.update(1)
        chosen = dataclasses.replace(settings, tensors=sorted(assign(options, room).items()))
        report = writes(source, bench.path.with_name("chosen.gguf"), chosen, calibration)
        remark = f"KL {(cost := bench.judge(Path(report.path))):.5f} on text that did not measure"
        if (plain := _largest_mixture(source, settings, [*free, *fixed], room, calibration)) is not None:
            other = writes(source, bench.path.with_name("plain.gguf"), plain, calibration)
            plain_cost = bench.judge(Path(other.path))
            remark += f"; {plain.like}, {other.bytes / 1e6:,.1f} MB: {plain_cost:.5f}"
            if plain_cost <= cost:
                report, remark = other, f"{remark}, which is not worse and was taken"
        try:
            Path(report.path).rename(target)
        except OSError as error:
            raise InvalidParamsError(f"out: {target} cannot be written: {error.strerror}", "out") from None
    report.path = str(target)
    report.remarks["types by budget"] = remark
    return report


def _largest_mixture(
    source: Source, settings: Settings, names: Sequence[str], room: int, calibration: Calibration | None
) -> Settings | None:
    """The one of the most bytes that fit. absmax has a rule for few types, and so for few mixtures."""
    best: tuple[int, Settings] | None = None
    for mixture in MIXTURES:
        plain = dataclasses.replace(settings, like=mixture)
        types, _ = plain.types(source, calibration is not None)
        sizes = [_sized(source.tensors[name], types[name]).bytes if name in types else source.tensors[name].num_bytes for name in names]
        fits = sum(sizes) <= room and set(types) <= set(names)
        if settings.method == "absmax":
            fits &= all(kind in BLOCK_TYPES or kind in FLOATS for kind in types.values())
        if fits and (best is None or sum(sizes) > best[0]):
            best = sum(sizes), plain
    return None if best is None else best[1]


def _sized(tensor: StoredTensor, kind: str) -> Option:
    """A type whose cost is not asked."""
    return Option(kind, num_bytes(tensor.shape, GRIDS[kind].number if kind in GRIDS else FLOATS.get(kind, FLOATS["F32"])), 0.0)


def kinds_of(tensor: StoredTensor, method: str) -> list[str]:
    """Types that a matrix may have, the fewest bytes first."""
    kinds = BLOCK_TYPES if method == "absmax" else _TYPES
    return sorted((kind for kind in kinds if tensor.shape[0] % GRIDS[kind].columns == 0), key=lambda kind: _bits(kind))


def _bits(kind: str) -> float:
    return GRIDS[kind].block_bytes / GRIDS[kind].columns


def _options(source: Source, tensor: StoredTensor, method: str, bench: Bench, calibration: Calibration | None) -> list[Option]:
    """The measured KL of the smallest type; of the others that KL by their squared errors over its one."""
    kinds = kinds_of(tensor, method)
    values = source.values(tensor.name)
    matrix = values.reshape(-1, tensor.shape[0])
    weights = column_weights(calibration, tensor.name, tensor.shape[0])
    some = np.ascontiguousarray(matrix[::_EVERY_ROW])
    errors = {kind: _error(rounded(GRIDS[kind], some, weights) - some, weights) for kind in kinds}
    cost = bench.cost(tensor.name, rounded(GRIDS[kinds[0]], matrix, weights).reshape(values.shape))
    scale = cost / errors[kinds[0]] if errors[kinds[0]] else 0.0
    return hull([Option(kind, num_bytes(tensor.shape, GRIDS[kind].number), scale * errors[kind]) for kind in kinds])


def _error(gap: F32, weights: F32) -> float:
    return math.fsum(row_sum((gap.astype(np.float64) ** 2 * weights).reshape(-1, 32)).ravel().tolist())


def hull(options: Sequence[Option]) -> list[Option]:
    """Those of which each byte more wins less than the one before: the lower convex hull, the fewest bytes first."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda each: (each.bytes, each.cost)):
        if kept and option.cost >= kept[-1].cost:
            continue
        while len(kept) > 1 and _gain(kept[-2], kept[-1]) <= _gain(kept[-2], option):
            kept.pop()
        kept.append(option)
    return kept


def _gain(smaller: Option, larger: Option) -> float:
    """KL that a byte wins."""
    return (smaller.cost - larger.cost) / max(larger.bytes - smaller.bytes, 1)


def assign(options: Mapping[str, Sequence[Option]], room: int) -> dict[str, str]:
    """The type of each matrix, by name, so that all fit into `room` bytes. All begin with the smallest type; the step to a larger one that
    lowers the cost most per byte is taken as long as it fits.

    Raises InvalidParamsError: the smallest do not fit.
    """
    left = room - sum(of_one[0].bytes for of_one in options.values())
    if left < 0:
        raise InvalidParamsError(
            f"budget_bytes: the matrices alone take {room - left:,} bytes in their smallest types, {-left:,} more than the"
            f" {room:,} that are left for them",
            "budget_bytes",
        )
    steps = [
        (-_gain(smaller, larger), place, larger.bytes - smaller.bytes, name, larger.type)
        for place, (name, of_one) in enumerate(options.items())
        for smaller, larger in itertools.pairwise(of_one)
    ]
    types = {name: of_one[0].type for name, of_one in options.items()}
    full: set[str] = set()  # a matrix whose next step did not fit takes none behind it
    for _, _, size, name, kind in sorted(steps, key=lambda step: (step[0], step[1], step[2])):
        if name in full:
            continue
        if size > left:
            full.add(name)
            continue
        left -= size
        types[name] = kind
    return types


def room_for(source: Source, names: Sequence[str], budget: int) -> int:
    """Bytes for these matrices in a file of the budget. Raises InvalidParamsError: there is none."""
    chosen = set(names)
    others = source.gguf.path.stat().st_size - sum(tensor.num_bytes for tensor in source.gguf.tensors if tensor.name in chosen)
    room = budget - others - _RECEIPT - _PER_TENSOR * len(source.gguf.tensors)
    if room <= 0:
        raise InvalidParamsError(
            f"budget_bytes: {budget:,} bytes, and what is not quantised (metadata, tokenizer, norms) takes {budget - room:,}",
            "budget_bytes",
        )
    return room


@contextlib.contextmanager
def _opened(source: Source, names: Sequence[str], folder: Path) -> Iterator[Bench]:
    """A bench, closed at the end."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".llmi-") as inside:
        bench = Bench(source, names, Path(inside))
        try:
            yield bench
        finally:
            bench.close()
