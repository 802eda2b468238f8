"""`llmi bench`: what a model does on this machine, each number next to the ceiling that bounds it, interleaved in one run."""

from __future__ import annotations

import dataclasses
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from llmi import _core
from llmi.base.progress import progress
from llmi.engine.numerics_id import dots_of_a_weight
from llmi.llm import LLM
from llmi.params.sampling import SamplingParams

BATCHES = (1, 2, 3, 4, 6, 8, 16, 32)
DECODE_SHARE = "decode 1, share of read bandwidth"
_READ_BYTES = 1 << 30
_PAIRED_BYTES = 1 << 28  # read in a few milliseconds
_PAIRS = 24
_STEP_PAIRS = 8
_GREEDY = SamplingParams(temperature=0, ignore_eos=True, detokenize=False)


@dataclasses.dataclass
class BenchReport:
    """Medians and spread of each work, and shares of this machine's ceilings. `to_dict()` is JSON."""

    facts: dict[str, Any]
    results: dict[str, dict[str, float]]
    shares: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        return {**self.facts, "results": self.results, "shares": self.shares}

    def __str__(self) -> str:
        facts = self.facts
        lines = [
            f"{facts['model']}, {facts['threads']} threads of {facts['cpu']} ({facts['table']}), medians of {facts['rounds']} rounds",
            facts["numerics_id"],
            "",
        ]
        for name, entry in self.results.items():
            share = f"{self.shares[name]:8.0%} of its bound" if name in self.shares else ""
            median, low, high = (f"{entry[key]:,.{1 if entry[key] > 10 else 2}f}" for key in ("median", "min", "max"))
            lines.append(f"{name:<34} {median:>12}  ({low} to {high}){share}")
        return "\n".join(lines)


def prefill_tokens_per_s(llm: LLM, length: int) -> float:
    """Prompt tokens over the time to the first token."""
    prompt = [100 + i * 7919 % min(llm.model_info.vocab_size - 100, 40_000) for i in range(length)]
    return length / llm.generate(prompt, _GREEDY.replace(max_tokens=1), use_tqdm=False)[0].metrics.time_to_first_token_s


def decode_tokens_per_s(llm: LLM, num_sequences: int, num_tokens: int, context: int = 1, params: SamplingParams = _GREEDY) -> float:
    """Tokens of all sequences over the time between the first and the last."""
    prompts = [[100 + (i + j) % 97 for j in range(context)] for i in range(num_sequences)]
    outputs = llm.generate(prompts, params.replace(max_tokens=num_tokens), use_tqdm=False)
    return num_sequences * (num_tokens - 1) / max(float(output.metrics.inter_token_latencies_s.sum()) for output in outputs)


def paired_ratio(reference: Callable[[], float], work: Callable[[], float], pairs: int) -> float:
    """The result of `work` over the results of `reference` just before and after: the median of pairs in which these agreed within a tenth.

    The machine's speed changes within seconds, so a ratio of works that run further apart would also compare two speeds of the machine.
    """
    ratios: list[tuple[bool, float]] = []
    before = reference()
    for _ in range(pairs):
        measured = work()
        after = reference()
        ratios.append((abs(after - before) < 0.1 * after, measured / ((before + after) / 2)))
        before = after
    steady = [ratio for is_steady, ratio in ratios if is_steady]
    return statistics.median(steady or [ratio for _, ratio in ratios])


def decode_share(llm: LLM) -> float:
    """The share of the read bandwidth that a few steps of one sequence reach."""
    probe = _core.ReadProbe(llm._num_threads, _PAIRED_BYTES)
    return paired_ratio(probe.bytes_per_s, lambda: decode_tokens_per_s(llm, 1, 9) * llm._step_weight_bytes, _PAIRS)


def step_ratio(llm: LLM, num_sequences: int) -> float:
    """c(M): time of a step of num_sequences sequences over that of one, at the same context."""
    return num_sequences / paired_ratio(
        partial(decode_tokens_per_s, llm, 1, 9), partial(decode_tokens_per_s, llm, num_sequences, 9), _STEP_PAIRS
    )


def summary(values: list[float]) -> dict[str, float]:
    """Median and spread."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": len(values)}


def interleave(works: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Each work once a round, A B A B, so that a busy moment hits all alike; what each gave, round by round."""
    values: dict[str, list[float]] = {name: [] for name in works}
    with progress(rounds * len(works), "bench", "work", None) as bar:
        for _ in range(rounds):
            for name, work in works.items():
                values[name].append(work())
                bar.update(1)
    return values


