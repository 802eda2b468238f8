"""The parts of benchmarks/serving.py: each takes the options and returns its entries of the result."""

from __future__ import annotations

import argparse
import contextlib
import gc
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from serving_process import RecordedServer, ask, llama_server, llmi_server

from llmi import LLM, SamplingParams
from llmi.loadtest.run import run_load
from llmi.loadtest.settings import LoadSettings
from llmi.testing.tiny import tiny_model

#: Of every engine in the parts: small and the same, so that none is evicted.
CACHE_BYTES = 1 << 29
FREE = {"temperature": 1.0, "ignore_eos": True}


def chat(index: int, num_tokens: int, **fields: Any) -> dict[str, Any]:
    """A streamed chat."""
    body = {
        "messages": [{"role": "user", "content": f"Tell me story number {index}."}],
        "max_tokens": num_tokens,
        "seed": index,
        "stream": True,
    }
    return {"path": "/v1/chat/completions", "body": {**body, **FREE, **fields}}


def completion(prompt: list[int], num_tokens: int, seed: int = 0, **fields: Any) -> dict[str, Any]:
    """A streamed completion of token ids."""
    body = {"prompt": prompt, "max_tokens": num_tokens, "seed": seed, "stream": True}
    return {"path": "/v1/completions", "body": {**body, **FREE, **fields}}


