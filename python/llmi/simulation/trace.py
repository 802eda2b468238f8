"""The requests of a trace as token ids that nobody computes: equal blocks are equal ids, all else differs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi.base.lazy_numpy import np
from llmi.errors import InvalidParamsError
from llmi.loadtest.workload import HASH_BLOCK, checked_trace, trace_lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KEYS = {"timestamp", "input_length", "output_length", "hash_ids", "n"}


@dataclasses.dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request: seconds after the first one, tokens of its prompt, the hash ids of its first blocks, tokens of each of its
    `num_samples` outputs, what its other tokens are made of, and its line."""

    arrival_s: float
    num_prompt: int
    blocks: tuple[int, ...]
    num_output: int
    num_samples: int
    number: int
    seed: int
    where: str

    @property
    def tokens(self) -> NDArray[Any]:
        """The prompt, int32; made anew, since a long trace would not fit into memory."""
        parts = [_mixed(block, HASH_BLOCK, 1) for block in self.blocks]
        rest = self.num_prompt - HASH_BLOCK * len(self.blocks)
        if rest > 0:
            parts.append(_mixed(self.number + (self.seed << 32), rest, 2))
        tokens: NDArray[Any] = np.concatenate(parts)[: self.num_prompt]
        return tokens


def traced_requests(trace: object, seed: int) -> list[TracedRequest]:
    """Those of a file as `llmi bench serve --trace` reads it, or of dicts with the same fields. Refuses a line by its number."""
    if isinstance(trace, str | Path):
        lines = trace_lines(Path(trace))
    elif isinstance(trace, Iterable) and not isinstance(trace, Mapping | bytes):
        lines = _numbered(trace)
    else:
        raise InvalidParamsError(f"trace is a file or a list of dicts, not {type(trace).__name__}", "trace")
    found = []
    for number, (time_s, entry, where) in enumerate(checked_trace(lines)):
        if "prompt" in entry:
            raise InvalidParamsError(f"{where}: a simulation takes input_length, not prompt: it has no tokenizer", "trace")
        lengths = entry["input_length"], tuple(entry.get("hash_ids", ())), entry["output_length"], entry.get("n", 1)
        found.append(TracedRequest(time_s, *lengths, number, seed, where))
    if not found:
        raise InvalidParamsError("trace has no request", "trace")
    return [dataclasses.replace(request, arrival_s=request.arrival_s - found[0].arrival_s) for request in found]


def _numbered(trace: Iterable[object]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, entry in zip(itertools.count(), trace, strict=False):
        if not isinstance(entry, dict) or set(entry) - _KEYS:
            raise InvalidParamsError(f"trace[{number}] must be a dict with some of {', '.join(sorted(_KEYS))}, not {entry!r:.80}", "trace")
        yield f"trace[{number}]", entry


def _mixed(name: int, count: int, kind: int) -> NDArray[Any]:
    """Ids below 2^30 that are a function of the name, its kind and their places (SplitMix64)."""
    first = np.uint64((name * 0x9E3779B97F4A7C15 + kind * 0xD1B54A32D192ED03) & (2**64 - 1))
    x = first + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[Any] = ((x ^ (x >> np.uint64(31))) >> np.uint64(34)).astype(np.int32)
    return mixed
