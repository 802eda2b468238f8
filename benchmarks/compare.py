"""llmi and its peers on the same model, interleaved in one run: medians and spread, as JSON.

    python benchmarks/compare.py [--model FILE.gguf] [--llama-bin DIR [--llama-q4_0 FILE] [--also TYPE=FILE ..]]
        [--peers-python PYTHON --peers-dir DIR] [--rounds 5] [--output benchmarks/results/NAME.json]

--llama-bin holds llama-bench, llama-batched-bench and llama-quantize (built from the vendored source of llama-cpp-python, native flags);
--also names the model in further types, Q8_0 or BF16, as llama-quantize writes them: llmi and llama.cpp run each. The other
peers are prepared and served by benchmarks/peers.py. What is not given is not measured. --model may be one of
benchmarks/random_model.py, larger than the caches; it is SmolLM2-135M otherwise.
`--readme FILE.json` writes the table in docs from a result.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import report
from peers import PEERS

from llmi import LLM, BeamSearchParams, SamplingParams, _core
from llmi.cli.bench import BATCHES, DECODE_SHARE, Ceilings, bound_shares, interleave, own_works, paired_ratio, summary
from llmi.models import by_name

COLUMNS = {
    "llama.cpp": "llama.cpp, same file",
    "llama.cpp Q4_0": "llama.cpp, Q4_0",
    "ctranslate2": "CTranslate2, int8",
    "openvino": "OpenVINO GenAI, int4",
    "transformers": "transformers, bf16",
}

NARROW = "llmi, 8 bits"  # activation_bits=8, the fast setting
NARROW_WORKS = ("prefill 512", "prefill 2048", "decode 1", "decode 8", "decode 32")
BF16 = "llmi, bf16 attention"
BF16_WEIGHTS = "llmi, bf16 weights"
BF16_WORKS = ("prefill 512", "prefill 2048", "decode 1", "decode 1, context 2048")
Q4_0 = "llmi, Q4_0"  # the file that llama.cpp is fastest with, which has half a bit less a weight than Q4_1
SHORT_WORKS = ("prefill 512", "decode 1", "decode 8", "decode 32")
REQUESTS = "32 requests"
BEAMS = {1: "beam of 4, 1 prompt", 8: "beam of 4, 8 prompts"}  # 64 tokens, in steps a second
REQUEST_SHAPE = (32, 128, 64)  # how many, tokens of a prompt, of an answer
BUSY = ", with one busy core"  # llmi: as a share of the quiet speed
BUSY_PAIRS = 4
FREE_TYPES = ("Q4_1", "Q8_0", "BF16")


def llama_bench(binary: Path, model: Path, threads: int, arguments: list[str]) -> float:
    """llama-bench's own average, one repetition."""
    command = [str(binary), "-m", str(model), "-t", str(threads), "-r", "1", "-o", "json", *arguments]
    return float(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[0]["avg_ts"])


def llama_batched(
    binary: Path, model: Path, threads: int, num_sequences: int, prompt: int = 1, answer: int = 32, field: str = "speed_tg"
) -> float:
    """Tokens a second of so many sequences: of the answers (speed_tg), or of prompts and answers in all the time (speed)."""
    lengths = ["-c", "8192", "-npp", str(prompt), "-ntg", str(answer), "-npl", str(num_sequences)]
    command = [str(binary), "-m", str(model), "-t", str(threads), *lengths, "--output-format", "jsonl"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return float(json.loads(next(line for line in lines if line.startswith("{")))[field])


def llama_works(folder: Path, name: str, model: Path, threads: int) -> dict[str, Callable[[], float]]:
    """The works of one file."""
    bench, batched = folder / "llama-bench", folder / "llama-batched-bench"
    works = {
        f"{name} prefill {length}": partial(llama_bench, bench, model, threads, ["-p", str(length), "-n", "0"]) for length in (512, 2048)
    }
    works[f"{name} decode 1"] = partial(llama_bench, bench, model, threads, ["-p", "0", "-n", "128"])
    works |= {f"{name} decode {batch}": partial(llama_batched, batched, model, threads, batch) for batch in (8, 32)}
    works[f"{name} {REQUESTS}"] = partial(llama_batched, batched, model, threads, *REQUEST_SHAPE, "speed")
    return works


def requests_tokens_per_s(llm: LLM) -> float:
    """Prompts and answers of 32 requests that come at once, over the time until the last has ended."""
    count, prompt, answer = REQUEST_SHAPE
    prompts = [[100 + (i * 31 + j * 7919) % 40_000 for j in range(prompt)] for i in range(count)]
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=answer)
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return count * (prompt + answer) / (time.perf_counter() - start)


