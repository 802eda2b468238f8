"""The command line: llmi chat | generate | inspect | doctor | bench | replay | cache."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from llmi._inspect import KV_CACHE_DTYPES

EPILOG = "Without --model, llmi uses SmolLM2-135M-Instruct, fetched once and cached."
_SAMPLING = {
    "temperature": float, "top_p": float, "top_k": int, "min_p": float, "seed": int, "max_tokens": int, "min_tokens": int,
    "presence_penalty": float, "frequency_penalty": float, "repetition_penalty": float,
}  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    import llmi

    parser = argparse.ArgumentParser(prog="llmi", description="A small, fast, open LLM inference engine.", epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"llmi {llmi.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    chat = commands.add_parser("chat", help="talk with a model", description="Talk with a model; -p gives one answer.", epilog=EPILOG)
    chat.add_argument("-p", "--prompt", help="one question; prints the answer and ends")
    chat.add_argument("--system", help="a system message")
    _add_model_options(chat)
    _add_sampling_options(chat)

    generate = commands.add_parser(
        "generate", help="continue raw text", epilog=EPILOG, description="Continue raw text. For chat models, `llmi chat` is what you want."
    )
    generate.add_argument("-p", "--prompt", required=True, help="the text to continue")
    _add_model_options(generate)
    _add_sampling_options(generate)

    inspect = commands.add_parser(
        "inspect", help="sizes, memory and cost of a model", description="What a model is, needs and costs; reads no weights."
    )
    inspect.add_argument("model", nargs="?", help="a path or name")
    inspect.add_argument("--kv-cache-dtype", choices=KV_CACHE_DTYPES, default="float16")
    inspect.add_argument("--tokens", type=int, default=2048, help="context length for the sums")
    inspect.add_argument("--tensors", action="store_true", help="list the tensors too")

    commands.add_parser("doctor", help="what runs on this machine")

    bench = commands.add_parser(
        "bench", help="speed, beside this machine's ceilings", description="Speed of a model, beside what bounds it.", epilog=EPILOG
    )
    bench.add_argument("--rounds", type=int, default=3)
    bench.add_argument("--output", help="write the result here, as JSON")
    _add_model_options(bench)

    replay = commands.add_parser("replay", help="check a receipt bit for bit")
    replay.add_argument("receipt", help="a file that Receipt.save wrote")
    replay.add_argument("-m", "--model", help="the model file, if the receipt's name does not find it")

    cache = commands.add_parser("cache", help="fetched models")
    actions = cache.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="what is in the cache")
    remove = actions.add_parser("rm", help="delete a model from the cache")
    remove.add_argument("name")
    get = actions.add_parser("get", help="fetch a model that llmi knows by name")
    get.add_argument("name")
    return parser


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--model", help="a .gguf file, a directory, or a name")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "float16", "bfloat16"))
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--num-threads", type=int)


def _add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling (names as in SamplingParams)")
    for name, kind in _SAMPLING.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind)
    group.add_argument("--stop", action="append", help="may be given several times")
    group.add_argument("--ignore-eos", action="store_true", default=None)


def _sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(arguments, name) for name in (*_SAMPLING, "stop", "ignore_eos") if getattr(arguments, name) is not None}
    return {"temperature": 0.0, **given}


def _load(arguments: argparse.Namespace, **engine_args: Any) -> Any:
    from llmi import LLM

    return LLM(
        arguments.model, dtype=arguments.dtype, max_model_len=arguments.max_model_len, num_threads=arguments.num_threads, **engine_args
    )


def _print_stream(stream: Any) -> str:
    """Prints chunks as they come; Ctrl-C ends the answer."""
    from llmi import GenerationInterrupted

    try:
        for chunk in stream:
            print(chunk.text, end="", flush=True)
    except GenerationInterrupted:
        pass
    print(flush=True)
    text: str = stream.outputs[0].text
    return text


def _chat(arguments: argparse.Namespace) -> int:
    llm = _load(arguments)
    params = _sampling(arguments)
    history: list[dict[str, str]] = [{"role": "system", "content": arguments.system}] if arguments.system else []
    if arguments.prompt is not None:
        _print_stream(llm.stream([*history, {"role": "user", "content": arguments.prompt}], **params))
        return 0
    print(f"{llm!r}\nCtrl-C ends an answer, Ctrl-D the chat.", file=sys.stderr)
    while True:
        try:
            question = input("> ")
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print()
            continue
        if not question.strip():
            continue
        history.append({"role": "user", "content": question})
        answer = _print_stream(llm.stream(history, **params))
        history.append({"role": "assistant", "content": answer})


def _generate(arguments: argparse.Namespace) -> int:
    llm = _load(arguments)
    if llm.tokenizer.chat_template:
        print("llmi: raw continuation of a chat model; `llmi chat` gives answers", file=sys.stderr)
    params = {"max_tokens": 256, **_sampling(arguments)}
    print(arguments.prompt, end="", flush=True)
    _print_stream(llm.stream(arguments.prompt, **params))
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    from llmi import _models
    from llmi._inspect import inspect_model

    print(inspect_model(_models.resolve(arguments.model), arguments.kv_cache_dtype, arguments.tokens, arguments.tensors))
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    import llmi

    print(llmi.doctor())
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    import json
    from pathlib import Path

    from llmi._bench import run_bench
    from llmi._errors import InvalidParamsError

    if arguments.rounds < 1:
        raise InvalidParamsError("--rounds must be 1 or more", "rounds")
    with _load(arguments, enable_prefix_caching=False) as llm:
        report = run_bench(llm, arguments.rounds)
    print(report)
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
    return 0


def _replay(arguments: argparse.Namespace) -> int:
    from llmi import LLM, Receipt, replay

    receipt = Receipt.load(arguments.receipt)
    llm = LLM(arguments.model, **receipt._engine_arguments) if arguments.model else None
    same = replay(receipt, llm)
    print("identical, bit for bit" if same else "NOT identical")
    return 0 if same else 1


def _cache(arguments: argparse.Namespace) -> int:
    from llmi import _models

    if arguments.action == "rm":
        print(f"removed {_models.remove_cached(arguments.name)}")
    elif arguments.action == "get":
        print(_models.resolve(arguments.name))
    else:
        for name, path, num_bytes in _models.cached_models():
            print(f"{name:28} {num_bytes / 1e6:8.0f} MB  {path}")
        print(f"cache: {_models.cache_dir()}; known names: {', '.join(sorted(_models.NAMED_MODELS))}")
    return 0


COMMANDS = {
    "chat": _chat,
    "generate": _generate,
    "inspect": _inspect,
    "doctor": _doctor,
    "bench": _bench,
    "replay": _replay,
    "cache": _cache,
}


def main(argv: list[str] | None = None) -> int:
    """Entry point. Errors are one line on stderr and status 2."""
    from llmi._errors import LlmiError

    arguments = _parser().parse_args(argv)
    try:
        return COMMANDS[arguments.command](arguments)
    except LlmiError as error:
        print(f"llmi: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def sampling_flags() -> set[str]:
    """Sampling parameters that the command line offers, for the test that compares them with SamplingParams."""
    from llmi._params import SamplingParams

    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    return {*_SAMPLING, "stop", "ignore_eos"} & fields


if __name__ == "__main__":
    sys.exit(main())
