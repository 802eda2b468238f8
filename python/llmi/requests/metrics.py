"""Times of finished requests in aggregate."""

from __future__ import annotations

import collections
import threading
from typing import TYPE_CHECKING

from llmi.outputs.completion import RequestMetrics

if TYPE_CHECKING:
    import numpy as np
else:
    from llmi.base.lazy_numpy import np

_KEPT = 10_000  # most recent requests
#: The times of a request that have one value each: names of RequestMetrics' fields, and keys of LLM.get_metrics().
TIMES = (
    "template_time_s", "tokenizer_time_s", "queue_time_s", "prefill_time_s", "decode_time_s", "detokenize_time_s", "constraint_time_s",
    "time_to_first_token_s", "time_per_output_token_s", "e2e_latency_s",
)  # fmt: skip


class MetricsLog:
    """Metrics of the most recent requests; thread-safe."""

    def __init__(self) -> None:
        self._requests: collections.deque[RequestMetrics] = collections.deque(maxlen=_KEPT)
        self._lock = threading.Lock()

    def add(self, metrics: RequestMetrics) -> None:
        """A request has finished."""
        with self._lock:
            self._requests.append(metrics)

    def summary(self) -> dict[str, dict[str, float]]:
        """p50, p90, p99 and mean of each of TIMES, and of the inter-token latency (all gaps), in seconds."""
        with self._lock:
            requests = list(self._requests)
        gaps = [request.inter_token_latencies_s for request in requests]
        series = {name: np.asarray([getattr(request, name) for request in requests], np.float64) for name in TIMES}
        series["inter_token_latency_s"] = np.concatenate([np.zeros(0), *gaps])
        return {name: _percentiles(values) for name, values in series.items()}


def _percentiles(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> dict[str, float]:
    values = values[np.isfinite(values)]
    if not len(values):
        return {"count": 0}
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return {"count": len(values), "mean": float(values.mean()), "p50": float(p50), "p90": float(p90), "p99": float(p99)}
