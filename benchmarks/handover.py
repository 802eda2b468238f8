"""Prefills by others on this machine: `python benchmarks/handover.py --parts PART .. [--rounds 2] [--output FILE.json]`.

    gaps    the worst gap of 8 streams while prompts of 2,000 words come at half the rate that one engine of one thread can prefill, by
            `llmi bench serve`: one engine of two threads, two equal replicas, and one replica that computes prompts for the other
    nixl    the same with NIXL over TCP between two network namespaces, the second of which it makes (root; `ip netns`)
    kills   the producer is killed (SIGKILL) in the middle of writing a block, and the consumer's text is compared; with NIXL, too, if it is there
    rates   bytes a second of handed-over blocks over the connector's own, as `llmi doctor` measures it

Each measurement says how many cores other programs took meanwhile; of several rounds the one counts in which they took least.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import report
from others import Others

from llmi import LLM, SamplingParams
from llmi.handover import peers, rates
from llmi.handover.settings import FRONT

PRODUCER_AT, CONSUMER_AT, SPACE = "10.77.58.1", "10.77.58.2", "llmi-producer"
CACHE = ("--kv-cache-memory-bytes", "700000000")  # 30,000 tokens of SmolLM2: no stream is preempted
STREAMS, WORDS = 8, 2000
Json = dict[str, Any]


@contextlib.contextmanager
def server(model: str, *flags: str, space: str = "", **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`llmi serve` while the block runs: its URL and process."""
    inside = ["ip", "netns", "exec", space] if space else []
    port = [] if "--port" in flags else ["--port", "0"]
    command = [*inside, sys.executable, "-m", "llmi", "serve", *(["-m", model] if model else []), *CACHE, *port, *flags]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env={**os.environ, **environment})
        try:
            assert process.stdout is not None
            url = next((line.split()[1] for line in process.stdout if line.startswith("ready: ")), "")
            if not url:  # it has ended
                said.seek(0)
                raise SystemExit(f"{' '.join(command)} did not start: {said.read()[-2000:]}")
            yield url, process
        finally:
            process.terminate()
            process.wait(60)


def bench(url: str, *flags: str) -> Json:
    """What `llmi bench serve` measured."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        command = [sys.executable, "-m", "llmi", "bench", "serve", "--url", url, "--ignore-eos", "--output", str(output), *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        found: Json = json.loads(output.read_text(encoding="utf-8"))
        return found


def _streams(url: str, num_tokens: int, seed: int) -> Json:
    with Others() as others:
        found = bench(
            url, "--max-concurrency", str(STREAMS), "--num-prompts", str(STREAMS), "--input-len", "16", "--output-len", str(num_tokens),
            "--seed", str(seed),
        )  # fmt: skip
    gaps = np.concatenate(found["itls"]) * 1e3
    return {
        "worst_ms": float(gaps.max()),
        "p99_ms": float(np.percentile(gaps, 99)),
        "p50_ms": float(np.median(gaps)),
        "others": others.cores,
    }


def _prompts(url: str, rate: float, count: int, seed: int) -> Json:
    return bench(
        url, "--request-rate", f"{rate:g}", "--burstiness", "100", "--num-prompts", str(count), "--input-len", str(WORDS), "--output-len", "1",
        "--seed", str(seed),
    )  # fmt: skip


def _counters(url: str) -> Json:
    """Of prefills by others."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if "_prefills_total" in line and line[0] != "#"]
    found: dict[str, float] = {}
    for name, value in lines:
        key = name.partition("{")[0].removeprefix("llmi:").removesuffix("_total")
        found[key] = found.get(key, 0) + float(value)
    return found


def gaps(url: str, rate: float, rounds: int, count: int) -> Json:
    """Gaps without and with prompts; of the rounds that in which others took least."""
    _prompts(url, rate, 1, 999)  # which the engine learns its speed from
    found = []
    for number in range(rounds):
        quiet = _streams(url, 128, 10 * number)
        seconds = count / rate
        tokens = int(min(2500, max(64, seconds / (quiet["p50_ms"] / 1e3))))
        prompts: list[Json] = []
        sender = threading.Thread(target=lambda: prompts.append(_prompts(url, rate, count, 100 + number)))  # noqa: B023 (joined below)
        sender.start()
        loaded = _streams(url, tokens, 10 * number + 1)
        sender.join()
        found.append({"quiet": quiet, "loaded": loaded, "prompt_ttft_ms": prompts[0]["median_ttft_ms"], "prompts": count})
    best = min(found, key=lambda one: one["quiet"]["others"] + one["loaded"]["others"])
    return {**best, "rounds": found, **_counters(url)}


def prefill_seconds(model: str) -> float:
    """Of a prompt, by one engine of one thread: the least of three."""
    with server(model, "--num-threads", "1") as (url, _):
        return float(min(_prompts(url, 100, 1, 50 + number)["ttfts"][0] for number in range(3)))