def beam_steps_per_s(llm: LLM, count: int) -> float:
    """As benchmarks/peers.py measures it."""
    prompts = [[100 + (i * 31 + j * 7919) % 40_000 for j in range(16)] for i in range(count)]
    start = time.perf_counter()
    llm.generate(prompts, BeamSearchParams(beam_width=4, max_tokens=64, ignore_eos=True), use_tqdm=False)
    return 64 / (time.perf_counter() - start)


class Peer:
    """A peer in a process of its own, loaded once, idle between works."""

    def __init__(self, python: str, folder: str, name: str, threads: int) -> None:
        command = [python, str(report.ROOT / "benchmarks" / "peers.py"), "serve", name, folder, str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if self._line() != "ready":
            raise RuntimeError(f"{name} could not be loaded: try {' '.join(command)}")

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def measure(self, work: str) -> float:
        assert self.process.stdin is not None
        print(work, file=self.process.stdin, flush=True)
        return float(self._line())


@cache
def random_matrix(kind: str, rows: int, cols: int) -> Any:
    """Packed weights of random values."""
    sys.path.insert(0, str(report.ROOT / "tests" / "support"))
    from quantization import random_blocks

    return _core.testing.PackedMatrix("", kind, random_blocks(kind, rows, cols), rows, cols)


def linear_seconds(kind: str, rows: int, cols: int, num_tokens: int, threads: int) -> float:
    """One layer, what it does to its input included; the best of five."""
    matrix, x = random_matrix(kind, rows, cols), np.ones((num_tokens, cols), np.float32)
    best = 1e9
    for _ in range(5):
        start = time.perf_counter()
        _core.testing.linear("", [matrix], x, num_threads=threads)
        best = min(best, time.perf_counter() - start)
    return best


def free_tokens(kind: str, threads: int) -> float:
    """M*: tokens whose products ride on one pass over weights larger than the cache: time of one token over the marginal time of one of
    64."""
    one, many = (linear_seconds(kind, 98_304, 1024, num_tokens, threads) for num_tokens in (1, 64))
    return one / ((many - one) / 63)


def linear_gops(threads: int) -> float:
    """Billions of operations a second of a 4-bit layer of 4,096 by 4,096 alone, 512 tokens."""
    return 2 * 512 * 4096 * 4096 / linear_seconds("Q4_1", 4096, 4096, 512, threads) / 1e9


def import_ms(model: Path) -> dict[str, float]:
    """`python -X importtime` of `llmi generate`: milliseconds by package, the ten slowest, and of all."""
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "llmi.cli.commands",
        "generate",
        "-m",
        str(model),
        "-p",
        "Once",
        "--max-tokens",
        "1",
    ]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    packages: dict[str, float] = {}
    for entry in (line.removeprefix("import time:").split("|") for line in lines if line.startswith("import time:")):
        if entry[0].strip().isdigit():  # the first line names the columns
            package = entry[2].strip().split(".")[0]
            packages[package] = packages.get(package, 0.0) + int(entry[0]) / 1000
    slowest = sorted(packages, key=lambda package: -packages[package])[:10]
    return {"all": round(sum(packages.values()), 1)} | {package: round(packages[package], 1) for package in slowest}


