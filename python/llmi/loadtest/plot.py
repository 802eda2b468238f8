"""Pictures of load tests (extra `plot`): of one, when requests came and how long each took; of several, latencies and goodput by
concurrency."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi.errors import MissingExtraError
from llmi.loadtest.settings import READING_TPOT_MS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _draw(path: Path, size: tuple[float, float], draw: Callable[[Figure], None]) -> None:
    """Writes an SVG or PNG, by the name's end; equal results give equal files. Raises MissingExtraError."""
    try:
        import matplotlib as mpl
        from matplotlib import figure as figures
    except ImportError:
        raise MissingExtraError("plot", "matplotlib") from None
    with mpl.rc_context({"svg.hashsalt": "llmi", "svg.fonttype": "none"}):
        figure = figures.Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def plot_report(values: dict[str, Any], path: Path) -> None:
    """Draws one load test. Any: the JSON values of a LoadReport. Raises MissingExtraError."""
    _draw(path, (9, 3.6), lambda figure: _draw_report(figure, values))


def plot_sweep(values: dict[str, Any], path: Path) -> None:
    """Draws load tests of several concurrencies. Any: the JSON values of a SweepReport. Raises MissingExtraError."""
    _draw(path, (10, 3.4), lambda figure: _draw_sweep(figure, values["runs"]))


# Any: the JSON values of the runs.
def _draw_sweep(figure: Figure, runs: list[dict[str, Any]]) -> None:
    users = [run["max_concurrency"] for run in runs]
    ttft, tpot, goodput = figure.subplots(1, 3)
    for axes, name, title in ((ttft, "ttft", "time to the first token (ms)"), (tpot, "tpot", "time of a token after it (ms)")):
        for key, style in ((f"median_{name}_ms", "o-"), (f"p99_{name}_ms", "o--")):
            known = [(count, run[key]) for count, run in zip(users, runs, strict=True) if run[key] is not None]
            axes.plot(
                [count for count, _ in known], [ms for _, ms in known], style, color="#4477aa", label="p50" if style == "o-" else "p99"
            )
        axes.set_title(title)
    tpot.axhspan(*READING_TPOT_MS, color="#ccbb44", alpha=0.4, label="6 to 8 tokens/s: people read")
    goodput.plot(users, [run["request_throughput"] for run in runs], "o-", color="#bbbbbb", label="all answers")
    if runs[0]["request_goodput"] is not None:
        bounds = ", ".join(f"{name} <= {bound:g} ms" for name, bound in runs[0]["goodput_bounds_ms"].items())
        goodput.plot(users, [run["request_goodput"] for run in runs], "o-", color="#228833", label=bounds)
    goodput.set_title("requests a second")
    for axes in (ttft, tpot, goodput):
        axes.set_xscale("log", base=2)
        axes.set_xticks(users, [str(count) for count in users])
        axes.set_xlabel("users at once")
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.suptitle(f"{runs[0]['model_id']}: {runs[0]['num_prompts']} requests for each number of users")


# Any: the JSON values of the run.
def _draw_report(figure: Figure, values: dict[str, Any]) -> None:
    ended = [index for index, error in enumerate(values["errors"]) if not error]
    starts = [values["start_times"][index] for index in ended]
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
