"""Pictures of written results: python benchmarks/plots.py SPECULATION.json SCHEDULING.json DIR (needs matplotlib)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt


def speculation(result: dict[str, Any], path: Path) -> None:
    """Speed-up by kind of prompt with its 95 % interval, compared with what was forecast from costs and acceptance."""
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    names = list(result["kinds"])
    for i, name in enumerate(names):
        kind = result["kinds"][name]
        low, high = kind["interval_95"]
        axes.bar(i, kind["speed_up"], color="#4477aa" if name.endswith("0") else "#88bbdd")
        axes.errorbar(
            i, kind["speed_up"], [[max(0.0, kind["speed_up"] - low)], [max(0.0, high - kind["speed_up"])]], color="black", capsize=3
        )
        axes.plot(i, kind["forecast"], "o", color="#cc3311", label="forecast" if i == 0 else None)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(names)), names, rotation=35, ha="right")
    axes.set_ylabel("times faster than without drafts")
    changed = sum(kind["prompts_changed"] for kind in result["kinds"].values())
    prompts = sum(kind["prompts"] for kind in result["kinds"].values())
    axes.set_title(f"Prompt lookup, length chosen by the engine ({result['cpu']}); texts changed: {changed} of {prompts}")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def scheduling(result: dict[str, Any], path: Path) -> None:
    """Each ratio compared with its ideal: what sharing, batching and memory could give at most."""
    rows = {
        "prefix cache, 922 of 1,024 tokens shared": (result["shared_prefix"]["speed_up"], 7.9),
        "continuous over static batching": (result["continuous"]["ratio"], result["continuous"]["bound"]),
        "a quarter of the KV memory": (result["small_pool"]["throughput"], 1.0),
    }
    figure, axes = plt.subplots(figsize=(8, 2.4), layout="constrained")
    for i, (name, (seen, bound)) in enumerate(rows.items()):
        axes.barh(i, 1.0, color="#dddddd", label="at most" if i == 0 else None)
        axes.barh(i, seen / bound, color="#4477aa", label="seen" if i == 0 else None)
        axes.text(0.01, i, f"{name}: {seen:.2f} of {bound:.2f}", va="center", color="white")
    axes.set_yticks([])
    axes.set_xlabel("share of the bound")
    axes.set_xlim(0, 1.2)
    axes.legend(loc="center right")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    plt.switch_backend("svg")
    mpl.rcParams |= {"svg.hashsalt": "llmi", "svg.fonttype": "none"}  # equal results give equal files
    folder = Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    speculation(json.loads(Path(sys.argv[1]).read_text()), folder / "speculation.svg")
    scheduling(json.loads(Path(sys.argv[2]).read_text()), folder / "scheduling.svg")
