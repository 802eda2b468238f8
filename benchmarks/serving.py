"""Speed of the server: `llmi serve` compared with its own engine, and with llama-server.

    python benchmarks/serving.py --parts length cpu ratio ttft start disconnect memory goodput [--peer LLAMA_SERVER] [--output FILE.json]

Each part runs alone (without --parts: all of them), and the table of several files takes the first one that has a part:
- length: CPU time of the server for a token about place 8,000 of a stream with log-probabilities, over that of one about place 100.
- cpu: CPU time for each streamed token at 32 streams beyond the engine's (`generate` of the same chats), one engine thread.
- ratio: streamed tokens a second over those of `generate`, at 8, 32 and 64 streams, all cores in use, client included.
- ttft: time to the first text beyond the engine's own, of 64 prompts of 512 tokens that come at once, one engine thread.
- start: from the command to the ready line; the imports' share.
- disconnect: from a client's hanging up to its blocks being free.
- memory: growth by 100,000 requests, tiny model; CPU share of a server without requests.
- goodput: the highest Poisson rate of which 99 % keep TTFT <= 1 s and TPOT <= 100 ms. --peer names a llama-server, which gets the same file
and threads.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import report
import serving_parts

from llmi.models.by_name import fetch

PARTS = ("length", "cpu", "ratio", "ttft", "start", "disconnect", "memory", "goodput")
#: What the figures should be: (part, what, bound as text).
BOUNDS = {
    "length": 1.2,
    "cpu": 60.0,
    "ratio": (0.90, 0.92, 0.93),
    "ttft": (5.0, 25.0),
    "start": 0.9,
    "disconnect": 60.0,
    "memory": 1.0,
    "idle": 0.005,
    "goodput": 2.0,
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The parts, in order."""
    if options.model is None:
        options.model = str(fetch("smollm2-135m-instruct"))
    result: dict[str, Any] = {"cores": os.cpu_count(), "client": "a process of its own on the same cores"}
    for part in options.parts:
        sys.stderr.write(f"{part} ...\n")
        result |= getattr(serving_parts, part)(options)
    return result


def _row(what: str, value: str, bound: str, is_kept: bool) -> str:
    return f"| {what} | {value} | {bound} | {'yes' if is_kept else 'no'} |"


def _ranged(entry: dict[str, float], digits: int = 2, scale: float = 1.0) -> str:
    middle, least, most = (entry[name] * scale for name in ("median", "least", "most"))
    return f"{middle:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def table(result: dict[str, Any]) -> str:
    """What was measured, with its bound."""
    rows = ["| figure | measured, median (least to most) | bound | kept |", "| --- | --- | --- | --- |"]
    if found := result.get("length"):
        rows.append(
            _row(
                "cost of token 8,000 over token 100, streamed with log-probabilities",
                _ranged(found["ratio"]),
                "1.2",
                found["ratio"]["median"] <= BOUNDS["length"],
            )
        )
    if found := result.get("cpu_time"):
        rows.append(
            _row(
                "CPU for a streamed token beyond the engine, 32 streams, us",
                _ranged(found["beyond_us"], 0),
                "60",
                found["beyond_us"]["median"] <= BOUNDS["cpu"],
            )
        )
        rows.append(
            _row("- the loop's and the pump's threads of it", _ranged(found["own_us"], 0), "60", found["own_us"]["median"] <= BOUNDS["cpu"])
        )
    if found := result.get("ratio"):
        for streams, bound in zip((8, 32, 64), BOUNDS["ratio"], strict=True):
            entry = found[str(streams)]
            rows.append(
                _row(
                    f"streamed over offline tokens a second, {streams} streams",
                    f"{_ranged(entry['ratio'])}; {entry['streamed_tok_s']:,.0f} tok/s",
                    f"{bound:.2f}",
                    entry["ratio"]["median"] >= bound,
                )
            )
    if found := result.get("ttft"):
        for name, bound in zip(("over_p50_ms", "over_p99_ms"), BOUNDS["ttft"], strict=True):
            rows.append(
                _row(
                    f"TTFT over the engine's own, 64 prompts of 512, {name[5:8]}, ms",
                    _ranged(found[name], 1),
                    f"{bound:.0f}",
                    found[name]["median"] <= bound,
                )
            )
    return "\n".join(rows + _rest(result))


def _rest(result: dict[str, Any]) -> list[str]:
    rows = []
    if found := result.get("start"):
        rows.append(_row("start to ready, s", _ranged(found["ready_s"]), "0.9", found["ready_s"]["median"] <= BOUNDS["start"]))
    for name, entry in result.get("disconnect", {}).items():
        value = f"{entry['beyond_step_p99_ms']:.1f} (a step: {entry['step_ms']:.1f})"
        rows.append(
            _row(
                f"disconnect to blocks free beyond a step, {name}, p99, ms",
                value,
                "60",
                entry["beyond_step_p99_ms"] <= BOUNDS["disconnect"],
            )
        )
    if found := result.get("memory"):
        rows.append(
            _row("memory for 100,000 requests, MB", f"{found['mb_per_100000']:.2f}", "1", found["mb_per_100000"] <= BOUNDS["memory"])
        )
        share = result["idle"]["cpu_share"]
        rows.append(_row("CPU of an idle server, share of a core", f"{share:.2%}", "0.5 %", share <= BOUNDS["idle"]))
    if found := result.get("goodput"):
        peer = found.get("llama_server")
        value = f"{found['llmi']['rate']:.2f} req/s" + (f" over {peer['rate']:.2f}: {found['ratio']:.2f}" if peer else "")
        rows.append(_row("goodput over llama-server, 128 in, 64 out", value, "2", bool(peer) and found["ratio"] >= BOUNDS["goodput"]))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--model", help="a GGUF file (default: SmolLM2 135M, fetched once)")
    parser.add_argument("--peer", help="a llama-server program")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count; one more runs before them")
    parser.add_argument("--tokens", type=int, default=128, help="of each stream in `cpu` and `ratio`")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the engine in `ratio`, `start` and `goodput`")
    parser.add_argument("--requests", type=int, default=20_000, help="of `memory`")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of `memory`'s idle share")
    parser.add_argument("--hang-ups", type=int, default=100, help="of `disconnect`")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each rate in `goodput`")
    parser.add_argument("--halvings", type=int, default=4, help="of the interval in `goodput`")
    raise SystemExit(report.main(parser, run, table))
