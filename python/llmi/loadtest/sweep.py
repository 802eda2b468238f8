"""One load test for each of several numbers of users, as one run: what TTFT, TPOT and goodput cost by concurrency."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from llmi.loadtest.run import LoadReport, run_load
from llmi.loadtest.settings import LoadSettings

#: (heading, key of a report's values, its format).
_COLUMNS = (
    ("users", "max_concurrency", ",d"),
    ("requests/s", "request_throughput", ",.2f"),
    ("out tok/s", "output_throughput", ",.1f"),
    ("TTFT p50", "median_ttft_ms", ",.0f"),
    ("p99 ms", "p99_ttft_ms", ",.0f"),
    ("TPOT p50", "median_tpot_ms", ",.1f"),
    ("p99 ms", "p99_tpot_ms", ",.1f"),
    ("goodput/s", "request_goodput", ",.2f"),
    ("good", "good_share", ".0%"),
    ("failed", "failed", ",d"),
)


@dataclasses.dataclass
class SweepReport:
    """The reports of one server, in the order of the runs. `values` is JSON: `{"runs": [...]}`, each as a LoadReport has it."""

    reports: list[LoadReport]

    @property
    def values(self) -> dict[str, Any]:  # Any: JSON values
        """The values of all runs."""
        return {"runs": [report.values for report in self.reports]}

    def __str__(self) -> str:
        rows = [[heading for heading, _, _ in _COLUMNS]]
        for report in self.reports:
            values = report.values
            rows.append(["-" if values[key] is None else format(values[key], form) for _, key, form in _COLUMNS])
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        first = self.reports[0].values
        return "\n".join(
            [f"{first['model_id']}, {first['num_prompts']} requests for each number of users; {self.reports[0].bounds_text}", *lines]
        )


def run_sweep(settings: LoadSettings, concurrencies: Sequence[int], say: Callable[[str], None] = lambda _: None) -> SweepReport:
    """Runs a load test for each concurrency, one after the other.

    The prompts of each run are its own, so that none is found in the cache of the run before; those of a dataset or a trace come again.

    Raises
    ------
    InvalidParamsError
        For a concurrency out of range, before any run.
    LoadTestError
        As run_load.
    """
    each = [
        dataclasses.replace(settings, max_concurrency=concurrency, seed=(settings.seed + index) % 2**63)
        for index, concurrency in enumerate(concurrencies)
    ]
    reports = []
    for one in each:
        say(f"{one.max_concurrency} at once")
        reports.append(run_load(one, say))
    return SweepReport(reports)
