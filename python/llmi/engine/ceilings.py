"""What this machine can do at most, and what share of it an engine's steps have reached."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any

from llmi import _core
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


def rates(stats: Mapping[str, Any], info: _core._EngineInfo, activation_bits: int, found: Mapping[str, float]) -> dict[str, float]:
    """Rates that LLM.get_metrics() derives of the engine's counters, over the time of its steps. Shares are NaN where `found`, of the host, says nothing."""
    busy = stats["busy_time_s"]

    def per_s(count: float) -> float:
        return count / busy if busy else 0.0

    values = {
        "generated_tokens_per_s": per_s(stats["num_generated_tokens"]), "requests_per_s": per_s(stats["num_finished_requests"]),
        "operations_per_s": per_s(stats["num_operations"]), "read_bytes_per_s": per_s(stats["num_read_bytes"]),
        "operations_share": math.nan, "read_bytes_share": math.nan,
    }  # fmt: skip
    if found:
        dots = dots_of_a_weight(info["weight_types"], info["has_quantized_layers"], activation_bits)
        values["operations_share"] = values["operations_per_s"] / arithmetic_ceiling(found, dots)[0]
        values["read_bytes_share"] = values["read_bytes_per_s"] / found["read_bytes_per_s"]
    return values
