"""From exchanges to numbers, under the field names of `vllm bench serve`'s JSON."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from llmi.base.lazy_numpy import np
from llmi.loadtest.loop import Exchange
from llmi.loadtest.settings import LoadSettings

PERCENTILES = (50, 90, 95, 99)


def latencies(exchange: Exchange) -> dict[str, float]:
    """Seconds: ttft and e2el from the intended time; tpot (2 streamed tokens or more) is the rest of the answer over its tokens after the
    first."""
    answer = exchange.answer
    first, last = answer.token_times[0], answer.token_times[-1]
    values = {"ttft": first - exchange.intended_s, "e2el": last - exchange.intended_s}
    if answer.output_tokens > 1 and answer.is_streamed:
        values["tpot"] = (last - first) / (answer.output_tokens - 1)
    return values


def gaps(exchange: Exchange) -> list[float]:
    """Seconds between events that brought text."""
    times = exchange.answer.token_times
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def has_ended_well(exchange: Exchange) -> bool:
    """Whether the whole answer came. One without any text is a failure too: it has no first token."""
    if exchange.answer.failure is None and not exchange.answer.token_times:
        exchange.answer.failure = "empty answer: no event brought text"
    return exchange.answer.failure is None


def _spread(name: str, values: list[float]) -> dict[str, float | None]:
    """Mean, median, standard deviation and percentiles in ms; None where there is no value."""
    made = np.asarray(values, dtype=np.float64) * 1e3
    keys = [f"mean_{name}_ms", f"median_{name}_ms", f"std_{name}_ms", *(f"p{percent}_{name}_ms" for percent in PERCENTILES)]
    if not len(made):
        return dict.fromkeys(keys)
    numbers = [made.mean(), np.median(made), made.std(), *np.percentile(made, PERCENTILES)]
    return dict(zip(keys, map(float, numbers), strict=True))


def _keeps(exchange: Exchange, values: dict[str, float], bounds: dict[str, float]) -> bool:
    """Whether an answer keeps all bounds, in ms. One token has no tpot and keeps any; tokens that came in one have none that is known."""
    if "tpot" in bounds and "tpot" not in values and exchange.answer.output_tokens > 1:
        return False
    return all(values.get(slo, 0.0) * 1e3 <= bound for slo, bound in bounds.items())


def _most_per_second(exchanges: list[Exchange], start_s: float) -> float:
    """The most tokens within one whole second of the run; those of an answer are spread evenly over its events."""
    seconds: dict[int, float] = {}
    for answer in (exchange.answer for exchange in exchanges):
        for when in answer.token_times:
            second = int(when - start_s)
            seconds[second] = seconds.get(second, 0.0) + answer.output_tokens / len(answer.token_times)
    return max(seconds.values(), default=0.0)


def summarize(settings: LoadSettings, exchanges: list[Exchange], start_s: float) -> dict[str, Any]:
    """Throughput, latencies and failures of one run. Any: JSON values.

    `duration` goes from the start to the last byte that came. Failed requests count in `failed` and `failures`, not in latencies; a bound
    of `goodput` is kept by a request only if it ended well. The values of single requests are in the order of the requests, as vLLM's are.
    """
    good = [exchange for exchange in exchanges if has_ended_well(exchange)]
    ends = [exchange.answer.end_s for exchange in exchanges if exchange.answer.end_s]
    duration = max(ends, default=start_s) - start_s
    measured = [latencies(exchange) for exchange in good]
    num_output = sum(exchange.answer.output_tokens for exchange in good)
    num_input = sum(exchange.answer.prompt_tokens for exchange in good)
    kept = [_keeps(exchange, values, settings.bounds) for exchange, values in zip(good, measured, strict=True)]

    def per_second(count: float) -> float:
        return count / duration if duration > 0 else 0.0

    result: dict[str, Any] = {
        "duration": duration, "completed": len(good), "failed": len(exchanges) - len(good),
        "total_input_tokens": num_input, "total_output_tokens": num_output,
        "request_throughput": per_second(len(good)), "request_goodput": per_second(sum(kept)) if settings.bounds else None,
        "output_throughput": per_second(num_output), "total_token_throughput": per_second(num_input + num_output),
        "max_output_tokens_per_s": _most_per_second(good, start_s),
        "good_share": sum(kept) / len(exchanges) if settings.bounds else None, "goodput_bounds_ms": dict(settings.bounds),
        "failures": dict(Counter((exchange.answer.failure or "").split(":")[0] for exchange in exchanges if exchange.answer.failure)),
    }  # fmt: skip
    for name in ("ttft", "tpot", "e2el"):
        result |= _spread(name, [values[name] for values in measured if name in values])
    return result | _spread("itl", [gap for exchange in good for gap in gaps(exchange)]) | _each(exchanges, start_s)


def _each(exchanges: list[Exchange], start_s: float) -> dict[str, Any]:
    """Lists with one entry a request. A failed one has length and times 0."""
    measured = [latencies(exchange) if exchange.answer.failure is None else {} for exchange in exchanges]
    return {
        "input_lens": [exchange.answer.prompt_tokens for exchange in exchanges],
        "output_lens": [exchange.answer.output_tokens if exchange.answer.failure is None else 0 for exchange in exchanges],
        "ttfts": [values.get("ttft", 0.0) for values in measured],
        "itls": [gaps(exchange) if exchange.answer.failure is None else [] for exchange in exchanges],
        "e2els": [values.get("e2el", 0.0) for values in measured],
        "start_times": [exchange.intended_s - start_s for exchange in exchanges],
        "generated_texts": [exchange.answer.text for exchange in exchanges],
        "errors": [exchange.answer.failure or "" for exchange in exchanges],
    }


def lateness(exchanges: list[Exchange]) -> dict[str, float | None]:
    """How long after its intended time each request had left: what waits in the client, in ms."""
    late = [exchange.sent_s - exchange.intended_s for exchange in exchanges if exchange.sent_s is not None and exchange.attempts == 1]
    return _spread("send_delay", late)


def equal_share(alone: list[Exchange], loaded: list[Exchange]) -> dict[str, Any]:
    """How many answers under load are, letter for letter, the answers of a server that did nothing else. Any: JSON values."""
    pairs = [
        (solo.answer, busy.answer) for solo, busy in zip(alone, loaded, strict=False) if not solo.answer.failure and not busy.answer.failure
    ]
    same = [solo.text == busy.text and solo.finish_reason == busy.finish_reason for solo, busy in pairs]
    differing = [index for index, equal in enumerate(same) if not equal]
    return {
        "compared": len(pairs),
        "equal": sum(same),
        "equal_share": sum(same) / len(pairs) if pairs else None,
        "differing": differing[:20],
    }
