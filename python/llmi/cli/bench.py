"""`llmi bench`: what a model does on this machine, each number next to the ceiling that bounds it, interleaved in one run."""

from __future__ import annotations

import dataclasses
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from llmi import _core
from llmi.base.energy import EnergyMeter, cost_per_million
from llmi.base.progress import progress
from llmi.cli.bench_bytes import attention_bytes, fused_bytes
from llmi.engine.numerics_id import dots_of_a_weight
from llmi.llm import LLM
from llmi.params.sampling import SamplingParams

BATCHES = (1, 2, 3, 4, 6, 8, 16, 32)
FUSED = "fused ops, a token"
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
    bytes_moved: dict[str, dict[str, int]]  # by arithmetic: of the attention of each prefill, and what each fused op spares a token

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        return {**self.facts, "results": self.results, "shares": self.shares, "bytes": self.bytes_moved}

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
            spent = f"  {entry['joules_per_token']:.3g} J a token" if "joules_per_token" in entry else ""
            spent += f"  {entry['cost_per_million']:,.3g} a million tokens" if "cost_per_million" in entry else ""
            lines.append(f"{name:<34} {median:>12}  ({low} to {high}){share}{spent}")
        if not any("joules_per_token" in entry for entry in self.results.values()):
            lines.append("joules: no counter of the processor's energy can be read here (/sys/class/powercap)")
        lines += ["", "MB that attention moves, by arithmetic:"]
        for name, moved in self.bytes_moved.items():
            if name == FUSED:
                lines += ["", "KB that each fused op spares a token, by arithmetic:"]
                lines += [f"{op:<34} {count / 1e3:>12,.1f}" for op, count in moved.items()]
            else:
                lines.append(
                    f"{name:<34} {moved['tiled'] / 1e6:>12,.1f}  (naive {moved['naive'] / 1e6:,.1f}, {moved['naive'] / moved['tiled']:.1f}"
                    " times)"
                )
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


class Metered:
    """A work of tokens a second, with the power that the machine took meanwhile where it can be read: joules a token of each round."""

    def __init__(self, work: Callable[[], float]) -> None:
        self._work = work
        self.joules_per_token: list[float] = []

    def __call__(self) -> float:
        """Runs the work once."""
        meter, began_s = EnergyMeter(), time.perf_counter()
        tokens_per_s = self._work()
        joules, seconds = meter.joules(), time.perf_counter() - began_s
        if joules is not None:
            self.joules_per_token.append(joules / seconds / tokens_per_s)
        return tokens_per_s


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


def run_bench(llm: LLM, rounds: int = 3, price_per_hour: float | None = None) -> BenchReport:
    """Measures `llm`, which should have its prefix cache off, and the machine's ceilings in the same rounds.

    Parameters
    ----------
    llm : LLM
    rounds : int
        Of all works, interleaved; medians are reported.
    price_per_hour : float, optional
        Of the machine, in any currency: what a million tokens cost is reported, too.
    """
    threads: int = llm._num_threads
    started = time.time()
    ceilings = Ceilings(threads)
    works = {
        name: Metered(work) if name.startswith(("prefill", "decode")) and name != DECODE_SHARE else work
        for name, work in own_works(llm).items()
    }
    values = interleave({"read bandwidth GB/s": ceilings.probe, **works}, rounds) | ceilings.arithmetic()
    results = {name: summary(entries) for name, entries in values.items()}
    facts = {
        "model": llm.model_info.path.rsplit("/", 1)[-1],
        "numerics_id": llm.model_info.numerics_id,
        "weight_mb": llm.model_info.weight_bytes / 1e6,
        "threads": threads,
        "cpu": _core.system_info()["cpu"],
        "table": llm._table,
        "python": platform.python_version(),
        "rounds": rounds,
        "seconds": time.time() - started,
    }
    metered = {name: work.joules_per_token for name, work in works.items() if isinstance(work, Metered)}
    for name, joules in metered.items():
        if joules:
            results[name]["joules_per_token"] = statistics.median(joules)
        if price_per_hour is not None:
            results[name]["cost_per_million"] = cost_per_million(price_per_hour, results[name]["median"])
    return BenchReport(facts, results, bound_shares(llm, values), moved_bytes(llm, values))


def moved_bytes(llm: LLM, names: Iterable[str]) -> dict[str, dict[str, int]]:
    """Bytes of the attention of each prefill among `names`; under FUSED, bytes that the fused ops spare."""
    config, info, args = _core.spec_numbers(llm._spec.to_json(), llm.model_info.path), llm._engine.info(), llm._engine_args
    lengths = {name: int(name.split()[1]) for name in names if name.startswith("prefill")}
    moved = {name: attention_bytes(config, length, args.kv_type) for name, length in lengths.items()}
    dots = dots_of_a_weight(info["weight_types"], info["has_quantized_layers"], args.activation_bits)
    return {**moved, FUSED: fused_bytes(config, dots if info["has_quantized_layers"] else 0)}


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
