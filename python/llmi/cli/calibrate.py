"""`llmi calibrate MODEL OUT`: what a model's matrices read over a text, as an importance matrix."""

from __future__ import annotations

import argparse

from llmi.cli.console import check_folder_of, given_text, show
from llmi.errors import InvalidParamsError


def add_calibrate_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmi calibrate`."""
    parser.add_argument("model", help="a .gguf file, a directory, or a name")
    parser.add_argument("out", help="a new file, such as model.imatrix")
    texts = parser.add_mutually_exclusive_group()
    texts.add_argument("--text", metavar="FILE", default=argparse.SUPPRESS, help="what is read")
    texts.add_argument("--self", action="store_true", help="what the model itself writes is read (the default)")
    parser.add_argument("--tokens", type=int, default=20_000, metavar="N", help="read at most N (default 20000)")
    parser.add_argument("--gram", action="store_true", help="products of columns, too: llmi quantize --method gptq reads them")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the model's own text")


def run_calibrate(arguments: argparse.Namespace) -> int:
    """Runs it."""
    from pathlib import Path

    from llmi.compress.calibration import calibrate
    from llmi.models import by_name

    texts = given_text(arguments.text, "text") if hasattr(arguments, "text") else None
    check_folder_of(arguments.out, "out")
    if Path(arguments.out).exists():
        raise InvalidParamsError(f"out: {arguments.out} exists: nothing is written over a file", "out")
    calibration = calibrate(
        by_name.resolve(arguments.model),
        texts=texts,
        tokens=arguments.tokens,
        seed=arguments.seed,
        gram=arguments.gram,
    )
    calibration.save(arguments.out)
    size = Path(arguments.out).stat().st_size / 1e6
    show(f"{arguments.out}: {size:,.1f} MB, what {calibration.num_tensors} tensors read of {calibration.made['num_tokens']:,} tokens")
    return 0
