"""A picture of one load test: when requests came, how long each took, and how the latencies are spread (needs the extra `plot`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmi.errors import MissingExtraError


def plot_report(values: dict[str, Any], path: Path) -> None:
    """Writes an SVG or PNG, by the name's end. Any: the JSON values of a LoadReport. Raises MissingExtraError."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("plot", "matplotlib") from None
    ended = [index for index, error in enumerate(values["errors"]) if not error]
    starts = [values["start_times"][index] for index in ended]
    with mpl.rc_context({"svg.hashsalt": "llmi", "svg.fonttype": "none"}):  # equal results give equal files
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        each, spread = figure.subplots(1, 2)
        each.plot(starts, [values["e2els"][index] for index in ended], "o", markersize=3, color="#88bbdd", label="whole answer")
        each.plot(starts, [values["ttfts"][index] for index in ended], "o", markersize=3, color="#4477aa", label="first token")
        for index, error in enumerate(values["errors"]):
            if error:
                each.axvline(values["start_times"][index], color="#cc3311", linewidth=0.8)
        each.set_xlabel("intended time of the request (s)")
        each.set_ylabel("latency (s)")
        each.legend()
        gaps = [gap for index in ended for gap in values["itls"][index]]
        for name, seconds, colour in (("TTFT", [values["ttfts"][i] for i in ended], "#4477aa"), ("ITL", gaps, "#ee7733")):
            ordered = sorted(1e3 * value for value in seconds)
            spread.plot(ordered, [(rank + 1) / len(ordered) for rank in range(len(ordered))], label=name, color=colour)
        spread.set_xscale("log")
        spread.set_xlabel("ms")
        spread.set_ylabel("share of requests or gaps below")
        spread.legend()
        figure.suptitle(f"{values['model_id']}: {values['completed']} answers, {values['output_throughput']:.0f} tok/s")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
