"""`llmi bench serve`: load on a server with OpenAI's endpoints."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from llmi.base.energy import cost_per_million
from llmi.cli.capacity import parse_rate
from llmi.cli.console import check_output, note, show
from llmi.errors import InvalidParamsError, import_extra
from llmi.loadtest.settings import ENDPOINTS, LoadSettings

_FLAGS: tuple[tuple[str, type, str], ...] = (
    ("model", str, "as the server names it (default: its first)"),
    ("num_prompts", int, "requests in all"),
    ("request_rate", float, "open loop: requests a second"),
    ("burstiness", float, "gaps of the open loop: 1 Poisson, below 1 burstier, above 1 more even"),
    ("burst", int, "requests that arrive together"),
    ("input_len", int, "words of each prompt"),
    ("output_len", int, "most tokens of each answer"),
    ("prefix_len", int, "words of --input-len that all prompts share"),
    ("dataset", Path, "JSONL with prompt or messages, and max_tokens if it likes"),
    ("trace", Path, "JSONL with timestamp (ms), input_length, output_length; hash_ids if it likes, or prompt instead"),
    ("temperature", float, "of all requests"),
    ("seed", int, "of prompts, arrivals and requests"),
    ("check", int, "requests that run alone first, and whose answers are compared"),
    ("timeout_s", float, "a request without an end after it has failed"),
    ("retries", int, "how often a 429 or 503 with Retry-After is sent again"),
)


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmi bench serve`."""
    defaults = {field.name: field.default for field in dataclasses.fields(LoadSettings)}
    parser.add_argument("--url", required=True, help="http://HOST:PORT of the server", default=argparse.SUPPRESS)
    for name, kind, text in _FLAGS:
        shown = text if defaults[name] is None or "(default" in text else f"{text} (default: {defaults[name]})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=argparse.SUPPRESS, help=shown)
    parser.add_argument(
        "--max-concurrency",
        type=_counts,
        metavar="N[,N...]",
        default=argparse.SUPPRESS,
        help="most in flight; without --request-rate: the closed loop. Several, as 1,2,4,8: a run for each, with one table and one picture",
    )
    parser.add_argument("--endpoint", choices=tuple(ENDPOINTS), default="chat", help="what is called")
    parser.add_argument("--ignore-eos", action="store_true", help="answers have exactly --output-len tokens (a field of vLLM's and llmi's)")
    parser.add_argument("--no-stream", action="store_true", help="answers come in one: TTFT is then the whole time, and there is no TPOT")
    parser.add_argument(
        "--goodput",
        nargs="+",
        metavar="NAME:MS",
        default=argparse.SUPPRESS,
        help="bounds for goodput: ttft:1000 tpot:100 e2el:5000 (default: tpot:125, 8 tokens a second, as fast as people read)",
    )
    add_key_option(parser)
    parser.add_argument(
        "--price",
        type=parse_rate,
        metavar="PER_HOUR",
        default=argparse.SUPPRESS,
        help="of the server's machine: tells what a million tokens out cost",
    )
    parser.add_argument("--output", type=Path, default=argparse.SUPPRESS, help="write the result here, as JSON with vLLM's names")
    parser.add_argument("--plot", type=Path, default=argparse.SUPPRESS, help="write a picture here, .svg or .png (needs the extra `plot`)")


def _counts(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number, and no list of them as 1,2,4,8")
    return [int(part[:20]) for part in parts]


def bounds_of(texts: list[str]) -> dict[str, float]:
    """Bounds of goodput in ms, from NAME:MS."""
    bounds = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            bounds[name] = float(value)
        except ValueError:
            raise InvalidParamsError(f"--goodput takes NAME:MS, as in ttft:1000, not {text!r}", "goodput") from None
    return bounds


def add_key_option(parser: argparse.ArgumentParser) -> None:
    """The flag that `key_of` reads."""
    parser.add_argument(
        "--api-key-file", type=Path, default=argparse.SUPPRESS, help="a file that holds the key (else the variable OPENAI_API_KEY)"
    )


def key_of(arguments: argparse.Namespace) -> str | None:
    """The key that servers are sent; None: none. Raises InvalidParamsError."""
    if not hasattr(arguments, "api_key_file"):
        return os.environ.get("OPENAI_API_KEY")
    try:
        return str(arguments.api_key_file.read_text(encoding="utf-8")).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParamsError(f"--api-key-file cannot be read: {error}", "api_key_file") from None


def bench_serve(arguments: argparse.Namespace) -> int:
    """Runs it. Status 0 if every request was answered, else 1."""
    from llmi.loadtest.plot import plot_report, plot_sweep
    from llmi.loadtest.run import run_load
    from llmi.loadtest.sweep import run_sweep

    given = {name: getattr(arguments, name) for name, _, _ in _FLAGS if hasattr(arguments, name)}
    concurrencies: list[int] = getattr(arguments, "max_concurrency", [])
    settings = LoadSettings(
        arguments.url,
        endpoint=arguments.endpoint,
        ignore_eos=arguments.ignore_eos,
        stream=not arguments.no_stream,
        goodput=bounds_of(arguments.goodput) if hasattr(arguments, "goodput") else None,
        api_key=key_of(arguments),
        max_concurrency=concurrencies[0] if concurrencies else None,
        **given,
    )
    for name in ("output", "plot"):
        if hasattr(arguments, name):
            check_output(getattr(arguments, name), name)
    if hasattr(arguments, "plot"):
        if arguments.plot.suffix not in (".svg", ".png"):
            raise InvalidParamsError(f"--plot must end in .svg or .png, not {str(arguments.plot)!r}", "plot")
        import_extra("matplotlib", "plot")
    sweeps = len(concurrencies) > 1
    report = run_sweep(settings, concurrencies, _say) if sweeps else run_load(settings, _say)
    show(str(report))
    if hasattr(arguments, "price"):
        show("\n".join(_costs(report.values.get("runs", [report.values]), arguments.price)))
    path = None
    try:
        if (path := getattr(arguments, "output", None)) is not None:
            path.write_text(json.dumps(report.values, indent=1) + "\n", encoding="utf-8")
        if (path := getattr(arguments, "plot", None)) is not None:
            (plot_sweep if sweeps else plot_report)(report.values, path)
    except OSError as error:
        raise InvalidParamsError(f"{path} cannot be written: {error.strerror}", "output") from None
    return 1 if any(values["failed"] for values in report.values.get("runs", [report.values])) else 0


# Any: JSON values of a run.
def _costs(runs: list[dict[str, Any]], price_per_hour: float) -> list[str]:
    """Keeps what a million tokens out cost in the values of each run, and says it."""
    lines = []
    for run in runs:
        run["cost_per_million_output_tokens"] = cost_per_million(price_per_hour, run["output_throughput"])
        users = "" if run["max_concurrency"] is None else f" with {run['max_concurrency']:,} at once"
        lines.append(f"a million tokens out{users} cost {run['cost_per_million_output_tokens']:,.4g} at {price_per_hour:g} an hour")
    return lines


def _say(line: str) -> None:
    note(f"llmi: {line}")