def with_a_busy_core(work: Callable[[], float]) -> float:
    """The same while another process computes without end."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            time.sleep(0.2)  # it is up
            return work()
        finally:
            busy.kill()


def start_seconds(model: Path) -> float:
    """Process start of `llmi generate -p` to the first character on its output; 16 tokens, model cached, bytecode kept as pip does."""
    prompt = "Once upon a time there was a small village at the foot of a tall hill"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "llmi.cli.commands", "generate", "-m", str(model), "-p", prompt, "--max-tokens", "4"],
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        elapsed = time.perf_counter() - start
        process.stdout.read()
    return elapsed


def first_token_seconds(model: Path) -> float:
    """The median of five starts, one after the other."""
    return statistics.median(start_seconds(model) for _ in range(5))


def first_token_after_pause(model: Path) -> float:
    """A start after five seconds, in which a virtual machine gives its free memory back to its host: each page is fetched again."""
    time.sleep(5)
    return start_seconds(model)


def peak_memory(model: Path) -> dict[str, float]:
    """VmHWM after load minus before, and what it may be compared with, in MB; in a fresh process."""
    code = (
        "import sys, re; from llmi import LLM, Tokenizer; t = Tokenizer(sys.argv[1]); t.vocab_bytes; import llmi._core\n"
        "hwm = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read()).group(1)) / 1000\n"
        "import time; start = time.perf_counter()\n"
        "before = hwm(); llm = LLM(sys.argv[1], tokenizer=t, kv_cache_memory_bytes=1 << 26); after = hwm()\n"
        "print(before, after, llm.model_info.weight_bytes / 1e6, time.perf_counter() - start)"
    )
    before, after, weights, seconds = map(
        float, subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True).stdout.split()
    )
    return {
        "load_s": seconds,
        "load_mb": after - before,
        "packed_weights_mb": weights,
        "kv_mb": (1 << 26) / 1e6,
        "ratio": (after - before) / (weights + (1 << 26) / 1e6),
    }


def side_by_side(works: dict[str, Callable[[], float]], names: list[str]) -> dict[str, Callable[[], float]]:
    """The same work by everyone in a row, with what it is compared with: ratios are of measurements seconds apart."""

    def place(name: str) -> int:
        plain = name.removesuffix(BUSY)
        return next((i for i, own in enumerate(names) if plain.endswith(f" {own}")), len(names))

    return dict(sorted(works.items(), key=lambda item: place(item[0])))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All works, A B A B."""
    model = arguments.model or by_name.fetch("smollm2-135m-instruct")
    threads = arguments.threads or _core.system_info()["num_threads"]
    llm = LLM(model, num_threads=threads, kv_cache_memory_bytes=1 << 29, enable_prefix_caching=False)
    ceilings = Ceilings(threads)
    works: dict[str, Callable[[], float]] = {"read bandwidth GB/s": ceilings.probe}
    works |= {f"llmi {name}": work for name, work in own_works(llm).items()}
    quiet = works["llmi decode 1"]
    works[f"llmi decode 1{BUSY}"] = partial(paired_ratio, quiet, partial(with_a_busy_core, quiet), BUSY_PAIRS)
    works[f"llmi {REQUESTS}"] = partial(requests_tokens_per_s, llm)
    works |= {f"llmi {name}": partial(beam_steps_per_s, llm, count) for count, name in BEAMS.items()}
    has_bf16 = llm._table == "avx512_bf16"  # elsewhere the same bits take several instructions
    variants: list[tuple[str, Any, tuple[str, ...], dict[str, Any]]] = [(NARROW, model, NARROW_WORKS, {"activation_bits": 8})]
    if has_bf16:
        variants.append((BF16, model, BF16_WORKS, {"attention_dtype": "bf16"}))
        variants.append((BF16_WEIGHTS, model, SHORT_WORKS, {"dtype": "bfloat16", "linear_dtype": "bf16", "attention_dtype": "bf16"}))
    if arguments.llama_q4_0:
        variants.append((Q4_0, arguments.llama_q4_0, SHORT_WORKS, {}))
    also = [tuple(entry.split("=", 1)) for entry in arguments.also]
    for kind, file in also:
        in_pairs = {"dtype": "bfloat16", "linear_dtype": "bf16"} if has_bf16 and kind == "BF16" else {}
        variants.append((f"llmi, {kind}", Path(file), SHORT_WORKS, in_pairs))
    for column, file, names, options in variants:
        variant = LLM(file, num_threads=threads, kv_cache_memory_bytes=1 << 28, enable_prefix_caching=False, **options)
        works |= {f"{column} {name}": work for name, work in own_works(variant).items() if name in names}
    works |= {f"tokens riding free M*, {kind}": partial(free_tokens, kind, threads) for kind in FREE_TYPES}
    works["linear layer alone, 512 tokens, Gop/s"] = partial(linear_gops, threads)
    works["first token s"] = partial(first_token_seconds, model)
    works["first token after a pause s"] = partial(first_token_after_pause, model)
    if arguments.llama_bin:
        works |= llama_works(Path(arguments.llama_bin), "llama.cpp", model, threads)
        works[f"llama.cpp decode 1{BUSY}"] = partial(with_a_busy_core, works["llama.cpp decode 1"])
    if arguments.llama_q4_0:
        works |= llama_works(Path(arguments.llama_bin), "llama.cpp Q4_0", Path(arguments.llama_q4_0), threads)
    for kind, file in also if arguments.llama_bin else ():
        of_file = llama_works(Path(arguments.llama_bin), f"llama.cpp {kind}", Path(file), threads)
        works |= {name: work for name, work in of_file.items() if name.removeprefix(f"llama.cpp {kind} ") in SHORT_WORKS}
    for name in (name for name in PEERS if arguments.peers_python and (Path(arguments.peers_dir) / name).exists()):
        peer = Peer(arguments.peers_python, arguments.peers_dir, name, threads)
        works[f"{name} prefill 512"] = partial(peer.measure, "prefill 512")
        works[f"{name} decode 1"] = partial(peer.measure, "decode 128")
        if name != "openvino":
            works |= {f"{name} {BEAMS[count]}": partial(peer.measure, f"beams-{count} 64") for count in BEAMS}
    values = interleave(side_by_side(works, [*own_works(llm), REQUESTS, *BEAMS.values()]), arguments.rounds) | ceilings.arithmetic()

    def ratio(one: str, other: str) -> float:
        """Of what was measured in the same round: the machine's speed moves between rounds."""
        return statistics.median(a / b for a, b in zip(values[one], values[other], strict=True))

    shares = bound_shares(llm, {name.removeprefix("llmi "): entries for name, entries in values.items()})
    free = statistics.median(values["tokens riding free M*, Q4_1"])
    ratios = {
        "decode 8 / (min(8, M*) x decode 1)": 8 / statistics.median(values["llmi c(8)"]) / min(8.0, free),
        DECODE_SHARE: shares["decode 1"],
        **{f"{name}, share of its bound": share for name, share in shares.items() if name.startswith("prefill")},
        "linear layer alone, 512 tokens, share of int8 peak": statistics.median(values["linear layer alone, 512 tokens, Gop/s"])
        / max(values["int8 dot Gop/s"]),
    }
    for name in ("llama.cpp", "llama.cpp Q4_0"):
        if f"{name} {REQUESTS}" in values:
            ratios[f"{REQUESTS} / {name}"] = ratio(f"llmi {REQUESTS}", f"{name} {REQUESTS}")
    ratios["llmi decode 1 with one busy core, of the quiet speed"] = statistics.median(values[f"llmi decode 1{BUSY}"])
    for name in COLUMNS:
        for beams in BEAMS.values():
            if f"{name} {beams}" in values:
                ratios[f"{beams} / {name}"] = ratio(f"llmi {beams}", f"{name} {beams}")
    if arguments.llama_bin:
        ratios["llama.cpp decode 1 with one busy core, of the quiet speed"] = ratio(f"llama.cpp decode 1{BUSY}", "llama.cpp decode 1")
    ratios |= {f"c({batch}), of the step of one": statistics.median(values[f"llmi c({batch})"]) for batch in BATCHES[1:]}
    for own in ("llmi", BF16) if has_bf16 else ("llmi",):
        for work in BF16_WORKS if own == BF16 else ("prefill 512", "decode 1", "decode 32"):
            for name in COLUMNS:
                if f"{name} {work}" in values:
                    ratios[f"{work}{own.removeprefix('llmi')} / {name}"] = ratio(f"{own} {work}", f"{name} {work}")
    for work in SHORT_WORKS if arguments.llama_q4_0 else ():
        ratios[f"{work}, Q4_0 / llama.cpp Q4_0"] = ratio(f"{Q4_0} {work}", f"llama.cpp Q4_0 {work}")
    for kind, _ in also if arguments.llama_bin else ():
        for work in SHORT_WORKS:
            ratios[f"{work}, {kind} / llama.cpp {kind}"] = ratio(f"llmi, {kind} {work}", f"llama.cpp {kind} {work}")
    for work in ("prefill 512", "decode 1"):
        if f"{BF16_WEIGHTS} {work}" in values and f"transformers {work}" in values:
            ratios[f"{work}, bf16 weights / transformers"] = ratio(f"{BF16_WEIGHTS} {work}", f"transformers {work}")
    results = {name: summary(entries) | {"values": [float(f"{value:.5g}") for value in entries]} for name, entries in values.items()}
    return {
        "model": model.name,
        "table": llm._table,
        "threads": threads,
        "results": results,
        "ratios": ratios,
        "memory": peak_memory(model),
        "imports_ms": import_ms(model),
    }


