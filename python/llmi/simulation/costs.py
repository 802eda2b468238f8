"""What a step takes: measured on this machine, read from a file, or a formula."""

from __future__ import annotations

import bisect
import dataclasses
import json
import math
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmi.base.kinds import Real, Whole, parse
from llmi.errors import InvalidParamsError
from llmi.llm import LLM
from llmi.params.sampling import SamplingParams
from llmi.ranks.forecast import LINKS, Link

_FORMAT = "llmi-costs-1"
_PROMPTS = (64, 256, 1024)  # rows of the prompts that are measured
_DECODES = 24  # tokens of the decodes that are measured
_ROUNDS = 3
_MOST_POINTS = 4096
_MOST_SECONDS = 1e9


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds of a step = those of its rows, by `points`, + `kv_s` for each token of K and V that its sequences have after it
    (+ `logits_s` for each row of logits, + `draft_s` for each token of a draft).

    Parameters
    ----------
    points : sequence of (int, float)
        Rows and seconds, rows ascending; linear between two points and beyond the last two. A point below its left neighbour counts as that
        one: more rows never take less.
    kv_s : float
    link_bytes_s : float, optional
        Bytes a second from a replica that computes prompts to others; needed with prefill_replicas.
    note : str
        Of what and where it was measured.
    draft_tokens : int
        Tokens of the draft that each decode verifies.
    draft_acceptance : float
        The share of drafted tokens that are accepted, of those before which all were.
    draft_s, logits_s : float
    rank_link : str or (float, float), optional
        What carries the gathers of several ranks; needed with tensor_parallel_size: "shm", "10GbE", "100GbE" or "nvlink", as
        `llmi inspect --link` has them, or seconds of an exchange and bytes a second.

    Raises
    ------
    InvalidParamsError

    Examples
    --------
    >>> costs = Costs(((1, 0.010), (8, 0.020)), kv_s=1e-7)
    >>> costs.points
    ((1, 0.01), (8, 0.02))
    """

    points: tuple[tuple[int, float], ...]
    kv_s: float = 0.0
    note: str = ""
    link_bytes_s: float | None = None
    draft_tokens: int = 0
    draft_acceptance: float = 0.0
    draft_s: float = 0.0
    logits_s: float = 0.0
    rank_link: str | tuple[float, float] | None = None

    def __post_init__(self) -> None:
        points = tuple((rows, seconds) for rows, seconds in self.points)
        if not 1 <= len(points) <= _MOST_POINTS:
            raise _bad(f"needs from 1 to {_MOST_POINTS:,} points (rows, seconds), not {len(points):,}")
        last = 0
        for rows, seconds in points:
            if type(rows) is not int or not last < rows < 2**31:
                raise _bad(f"rows are whole numbers that ascend, and {rows!r} follows {last}")
            _check_seconds("a point", seconds, positive=True)
            last = rows
        for name in ("kv_s", "draft_s", "logits_s"):
            _check_seconds(name, getattr(self, name), positive=False)
            object.__setattr__(self, name, float(getattr(self, name)))
        parse(Whole(0, 64), "costs: draft_tokens", self.draft_tokens)
        parse(Real(0, 1, "a share from 0 to 1"), "costs: draft_acceptance", self.draft_acceptance)
        link_of(self.rank_link)
        if self.link_bytes_s is not None:
            parse(Real(0, 1e18, "bytes a second above 0", open_low=True), "costs: link_bytes_s", self.link_bytes_s)
        object.__setattr__(self, "points", tuple((rows, float(seconds)) for rows, seconds in points))

    def seconds(self, rows: int, kv_tokens: int = 0) -> float:
        """Of a step."""
        last = self.points[-1]
        at = bisect.bisect_left(self.points, (rows, 0.0))
        if len(self.points) == 1 or at == 0:
            return self.points[0][1] + self.kv_s * kv_tokens
        (low, low_s), (high, high_s) = self.points[at - 1 : at + 1] if rows <= last[0] else self.points[-2:]
        return low_s + max(0.0, high_s - low_s) / (high - low) * (rows - low) + self.kv_s * kv_tokens

    @classmethod
    def formula(cls, base_s: float, row_s: float, kv_s: float = 0.0, link_bytes_s: float | None = None) -> Costs:
        """base_s + row_s x rows + kv_s x tokens of K and V."""
        _check_seconds("base_s", base_s, positive=False)
        _check_seconds("row_s", row_s, positive=False)
        note = f"{base_s:g} + {row_s:g} rows + {kv_s:g} kv"
        return cls(((1, base_s + row_s), (2, base_s + 2 * row_s)), kv_s, note, link_bytes_s)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Costs:
        """From a file that `save` or `llmi bench --costs` wrote, or that holds base_s, row_s and kv_s."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _bad(f"{os.fspath(path)} cannot be read ({error}), and it is none of {', '.join(_published())}") from None
        return cls.of(found)

    @classmethod
    def of(cls, given: object) -> Costs:
        """Costs, the name of shipped ones (docs/simulator.md), a path, or a mapping as a file holds it."""
        if isinstance(given, Costs):
            return given
        if isinstance(given, str) and given in (published := _published()):
            return cls(
                tuple((rows, seconds) for rows, seconds in published[given]["points"]), published[given]["kv_s"], published[given]["note"]
            )
        if isinstance(given, str | os.PathLike):
            return cls.load(given)
        if not isinstance(given, Mapping):
            raise _bad(f"is Costs, a file or a mapping, not {type(given).__name__}")
        names = set(given)
        if names <= {"base_s", "row_s", *_FIELDS} and {"base_s", "row_s"} <= names:
            formula = cls.formula(given["base_s"], given["row_s"], given.get("kv_s", 0.0))
            return dataclasses.replace(formula, **{name: given[name] for name in _FIELDS if name in given})
        if given.get("format") != _FORMAT or names - {"format", "points", "note", *_FIELDS} or not isinstance(given.get("points"), list):
            raise _bad(
                f"holds base_s, row_s and kv_s, or format {_FORMAT!r} with points and kv_s; it has {', '.join(map(str, names))[:80]}"
            )
        if not all(isinstance(point, list) and len(point) == 2 for point in given["points"]):
            raise _bad("points are pairs [rows, seconds]")
        points = tuple((rows, seconds) for rows, seconds in given["points"])
        return cls(points, note=str(given.get("note", "")), **{name: given[name] for name in _FIELDS if name in given})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes JSON."""
        fields = {"format": _FORMAT, **dataclasses.asdict(self)}
        text = json.dumps({name: value for name, value in fields.items() if value is not None and value != 0})
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise _bad(f"{os.fspath(path)} cannot be written: {error.strerror}") from None


_FIELDS = tuple(field.name for field in dataclasses.fields(Costs) if field.name not in ("points", "note"))


def _published() -> dict[str, dict[str, Any]]:
    """Fits of published tables by name; benchmarks/published.py wrote them."""
    return dict(json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8")))


def _bad(why: str) -> InvalidParamsError:
    return InvalidParamsError(f"costs: {why}", "costs")


def link_of(given: object) -> Link | None:
    """What carries gathers. Raises InvalidParamsError."""
    if given is None:
        return None
    if isinstance(given, str) and given in LINKS:
        return LINKS[given]
    if isinstance(given, list | tuple) and len(given) == 2:
        latency_s, bytes_s = given
        _check_seconds("rank_link", latency_s, positive=True)
        parse(Real(0, 1e18, "bytes a second above 0", open_low=True), "costs: rank_link", bytes_s)
        return Link("rank_link", latency_s, bytes_s)
    raise _bad(f"rank_link is one of {', '.join(LINKS)}, or (seconds of an exchange, bytes a second), not {given!r:.60}")


def _check_seconds(name: str, value: object, *, positive: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_SECONDS or (positive and value == 0):
        raise _bad(f"{name}: {value!r} are no seconds; a number {'above 0' if positive else 'of 0 or more'} is")


def measure_costs(llm: LLM) -> Costs:
    """Measures a model on this machine, in a few seconds: steps of few rows, prompts, and decodes behind a long context.

    Nothing else should run. The prefix cache may be on: each prompt is new.
    """
    source = random.Random(0)
    params = SamplingParams(temperature=0, ignore_eos=True, detokenize=False)
    info = llm.model_info
    most = min(info.max_model_len - _DECODES - 2, llm._engine_args.max_num_batched_tokens)

    def seconds(num_tokens: int, max_tokens: int) -> float:
        best = math.inf
        for _ in range(_ROUNDS):
            prompt = [source.randrange(info.vocab_size) for _ in range(num_tokens)]
            start = time.perf_counter()
            llm.generate([prompt], params.replace(max_tokens=max_tokens), use_tqdm=False)
            best = min(best, time.perf_counter() - start)
        return best

    curve = llm.cost_curve()
    if not curve:
        raise _bad("the KV cache has no room for a measurement; give more kv_cache_memory_bytes")
    long, short = max(1, min(_PROMPTS[-1], most)), 1
    kv_s = 0.0
    if long > short:
        steps = (seconds(long, _DECODES + 1) - seconds(long, 1)) - (seconds(short, _DECODES + 1) - seconds(short, 1))
        kv_s = max(0.0, steps / _DECODES / (long - short))
    points = {rows: at - kv_s * rows for rows, at in curve.items()}
    points |= {rows: seconds(rows, 1) - kv_s * rows for rows in _PROMPTS if max(curve) < rows <= most}
    rising, last = [], 1e-9
    for rows, at in sorted(points.items()):
        last = max(last, at)
        rising.append((rows, last))
    return Costs(tuple(rising), kv_s, f"{Path(info.path).name}, {info.numerics_id}, {llm._num_threads} threads")
