"""What a simulation gives: requests and steps as columns, and their summary."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmi.base.lazy_numpy import np
from llmi.errors import InvalidParamsError

if TYPE_CHECKING:
    import pandas
    from numpy.typing import NDArray

_PERCENTILES = (50, 90, 99)
_GROWTH, _LATE = 1.5, 0.05
_FEW = 40  # requests of which nothing is said


@dataclasses.dataclass(frozen=True)
class SimulationResult:
    """A simulated load.

    Attributes
    ----------
    requests : dict of arrays
        arrival_s, first_token_s, end_s (NaN where a request was turned away), input_tokens, output_tokens (of each of its n outputs), n,
        cached_tokens, num_preemptions, replica, prefill_replica (-1: none of its own; replica is -1, too, where it was turned away),
        transferred_bytes.
    steps : dict of arrays
        start_s, seconds, rows, decodes, prompt_tokens, kv_tokens (the lengths of its sequences after it), used_pages, replica.
    summary : dict
        Seconds of ttft, tpot and e2el at p50, p90 and p99 (None where the load is not stable, or has no such value), goodput (requests a
        second that keep `slo`; None without one), hit_share, pool_share, transferred_bytes, num_turned_away, is_stable and more.

    Examples
    --------
    >>> trace = [{"timestamp": 100 * i, "input_length": 64, "output_length": 16} for i in range(8)]
    >>> result = simulate(trace, model=llmi.testing.tiny_model(), costs=Costs(((1, 0.01), (8, 0.02))), kv_cache_memory_bytes=1 << 22)
    >>> len(result.requests["end_s"]), result.summary["is_stable"]
    (8, True)
    """

    requests: Mapping[str, NDArray[Any]]
    steps: Mapping[str, NDArray[Any]]
    summary: Mapping[str, Any]

    def to_pandas(self) -> tuple[pandas.DataFrame, pandas.DataFrame]:
        """Requests and steps, one row each."""
        import pandas

        return pandas.DataFrame(dict(self.requests)), pandas.DataFrame(dict(self.steps))

    def __str__(self) -> str:
        rows = []
        for name, value in self.summary.items():
            if isinstance(value, dict):
                text = "  ".join(f"{key} {'-' if at is None else f'{at * 1e3:,.1f} ms'}" for key, at in value.items())
            else:
                text = "-" if value is None else f"{value:,.4g}" if isinstance(value, float) else f"{value}"
            rows.append(f"{name:20} {text}")
        return "\n".join(rows)


def is_stable(arrival_s: NDArray[Any], first_token_s: NDArray[Any], end_s: NDArray[Any]) -> bool:
    """Whether waits stop growing. Not so if requests of the last quarter waited for their first token more than 1.5 times as long as those
    of the second quarter, and finishing all took more than a twentieth of the time in which they came. Of few requests, or of such that all
    come at once, nothing is said: they count as stable."""
    count = len(arrival_s)
    span = arrival_s[-1] - arrival_s[0]
    if count < _FEW or span == 0:
        return True
    waits = first_token_s - arrival_s
    quarter = count // 4
    grows = waits[-quarter:].mean() > _GROWTH * waits[quarter : 2 * quarter].mean()
    return not (grows and end_s.max() - arrival_s[-1] > _LATE * span)


def summarize(
    requests: Mapping[str, NDArray[Any]], steps: Mapping[str, NDArray[Any]], slo: Mapping[str, float] | None, pool_pages: int, hits: float
) -> dict[str, Any]:
    """See SimulationResult. slo: bounds in ms. pool_pages: of all replicas."""
    taken = requests["replica"] >= 0
    if not taken.any():
        raise InvalidParamsError("simulate: the policy turned every request away", "policy")
    arrival, first, end, outputs = (requests[name][taken] for name in ("arrival_s", "first_token_s", "end_s", "output_tokens"))
    stable = is_stable(arrival, first, end)
    several = outputs > 1
    values = {"ttft": first - arrival, "e2el": end - arrival, "tpot": np.zeros(len(arrival))}
    values["tpot"][several] = (end - first)[several] / (outputs - 1)[several]
    spread = {"ttft": values["ttft"], "tpot": values["tpot"][several], "e2el": values["e2el"]}
    duration = float(end.max() - arrival[0])
    goodput = None
    if slo is not None:
        kept = np.ones(len(arrival), bool)
        for name, bound in slo.items():
            kept &= values[name] * 1e3 <= bound
        goodput = float(kept.sum() / duration)
    busy = float(steps["seconds"].sum())
    used = float((steps["used_pages"] * steps["seconds"]).sum() / busy / pool_pages) if busy else 0.0
    return {
        "is_stable": stable,
        "num_requests": len(taken),
        "num_turned_away": int((~taken).sum()),
        "duration_s": duration,
        "requests_per_s": len(arrival) / duration,
        "output_tokens_per_s": float((outputs * requests["n"][taken]).sum()) / duration,
        **{name: _spread(found, stable) for name, found in spread.items()},
        "goodput": goodput,
        "pool_share": used,
        "most_pool_share": float(steps["used_pages"].max() / pool_pages) if len(steps["rows"]) else 0.0,
        "hit_share": hits,
        "num_preemptions": int(requests["num_preemptions"].sum()),
        "transferred_bytes": int(requests["transferred_bytes"].sum()),
    }


def _spread(values: NDArray[Any], stable: bool) -> dict[str, float | None]:
    known = len(values) > 0
    return {
        f"p{percent}": float(np.percentile(values, percent)) if known and (stable or percent != _PERCENTILES[-1]) else None
        for percent in _PERCENTILES
    }
