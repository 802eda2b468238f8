"""`PYTHONPATH=tests/support python -m soak --requests N`: the soak. `--drains N`: servers that are told to end under load. `--bodies N`: bodies that
nobody would write."""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from llmi.errors import import_extra
from llmi.llm import LLM
from llmi.testing.tiny import tiny_model
from soak.bodies import ask_bodies
from soak.cases import make_cases
from soak.drains import disconnect_times, drain_cycles, percentiles
from soak.report import anonymous_bytes, as_json, as_table, legend, save
from soak.rounds import Soak

#: Turns of a chat, for the tiny model, which has no template.
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
_LONGEST = 512  # tokens of a sequence
_PAGES = 36  # of the KV cache: too few for the batch, so that sequences are preempted and prefixes evicted
_SEATS = 24


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__, epilog=legend())
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument(
        "--drains",
        type=int,
        metavar="N",
        help="instead: N servers, each told to end under load; and the times of a start and of a disconnect",
    )
    parser.add_argument("--bodies", type=int, metavar="N", help="instead: N bodies that nobody would write")
    parser.add_argument("--model", help="a model; without it the tiny one")
    parser.add_argument("--cases", type=int, default=200, help="different requests, whose right answers are computed first")
    parser.add_argument("--round", type=int, default=1000, help="requests for one server, which then ends under load")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-s", type=float, default=float("inf"), help="ends after this time, however many requests there were")
    parser.add_argument("--json", metavar="FILE", help="write the report there")
    return parser


def soak(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs a soak and gives its report."""
    with tempfile.TemporaryDirectory() as folder:
        tiny = tiny_model(vocab_size=257, path=Path(folder) / "tiny")
        model = arguments.model or tiny
        chat: dict[str, Any] = {} if arguments.model else {"chat_template": TEMPLATE}
        with LLM(model, max_model_len=_LONGEST, enable_prefix_caching=False, kv_cache_memory_bytes=1 << 26, **chat) as alone:
            cases = make_cases(alone, "main", arguments.cases, arguments.seed, structured=True)
            memory = alone._page_bytes * _PAGES
        with LLM(model, max_model_len=_LONGEST, max_num_seqs=_SEATS, kv_cache_memory_bytes=memory, **chat) as main:
            begun = time.monotonic()
            run = Soak(
                main=main,
                other=model,
                cases=cases,
                rng=random.Random(arguments.seed),
                num_clients=arguments.clients,
                until_s=begun + arguments.most_s,
                other_bytes=memory,
                engine_args=chat,
            )
            grown: list[tuple[int, int]] = []
            while run.tally.num_requests < arguments.requests and time.monotonic() < run.until_s:
                run.round(min(arguments.round, arguments.requests - run.tally.num_requests))
                grown.append((run.tally.num_requests, anonymous_bytes()))
                print(f"{run.tally.num_requests:,} requests, {run.tally.num_problems:,} problems", file=sys.stderr)
            return as_json(run.tally, time.monotonic() - begun, grown)


def drains(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs the cycles of `--drains`, and measures how long a disconnect takes."""
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or tiny_model(vocab_size=257, path=Path(folder) / "tiny")
        template = Path(folder) / "template.jinja"
        template.write_text(TEMPLATE)
        chat: dict[str, Any] = {} if arguments.model else {"chat_template": template.read_text()}
        with LLM(model, max_model_len=_LONGEST, kv_cache_memory_bytes=1 << 26, **chat) as llm:
            cases = make_cases(llm, "main", arguments.cases, arguments.seed, structured=True)
        with LLM(model, max_model_len=2048, kv_cache_memory_bytes=1 << 27, **chat) as llm:
            times = disconnect_times(llm, 50)
        options = ["--max-model-len", str(_LONGEST), "--kv-cache-memory-bytes", str(1 << 26)]
        options += [] if arguments.model else ["--chat-template", str(template)]
        ends = drain_cycles(arguments.drains, str(model), options, cases, arguments.seed)
    report = dataclasses.asdict(ends)
    return report | {"ready_s": percentiles(ends.ready_s), "drained_s": percentiles(ends.drained_s), "disconnect_s": times}


def bodies(arguments: argparse.Namespace) -> dict[str, Any]:
    """Sends the bodies of `--bodies`."""
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or tiny_model(vocab_size=257, path=Path(folder) / "tiny")
        chat: dict[str, Any] = {} if arguments.model else {"chat_template": TEMPLATE}
        with LLM(model, max_model_len=_LONGEST, kv_cache_memory_bytes=1 << 25, **chat) as llm:
            return dataclasses.asdict(ask_bodies(llm, arguments.bodies, arguments.seed))


def _run(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """(the report, whether all is well)."""
    if arguments.bodies is not None:
        report = bodies(arguments)
        print(json.dumps(report, indent=1))
        return report, not report["problems"]
    if arguments.drains is not None:
        report = drains(arguments)
        print(json.dumps(report, indent=1))
        return report, not (report["lost"] or report["differ"] or report["exit_codes"]) and report["answered"] > 0
    report = soak(arguments)
    print(as_table(report))
    return report, not (report["differ_or_fail"] or report["blocks_lost"]) and report["compared"] > 0


def main() -> int:
    """The command. 0: nothing was wrong."""
    for module in ("starlette", "uvicorn", "msgspec"):
        import_extra(module, "server")
    arguments = _parser().parse_args()
    report, is_well = _run(arguments)
    save(report, arguments.json)
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
