"""`llmi batch`: a file of requests, answered as the server answers them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from llmi.base.progress import progress
from llmi.cli.console import note
from llmi.cli.named_models import named_models
from llmi.cli.serve import add_engine_options, load, threads_of
from llmi.errors import InvalidParamsError, import_extra

if TYPE_CHECKING:
    from llmi.async_llm import AsyncLLM


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmi batch`."""
    parser.add_argument("input", type=Path, help="JSONL: custom_id, method, url and body in each line, as in OpenAI's batches")
    parser.add_argument("output", type=Path, help="JSONL: an answer a line. Answers that it has already are not computed again")
    parser.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="requests at a time (default: --max-num-seqs and a few more)",
        default=argparse.SUPPRESS,
    )
    add_engine_options(parser, "batch")


def _check(arguments: argparse.Namespace) -> None:
    """Raises InvalidParamsError before a model is loaded."""
    source, output = arguments.input, arguments.output
    if not source.is_file():
        raise InvalidParamsError(f"there is no file {source}", "input")
    if not output.absolute().parent.is_dir():
        raise InvalidParamsError(f"there is no folder {output.absolute().parent}", "output")
    if output.exists() and (not output.is_file() or output.samefile(source)):
        raise InvalidParamsError(f"{output} cannot be the output: it is the input, or no file", "output")
    if not 1 <= getattr(arguments, "concurrency", 1) <= 65_536:
        raise InvalidParamsError(f"--concurrency must lie in [1, 65,536], not {arguments.concurrency}", "concurrency")


def run_batch(arguments: argparse.Namespace) -> int:
    """Answers a file. Status 0 if every line has an answer that is no error, 130 after Ctrl-C, else 1."""
    for module in ("starlette", "msgspec"):
        import_extra(module, "server")
    _check(arguments)
    from llmi.server.batch_lock import only_run

    try:
        with only_run(arguments.output):
            return _answer(arguments)
    except OSError as error:
        raise InvalidParamsError(f"{error.filename or arguments.output}: {error.strerror or error}", "output") from None


def _answer(arguments: argparse.Namespace) -> int:
    from llmi.server.batch import Batch, run_until_signal
    from llmi.server.settings import ServerSettings

    names = named_models(getattr(arguments, "model", None))
    threads = threads_of(getattr(arguments, "num_threads", None), len(names))
    concurrency = getattr(arguments, "concurrency", arguments.max_num_seqs + 8)
    models: dict[str, AsyncLLM] = {}
    try:
        for (name, path), num_threads in zip(names.items(), threads, strict=True):
            models[name] = load(arguments, path, num_threads, None)
        batch = Batch(models, ServerSettings(), arguments.input, arguments.output, concurrency)
        report = batch.report
        if report.num_resumed:
            note(f"llmi: {arguments.output} has {report.num_resumed:,} answers already")
        with progress(batch.num_left, "answers", "req") as bar:
            whole = run_until_signal(batch, lambda: bar.update(1))
        note(f"llmi: {report.num_answered:,} answers, {report.num_failed:,} of them errors")
        if not whole:
            note("llmi: the same command goes on where this run ended")
            return 130
        return 1 if report.num_failed else 0
    finally:
        for server in models.values():
            server.llm.close()
