"""When requests are meant to be sent. The times are fixed before the run, by the seed alone."""

from __future__ import annotations

import random

from llmi.loadtest.settings import LoadSettings


def arrival_times(settings: LoadSettings, num_requests: int) -> list[float]:
    """Seconds after the start, not decreasing, the first one 0.

    Gaps are drawn from a gamma distribution of shape `burstiness` and mean `burst / request_rate`; shape 1 is a Poisson process. With a
    burst of B, B requests share one time. Without a rate all times are 0.
    """
    if settings.request_rate == float("inf"):
        return [0.0] * num_requests
    draw = random.Random(f"arrivals {settings.seed}")
    mean_gap = settings.burst / settings.request_rate
    times: list[float] = []
    now = 0.0
    while len(times) < num_requests:
        times += [now] * min(settings.burst, num_requests - len(times))
        now += draw.gammavariate(settings.burstiness, mean_gap / settings.burstiness)
    return times
