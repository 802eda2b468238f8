"""`llmi train-heads FOLDER`: a drafter for a model, trained on text that the model writes itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from llmi.cli.console import given_text, note, show

if TYPE_CHECKING:
    from llmi.session import Session


def add_train_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmi train-heads`, apart from those of the model."""
    parser.add_argument("output", help="a folder for the heads")
    parser.add_argument(
        "--prompts", metavar="FILE", default=argparse.SUPPRESS, help="what the model answers, one prompt a line (default: llmi's own)"
    )
    parser.add_argument("--kind", default="eagle", help="the drafter")
    parser.add_argument("--minutes", type=float, default=10.0, help="wall time, text included")
    parser.add_argument("--steps", type=int, default=argparse.SUPPRESS, help="updates, instead of minutes")
    parser.add_argument("--seed", type=int, default=0, help="equal steps and seed give equal bytes")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")


def train(arguments: argparse.Namespace, load: Callable[[argparse.Namespace], AbstractContextManager[Session]]) -> int:
    """Runs it."""
    from llmi.training.heads import train_heads

    prompts = None
    if hasattr(arguments, "prompts"):
        prompts = [line for line in given_text(arguments.prompts, "prompts").splitlines() if line.strip()]
    with load(arguments) as llm:
        try:
            report = train_heads(
                llm,
                arguments.output,
                prompts=prompts,
                kind=arguments.kind,
                steps=getattr(arguments, "steps", None),
                minutes=arguments.minutes,
                seed=arguments.seed,
                resume=arguments.resume,
            )
        except KeyboardInterrupt:
            note(f"llmi: interrupted; the same command with --resume goes on from the last checkpoint in {arguments.output}")
            raise
    show(str(report))
    return 0