def readme_table(result: dict[str, Any]) -> str:
    """The table of docs/speed.md."""
    results = result["results"]

    def cell(name: str) -> str:
        return f"{results[name]['median']:,.0f}" if name in results else ""

    works = {
        "prefill, 512 tokens": "prefill 512",
        "prefill, 2,048 tokens": "prefill 2048",
        "decode, 1 sequence": "decode 1",
        "decode, 8 sequences": "decode 8",
        "decode, 32 sequences": "decode 32",
        "32 requests end to end, 128 tokens in and 64 out": REQUESTS,
        "beam of 4, 64 tokens, one prompt, steps": BEAMS[1],
        "beam of 4, 64 tokens, eight prompts at once, steps": BEAMS[8],
    }
    peers = [name for name in COLUMNS if f"{name} decode 1" in results]
    own = [name for name in ("llmi", NARROW, BF16, BF16_WEIGHTS, Q4_0) if f"{name} prefill 512" in results]
    after_pause = results.get("first token after a pause s")
    pause = f", {after_pause['median']:.2f} s after five idle seconds" if after_pause else ""
    ratios = result["ratios"]
    shares = {
        "decode of one sequence {} of read bandwidth": DECODE_SHARE,
        "prefill of 512 tokens {} of the arithmetic peak": "prefill 512, share of its bound",
        "one 4-bit layer {} of the int8 peak": "linear layer alone, 512 tokens, share of int8 peak",
    }
    reached = ", ".join(words.format(f"{ratios[key]:.0%}") for words, key in shares.items() if key in ratios)
    lines = [
        f"Tokens per second, {result['model']}, {result['threads']} threads of {result['cpu']} ({result['table']}), medians of"
        f" {next(iter(results.values()))['rounds']} interleaved rounds (`benchmarks/compare.py`, commit {result['commit'][:10]}):",
        "",
        f"| | {' | '.join((*own, *(COLUMNS[name] for name in peers)))} |",
        f"| --- |{' --- |' * (len(own) + len(peers))}",
        *(
            f"| {name} | {' | '.join(cell(f'{who} {work}') for who in (*own, *peers))} |"
            for name, work in works.items()
            if f"llmi {work}" in results
        ),
        "",
        f"Time from process start to the first token of `llmi generate -p`: {results['first token s']['median']:.2f} s warm{pause}. Loading takes at most"
        f" {result['memory']['load_mb']:.0f} MB for {result['memory']['packed_weights_mb']:.0f} MB of packed weights."
        + (f" Share of the hardware's limit: {reached}." if reached else ""),
    ]
    return "\n".join(lines)


def marker(result: dict[str, Any]) -> str:
    """A table for each kind of processor, and for each model."""
    kind = report.by_processor("compare", result)
    return kind if result["model"].startswith("SmolLM2") else f"{kind} {result['model']}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a .gguf file")
    parser.add_argument("--llama-bin", help="folder with llama-bench and llama-batched-bench")
    parser.add_argument("--llama-q4_0", help="the model as Q4_0 (llama-quantize), the fastest of llama.cpp's 4-bit types")
    parser.add_argument("--also", nargs="*", default=[], metavar="TYPE=FILE", help="the model in other types, for llmi and llama.cpp")
    parser.add_argument("--peers-python", help="the Python of an environment with the peers of benchmarks/peers.py")
    parser.add_argument("--peers-dir", help="what `benchmarks/peers.py prepare` wrote")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    sys.exit(report.main(parser, measure, readme_table, marker))
