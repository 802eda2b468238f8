"""The CUDA backend on this machine's GPU, in one call that builds nothing: checks first, then speed.

    python benchmarks/gpu.py [--rounds 3] [--no-checks] [--output benchmarks/results/NAME.json]

First what its matrix instructions do with bits. Checks: the case tables of the ops, the digests of real models' logits and whole engines,
on the device. Then, what was missed when a run was cut comes first: layers alone, nano-vllm's list of requests, how long the device has
nothing to do, the digests of a thousand greedy runs. Speed: SmolLM2, and random weights in the shapes of Qwen3 0.6B, Llama 3.2 1B and 8
layers of Llama 3.1 8B; attention and draws alone; transformers next to it, where it is installed; shares of the bandwidth that copies
reach in the same process.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import report

from llmi import LLM, DeviceError, SamplingParams, _core
from llmi.cli import bench
from llmi.engine.cublas import find_cublas_lt
from llmi.testing import tiny_model

LLAMA_1B = {
    "hidden_size": 2048, "num_layers": 16, "vocab_size": 128_256, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "intermediate_size": 8192, "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
#: A quarter of its layers: as weights come from memory one after the other, the share of bandwidth is the whole model's.
LLAMA_8B = {
    "hidden_size": 4096, "num_layers": 8, "vocab_size": 128_256, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 14_336, "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
QWEN_06B = {
    "hidden_size": 1024, "num_layers": 28, "vocab_size": 151_936, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen 0.6B shape": QWEN_06B,
    "Llama 1B shape": LLAMA_1B,
    "Llama 8B shape, 8 of its 32 layers": LLAMA_8B,
}
CHECKS = (
    "test_ops.py",
    "test_attention.py",
    "test_forward.py",
    "test_kv_types.py",
    "test_device_draw.py",
    "test_cuda.py",
    "test_ahead.py",
    "test_tensor_cores.py",
    "test_cublas.py",
)
TINY = {
    "hidden_size": 64, "num_layers": 2, "vocab_size": 257, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 96, "max_position_embeddings": 256,
}  # fmt: skip
#: Of nano-vllm's benchmark: lengths of prompts and answers.
REQUESTS = {"count": 256, "shortest": 100, "longest": 1024}
FEW_REQUESTS = {"count": 6, "shortest": 4, "longest": 24}
DRAWN = {"rows": 128, "vocab": 131_072}
BF16_LINEAR = "bf16 on tensor cores"
ON_TENSOR_CORES = {"linear_dtype": "bf16", "attention_dtype": "bf16"}
CUBLAS = "cuBLASLt"
BY_CUBLAS = {"deterministic": False, "attention_dtype": "bf16"}
ENGINES: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": "bfloat16", "linear_dtype": "float32"},
    BF16_LINEAR: {"dtype": "bfloat16", **ON_TENSOR_CORES},
    CUBLAS: {"dtype": "bfloat16", **BY_CUBLAS},
    "4 bits": {"quantization": "q4_0"},
}
GATE_8B = {"num_outputs": 14_336, "num_cols": 4096}
HEADS_8B = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}


def check() -> None:
    """The tests that know the device, on it; anything that fails ends the run."""
    tests = [str(next((report.ROOT / "tests").glob(f"*/{name}"))) for name in CHECKS]
    subprocess.run([sys.executable, "-m", "pytest", "--rootdir", str(report.ROOT), "-k", "cuda", *tests], check=True)


def device() -> str:
    """The GPU, or the emulation that LLMI_EMULATE_CUDA=1 takes for one."""
    return "emulated" if _core.system_info()["why_no_cuda"] else "cuda"


@cache
def cublas_lt() -> str | None:
    """Where cuBLASLt lies; None where it is not installed."""
    try:
        return find_cublas_lt()
    except DeviceError:
        return None


def gpu_name() -> str:
    """As nvidia-smi has it; empty where there is none."""
    smi = shutil.which("nvidia-smi")
    query = "--query-gpu=name,memory.total,driver_version"
    return subprocess.run([smi, query, "--format=csv,noheader"], capture_output=True, text=True, check=True).stdout.strip() if smi else ""


def copy_bandwidth() -> float:
    """Bytes a second that copies within the device read and write, now."""
    return _core.testing.measure_device_copy(device(), 1 << 28)


def measure_draws(num_rows: int, vocab_size: int) -> dict[str, float]:
    """Microseconds of a draw of all rows by kind of parameters, and how often their logits could be read in that time."""
    kinds = {
        "greedy": {"temperature": 0.0},
        "temperature": {"temperature": 0.8},
        "top-p": {"temperature": 0.8, "top_p": 0.95},
        "top-k, top-p, min-p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.02},
        "temperature, a draft rejected": {"temperature": 0.8},
    }
    read_seconds = num_rows * vocab_size * 4 / copy_bandwidth()
    result = {}
    for name, fields in kinds.items():
        params = _core.SamplingParams()
        for field, value in fields.items():
            setattr(params, field, value)
        seconds = _core.testing.measure_device_draws(device(), params, num_rows, vocab_size, int(name.endswith("rejected")))
        result |= {f"{name}, us": seconds * 1e6, f"{name}, in reads of the logits": seconds / read_seconds}
    return result


def measure_linear(shape: dict[str, int]) -> dict[str, float]:
    """One layer by type of weights and rows: of few rows the share of the bandwidth that copies reach, of many the operations a second."""
    bandwidth = copy_bandwidth()
    result = {}
    kinds = {
        "bf16": ("bf16", ""),
        BF16_LINEAR: ("bf16", "+bf16"),
        "fp16 on tensor cores": ("fp16", "+fp16"),
        "q4_1": ("q4_1", ""),
        "q8_0": ("q8_0", ""),
    }
    if library := cublas_lt():
        kinds |= {f"{kind}, {CUBLAS}": (kind, f"+cublaslt:{library}") for kind in ("bf16", "fp16")}
    for name, (kind, options) in kinds.items():
        where = device() + options
        for rows in (1, 2, 4, 8, 16, 32):
            seconds, weight_bytes = _core.testing.measure_device_linear(where, kind, rows, **shape)
            result[f"{name}, {rows} rows, share of copy"] = weight_bytes / seconds / bandwidth
        seconds, _ = _core.testing.measure_device_linear(where, kind, 512, **shape)
        result[f"{name}, 512 rows, operations/s"] = 2 * 512 * shape["num_outputs"] * shape["num_cols"] / seconds
    return result


def measure_variants(shape: dict[str, int]) -> dict[str, Any]:
    """The variants of streamed layers by type and rows (csrc/kernels/cuda/stream_choices.h): microseconds of each, and the line of the fastest
    for csrc/kernels/cuda/stream_table.h (with this GPU's architecture in place of "sm_")."""
    result: dict[str, Any] = {}
    for kind in ("q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k"):
        for first, last in ((1, 1), (2, 4), (5, 8), (9, 16), (17, 32), (33, 64)):
            forms = ["four"] * (last <= 4) + ["eight"] + ["sixteen"] * (kind in ("q4_0", "q4_1", "q8_0"))
            times = {}
            for variant in (f"{form} x {blocks}" for form in forms for blocks in (1, 2)):
                seconds, _ = _core.testing.measure_device_linear(f"{device()}+variant:{variant}", kind, last, **shape)
                times[variant] = round(seconds * 1e6, 2)
            fastest = min(times, key=times.__getitem__)
            line = ["sm_", kind.upper(), shape["num_outputs"], shape["num_cols"], first, last, fastest]
            result[f"{kind}, {first} to {last} rows"] = {"us": times, "line": f"{{{json.dumps(line)[1:-1]}}},"}
    return result


def measure_attention(thousand: int, heads: dict[str, int], operations_per_s: float) -> dict[str, float]:
    """Decode of 32 contexts of 4K and of one of 128K among 31 of 4K against their bytes; a prompt of 8K against a matrix product's rate."""
    bandwidth = copy_bandwidth()
    token_bytes = 2 * 2 * heads["num_kv_heads"] * heads["head_dim"]
    length = 8 * thousand
    operations = 4 * heads["num_heads"] * heads["head_dim"] * length * (length + 1) / 2
    result = {}
    for kv_dtype in ("float16", "bfloat16"):  # the CPU's order of sums; tensor cores
        for name, contexts in {"uniform": [4 * thousand] * 32, "skewed": [128 * thousand] + [4 * thousand] * 31}.items():
            seconds = _core.testing.measure_device_attention(device(), kv_dtype, contexts, 1, **heads)
            result[f"{kv_dtype}, decode, {name}, time over its bytes' at copy speed"] = seconds * bandwidth / (sum(contexts) * token_bytes)
        seconds = _core.testing.measure_device_attention(device(), kv_dtype, [length], length, **heads)
        result[f"{kv_dtype}, prompt, share of the matrix rate"] = operations / seconds / operations_per_s
    return result


def costs_of_the_promise(measured: dict[str, Any]) -> dict[str, float]:
    """By how much cuBLASLt's order of sums is faster than ours, in the same run: 0.1 is a tenth. Empty where it is not installed."""
    costs = {}
    for name, entry in measured.items():
        model = name.removesuffix(f", {BF16_LINEAR}")
        free = measured.get(f"{model}, {CUBLAS}")
        if model == name or free is None:
            continue
        for work in ("decode 1", "decode 8", "decode 32", "prefill 512"):
            costs[f"{model}, {work}"] = free[work]["median"] / entry[work]["median"] - 1
    return costs


def no_end_of_text(context: Any, logits: Any) -> None:
    """A logits processor that writes one logit."""
    logits[0] = float("-inf")


def measure(path: Path | None, engine: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Decode and prefill of one model; decode as a share of the bandwidth that its weights could be read at."""
    with LLM(path, device="cuda", max_model_len=2048, enable_prefix_caching=False, **engine) as llm:
        works = {f"decode {n}": partial(bench.decode_tokens_per_s, llm, n, 64) for n in (1, 8, 32)}
        hooked = SamplingParams(temperature=0, ignore_eos=True, logits_processors=[no_end_of_text])
        works["decode 32, a logits processor each"] = partial(bench.decode_tokens_per_s, llm, 32, 64, params=hooked)
        works["prefill 512"] = partial(bench.prefill_tokens_per_s, llm, 512)
        works["copy bytes/s"] = copy_bandwidth
        results = {name: bench.summary(values) for name, values in bench.interleave(works, rounds).items()}
        read = results["decode 1"]["median"] * llm.model_info.weight_bytes
        return {"numerics_id": llm.model_info.numerics_id, **results, "decode 1, share of copy": read / results["copy bytes/s"]["median"]}


def transformers_tokens_per_s(path: Path, num_tokens: int) -> float | None:
    """Greedy decoding of one sequence by transformers with a static cache, which it compiles on a GPU; None where it is not installed."""
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError:
        return None
    where = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).to(where)
    prompt = torch.tensor([[5, 6, 7]], device=where)

    def seconds(count: int) -> float:
        began = time.perf_counter()
        tokens = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            min_new_tokens=count,
            max_new_tokens=count,
            cache_implementation="static",
            pad_token_id=0,
        )
        assert tokens.cpu().shape[1] == 3 + count
        return time.perf_counter() - began

    # The cache's size is the longest call's: the warm-up compiles for it.
    seconds(num_tokens + 1)
    return num_tokens / max(seconds(num_tokens + 1) - seconds(1), 1e-9)


def measure_idleness(path: Path, engine: dict[str, Any], num_sequences: int, num_tokens: int) -> dict[str, float]:
    """Of decoding: the share of time between a draw and the next op, as the device sees it; waits; steps launched before the last one's
    tokens."""
    params = SamplingParams(temperature=0.6, seed=0, ignore_eos=True, max_tokens=num_tokens, detokenize=False)
    prompts = [[5 + i % 97, 6, 7] for i in range(num_sequences)]
    with LLM(path, device="cuda", max_model_len=num_tokens + 16, max_num_seqs=num_sequences, enable_prefix_caching=False, **engine) as llm:
        llm.generate(prompts, params, use_tqdm=False)
        before = llm.get_metrics()
        began = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        after = llm.get_metrics()
    change = {
        name: after[name] - before[name]
        for name in ("device_idle_s", "num_device_waits", "num_generated_tokens", "num_steps", "num_steps_ahead")
    }
    return {
        "tokens/s": change["num_generated_tokens"] / seconds,
        "idle share": change["device_idle_s"] / seconds,
        "waits a token": change["num_device_waits"] / change["num_generated_tokens"],
        "steps ahead": change["num_steps_ahead"] / change["num_steps"],
    }


def layer_weights(shape: dict[str, Any]) -> int:
    """Of one layer's matrices."""
    heads = (2 * shape["num_attention_heads"] + 2 * shape["num_key_value_heads"]) * shape["head_dim"]
    return int(shape["hidden_size"] * (heads + 3 * shape["intermediate_size"]))


def serve(path: Path, engine: dict[str, Any], shape: dict[str, Any], requests: dict[str, int], operations_per_s: float) -> dict[str, float]:
    """A list of requests with random lengths, all at once: output tokens a second, and the share of what its parts would need one after the
    other.

    The bound: the prompts' operations in the layers at a matrix product's rate, and, for as many steps as the longest answer has tokens,
    weights once and each running sequence's cache at copy speed.
    """
    rng = random.Random(0)
    count, shortest, longest = requests["count"], requests["shortest"], requests["longest"]
    largest_id = min(10_000, shape["vocab_size"] - 1)
    prompts = [[rng.randint(0, largest_id) for _ in range(rng.randint(shortest, longest))] for _ in range(count)]
    params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=rng.randint(shortest, longest), seed=i) for i in range(count)]
    with LLM(path, device="cuda", max_model_len=2 * longest, max_num_seqs=count, **engine) as llm:
        llm.generate(prompts[:2], max_tokens=8, temperature=0.6, seed=0, use_tqdm=False)
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        lengths = [len(output.outputs[0].token_ids) for output in outputs]
        cached = sum(answer * (len(prompt) + answer / 2) for prompt, answer in zip(prompts, lengths, strict=True))
        read = max(lengths) * llm._step_weight_bytes + cached * llm.model_info.kv_bytes_per_token
        operations = 2 * sum(map(len, prompts)) * shape["num_layers"] * layer_weights(shape)
        bound = operations / operations_per_s + read / copy_bandwidth()
        return {"output tokens/s": sum(lengths) / seconds, "share of the serial bound": bound / seconds}