def spread(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def _threads(count: int) -> tuple[str, ...]:
    return ("--num-threads", str(count), "--kv-cache-memory-bytes", str(CACHE_BYTES))


def _tiny(**overrides: Any) -> str:
    folder = tiny_model(vocab_size=257, path=tempfile.mkdtemp(), **overrides)
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    return str(folder)


# --- cost of a token by its place


def length(options: argparse.Namespace) -> dict[str, Any]:
    """CPU time of the server's own threads (the loop's and the pump's) for a token about place 8,000 over that of one about place 100.

    4 streams with five log-probabilities. The model has hardly any attention, so that a step takes about as long at 8,000 as at 100:
    threads that slept longer find colder caches, and take up to three times as long for the same work. It is slower than the loop: else
    several tokens would share an event.
    """
    attention = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    model = _tiny(max_position_embeddings=16384, num_layers=4, hidden_size=1024, **attention)
    streams, half = 4, 80
    marks = [streams * place for place in (100 - half, 100 + half, 8000 - half, 8000 + half)]
    rounds: list[dict[str, float]] = []
    with llmi_server(model, *_threads(1), "--max-model-len", "9000") as server:
        for index in range(options.rounds):
            requests = [chat(stream + 100 * index, 8000 + 2 * half, logprobs=True, top_logprobs=5) for stream in range(streams)]
            seen = ask(server.port, requests, server.pid, marks)["marks"]
            early, late = _between(seen[0], seen[1]), _between(seen[2], seen[3])
            rounds.append({"early_us": early, "late_us": late, "ratio": late / early})
    return {"length": {"rounds": rounds, **{name: spread([entry[name] for entry in rounds]) for name in rounds[0]}}}


def _own(threads: dict[str, float]) -> float:
    return threads["loop"] + threads.get("llmi-async", 0.0)


def _between(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Microseconds of the server's own threads for each token."""
    return 1e6 * (_own(second["threads"]) - _own(first["threads"])) / (second["tokens"] - first["tokens"])


# --- CPU and speed beside the offline engine


class _Offline:
    """The same model in this process."""

    def __init__(self, model: str, num_threads: int) -> None:
        self._llm = LLM(model, num_threads=num_threads, kv_cache_memory_bytes=CACHE_BYTES)

    def run(self, streams: int, num_tokens: int) -> tuple[float, float]:
        """(wall, CPU) microseconds for each token of chats as `chat` makes them."""
        messages = [[{"role": "user", "content": f"Tell me story number {index}."}] for index in range(streams)]
        params = [SamplingParams(max_tokens=num_tokens, seed=index, **FREE) for index in range(streams)]
        wall, cpu = time.perf_counter(), time.process_time()
        self._llm.chat(messages, params)
        count = streams * num_tokens
        return 1e6 * (time.perf_counter() - wall) / count, 1e6 * (time.process_time() - cpu) / count

    def close(self) -> None:
        self._llm.close()


def _streamed(server: Any, streams: int, num_tokens: int) -> dict[str, float]:
    """Microseconds for each token over HTTP: wall, the process's CPU, that of the server's own threads, the client's."""
    threads, cpu = server.threads, server.cpu_s
    seen = ask(server.port, [chat(index, num_tokens) for index in range(streams)])
    after, after_cpu = server.threads, server.cpu_s
    answers, count = seen["answers"], streams * num_tokens
    wall = max(answer["end_s"] for answer in answers) - min(answer["sent_s"] for answer in answers)
    own = _own(after) - _own(threads)
    return {
        "wall_us": 1e6 * wall / count,
        "cpu_us": 1e6 * (after_cpu - cpu) / count,
        "own_us": 1e6 * own / count,
        "client_us": 1e6 * seen["cpu_s"] / count,
    }


def cpu(options: argparse.Namespace) -> dict[str, Any]:
    """CPU time for each streamed token at 32 streams, one engine thread: the process's beyond `generate` of the same chats, and the
    server's own threads'."""
    offline = _Offline(options.model, 1)
    rounds: list[dict[str, float]] = []
    with llmi_server(options.model, *_threads(1)) as server:
        for _ in range(options.rounds + 1):
            _, engine = offline.run(32, options.tokens)
            entry = _streamed(server, 32, options.tokens)
            rounds.append({**entry, "generate_us": engine, "beyond_us": entry["cpu_us"] - engine})
    offline.close()
    return {"cpu_time": {"rounds": rounds[1:], **{name: spread([entry[name] for entry in rounds[1:]]) for name in rounds[0]}}}


def ratio(options: argparse.Namespace) -> dict[str, Any]:
    """Streamed tokens a second over those of `generate`, all cores in use, in alternating rounds."""
    offline = _Offline(options.model, options.threads)
    result: dict[str, Any] = {}
    with llmi_server(options.model, *_threads(options.threads)) as server:
        for streams in (8, 32, 64):
            found: list[tuple[float, float]] = []
            for _ in range(options.rounds + 1):
                found.append((offline.run(streams, options.tokens)[0], _streamed(server, streams, options.tokens)["wall_us"]))
            rounds = found[1:]
            result[str(streams)] = {
                "ratio": spread([here / there for here, there in rounds]),
                "offline_tok_s": 1e6 / statistics.median(here for here, _ in rounds),
                "streamed_tok_s": 1e6 / statistics.median(there for _, there in rounds),
            }
    offline.close()
    return {"ratio": {"threads": options.threads, **result}}


# --- times


def ttft(options: argparse.Namespace) -> dict[str, Any]:
    """From sending to the first text, less the engine's own time, by request: 64 prompts of 512 tokens at once.

    The engine's own time of a request is that from the first one's arrival to the request's first token: what the engine takes that has all
    of them at once. `before`: from sending to the engine's arrival; `after`: from the engine's first token to the client.
    """
    llm = LLM(options.model, num_threads=1, kv_cache_memory_bytes=4 * CACHE_BYTES)
    rounds: list[dict[str, float]] = []
    with RecordedServer(llm) as server:
        draw, vocabulary = np.random.default_rng(0), llm.tokenizer.vocab_size
        for index in range(options.rounds + 1):
            # A request is known by its number of tokens.
            lengths = [8 + stream for stream in range(64)]
            requests = [completion(draw.integers(vocabulary // 10, vocabulary, 512).tolist(), count) for count in lengths]
            server.totals.times.clear()
            answers = ask(server.port, requests)["answers"]
            engine = [server.totals.times[count] for count in lengths]
            begun = min(arrival for arrival, _ in engine)
            over = [
                1e3 * ((answer["first_s"] - answer["sent_s"]) - (first - begun)) for answer, (_, first) in zip(answers, engine, strict=True)
            ]
            before = [1e3 * (arrival - answer["sent_s"]) for answer, (arrival, _) in zip(answers, engine, strict=True)]
            after = [1e3 * (answer["first_s"] - first) for answer, (_, first) in zip(answers, engine, strict=True)]
            if index:
                rounds.append(
                    {
                        f"{name}_p{share}_ms": float(np.percentile(values, share))
                        for name, values in (("over", over), ("before", before), ("after", after))
                        for share in (50, 99)
                    }
                )
    llm.close()
    return {"ttft": {"rounds": rounds, **{name: spread([entry[name] for entry in rounds]) for name in rounds[0]}}}


def start(options: argparse.Namespace) -> dict[str, Any]:
    """From the command to its ready line, and how long the imports of `llmi serve` take by themselves."""
    seconds = []
    for _ in range(options.rounds + 1):
        with llmi_server(options.model, *_threads(options.threads)) as server:
            seconds.append(server.ready_s)
    code = "from llmi.cli import commands, serve; from llmi.server import run; from llmi.chat.process import renderer"
    told = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True).stderr
    entries = [(int(own), name.strip()) for own, name in re.findall(r"import time:\s+(\d+) \|\s+\d+ \| (.*)", told)]
    packages: dict[str, int] = {}
    for own, name in entries:
        packages[name.partition(".")[0]] = packages.get(name.partition(".")[0], 0) + own
    dearest = sorted(packages.items(), key=lambda entry: -entry[1])[:12]
    return {
        "start": {
            "ready_s": spread(seconds[1:]),
            "imports_s": sum(own for own, _ in entries) / 1e6,
            "dearest_ms": {name: own / 1e3 for name, own in dearest},
        }
    }


def disconnect(options: argparse.Namespace) -> dict[str, Any]:
    """From a client's hanging up to its blocks being free, beside 7 streams that go on, with the longest step of that time taken off."""
    llm = LLM(options.model, num_threads=1, kv_cache_memory_bytes=4 * CACHE_BYTES)
    result: dict[str, Any] = {}
    with RecordedServer(llm) as server:
        for name, fields in (("streamed", {"stream": True}), ("unstreamed", {"stream": False})):
            result[name] = _hang_ups(server, llm, fields, options.hang_ups)
    llm.close()
    return {"disconnect": result}


def _hang_ups(server: RecordedServer, llm: LLM, fields: dict[str, Any], count: int) -> dict[str, float]:
    from serving_client import Stream

    others = [Stream(server.port, chat(index, 8000)) for index in range(7)]
    for stream in others:
        stream.send()
    engine, waited, steps = llm._engine, [], []
    for index in range(count):
        one = Stream(server.port, chat(100 + index, 4000, **fields))
        one.send()
        _until(lambda: engine.latest_stats()["num_running"] == 8, others)
        time.sleep(0.02 + 0.001 * (index % 17))
        stats = engine.latest_stats()
        one.socket.shutdown(socket.SHUT_RDWR)
        one.socket.close()
        begun = time.perf_counter()
        _until(lambda: len(server.online.live().requests) == 7, others)
        waited.append(1e3 * (time.perf_counter() - begun))
        after = engine.latest_stats()
        steps.append(1e3 * (after["busy_time_s"] - stats["busy_time_s"]) / max(1, after["num_steps"] - stats["num_steps"]))
    for stream in others:
        stream.socket.close()
    _until(lambda: engine.latest_stats()["num_running"] == 0, [])
    step = statistics.median(steps)
    over = [wait - step for wait in waited]
    return {
        "p50_ms": float(np.percentile(waited, 50)),
        "p99_ms": float(np.percentile(waited, 99)),
        "step_ms": step,
        "beyond_step_p99_ms": float(np.percentile(over, 99)),
    }


def _until(is_so: Callable[[], bool], others: list[Any]) -> None:
    """Waits, and reads what comes for the others meanwhile."""
    ends = time.perf_counter() + 60
    while not is_so():
        for stream in others:
            stream.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                stream.socket.recv(1 << 18)
            stream.socket.setblocking(True)
        if time.perf_counter() > ends:
            raise SystemExit("the engine did not come to the state that was waited for within a minute")
        time.sleep(0.001)


# --- at rest and over time


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Growth of the process by requests, half of them streamed; and the CPU that a server without requests uses."""
    with llmi_server(_tiny(), *_threads(1)[:2], "--kv-cache-memory-bytes", str(1 << 24)) as server:

        def run(count: int) -> None:
            each = [completion([65, 66 + index], 4, index, stream=index % 2 == 0) | {"repeat": count // 8} for index in range(8)]
            ask(server.port, each)

        run(12_000)  # pools and caches fill, and the log of the latest 10,000 requests
        points = [server.memory_bytes]
        for _ in range(4):
            run(options.requests // 4)
            points.append(server.memory_bytes)
        time.sleep(1)
        before, begun = server.cpu_s, time.perf_counter()
        time.sleep(options.idle)
        idle = (server.cpu_s - before) / (time.perf_counter() - begun)
    grown = (points[-1] - points[0]) / 1e6
    gc.collect()
    return {
        "memory": {
            "requests": options.requests,
            "points_mb": [point / 1e6 for point in points],
            "mb_per_100000": grown * 1e5 / options.requests,
        },
        "idle": {"seconds": options.idle, "cpu_share": idle},
    }


# --- beside the peer


def goodput(options: argparse.Namespace) -> dict[str, Any]:
    """The highest rate of requests (128 words in, 64 tokens out) of which 99 % keep TTFT <= 1 s and TPOT <= 100 ms, of llmi and of
    llama-server."""
    result = {}
    with llmi_server(options.model, *_threads(options.threads)) as server:
        result["llmi"] = _best_rate(server.port, options)
    if options.peer:
        with llama_server(options.peer, options.model, 18_080, 64) as server:
            result["llama_server"] = _best_rate(server.port, options)
        result["ratio"] = result["llmi"]["rate"] / result["llama_server"]["rate"]
    return {"goodput": result}


def _best_rate(port: int, options: argparse.Namespace) -> dict[str, Any]:
    """By doubling and halving; a rate stands if 99 % of the requests are good."""
    tried: dict[float, float] = {}

    def is_good(rate: float) -> bool:
        settings = LoadSettings(
            f"http://127.0.0.1:{port}",
            num_prompts=max(40, round(rate * options.seconds)),
            request_rate=rate,
            input_len=128,
            output_len=64,
            ignore_eos=True,
            seed=len(tried),
            goodput={"ttft": 1000.0, "tpot": 100.0},
        )
        tried[rate] = run_load(settings).values["good_share"]
        return tried[rate] >= 0.99

    is_good(4.0)  # warm
    low = 4.0
    if is_good(low):
        while low < 512 and is_good(2 * low):
            low *= 2
    else:
        while low > 1 / 16 and not is_good(low):
            low /= 2
    high = 2 * low
    for _ in range(options.halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if is_good(middle) else (low, middle)
    return {"rate": low, "tried": tried}
