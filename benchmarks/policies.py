"""Policies of published systems on slices of two public traces, simulated: `python benchmarks/policies.py [POLICY ..]`.

Engines are eight H100 with Llama-2-70B, by three published numbers (splitwise-sim's perf_model.csv, MIT): a decode takes 30.6 ms, a prompt of
2,048 tokens 137 ms, both by the line between them; K and V are read at the memory's full rate, which nobody measured; a link has 25 GB/s.
Exit code 1 if an ordering that docs/simulator.md states does not hold.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import llmi
from llmi.simulation.policies import NAMED

TRACES = Path(__file__).parent / "traces"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
COSTS = llmi.Costs.formula(0.0306 - 5.2e-5, 5.2e-5, 327_680 / (8 * 3.35e12), link_bytes_s=25e9)
POOL_BYTES = 436_000_000_000  # 8 x 80 GB at 0.9, without 140 GB of weights
SLO = {"ttft": 2000, "tpot": 100}
#: slice, times its rate, engines, those of them that compute prompts where a policy has pools
LOADS = (("azure_2023_conversation", 2.0, 2, 1), ("mooncake_conversation", 1.0, 6, 3))
POLICIES = ("static", "orca", "vllm", "sarathi", "splitfuse", "llmi", "distserve", "splitwise", "mooncake")


def load(name: str, speed: float) -> list[dict[str, Any]]:
    """The requests of a slice, `speed` times as fast."""
    entries = map(json.loads, (TRACES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
    return [{**entry, "timestamp": entry["timestamp"] / speed} for entry in entries]


def row(trace: list[dict[str, Any]], model: Path, policy: str, replicas: int, prefill: int) -> dict[str, Any]:
    """The summary of one policy."""
    pools = prefill if NAMED[policy].has_pools else 0
    room = 1 << 20 if policy == "static" else 2048  # a static batch takes what one step has room for
    given: dict[str, Any] = {"max_num_batched_tokens": room, "costs": COSTS, "kv_cache_memory_bytes": POOL_BYTES, "slo": SLO}
    return dict(llmi.simulate(trace, model=model, policy=policy, replicas=replicas, prefill_replicas=pools, **given).summary)


def main() -> int:
    """Runs it."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "config.json"
        model.write_text(json.dumps(CONFIG), encoding="utf-8")
        for name, speed, replicas, prefill in LOADS:
            print(f"\n{name} x {speed:g}, {replicas} engines\n")
            print("| policy | stable | TTFT p50, p90, ms | TPOT p50, p90, ms | goodput, requests/s | hits | turned away | GB handed over |")
            print("| --- | --- | --- | --- | --- | --- | --- | --- |")
            for policy in sys.argv[1:] or POLICIES:
                began = time.perf_counter()
                found = row(load(name, speed), model, policy, replicas, prefill)
                times = [", ".join(f"{found[part][p] * 1e3:,.0f}" for p in ("p50", "p90")) for part in ("ttft", "tpot")]
                cells = [policy, "yes" if found["is_stable"] else "no", *times, f"{found['goodput']:.2f}", f"{found['hit_share']:.0%}"]
                cells += [str(found["num_turned_away"]), f"{found['transferred_bytes'] / 1e9:,.0f}"]
                print("| " + " | ".join(cells) + " |", flush=True)
                print(f"{time.perf_counter() - began:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
