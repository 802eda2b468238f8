"""`llmi bench serve`: load on a server with OpenAI's endpoints."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path

from llmi.cli.console import check_output, note, show
from llmi.errors import InvalidParamsError, import_extra
from llmi.loadtest.settings import ENDPOINTS, LoadSettings

_FLAGS: tuple[tuple[str, type, str], ...] = (
    ("model", str, "as the server names it (default: its first)"),
    ("num_prompts", int, "requests in all"),
    ("request_rate", float, "open loop: requests a second"),
    ("burstiness", float, "gaps of the open loop: 1 Poisson, below 1 burstier, above 1 more even"),
    ("burst", int, "requests that arrive together"),
    ("max_concurrency", int, "most in flight; without --request-rate: the closed loop"),
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
    parser.add_argument("--endpoint", choices=tuple(ENDPOINTS), default="chat", help="what is called")
    parser.add_argument("--ignore-eos", action="store_true", help="answers have exactly --output-len tokens (a field of vLLM's and llmi's)")
    parser.add_argument("--no-stream", action="store_true", help="answers come in one: TTFT is then the whole time, and there is no TPOT")
    parser.add_argument("--goodput", nargs="+", metavar="NAME:MS", default=[], help="bounds for goodput: ttft:1000 tpot:100 e2el:5000")
    parser.add_argument(
        "--api-key-file", type=Path, default=argparse.SUPPRESS, help="a file that holds the key (else the variable OPENAI_API_KEY)"
    )
    parser.add_argument("--output", type=Path, default=argparse.SUPPRESS, help="write the result here, as JSON with vLLM's names")
    parser.add_argument("--plot", type=Path, default=argparse.SUPPRESS, help="write a picture here, .svg or .png (needs the extra `plot`)")


def _bounds(texts: list[str]) -> dict[str, float]:
    bounds = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            bounds[name] = float(value)
        except ValueError:
            raise InvalidParamsError(f"--goodput takes NAME:MS, as in ttft:1000, not {text!r}", "goodput") from None
    return bounds


def _key(arguments: argparse.Namespace) -> str | None:
    if not hasattr(arguments, "api_key_file"):
        return os.environ.get("OPENAI_API_KEY")
    try:
        return str(arguments.api_key_file.read_text(encoding="utf-8")).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParamsError(f"--api-key-file cannot be read: {error}", "api_key_file") from None


def bench_serve(arguments: argparse.Namespace) -> int:
    """Runs it. Status 0 if every request was answered, else 1."""
    from llmi.loadtest.plot import plot_report
    from llmi.loadtest.run import run_load

    given = {name: getattr(arguments, name) for name, _, _ in _FLAGS if hasattr(arguments, name)}
    settings = LoadSettings(
        arguments.url, endpoint=arguments.endpoint, ignore_eos=arguments.ignore_eos, stream=not arguments.no_stream,
        goodput=_bounds(arguments.goodput), api_key=_key(arguments), **given,
    )  # fmt: skip
    for name in ("output", "plot"):
        if hasattr(arguments, name):
            check_output(getattr(arguments, name), name)
    if hasattr(arguments, "plot"):
        if arguments.plot.suffix not in (".svg", ".png"):
            raise InvalidParamsError(f"--plot must end in .svg or .png, not {str(arguments.plot)!r}", "plot")
        import_extra("matplotlib", "plot")
    report = run_load(settings, lambda line: note(f"llmi: {line}"))
    show(str(report))
    path = None
    try:
        if (path := getattr(arguments, "output", None)) is not None:
            path.write_text(json.dumps(report.values, indent=1) + "\n", encoding="utf-8")
        if (path := getattr(arguments, "plot", None)) is not None:
            plot_report(report.values, path)
    except OSError as error:
        raise InvalidParamsError(f"{path} cannot be written: {error.strerror}", "output") from None
    return 1 if report.values["failed"] else 0
