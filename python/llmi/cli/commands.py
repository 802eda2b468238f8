"""The command line: llmi chat | generate | embed | serve | route | batch | inspect | doctor | bench | eval | calibrate | quantize |
prune | pool-heads | simulate | train-heads | conformance | replay | cache."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from llmi.cli.batch import add_batch_options, run_batch
from llmi.cli.bench_serve import add_load_options, bench_serve
from llmi.cli.calibrate import add_calibrate_options, run_calibrate
from llmi.cli.capacity import add_options as add_inspect_options
from llmi.cli.capacity import parse_rate
from llmi.cli.conformance import add_conformance_options, conformance
from llmi.cli.console import OutputError, check_folder_of, finish, is_terminal, note, prepare_streams, read_input, show, typed_text
from llmi.cli.embed import add_embed_options, run_embed
from llmi.cli.engine_flags import add_engine_flags, given_engine_options
from llmi.cli.evaluate import add_eval_options, run_eval
from llmi.cli.prune import add_pool_options, add_prune_options, run_pool_heads, run_prune
from llmi.cli.quantize import add_quantize_options, run_quantize
from llmi.cli.route import add_route_options, run_route
from llmi.cli.sampling_flags import add_flags, given
from llmi.cli.serve import add_options as add_serve_options
from llmi.cli.serve import run_serve
from llmi.cli.simulate import add_options as add_simulate_options
from llmi.cli.simulate import simulate_command
from llmi.cli.structured_flags import add_structured_flags, structured
from llmi.cli.train_heads import add_train_options, train
from llmi.errors import InvalidParamsError, LlmiError

EPILOG = "Without --model, llmi uses SmolLM2-135M-Instruct, fetched once and cached."


class _Parser(argparse.ArgumentParser):
    """Flags are written out, a mistake is one line, and --help shows defaults. The parsers of commands are of this class too."""

    # Any: ArgumentParser checks its own arguments.
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter, **kwargs)
        self.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help="say on stderr what is loaded and chosen")

    def _print_message(self, message: str, file: object = None) -> None:
        if file is sys.stdout:
            show(message, end="")
        elif message:
            note(message.rstrip("\n"))

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())} ({self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    import llmi

    parser = _Parser(prog="llmi", description="A small, fast, open LLM inference engine.", epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"llmi {llmi.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_chat(commands)
    _add_generate(commands)
    embed = commands.add_parser(
        "embed",
        help="vectors or scores of texts",
        description="Vectors of texts, by a model that makes some, or how well they answer a query: a line of JSON for each text.",
    )
    add_embed_options(embed)
    _add_model_options(embed, "embed")
    serve = commands.add_parser(
        "serve",
        help="an HTTP server of one or several models",
        epilog=EPILOG,
        description="An OpenAI-compatible HTTP server (needs the extra `server`).",
    )
    add_serve_options(serve)
    route = commands.add_parser(
        "route",
        help="one server in front of several that run already",
        description="Answers as `llmi serve` does, by a fixed list of servers of one model; one that dies costs no answer.",
    )
    add_route_options(route)
    batch = commands.add_parser(
        "batch",
        help="a file of requests, answered as the server answers them",
        epilog=EPILOG,
        description="Answers a file in OpenAI's batch format (needs the extra `server`). The same command goes on where a run was ended.",
    )
    add_batch_options(batch)
    inspect = commands.add_parser(
        "inspect", help="sizes, memory and cost of a model", description="What a model is, needs and costs; reads no weights."
    )
    inspect.add_argument("model", nargs="?", help="a path or name", default=argparse.SUPPRESS)
    add_inspect_options(inspect)
    commands.add_parser("doctor", help="what runs on this machine", description="What runs on this machine, and why.")
    _add_bench(commands)
    add_eval_options(
        commands.add_parser(
            "eval",
            help="what a smaller model costs, compared with its base",
            description="Perplexity, divergence from a base, equal answers, bytes and speed of models, in one table.",
        )
    )
    add_calibrate_options(
        commands.add_parser(
            "calibrate",
            help="what a model's matrices read over a text",
            description="Sums over what each matrix reads, as an importance matrix in llama.cpp's form, for `llmi quantize --calibration`.",
        )
    )
    add_quantize_options(
        commands.add_parser(
            "quantize",
            help="a GGUF file or a folder in a smaller type",
            description="Writes a model with smaller matrices. Equal inputs give equal bytes; `llmi replay OUT -m MODEL` checks it.",
        )
    )
    add_prune_options(
        commands.add_parser(
            "prune",
            help="a model with zeros, or without some layers",
            description="Writes a GGUF file or a folder with fewer weights or layers. `llmi replay OUT -m MODEL` makes it again.",
        )
    )
    add_pool_options(
        commands.add_parser(
            "pool-heads",
            help="a GGUF file with fewer heads of keys and values",
            description="Writes a GGUF file whose heads of keys and values are means of neighbours. Without training it is much worse.",
        )
    )
    add_simulate_options(
        commands.add_parser(
            "simulate",
            help="what a load would take, without running it",
            description="A trace on llmi's own scheduler and cache under a clock of their own.",
        )
    )
    training = commands.add_parser(
        "train-heads",
        help="a drafter for a model, trained on its own text",
        epilog=EPILOG,
        description="Train a drafter on text that the model writes itself: requests then run faster and give the same tokens.",
    )
    add_train_options(training)
    _add_model_options(training, "train-heads")
    add_conformance_options(
        commands.add_parser(
            "conformance",
            help="what a server does, against what clients expect",
            description="Cases that a server with OpenAI's endpoints should pass.",
        )
    )
    replay = commands.add_parser("replay", help="check a receipt bit for bit", description="Check a receipt bit for bit.")
    replay.add_argument(
        "receipt",
        help="a file that Receipt.save wrote, an answer of the server that holds a receipt, or a .gguf or folder that llmi made of another",
    )
    replay.add_argument(
        "-m",
        "--model",
        help="the model file, or the source of a .gguf or folder, if the receipt's name does not find it",
        default=argparse.SUPPRESS,
    )
    replay.add_argument("--calibration", metavar="FILE", default=None, help="of a .gguf or folder: the calibration that it was made with")
    add_engine_flags(replay, "replay")
    _add_cache(commands)
    return parser


def _add_chat(commands: argparse._SubParsersAction[_Parser]) -> None:
    chat = commands.add_parser(
        "chat",
        help="talk with a model",
        epilog=EPILOG,
        description="Talk with a model; -p gives one answer. Answers go to stdout, all else to stderr. On a pipe each line is a question.",
    )
    chat.add_argument(
        "-p", "--prompt", help="one question, or - for all of standard input; prints the answer and ends", default=argparse.SUPPRESS
    )
    chat.add_argument("--system", help="a system message", default=argparse.SUPPRESS)
    _add_model_options(chat, "chat")
    _add_sampling_options(chat, "to the end of the context")


def _add_generate(commands: argparse._SubParsersAction[_Parser]) -> None:
    generate = commands.add_parser(
        "generate", help="continue raw text", epilog=EPILOG, description="Continue raw text. For chat models, `llmi chat` is what you want."
    )
    generate.add_argument(
        "-p",
        "--prompt",
        default=argparse.SUPPRESS,
        help="the text to continue; - or nothing: standard input, without the newline at its end",
    )
    generate.add_argument(
        "--beams", type=int, metavar="N", default=argparse.SUPPRESS, help="search with N beams, and print the best text at the end"
    )
    _add_model_options(generate, "generate")
    _add_sampling_options(generate, "256")


def _add_bench(commands: argparse._SubParsersAction[_Parser]) -> None:
    bench = commands.add_parser(
        "bench", help="speed, compared with this machine's limits", description="Speed of a model, compared with its limits.", epilog=EPILOG
    )
    bench.add_argument("--rounds", type=int, default=3, help="times each work is measured")
    bench.add_argument("--output", help="write the result here, as JSON", default=argparse.SUPPRESS)
    bench.add_argument(
        "--costs",
        metavar="FILE",
        help="measure what steps take, and nothing else, and write it here for `llmi simulate`",
        default=argparse.SUPPRESS,
    )
    bench.add_argument(
        "--price", type=parse_rate, metavar="PER_HOUR", default=argparse.SUPPRESS, help="of this machine: tells what a million tokens cost"
    )
    _add_model_options(bench, "bench")
    targets = bench.add_subparsers(dest="target", metavar="serve", title="a server instead of a model")
    add_load_options(targets.add_parser("serve", help="load on a server", description="Load on a server with OpenAI's endpoints."))


def _add_cache(commands: argparse._SubParsersAction[_Parser]) -> None:
    cache = commands.add_parser("cache", help="fetched models", description="Models that were fetched.")
    actions = cache.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("list", help="what is in the cache, bases of `llmi eval` among it, and in the hub's")
    remove = actions.add_parser("rm", help="delete a model or a base from the cache")
    remove.add_argument("name", help="as `llmi cache list` shows it")
    prefixes = actions.add_parser("prefixes", help="saved prefixes in a folder (prefix_cache_dir): list and delete them")
    prefixes.add_argument("folder", metavar="DIR", help="the folder")
    prefixes.add_argument("--rm", metavar="NAME", help="delete the prefix of this name, or all", default=None)
    get = actions.add_parser("get", help="fetch a model")
    get.add_argument("name", help="a name that llmi knows, or one of the hub")


def _add_model_options(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument(
        "-m",
        "--model",
        default=argparse.SUPPRESS,
        help="a .gguf file, a directory, or a name: user/repository[:TYPE] on the hub, or one llmi knows",
    )
    add_engine_flags(parser, command)


def _add_sampling_options(parser: argparse.ArgumentParser, max_tokens: str) -> None:
    add_flags(parser, {"temperature": "0", "max_tokens": max_tokens, "seed": "drawn"})
    add_structured_flags(parser)


def _sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    """The parameters given, checked before a model is loaded. Raises InvalidParamsError."""
    from llmi.params.sampling import SamplingParams

    params = {"temperature": 0.0, **given(arguments), **structured(arguments)}
    SamplingParams(**params).validate()
    return params


# Any: LLM checks its own arguments.
def _load(arguments: argparse.Namespace, **engine_args: Any) -> Any:
    from llmi import LLM

    return LLM(getattr(arguments, "model", None), **engine_args, **given_engine_options(arguments))


# Any: a TextStream, whose module is loaded when a command needs it.
def _print_stream(stream: Any, before: str = "") -> None:
    """Prints chunks as they come, once the request stands; Ctrl-C ends the answer."""
    from llmi import GenerationInterrupted

    if stream._refused is not None:
        raise stream._refused
    show(before, end="")
    try:
        for chunk in stream:
            show(chunk.text, end="")
    except GenerationInterrupted:
        pass
    show("")


def _prompt(arguments: argparse.Namespace) -> str:
    text: str = arguments.prompt
    return read_input() if text == "-" else typed_text(text, "--prompt")


def _chat(arguments: argparse.Namespace) -> int:
    from llmi.chat.process import renderer
    from llmi.cli.chat_session import ChatSession

    params = _sampling(arguments)
    system = typed_text(arguments.system, "--system") if hasattr(arguments, "system") else None
    renderer.prestart()  # it starts while the model is loaded
    if hasattr(arguments, "prompt"):
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": _prompt(arguments)})
        llm = _load(arguments)
        _print_stream(llm.stream(messages, **params))
        return 0
    if sys.stdin is None or sys.stdin.closed:
        raise InvalidParamsError("standard input is closed: give the question by -p", "prompt")
    return ChatSession(_load(arguments), params, system).run()


def _generate(arguments: argparse.Namespace) -> int:
    params = {"max_tokens": 256, **_sampling(arguments)}
    if hasattr(arguments, "beams"):
        params["num_beams"] = arguments.beams
    if not hasattr(arguments, "prompt"):
        if is_terminal(sys.stdin):
            raise InvalidParamsError("give the text to continue: -p TEXT, or a file by < FILE", "prompt")
        arguments.prompt = "-"
    prompt = _prompt(arguments)
    llm = _load(arguments)
    if llm.tokenizer.chat_template:
        note("llmi: raw continuation of a chat model; `llmi chat` gives answers")
    _print_stream(llm.stream(prompt, **params), prompt)
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    from llmi.cli.capacity import report_text
    from llmi.models import by_name
    from llmi.models.inspection import inspect_model

    path = by_name.resolve(getattr(arguments, "model", None))
    report = inspect_model(
        path,
        arguments.kv_cache_dtype,
        arguments.tokens,
        hasattr(arguments, "tensors"),
        activation_bits=getattr(arguments, "activation_bits", None),
    )
    show(report_text(report, arguments))
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    import llmi

    show(str(llmi.doctor()))
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    import json
    from pathlib import Path

    if arguments.target == "serve":
        return bench_serve(arguments)
    from llmi.cli.bench import run_bench

    if arguments.rounds < 1:
        raise InvalidParamsError("--rounds must be 1 or more", "rounds")
    if hasattr(arguments, "output"):
        check_folder_of(arguments.output, "output")
    with _load(arguments, enable_prefix_caching=False) as llm:
        if hasattr(arguments, "costs"):
            from llmi.simulation.costs import measure_costs

            measure_costs(llm).save(arguments.costs)
            return 0
        report = run_bench(llm, arguments.rounds, getattr(arguments, "price", None))
    show(str(report))
    if hasattr(arguments, "output"):
        try:
            Path(arguments.output).write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidParamsError(f"{arguments.output} cannot be written: {error.strerror}", "output") from None
    return 0


def _replay(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from llmi import LLM, Receipt

    if arguments.receipt.endswith(".gguf") or Path(arguments.receipt).is_dir():
        from llmi.compress.replaying import replay_file

        is_equal, line = replay_file(Path(arguments.receipt), getattr(arguments, "model", None), arguments.calibration)
        show(line)
        return 0 if is_equal else 1
    receipt = Receipt.load(arguments.receipt)
    with LLM(getattr(arguments, "model", receipt._model), **receipt._engine_arguments, **given_engine_options(arguments)) as llm:
        check = receipt.verify(llm)
    show(str(check))
    return 0 if check else 1


def _prefixes(folder: str, removed: str | None) -> None:
    import time

    from llmi.engine.saved_prefixes import remove_prefixes, saved_prefixes

    if removed is not None:
        show(f"removed {remove_prefixes(folder, removed):,} blocks")
        return
    prefixes = saved_prefixes(folder)
    for prefix in prefixes:
        used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(prefix.last_use_s))
        show(f"{prefix.name}  {prefix.num_tokens:8,} tokens  {prefix.num_bytes / 1e6:8.1f} MB  {used}  {prefix.model}")
    show(f"{len(prefixes)} prefixes; each has the bytes of all its blocks, also of those that others share")


def _cache(arguments: argparse.Namespace) -> int:
    from llmi.models import by_name, catalogue, hub

    if arguments.action == "rm":
        from llmi.compress.kept_bases import remove_base

        show(f"removed {remove_base(arguments.name) or by_name.remove_cached(arguments.name)}")
    elif arguments.action == "get":
        show(str(by_name.resolve(arguments.name)))
    elif arguments.action == "prefixes":
        _prefixes(arguments.folder, arguments.rm)
    elif arguments.action == "list":
        for name, path, num_bytes in [*by_name.cached_models(), *hub.cached_models()]:
            show(f"{name:28} {num_bytes / 1e6:8.0f} MB  {path}")
        from llmi.compress.kept_bases import kept_bases

        for name, path, num_bytes in kept_bases():
            show(f"{name}  {num_bytes / 1e6:.0f} MB  {path}  (a base of llmi eval)")
        show(f"cache: {catalogue.cache_dir()}; known names: {', '.join(sorted(catalogue.NAMED_MODELS))}")
    else:
        raise InvalidParamsError("llmi cache needs an action: list, get, rm or prefixes (llmi cache --help)")
    return 0


COMMANDS = {
    "chat": _chat,
    "generate": _generate,
    "embed": lambda arguments: run_embed(arguments, _load),
    "serve": run_serve,
    "route": run_route,
    "batch": run_batch,
    "inspect": _inspect,
    "doctor": _doctor,
    "bench": _bench,
    "eval": run_eval,
    "calibrate": run_calibrate,
    "quantize": run_quantize,
    "prune": run_prune,
    "pool-heads": run_pool_heads,
    "simulate": simulate_command,
    "train-heads": lambda arguments: train(arguments, _load),
    "conformance": conformance,
    "replay": _replay,
    "cache": _cache,
}


def _speak(verbose: bool) -> None:
    """Warnings of the logger "llmi" on stderr; with --verbose, what is loaded and chosen too."""
    import logging

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("llmi: %(message)s"))
    logger = logging.getLogger("llmi")
    if not any(isinstance(old, logging.StreamHandler) for old in logger.handlers):
        logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)


def _run(argv: list[str] | None) -> int:
    parser = _parser()
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return 2
    _speak(hasattr(arguments, "verbose"))
    return COMMANDS[arguments.command](arguments)


def main(argv: list[str] | None = None) -> int:
    """Entry point. Errors are one line on stderr and status 2."""
    prepare_streams()
    try:
        status = _run(argv)
    except OutputError as error:
        if not error.quiet:
            note(f"llmi: {error}")
        status = 1
    except LlmiError as error:
        note(f"llmi: {' '.join(str(error).splitlines())}")
        status = 2
    except KeyboardInterrupt:
        status = 130
    return finish(status)


if __name__ == "__main__":
    sys.exit(main())