def count_digests(path: Path, engine: dict[str, Any], num_runs: int) -> dict[str, int]:
    """One greedy prompt `num_runs` times, among companions whose number changes with each call; how many different answers there were."""
    rng = random.Random(0)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=16, logprobs=1, detokenize=False)
    answers = set()
    runs = 0
    with LLM(path, device="cuda", max_model_len=256, max_num_seqs=64, enable_prefix_caching=False, **engine) as llm:
        while runs < num_runs:
            copies = min(rng.randint(1, 32), num_runs - runs)
            companions = [[5 + rng.randrange(200)] * rng.randint(1, 100) for _ in range(rng.randint(0, 32))]
            outputs = llm.generate([[5, 6, 7]] * copies + companions, params, use_tqdm=False)
            answers |= {(tuple(output.outputs[0].token_ids), repr(output.outputs[0].logprobs)) for output in outputs[:copies]}
            runs += copies
    return {"runs": runs, "digests": len(answers)}


def part(name: str, measure: Callable[[], Any]) -> Any:
    """Measures a part of the run, and prints its result and time at once: a rented GPU may be gone before the end."""
    began = time.perf_counter()
    result = measure()
    print(json.dumps({"part": name, "seconds": round(time.perf_counter() - began, 1), "result": result}), flush=True)
    return result


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    # Before anything is tuned: what the promise's rules for this GPU rest on (docs/decisions/0014).
    instructions = _core.testing.probe_matrix_instructions() if device() == "cuda" else {}
    for name, answers in instructions.items():
        print(json.dumps({"part": "matrix instruction", "name": name, "result": answers}))
    if not arguments.no_checks:
        check()
    with tempfile.TemporaryDirectory() as scratch:
        linear = part("linear", lambda: measure_linear({"num_outputs": 64, "num_cols": 64} if arguments.small else GATE_8B))
        variants = part("variants", lambda: measure_variants({"num_outputs": 64, "num_cols": 256} if arguments.small else GATE_8B))
        matrix_rate = linear[f"{BF16_LINEAR}, 512 rows, operations/s"]
        served_shape, requests = (TINY, FEW_REQUESTS) if arguments.small else (QWEN_06B, REQUESTS)
        made = tiny_model("llama", path=Path(scratch) / "served", **served_shape)
        on_tensor_cores = {"dtype": "bfloat16", **ON_TENSOR_CORES}
        served = part("request list", lambda: serve(made, on_tensor_cores, served_shape, requests, matrix_rate))
        idleness = part("idleness", lambda: measure_idleness(made, on_tensor_cores, *((6, 16) if arguments.small else (256, 256))))
        repeats = part("greedy runs", lambda: count_digests(made, on_tensor_cores, 20 if arguments.small else 1000))
        draws = part("draws", lambda: measure_draws(1, 4096) if arguments.small else measure_draws(DRAWN["rows"], DRAWN["vocab"]))
        heads = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 64} if arguments.small else HEADS_8B
        attention = part("attention", lambda: measure_attention(2 if arguments.small else 1024, heads, matrix_rate))
        measured = {"SmolLM2-135M": part("SmolLM2-135M", lambda: measure(None, {}, arguments.rounds))}
        paths = {}
        for shape_name, shape in ({} if arguments.small else SHAPES).items():
            paths[shape_name] = path = tiny_model("llama", path=Path(scratch) / shape_name.replace(" ", "-"), **shape)
            for kind, engine in ENGINES.items():
                if kind != CUBLAS or cublas_lt():
                    name = f"{shape_name}, {kind}"
                    measured[name] = part(name, partial(measure, path, engine, arguments.rounds))
        peers = {name: part(f"transformers, {name}", partial(transformers_tokens_per_s, path, 128)) for name, path in paths.items()}
        return {
            "gpu": gpu_name(),
            "matrix instructions": instructions,
            "models": measured,
            "cost of the promise": costs_of_the_promise(measured),
            "draws": draws,
            "linear": linear,
            "variants of streamed layers": variants,
            "attention": attention,
            "request list": served,
            "idleness": idleness,
            "greedy runs": repeats,
            "transformers, bf16, static cache, decode 1": peers,
        }


def table(result: dict[str, Any]) -> str:
    """Markdown rows."""
    lines = ["| model | decode 1 | 8 | 32 | prefill 512 | decode 1, share of copy bandwidth |", "| --- | --- | --- | --- | --- | --- |"]
    for name, entry in result["models"].items():
        speeds = " | ".join(f"{entry[work]['median']:,.0f}" for work in ("decode 1", "decode 8", "decode 32", "prefill 512"))
        lines.append(f"| {name} | {speeds} | {entry['decode 1, share of copy']:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-checks", action="store_true", help="speed alone")
    parser.add_argument("--small", action="store_true", help="SmolLM2 alone, and small ops: for a try")
    sys.exit(report.main(parser, run, table))
