"""A load test from settings to report."""

from __future__ import annotations

import dataclasses
import datetime
import http.client
import json
import math
import os
import time
from collections.abc import Callable
from typing import Any

from llmi.errors import LlmiError
from llmi.loadtest.fetch import UnboundedError, fetch
from llmi.loadtest.loop import LoadLoop
from llmi.loadtest.measures import equal_share, lateness, summarize
from llmi.loadtest.settings import LoadSettings
from llmi.loadtest.workload import load_requests


class LoadTestError(LlmiError, RuntimeError):
    """The server of a load test cannot be used at all."""


@dataclasses.dataclass
class LoadReport:
    """What a load test found. `values` is JSON with vLLM's field names; llmi's own additions are in `values["client"]` and
    `values["equality"]`."""

    # Any: JSON values.
    values: dict[str, Any]

    @property
    def bounds_text(self) -> str:
        """What a request must keep to be good."""
        bounds = self.values["goodput_bounds_ms"]
        return ", ".join(f"{name} <= {bound:g} ms" for name, bound in bounds.items()) if bounds else "no bounds for goodput"

    def __str__(self) -> str:
        values, client = self.values, self.values["client"]
        lines = [
            f"{values['completed']} of {values['num_prompts']} requests answered in {values['duration']:.2f} s by {values['model_id']}",
            f"{'requests/s':<16}{values['request_throughput']:>12,.2f}",
            f"{'output tok/s':<16}{values['output_throughput']:>12,.1f}",
            f"{'total tok/s':<16}{values['total_token_throughput']:>12,.1f}",
        ]
        if values["request_goodput"] is not None:
            good = f"{values['good_share']:.1%} of all have {self.bounds_text}"
            lines.append(f"{'goodput req/s':<16}{values['request_goodput']:>12,.2f}  ({good})")
        lines += ["", f"{'ms':<16}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}"]
        for name, shown in (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2E")):
            numbers = [values[f"{key}_{name}_ms"] for key in ("mean", "median", "p90", "p99")]
            lines.append(f"{shown:<16}" + "".join(f"{'-' if number is None else format(number, ',.2f'):>10}" for number in numbers))
        delay = client["p99_send_delay_ms"]
        lines += ["", f"the client: {client['cpu_share']:.1%} of a core, {client['cpu_us_per_token']:.0f} us a token"]
        lines[-1] += "" if delay is None else f"; requests left {delay:.2f} ms after their time (p99)"
        if values.get("equality"):
            equality = values["equality"]
            lines.append(f"equal to the answers of an idle server: {equality['equal']} of {equality['compared']}")
        lines += [f"failed: {count} x {kind}" for kind, count in values["failures"].items()]
        return "\n".join(lines)


def served_model(settings: LoadSettings) -> str:
    """The first model of /v1/models. Raises LoadTestError."""
    headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
    try:
        answer = fetch(settings.address, min(settings.timeout_s, 30), "GET", "/v1/models", headers=headers)
        if answer.status != 200:
            raise LoadTestError(
                f"{settings.url}/v1/models answers {answer.status}: {answer.data[:120].decode('utf-8', 'replace')}; give --model and a key"
            )
        return str(json.loads(answer.data)["data"][0]["id"])
    except (OSError, http.client.HTTPException, UnboundedError) as error:
        raise LoadTestError(f"{settings.url} does not answer ({error}): is the server running?") from None
    except (ValueError, KeyError, IndexError, TypeError):
        raise LoadTestError(f"{settings.url}/v1/models names no model: give --model") from None


def run_load(settings: LoadSettings, say: Callable[[str], None] = lambda _: None) -> LoadReport:
    """Measures a server.

    Parameters
    ----------
    settings : LoadSettings
    say : callable
        Gets a line when a part begins.

    Returns
    -------
    LoadReport

    Raises
    ------
    InvalidParamsError
        A file of requests cannot be used.
    LoadTestError
        The server does not answer, or no request was answered.

    Examples
    --------
    >>> report = run_load(LoadSettings("http://127.0.0.1:8000", num_prompts=32, max_concurrency=8))  # doctest: +SKIP
    >>> report.values["p99_ttft_ms"]  # doctest: +SKIP
    """
    model = settings.model if settings.model is not None else served_model(settings)
    requests = load_requests(settings, model)
    alone = []
    if settings.check:
        say(f"{min(settings.check, len(requests))} requests alone, to compare answers with")
        alone = LoadLoop(settings, 1, True).run([dataclasses.replace(request, time_s=0.0) for request in requests[: settings.check]])
    say(f"{len(requests)} requests")
    loop = LoadLoop(settings, settings.max_concurrency, settings.is_closed)
    cpu_s = time.process_time()
    began_s = time.perf_counter()
    exchanges = loop.run(requests)
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    values = summarize(settings, exchanges, loop.start_s)
    if not values["completed"]:
        first = next((error for error in values["errors"] if error), "no answer")
        raise LoadTestError(f"none of {len(requests)} requests was answered; the first one: {first}")
    head = {
        "date": datetime.datetime.now().strftime("%Y%m%d-%H%M%S"), "backend": "openai-chat" if settings.endpoint == "chat" else "openai",
        "endpoint_type": settings.endpoint, "model_id": model, "num_prompts": len(requests),
        "request_rate": "inf" if math.isinf(settings.request_rate) else settings.request_rate, "burstiness": settings.burstiness,
        "max_concurrency": settings.max_concurrency, "max_concurrent_requests": loop.peak,
    }  # fmt: skip
    client: dict[str, Any] = {
        "cpu_share": cpu_s / wall_s, "cpu_us_per_token": 1e6 * cpu_s / max(1, values["total_output_tokens"]), "cpus": os.cpu_count(),
        "retries": sum(exchange.attempts - 1 for exchange in exchanges), "seed": settings.seed, **lateness(exchanges),
    }  # fmt: skip
    return LoadReport(head | values | {"client": client, "equality": equal_share(alone, exchanges) if alone else None})