class Ceilings:
    """The limits of reading and arithmetic, probed in each round next to the work."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.values: dict[str, list[float]] = {}

    def probe(self) -> float:
        """All of them; returns the bandwidth, in GB/s."""
        for name, value in _core.measure_ceilings(self.threads, _READ_BYTES).items():
            self.values.setdefault(name, []).append(value / 1e9)
        return self.values["read_bytes_per_s"][-1]

    def arithmetic(self) -> dict[str, list[float]]:
        """Billions of operations a second, round by round."""
        names = {"fp32 fma Gop/s": "fma_ops_per_s", "bf16 dot Gop/s": "bf16_ops_per_s", "int8 dot Gop/s": "dots_ops_per_s"}
        return {shown: self.values[name] for shown, name in names.items()}


def own_works(llm: LLM) -> dict[str, Callable[[], float]]:
    """The measurements: tokens a second; `decode_share` and c(M) are ratios."""
    room = llm.model_info.max_model_len
    works: dict[str, Callable[[], float]] = {
        f"prefill {length}": partial(prefill_tokens_per_s, llm, length) for length in (512, 2048) if length < room
    }
    works["decode 1"] = partial(decode_tokens_per_s, llm, 1, 64, 128)
    works[DECODE_SHARE] = partial(decode_share, llm)
    if room > 2048 + 32:
        works["decode 1, context 2048"] = partial(decode_tokens_per_s, llm, 1, 32, 2048)
    works |= {f"decode {batch}": partial(decode_tokens_per_s, llm, batch, 32) for batch in BATCHES[1:]}
    works |= {f"c({batch})": partial(step_ratio, llm, batch) for batch in BATCHES[1:]}
    works["decode 32, temperature 1"] = partial(decode_tokens_per_s, llm, 32, 32, params=_GREEDY.replace(temperature=1.0, seed=1))
    return works


def run_bench(llm: LLM, rounds: int = 3) -> BenchReport:
    """Measures `llm`, which should have its prefix cache off, and the machine's ceilings in the same rounds.

    Parameters
    ----------
    llm : LLM
    rounds : int
        Of all works, interleaved; medians are reported.
    """
    threads: int = llm._num_threads
    started = time.time()
    ceilings = Ceilings(threads)
    values = interleave({"read bandwidth GB/s": ceilings.probe, **own_works(llm)}, rounds) | ceilings.arithmetic()
    results = {name: summary(entries) for name, entries in values.items()}
    facts = {
        "model": llm.model_info.path.rsplit("/", 1)[-1], "numerics_id": llm.model_info.numerics_id, "weight_mb": llm.model_info.weight_bytes / 1e6,
        "threads": threads, "cpu": _core.system_info()["cpu"], "table": llm._table, "python": platform.python_version(), "rounds": rounds,
        "seconds": time.time() - started,
    }  # fmt: skip
    return BenchReport(facts, results, bound_shares(llm, values))


def bound_shares(llm: LLM, values: dict[str, list[float]]) -> dict[str, float]:
    """Decode: weights that a step reads, over what memory gives. Prefill: its operations over the peak of their kind; 16-bit activations
    take two int8 dots for each weight.

    What memory gives swings, so it is read next to the steps (`decode_share`); other work on the machine only lowers a peak, so that is the
    rounds' maximum.
    """
    config = _core.spec_numbers(llm._spec.to_json(), llm.model_info.path)
    peak = {name: 1e9 * max(values[name]) for name in ("int8 dot Gop/s", "fp32 fma Gop/s")}
    info = llm._engine.info()
    dots = dots_of_a_weight(info["weight_types"], info["has_quantized_layers"], llm._engine_args.activation_bits)
    matrix_peak = peak["int8 dot Gop/s"] / dots if dots else peak["fp32 fma Gop/s"]
    query, kv = config["num_heads"] * config["head_dim"], config["num_kv_heads"] * config["head_dim"]
    layers, hidden = llm.model_info.num_layers, config["hidden_size"]
    mlp = sum((3 if gated else 2) * hidden * size for size, gated in zip(config["mlp_sizes"][:layers], config["mlp_gated"], strict=False))
    weights = layers * (2 * hidden * query + 2 * hidden * kv) + mlp
    shares = {"decode 1": statistics.median(values[DECODE_SHARE])}
    for name, entries in values.items():
        if name.startswith("prefill"):
            length = int(name.split()[1])
            pairs = sum(length * (length + 1) / 2 if not window else _windowed(length, window) for window in config["windows"][:layers])
            bound = length * 2 * weights / matrix_peak + 4 * query * pairs / peak["fp32 fma Gop/s"]
            shares[name] = statistics.median(entries) * bound / length
    return shares


def _windowed(length: int, window: int) -> float:
    """Pairs of a query and a key that it sees."""
    full = max(0, length - window)
    return full * window + (length - full) * (length - full + 1) / 2
