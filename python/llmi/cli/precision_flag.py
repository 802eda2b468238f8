"""--activation-bits, which every command that loads or sizes a model takes."""

from __future__ import annotations

import argparse


def add_activation_bits(parser: argparse._ActionsContainer) -> None:
    """Absent where it is not given: LLM's own default then holds."""
    parser.add_argument(
        "--activation-bits",
        type=int,
        choices=(8, 16),
        default=argparse.SUPPRESS,
        help=(
            "what quantised layers round their inputs to (default: 16, with nearly the answers of fp32 arithmetic; 8 is the fast setting:"
            " batches and prompts take about two thirds of the time)"
        ),
    )
