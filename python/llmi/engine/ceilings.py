"""What this machine can do at most, and what share of it an engine's steps have reached."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from llmi import _core
from llmi.engine.args import EngineArgs
from llmi.engine.numerics_id import dots_of_a_weight

PROBED_BYTES = 1 << 27  # read in a few hundredths of a second
_measured: dict[int, dict[str, float]] = {}  # by threads
_lock = threading.Lock()


def ceilings(num_threads: int, is_quiet: bool) -> dict[str, float]:
    """As _core.measure_ceilings gives them: measured once a process for each number of threads, in about a third of a second.

    is_quiet: nothing runs on the engine's threads now. Else what is known already, {} if nothing is: a measurement would be wrong, and
    would hold the work up.
    """
    with _lock:
        if num_threads not in _measured and is_quiet:
            _measured[num_threads] = _core.measure_ceilings(num_threads, PROBED_BYTES)
        return _measured.get(num_threads, {})


def arithmetic_ceiling(found: Mapping[str, float], dots: int) -> tuple[float, str]:
    """(operations a second, of what kind) for layers that take `dots` integer products a weight; 0: they multiply floats."""
    if dots:
        return found["dots_ops_per_s"] / dots, "int8 dots" + (", two a weight" if dots > 1 else "")
    return found["fma_ops_per_s"], "fp32 fma"


class Rates:
    """An engine's rates over the time of its steps, and their shares of the host's ceilings.

    engines: all that are open in this process.
    """

    def __init__(self, info: _core._EngineInfo, args: EngineArgs, engines: Iterable[_core.Engine]) -> None:
        self._engines = engines
        self._is_on_host = args.device_kind == "cpu"
        self._num_threads = info["num_threads"]
        self._dots = dots_of_a_weight(info["weight_types"], info["has_quantized_layers"], args.activation_bits)

    def ceilings(self) -> dict[str, float]:
        """The host's, if the model runs on it and they are known, or can be measured because no engine of this process has work; else
        {}."""
        if not self._is_on_host:
            return {}
        states = [engine.latest_stats() for engine in list(self._engines)]
        return ceilings(self._num_threads, not any(state["num_running"] or state["num_waiting"] or state["num_queued"] for state in states))

    def of(self, stats: Mapping[str, Any], found: Mapping[str, float]) -> dict[str, float]:
        """The rates that LLM.get_metrics() derives of the engine's counters. Shares are NaN where `found`, the ceilings, is empty."""
        busy = stats["busy_time_s"]

        def per_s(count: float) -> float:
            return count / busy if busy else 0.0

        values = {
            "generated_tokens_per_s": per_s(stats["num_generated_tokens"]),
            "requests_per_s": per_s(stats["num_finished_requests"]),
            "operations_per_s": per_s(stats["num_operations"]),
            "read_bytes_per_s": per_s(stats["num_read_bytes"]),
            "operations_share": math.nan,
            "read_bytes_share": math.nan,
        }
        if found:
            values["operations_share"] = values["operations_per_s"] / arithmetic_ceiling(found, self._dots)[0]
            values["read_bytes_share"] = values["read_bytes_per_s"] / found["read_bytes_per_s"]
        return values
