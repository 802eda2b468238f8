"""`llmi eval MODEL [MODEL ...]`: perplexity, divergence from a base, answers, bytes and speed in one table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from llmi.cli.console import check_folder_of, given_text, show
from llmi.cli.engine_flags import add_engine_flags, given_engine_options
from llmi.errors import InvalidParamsError


def add_eval_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmi eval`."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a .gguf file, a directory, or a name")
    parser.add_argument("--base", default=argparse.SUPPRESS, help="the model that they are compared with")
    parser.add_argument("--text", metavar="FILE", default=argparse.SUPPRESS, help="what they are judged on (default: llmi's own text)")
    parser.add_argument("--window", type=int, default=512, help="tokens of a window")
    parser.add_argument("--skip", type=int, default=1, help="tokens at each window's beginning that are not scored")
    parser.add_argument("--answers", type=int, default=0, metavar="N", help="compare N greedy answers, too")
    parser.add_argument(
        "--sparse-attention",
        metavar="JSON",
        default=argparse.SUPPRESS,
        help='what the models\' rows see, not those of the base, as in SamplingParams: \'{"method": "streaming", ...}\'',
    )
    parser.add_argument("--output", metavar="FILE", default=argparse.SUPPRESS, help="write the figures here, as JSON")
    parser.add_argument("--plot", metavar="FILE", default=argparse.SUPPRESS, help="draw KL over bytes (needs matplotlib)")
    add_engine_flags(parser, "eval")


def _sparse_attention(text: str) -> Mapping[str, Any] | None:
    from llmi.params.sampling import SAMPLING

    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidParamsError(f"--sparse-attention is no JSON: {error}", "sparse_attention") from None
    return cast("Mapping[str, Any] | None", SAMPLING["sparse_attention"].parse(value))


def run_eval(arguments: argparse.Namespace) -> int:
    """Runs it."""
    from llmi.compress.evaluation import evaluate_all
    from llmi.compress.results import differences, plot, table
    from llmi.models import by_name

    texts = given_text(arguments.text, "text") if hasattr(arguments, "text") else None
    for name in ("output", "plot"):
        if hasattr(arguments, name):
            check_folder_of(getattr(arguments, name), name)
    results = evaluate_all(
        [by_name.resolve(name) for name in arguments.models],
        base=by_name.resolve(arguments.base) if hasattr(arguments, "base") else None,
        texts=texts,
        window=arguments.window,
        skip=arguments.skip,
        answers=arguments.answers,
        sparse_attention=_sparse_attention(arguments.sparse_attention) if hasattr(arguments, "sparse_attention") else None,
        keep_base=True,
        **given_engine_options(arguments),
    )
    show(table(results))
    for result in results:
        show(differences(result), end="")
    try:
        if hasattr(arguments, "output"):
            Path(arguments.output).write_text(json.dumps([result.to_dict() for result in results], indent=1) + "\n", encoding="utf-8")
        if hasattr(arguments, "plot"):
            plot(results).savefig(arguments.plot)
    except OSError as error:
        raise InvalidParamsError(f"{error.filename} cannot be written: {error.strerror}", "output") from None
    return 0