@contextlib.contextmanager
def network_space() -> Iterator[None]:
    """Another network namespace, whose one end of a cable is here."""

    def ip(*words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"ip {' '.join(words)}: {done.stderr.strip()}")

    ip("netns", "add", SPACE)
    try:
        ip("link", "add", "llmi-here", "type", "veth", "peer", "name", "llmi-there", "netns", SPACE)
        ip("addr", "add", f"{CONSUMER_AT}/24", "dev", "llmi-here")
        ip("link", "set", "llmi-here", "up")
        for words in (
            ("addr", "add", f"{PRODUCER_AT}/24", "dev", "llmi-there"),
            ("link", "set", "llmi-there", "up"),
            ("link", "set", "lo", "up"),
        ):
            ip("-n", SPACE, *words)
        yield
    finally:
        subprocess.run(["ip", "netns", "del", SPACE], check=False)


def _transfer(connector: str, role: str, *urls: str) -> tuple[str, str]:
    config: Json = {"kv_connector": connector, "kv_role": role, **({"kv_peers": urls} if urls else {})}
    return "--kv-transfer-config", json.dumps(config)


@contextlib.contextmanager
def over_nixl(model: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The consumer's URL and the producer's process, which is in another network namespace; TCP carries the blocks."""
    with network_space(), server(
        model, "--num-threads", "1", "--host", PRODUCER_AT, "--port", "8001", "--insecure-no-keys", *_transfer("nixl", "kv_producer"),
        space=SPACE, UCX_TLS="tcp",
    ) as (there, producer), server(
        model, "--num-threads", "1", *_transfer("nixl", "kv_consumer", there), UCX_TLS="tcp"
    ) as (url, _):  # fmt: skip
        yield url, producer


SETUPS = (
    ("one engine, 2 threads", ("--num-threads", "2")),
    ("two equal replicas, 1 thread each", ("--num-threads", "2", "--replicas", "2")),
    ("producer and consumer, 1 thread each", ("--num-threads", "2", "--replicas", "2", "--prefill-replicas", "1")),
)


def part_gaps(given: argparse.Namespace, result: Json) -> None:
    for name, flags in SETUPS:
        with server(given.model, *flags) as (url, _):
            result["gaps"][name] = gaps(url, result["rate"], given.rounds, given.prompts)
            print(name, json.dumps(result["gaps"][name]), file=sys.stderr, flush=True)


def part_nixl(given: argparse.Namespace, result: Json) -> None:
    with over_nixl(given.model) as (url, _):
        found = gaps(url, result["rate"], given.rounds, given.prompts)
    result["gaps"]["the same over NIXL (TCP) between two network namespaces"] = found


def _text(url: str, ids: list[int]) -> str:
    body = {"prompt": ids, "max_tokens": 24, "temperature": 0.8, "seed": 3, "ignore_eos": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        found: str = json.load(answer)["choices"][0]["text"]
        return found


@contextlib.contextmanager
def over_shared_memory(model: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The consumer's URL and the producer's process."""
    producer_flags, one = _transfer("local", "kv_producer"), ("--num-threads", "1")
    with (
        server(model, *one, *producer_flags) as (there, producer),
        server(model, *one, *_transfer("local", "kv_consumer", there)) as (url, _),
    ):
        yield url, producer


def _written() -> int:
    return sum(1 for _ in Path("/dev/shm").glob(f"llmi-kv-{os.geteuid()}*/*"))


class Killer(threading.Thread):
    """Kills a process when it has written more than so many blocks, or after a second of computing for `blocks` = 0."""

    def __init__(self, process: subprocess.Popen[str], blocks: int) -> None:
        super().__init__()
        self._process, self._blocks, self._before = process, blocks, _written()
        self.ended = threading.Event()
        self.num_files: int | None = None  # at the kill
        self.start()

    def run(self) -> None:
        begun = time.perf_counter()
        while not self.ended.is_set():
            count = _written() - self._before
            if count > self._blocks or (self._blocks == 0 and time.perf_counter() - begun > 1.0):
                self._process.kill()
                self.num_files = count
                return
            time.sleep(0.0005)


def part_kills(given: argparse.Namespace, result: Json) -> None:
    """The producer is killed while it computes, or when it has written so many of the prompt's 62 blocks."""
    ids = [5 + index * 31 % 4000 for index in range(1000)]
    with server(given.model, "--num-threads", "2") as (url, _):
        wanted = _text(url, ids)
    connectors: list[tuple[str, Callable[[str], Any]]] = [("local", over_shared_memory)]
    connectors += [("nixl", over_nixl)] if given.with_nixl else []
    for name, setup in connectors:
        for blocks in (0, 1, 20, 40, 60):
            with setup(given.model) as (url, producer):
                killer = Killer(producer, blocks)
                text = _text(url, ids)
                killer.ended.set()
                killer.join()
                entry = {"connector": name, "files_at_the_kill": killer.num_files, "equal": text == wanted, **_counters(url)}
            result.setdefault("kills", []).append(entry)
            print(json.dumps(entry), file=sys.stderr, flush=True)


def part_rates(given: argparse.Namespace, result: Json) -> None:
    """Bytes of a prompt's blocks over the time that a first token takes longer than behind an own hit; the producer has the prompt."""
    one = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    measures = {"local": rates._local_rate, "nixl": rates._nixl_rate}
    for connector in ("local", *(["nixl"] if given.with_nixl else [])):
        engine: Json = {"kv_cache_memory_bytes": 400_000_000, "num_threads": 2}
        producer_config = {"kv_connector": connector, "kv_role": "kv_producer"}
        consumer_config = {"kv_connector": connector, "kv_role": "kv_consumer", "kv_peers": [FRONT]}
        found: list[dict[str, float]] = []
        own: list[float] = []
        with LLM(given.model or None, kv_transfer_config=producer_config, **engine) as producer:
            peers.front = lambda body, _, producer=producer: producer._handover.answer(producer, body)  # type: ignore[misc]
            with LLM(given.model or None, kv_transfer_config=consumer_config, **engine) as llm:
                for number in range(given.rounds + 1):
                    ids = [5 + (index * 31 + number * 17) % 4000 for index in range(WORDS)]
                    producer.generate([ids], one, use_tqdm=False)
                    seconds, before = [], _bytes_in(llm)
                    with Others() as others:
                        for _ in range(2):
                            begun = time.perf_counter()
                            output = llm.generate([ids], one, use_tqdm=False)[0]
                            seconds.append(time.perf_counter() - begun)
                    num_bytes = _bytes_in(llm) - before
                    if number == 0 or output.num_cached_tokens < WORDS - 16:
                        continue  # the first one connects, and has no known speed to wait by
                    found.append({"bytes_s": num_bytes / (seconds[0] - seconds[1]), "others": others.cores})
                    own.append(measures[connector]())
        best = min(found, key=lambda entry: entry["others"])
        entry = {
            "handed_over_gb_s": best["bytes_s"] / 1e9,
            "own_gb_s": statistics.median(own) / 1e9,
            "others": best["others"],
            "rounds": found,
        }
        result.setdefault("rates", {})[connector] = entry


def _bytes_in(llm: LLM) -> int:
    """Of the blocks in the folder that an engine reads."""
    assert llm._handover is not None
    return sum(file.stat().st_size for file in llm._handover.connector.folder.path.glob("*.kv1"))


def table(result: Json) -> str:
    """Markdown."""
    lines = []
    if result["gaps"]:
        lines += ["| engines | quiet: worst gap, p99, ms | with prompts: worst gap, p99, ms | worst over quiet | first token of the prompts, s | cores of others: quiet, with prompts |", "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for name, found in result["gaps"].items():
        quiet, loaded = found["quiet"], found["loaded"]
        lines.append(
            f"| {name} | {quiet['worst_ms']:,.0f}, {quiet['p99_ms']:,.0f} | {loaded['worst_ms']:,.0f}, {loaded['p99_ms']:,.0f}"
            f" | {loaded['worst_ms'] / quiet['worst_ms']:.1f} | {found['prompt_ttft_ms'] / 1e3:.1f}"
            f" | {quiet['others']:.1f}, {loaded['others']:.1f} |"
        )
    for name, found in result.get("rates", {}).items():
        lines.append(
            f"{name}: {found['handed_over_gb_s']:.2f} GB/s handed over, the connector alone {found['own_gb_s']:.2f}: {found['handed_over_gb_s'] / found['own_gb_s']:.2f}"
        )
    kills = result.get("kills", [])
    if kills:
        lines.append(f"{len(kills)} kills: {sum(not entry['equal'] for entry in kills)} texts differ")
    return "\n".join(lines)


def run(given: argparse.Namespace) -> Json:
    """Runs the parts."""
    result: Json = {"gaps": {}}
    if {"gaps", "nixl"} & set(given.parts):
        result["prefill_s"] = prefill_seconds(given.model)
        result["rate"] = 0.5 / result["prefill_s"]
    for part in given.parts:
        {"gaps": part_gaps, "nixl": part_nixl, "kills": part_kills, "rates": part_rates}[part](given, result)
    return {**result, "table": table(result)}


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=("gaps", "nixl", "kills", "rates"), required=True)
    parser.add_argument("--model", default="")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=4, help="of each round")
    parser.add_argument("--with-nixl", action="store_true", help="kills and rates with NIXL, too")
    return report.main(parser, run, lambda result: str(result["table"]))


if __name__ == "__main__":
    sys.exit(main())
