"""`llmi conformance URL`: does a server do what clients of OpenAI's endpoints expect?"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from llmi.cli.console import check_output, note, show
from llmi.errors import InvalidParamsError


def add_conformance_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmi conformance`."""
    parser.add_argument("url", help="http://HOST:PORT of the server")
    parser.add_argument(
        "--profile",
        action="append",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="core, stream, errors, limits, structured, tools, determinism, anthropic or responses; may be repeated (default: all)",
    )
    parser.add_argument("-m", "--model", default=argparse.SUPPRESS, help="as the server names it (default: its first)")
    parser.add_argument("--junit", type=Path, metavar="FILE", default=argparse.SUPPRESS, help="write the results here, as JUnit's XML")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="longest wait for the whole of one answer")


def conformance(arguments: argparse.Namespace) -> int:
    """Runs it. Status 0 if the server passes every case, else 1."""
    from llmi.conformance.case import CASES, PROFILES
    from llmi.conformance.run import Outcome, run_suite, table, write_junit
    from llmi.conformance.target import Target
    from llmi.loadtest.run import served_model
    from llmi.loadtest.settings import LoadSettings

    profiles = getattr(arguments, "profile", list(PROFILES))
    for name in profiles:
        if name not in PROFILES:
            raise InvalidParamsError(f"--profile must be one of {', '.join(PROFILES)}, not {name!r}", "profile")
    if arguments.list:
        for case in CASES:
            show(f"{case.profile}: {case.name}") if case.profile in profiles else None
        return 0
    if hasattr(arguments, "junit"):
        check_output(arguments.junit, "junit")
    settings = LoadSettings(arguments.url, api_key=os.environ.get("OPENAI_API_KEY"), timeout_s=arguments.timeout_s)
    model = getattr(arguments, "model", None) or served_model(settings)
    target = Target(*settings.address, model, settings.api_key, arguments.timeout_s)

    def tell(outcome: Outcome) -> None:
        if outcome.broken is not None:
            show(f"FAILED {outcome.case.profile}: {outcome.case.name}: {outcome.broken}")

    outcomes = run_suite(target, profiles, tell)
    show(table(outcomes))
    failed = sum(outcome.broken is not None for outcome in outcomes)
    note(f"llmi: {len(outcomes) - failed} of {len(outcomes)} cases pass")
    if hasattr(arguments, "junit"):
        try:
            write_junit(outcomes, arguments.junit)
        except OSError as error:
            raise InvalidParamsError(f"--junit: {arguments.junit} cannot be written: {error.strerror}", "junit") from None
    return 1 if failed else 0
