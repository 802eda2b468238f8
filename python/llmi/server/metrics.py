"""/metrics: the state of all engines and of the server in Prometheus' text format, with vLLM's names behind `llmi:`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llmi.errors import EngineClosedError
from llmi.online.totals import HISTOGRAMS, Histogram, Totals
from llmi.server.served import Served

#: (name, kind, key of the engine's counters, what it is).
ENGINE = (
    ("num_requests_running", "gauge", "num_running", "sequences that run now"),
    ("num_preemptions_total", "counter", "num_preemptions", "how often a running sequence lost its blocks to others"),
    ("prompt_tokens_total", "counter", "num_prompt_tokens", "prompt tokens that were computed"),
    ("generation_tokens_total", "counter", "num_generated_tokens", "tokens that were generated"),
    ("prefix_cache_queries_total", "counter", "num_prefix_queried_tokens", "prompt tokens that were looked up in the prefix tree"),
    ("prefix_cache_hits_total", "counter", "num_prefix_hit_tokens", "prompt tokens that were found in the prefix cache"),
    ("prefix_cache_blocks", "gauge", "num_prefix_blocks", "blocks in the prefix tree"),
    ("saved_blocks_total", "counter", "num_saved_blocks", "blocks that were written to prefix_cache_dir"),
    ("unsaved_blocks_total", "counter", "num_unsaved_blocks", "blocks that could not be written there"),
    ("fetched_blocks_total", "counter", "num_fetched_blocks", "blocks that were read from prefix_cache_dir"),
    ("fetches_left_out_total", "counter", "num_fetches_left_out", "how often computing looked faster than reading"),
    ("missing_blocks_total", "counter", "num_missing_blocks", "saved blocks whose file was gone"),
    ("cut_blocks_total", "counter", "num_cut_blocks", "saved blocks whose file was shorter or longer than it says"),
    ("damaged_blocks_total", "counter", "num_damaged_blocks", "saved blocks whose file has a wrong checksum or no header"),
    ("exchanged_blocks_total", "counter", "num_exchanged_blocks", "saved blocks of another text or model than their name"),
    ("late_blocks_total", "counter", "num_late_blocks", "saved blocks that had not been read when computing them would have ended"),
    ("asked_prefills_total", "counter", "num_asked_prefills", "prompts whose blocks another engine was asked for"),
    ("late_prefills_total", "counter", "num_late_prefills", "those that had not come when computing them would have ended"),
    ("failed_prefills_total", "counter", "num_failed_prefills", "those whose engine had gone, or answered with an error"),
    ("foreign_prefills_total", "counter", "num_foreign_prefills", "those whose engine has another model, arithmetic or version"),
    ("short_prefills_total", "counter", "num_short_prefills", "those of which fewer blocks came than the engine said"),
    ("iterations_total", "counter", "num_steps", "steps of the engine"),
    ("iteration_tokens", "gauge", "num_step_rows", "rows of the last step"),
    ("busy_seconds_total", "counter", "busy_time_s", "time of all steps"),
    ("hook_seconds_total", "counter", "hook_time_s", "time of steps in user code"),
    ("operations_total", "counter", "num_operations", "operations of all steps by arithmetic"),
    ("read_bytes_total", "counter", "num_read_bytes", "bytes that all steps cannot help reading"),
)
#: (name, key of LLM.get_metrics(), what it is), over the time of all steps.
RATES = (
    ("requests_per_second", "requests_per_s", "requests that ended, for a second of steps"),
    ("operations_per_second", "operations_per_s", "operations by arithmetic, for a second of steps"),
    ("read_bytes_per_second", "read_bytes_per_s", "bytes that steps cannot help reading, for a second of them"),
    ("operations_share", "operations_share", "operations_per_second over what the machine reaches at most; absent until that was measured"),
    ("read_bytes_share", "read_bytes_share", "read_bytes_per_second over what the machine reaches at most; absent until that was measured"),
)
Labels = Mapping[str, str]


def _labels(labels: Labels) -> str:
    def quoted(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _family(name: str, kind: str, help: str, samples: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    yield f"# HELP llmi:{name} {help}"
    yield f"# TYPE llmi:{name} {kind}"
    for labels, value in samples:
        yield f"llmi:{name}{_labels(labels)} {value:g}" if isinstance(value, float) else f"llmi:{name}{_labels(labels)} {value}"


def _histogram(name: str, help: str, found: Iterable[tuple[str, Histogram]]) -> Iterator[str]:
    yield f"# HELP llmi:{name} {help}"
    yield f"# TYPE llmi:{name} histogram"
    for model, histogram in found:
        total = 0
        for bound, count in zip([*(f"{bound:g}" for bound in histogram.bounds), "+Inf"], histogram.counts, strict=True):
            total += count
            yield f"llmi:{name}_bucket{_labels({'model_name': model, 'le': bound})} {total}"
        yield f"llmi:{name}_sum{_labels({'model_name': model})} {histogram.sum:.9g}"
        yield f"llmi:{name}_count{_labels({'model_name': model})} {total}"


def render(
    models: Iterable[Served],
    ceilings: Mapping[str, Mapping[str, float]],
    num_refused: Mapping[int, int],
    num_active: int,
    num_failed_receipts: int,
) -> str:
    """The page.

    ceilings: of the machine, as each model's LLM knows them; num_refused: requests that the guard has refused, by status; num_active:
    requests under way, of any route; num_failed_receipts: receipts that could not be written.
    """
    models = list(models)
    live = {}
    for model in models:
        try:
            live[model.name] = model.server.live()
        except EngineClosedError:
            continue
    lines: list[str] = []
    engines = [entry for model in models if model.name in live for entry in _engines(model, live[model.name].stats)]
    for name, kind, key, help in ENGINE:
        lines += _family(name, kind, help, [(labels, stats[key]) for labels, stats, _ in engines])
    rates = {model.name: model.llm._rates.of(live[model.name].stats, ceilings[model.name]) for model in models if model.name in live}
    for name, key, help in RATES:
        known = [({"model_name": model}, values[key]) for model, values in rates.items() if not math.isnan(values[key])]
        lines += _family(name, "gauge", help, known)
    waiting = [({"model_name": model}, state.num_waiting) for model, state in live.items()]
    lines += _family("num_requests_waiting", "gauge", "requests that no step has begun", waiting)
    usage = [(labels, 1 - stats["num_free_pages"] / max(1, stats["num_pages"])) for labels, stats, _ in engines]
    lines += _family("kv_cache_usage_perc", "gauge", "share of the KV cache that is in use, 1 is all", usage)
    lines += _of_requests({model.name: model.server.totals for model in models})
    up = [(labels, int(is_up)) for labels, _, is_up in engines]
    up += [({"model_name": model.name}, 0) for model in models if model.name not in live]
    lines += _family("engine_up", "gauge", "1 while the engine's steps go on", up)
    refused = [({"status": str(status)}, count) for status, count in sorted(num_refused.items())]
    lines += _family("http_requests_refused_total", "counter", "requests that were turned away before they reached a route", refused)
    lines += _family("receipts_failed_total", "counter", "receipts that could not be written into the folder", [({}, num_failed_receipts)])
    lines += _family("http_requests_active", "gauge", "HTTP requests under way", [({}, num_active)])
    return "\n".join(lines) + "\n"


def _engines(model: Served, stats: Mapping[str, Any]) -> list[tuple[Labels, Mapping[str, Any], bool]]:
    """(labels, counters, whether its steps go on) of each engine of a model; those of replicas have their names."""
    router = model.llm._router
    if router is None:
        return [({"model_name": model.name}, stats, model.server.health().alive)]
    found = [entry for entry in router.states() if entry["stats"]]
    return [({"model_name": model.name, "replica": entry["name"]}, entry["stats"], entry["state"] == "ready") for entry in found]


def _of_requests(totals: Mapping[str, Totals]) -> Iterator[str]:
    ended = [
        ({"model_name": model, "finished_reason": reason}, count)
        for model, found in totals.items()
        for reason, count in found.num_ended.items()
    ]
    yield from _family("request_success_total", "counter", "continuations that ended, by why", ended)
    drafted = [({"model_name": model}, found.num_draft_tokens) for model, found in totals.items()]
    yield from _family("spec_decode_num_draft_tokens_total", "counter", "tokens that were drafted", drafted)
    accepted = [({"model_name": model}, found.num_accepted_tokens) for model, found in totals.items()]
    yield from _family("spec_decode_num_accepted_tokens_total", "counter", "drafted tokens that were accepted", accepted)
    for name, (_, help) in HISTOGRAMS.items():
        yield from _histogram(name, help, [(model, found.histograms[name]) for model, found in totals.items()])
