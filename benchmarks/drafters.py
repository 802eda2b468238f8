"""What drafters guess and what they gain, on the prompts of benchmarks/prompts: acceptance by depth, and speed with tokens equal.

    python benchmarks/drafters.py acceptance [--kinds chat maths] [--per-kind 100] [--max-tokens 96] [--heads PATH ..] [--answers FILE.npz]
    python benchmarks/drafters.py speed [--config auto] [--shipped FOLDER] [--rounds 2] [--batch 1] [--max-tokens 128] [--fresh]
    python benchmarks/drafters.py first_token [--config auto] [--rounds 2]
    python benchmarks/drafters.py llama [--llama-bin DIR] [--per-kind 20]

acceptance: a drafter alone, one chain, begun anew at every position of the answers that the model writes without drafts. "first" is the
share of positions at which its first token is the answer's; "second given first" goes on from there. At T = 1 verification is coupled: a
drafter without a law of its own is held against the drawn tokens; heads draw with the noise of the target. Where a drafter has nothing to
say, its token counts as wrong. speed: whole requests, without and with drafts, interleaved, from submission to the last token; the prefix
cache is off. "drafted_token_over_step" is the time to draft one token over that of a step without drafts. With --fresh each pair of runs
has a new engine, whose drafters have learnt nothing. first_token: the same for prompts of 512 tokens and one token of output. llama: speed
of llama.cpp's lookup, greedy, on a quarter of the prompts (DIR holds its llama-lookup). What drafts is loaded with the model (--shipped:
another folder than the installed heads and table), so a run without drafts is one of the same engine. Each result has a key of its own, so
--readme takes several: one column for each.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import prompts
import report
from numpy.typing import NDArray
from ship import load

import llmi
from llmi import LLM, SamplingParams, SpeculativeConfig, _core
from llmi.speculation import auto
from llmi.training.acceptance import acceptance as head_counts
from llmi.training.data import data_of
from llmi.training.target import Target
from llmi.training.text import Text
from speculation import llama_lookup

I32 = NDArray[np.int32]
DEPTH = 4
PROMPT_LEN = 512  # of first_token
LLAMA = "llama.cpp's lookup"
SPEED, FIRST_TOKEN = "speed-up: ", "time to the first token: "  # keys of results begin so
#: What stands behind --config: the value of speculative_config, from the folder of heads and table.
CONFIGS: dict[str, Callable[[Path], Any]] = {
    "lookup": lambda folder: llmi.PromptLookup(),
    "table": lambda folder: llmi.CorpusDrafter.load(folder / "corpus.safetensors"),
    "eagle": lambda folder: llmi.Eagle(folder / "eagle.safetensors", 4),
    "two of eagle": lambda folder: SpeculativeConfig(llmi.Eagle(folder / "eagle.safetensors", 2), 2),
    "auto": lambda folder: "auto",
}


@dataclasses.dataclass
class Answer:
    """One answer without drafts: its kind, temperature and seed, its tokens from the prompt on."""

    kind: str
    temperature: float
    seed: int
    token_ids: I32
    prompt_len: int


def prompt_ids(tokenizer: llmi.Tokenizer, prompt: prompts.Prompt) -> list[int]:
    """A begun answer is gone on with; a model without a template reads plain text."""
    if not tokenizer.chat_template:
        return list(tokenizer.encode(prompt.user + "\n" + prompt.begun))
    begun = bool(prompt.begun)
    ids = tokenizer.apply_chat_template(prompt.chat(), add_generation_prompt=not begun, continue_final_message=begun)
    assert isinstance(ids, list)
    return ids


def write_answers(llm: LLM, kinds: list[str], per_kind: int, max_tokens: int) -> list[Answer]:
    """Answers at T = 0 and 1, which end where the model ends them."""
    answers = []
    for kind in kinds:
        ids = [prompt_ids(llm.tokenizer, prompt) for prompt in prompts.prompts(kind)[:per_kind]]
        for temperature in (0.0, 1.0):
            params = [
                SamplingParams(temperature=temperature, seed=77 + index, max_tokens=max_tokens, detokenize=False)
                for index in range(len(ids))
            ]
            for index, out in enumerate(llm.generate(ids, params, speculative_config=None, use_tqdm=False)):
                tokens = np.array([*out.prompt_token_ids, *out.token_ids], np.int32)
                answers.append(Answer(kind, temperature, 77 + index, tokens, len(out.prompt_token_ids)))
    return answers


def save_answers(path: Path, answers: list[Answer]) -> None:
    """One .npz: tokens one after the other, with offsets."""
    np.savez(
        path,
        ids=np.concatenate([answer.token_ids for answer in answers]),
        lengths=[len(answer.token_ids) for answer in answers],
        prompt_lens=[answer.prompt_len for answer in answers],
        kinds=[answer.kind for answer in answers],
        temperatures=[answer.temperature for answer in answers],
        seeds=[answer.seed for answer in answers],
    )


def load_answers(path: Path) -> list[Answer]:
    """What save_answers wrote."""
    data = np.load(path)
    pieces = np.split(data["ids"], np.cumsum(data["lengths"])[:-1])
    return [
        Answer(str(kind), float(temperature), int(seed), piece, int(prompt_len))
        for kind, temperature, seed, piece, prompt_len in zip(
            data["kinds"], data["temperatures"], data["seeds"], pieces, data["prompt_lens"], strict=True
        )
    ]


Right = Iterator[int]


def lookup_right(answer: Answer) -> Right:
    """At each position of an answer, how many tokens of prompt lookup's draft in a row are right."""
    drafter = _core.PromptLookup(1, 4)
    ids = answer.token_ids.tolist()
    for position in range(answer.prompt_len, len(ids)):
        draft = drafter.propose(ids[:position], DEPTH)
        right = 0
        while right < len(draft) and position + right < len(ids) and draft[right] == ids[position + right]:
            right += 1
        yield right


def by_depth(counts: list[tuple[int, int]]) -> dict[str, Any]:
    """Rates of (tokens right in a row, tokens of the answer from there on); a depth that the answer does not reach is not counted."""
    right, room = np.array(counts).reshape(-1, 2).T
    chain = [float(np.mean(right[room >= depth] >= depth)) if np.any(room >= depth) else 0.0 for depth in range(1, DEPTH + 1)]
    both = room >= 2
    given = float(np.sum(right[both] >= 2) / max(np.sum(right[both] >= 1), 1))
    return {"positions": len(right), "first": chain[0], "second_given_first": given, "chain": chain}


def acceptance(answers: list[Answer], right_of: Callable[[Answer], Right]) -> dict[str, Any]:
    """{"kind, T = t": rates by depth}."""
    counts: dict[str, list[tuple[int, int]]] = {}
    for answer in answers:
        group = counts.setdefault(f"{answer.kind}, T = {answer.temperature:g}", [])
        length = len(answer.token_ids) - answer.prompt_len
        group += [(right, length - index) for index, right in enumerate(right_of(answer))]
    return {name: by_depth(group) for name, group in counts.items()}


def heads_acceptance(llm: LLM, path: Path, answers: list[Answer]) -> dict[str, Any]:
    """Of trained heads, by their own arithmetic in float32."""
    model, shortlist = load(path)
    target, results = Target(llm), {}
    embeddings = target.embeddings(shortlist.astype(np.int64))
    for kind in dict.fromkeys(answer.kind for answer in answers):
        mine = [answer for answer in answers if answer.kind == kind]
        pieces = [np.split(answer.token_ids, [answer.prompt_len]) for answer in mine]
        text = Text.of([(number, *piece, answer.temperature > 0) for number, (piece, answer) in enumerate(zip(pieces, mine, strict=True))])
        counts = head_counts(model, data_of(llm, target, text, lambda count: None, shortlist), text.warm, embeddings)
        for temperature, one in zip((0, 1), counts, strict=True):
            entry = {"positions": int(one.tried[0]), "first": one.rates[0], "second_given_first": one.given[1], "chain": one.rates}
            results[f"{kind}, T = {temperature}"] = entry
    return results


def run_acceptance(options: argparse.Namespace) -> dict[str, Any]:
    """Acceptance of lookup, and of --heads."""
    answers = load_answers(options.answers) if options.answers and options.answers.exists() else None
    with LLM(options.model, kv_cache_memory_bytes=1 << 29, enable_prefix_caching=False) as llm:
        if answers is None:
            answers = write_answers(llm, options.kinds, options.per_kind, options.max_tokens)
            if options.answers:
                save_answers(options.answers, answers)
        results = {"lookup": acceptance(answers, lookup_right)}
        for path in options.heads:
            results[str(path)] = heads_acceptance(llm, path, answers)
        return {"numerics_id": llm.model_info.numerics_id, "acceptance": results}


@dataclasses.dataclass
class Run:
    """Requests that ran together: tokens, seconds, and of these what a drafted token took."""

    token_ids: list[list[int]]
    seconds: float
    drafted_token_s: float | None


def timed(llm: LLM, ids: list[list[int]], params: SamplingParams, config: Any) -> Run:
    """One run."""
    start = time.perf_counter()
    outs = llm.generate(ids, params, speculative_config=config, use_tqdm=False)
    seconds = time.perf_counter() - start
    counts = [counted for out in outs if (counted := out.outputs[0].spec_decode_metrics) is not None]
    drafted = sum(counted.num_draft_tokens for counted in counts)
    return Run(
        [list(out.token_ids) for out in outs], seconds, sum(counted.draft_time_s for counted in counts) / drafted if drafted else None
    )


def spread(ratios: list[float]) -> dict[str, Any]:
    """The median and its interval."""
    medians = np.median(np.random.default_rng(0).choice(ratios, (2000, len(ratios))), axis=1)
    interval = [float(value) for value in np.percentile(medians, [2.5, 97.5])]
    return {"median": float(np.median(ratios)), "interval_95": interval, "pairs": len(ratios)}


def speed(
    source: Iterator[LLM], given: list[prompts.Prompt], params: SamplingParams, config: Any, options: argparse.Namespace
) -> dict[str, Any]:
    """Off and on interleaved, `batch` prompts at once: the median of the paired ratios, its interval, and what differed."""
    ratios, shares, changed = [], [], 0
    for first in range(0, len(given) - options.batch + 1, options.batch):
        for number in range(options.rounds):
            llm = next(source)
            group = [prompt_ids(llm.tokenizer, prompt) for prompt in given[first : first + options.batch]]
            order = (None, config) if (first // options.batch + number) % 2 == 0 else (config, None)
            runs = {entry is not None: timed(llm, group, params, entry) for entry in order}
            ratios.append(runs[False].seconds / runs[True].seconds)
            if (token_s := runs[True].drafted_token_s) is not None:
                shares.append(token_s * params.max_tokens / runs[False].seconds)
            changed += sum(off != on for off, on in zip(runs[False].token_ids, runs[True].token_ids, strict=True))
    entry = spread(ratios)
    drafted = {"drafted_token_over_step": float(np.median(shares))} if shares else {}
    return {"speed_up": entry.pop("median"), **entry, **drafted, "outputs_changed": changed}


def engines(options: argparse.Namespace, config: Any) -> Iterator[LLM]:
    """Engines that are loaded with the drafters, and warm: the same one again and again, or a new one each time (--fresh)."""
    while True:
        with LLM(options.model, kv_cache_memory_bytes=1 << 29, enable_prefix_caching=False, speculative_config=config) as llm:
            llm.generate([[1, 2, 3]] * options.batch, max_tokens=16, ignore_eos=True, speculative_config=None, use_tqdm=False)
            yield llm
            while not options.fresh:
                yield llm


def configured(options: argparse.Namespace) -> Any:
    """The value of speculative_config."""
    if options.shipped:
        auto.SHIPPED = options.shipped
    return CONFIGS[options.config](auto.SHIPPED)


def run_speed(options: argparse.Namespace) -> dict[str, Any]:
    """Speed of whole requests with one configuration over without."""
    results: dict[str, Any] = {}
    config = configured(options)
    source = engines(options, config)
    for kind in options.kinds:
        for temperature in (0.0, 1.0):
            params = SamplingParams(temperature=temperature, seed=1, max_tokens=options.max_tokens, ignore_eos=True, detokenize=False)
            entry = speed(source, prompts.prompts(kind)[: options.per_kind], params, config, options)
            results[f"{kind}, T = {temperature:g}"] = entry
            print(kind, temperature, json.dumps(entry), flush=True)
    numerics_id = next(source).model_info.numerics_id
    source.close()
    name = f"{SPEED}{options.config}, {options.batch} at once, {options.max_tokens} tokens" + (", new engine" if options.fresh else "")
    return {"numerics_id": numerics_id, name: results}


def run_first_token(options: argparse.Namespace) -> dict[str, Any]:
    """Time to the first token with one configuration over without."""
    config = configured(options)
    source = engines(options, config)
    llm = next(source)
    text = [token for prompt in prompts.prompts("summary") for token in llm.tokenizer.encode(prompt.user)]
    ids = [text[first : first + PROMPT_LEN] for first in range(0, min(len(text), PROMPT_LEN * options.per_kind) - PROMPT_LEN, PROMPT_LEN)]
    ratios = []
    for number in range(options.rounds * len(ids)):
        order = (None, config) if number % 2 == 0 else (config, None)
        params = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
        runs = {entry is not None: timed(llm, [ids[number // 2 % len(ids)]], params, entry) for entry in order}
        ratios.append(runs[True].seconds / runs[False].seconds)
    numerics_id = llm.model_info.numerics_id
    source.close()
    return {"numerics_id": numerics_id, f"{FIRST_TOKEN}{options.config}": spread(ratios)}


def run_llama(options: argparse.Namespace) -> dict[str, Any]:
    """llama.cpp's lookup over its plain decoding."""
    if options.llama_bin is None:
        raise SystemExit("--llama-bin: the folder of llama-lookup")
    chats = {kind: [prompt.chat() for prompt in prompts.prompts(kind)[: options.per_kind]] for kind in options.kinds}
    found = llama_lookup(chats, options.max_tokens, options.llama_bin)
    entries = {kind: {"speed_up": entry["speed_up"], "outputs_changed": entry["prompts_changed"]} for kind, entry in found.items()}
    return {LLAMA: entries}


def speed_table(result: dict[str, Any]) -> str:
    """A row for each kind and temperature, a column for each way to draft."""
    columns = {name.removeprefix(SPEED): entries for name, entries in result.items() if name.startswith(SPEED)}
    if not columns:
        return ""
    names = [*columns, *([LLAMA] if LLAMA in result else [])]
    lines = [f"| speed-up (95 %) | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    for kind in dict.fromkeys(kind for entries in columns.values() for kind in entries):
        cells = []
        for entries in columns.values():
            entry = entries.get(kind)
            low, high = entry["interval_95"] if entry else (0, 0)
            cells.append(f"{entry['speed_up']:.2f} ({low:.2f} to {high:.2f})" if entry else "")
        if peer := result.get(LLAMA):
            cells.append(f"{peer[kind]['speed_up']:.2f}" if kind in peer else "")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    changed = sum(entry["outputs_changed"] for entries in columns.values() for entry in entries.values())
    return "\n".join([*lines, "", f"Outputs that differ from plain decoding: {changed}."])


def first_token_line(result: dict[str, Any]) -> str:
    """One sentence."""
    found = {name.removeprefix(FIRST_TOKEN): entry for name, entry in result.items() if name.startswith(FIRST_TOKEN)}
    parts = [
        f"{name} {entry['median']:.3f} ({entry['interval_95'][0]:.3f} to {entry['interval_95'][1]:.3f})" for name, entry in found.items()
    ]
    return f"Time to the first token of a prompt of {PROMPT_LEN} tokens, over that without drafts: {', '.join(parts)}." if parts else ""


def table(result: dict[str, Any]) -> str:
    """Markdown rows."""
    if "acceptance" not in result:
        return "\n\n".join(filter(None, (speed_table(result), first_token_line(result))))
    lines = [
        "| drafter | prompts | positions | first token | second given first | chain of 1, 2, 3, 4 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for drafter, kinds in result["acceptance"].items():
        for name, entry in kinds.items():
            chain = ", ".join(f"{rate:.3f}" for rate in entry["chain"])
            lines.append(
                f"| {drafter} | {name} | {entry['positions']} | {entry['first']:.3f} | {entry['second_given_first']:.3f} | {chain} |"
            )
    return "\n".join(lines)


def marker(result: dict[str, Any]) -> str:
    """Acceptance has a table of its own."""
    return "drafters acceptance" if "acceptance" in result else "drafters"


RUNS = {"acceptance": run_acceptance, "speed": run_speed, "first_token": run_first_token, "llama": run_llama}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=list(RUNS))
    parser.add_argument("--model", default=None, help="a path or name; by default the default model")
    parser.add_argument("--kinds", nargs="+", choices=prompts.KINDS, default=list(prompts.KINDS))
    parser.add_argument("--per-kind", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--answers", type=Path, help="acceptance: read the answers here, or write them here if there is no such file")
    parser.add_argument("--heads", type=Path, nargs="+", default=[], help="acceptance: folders that `llmi train-heads` wrote, or files")
    parser.add_argument("--config", choices=list(CONFIGS), default="auto")
    parser.add_argument("--shipped", type=Path, help="a folder with eagle.safetensors and corpus.safetensors instead of the installed ones")
    parser.add_argument("--fresh", action="store_true", help="speed: a new engine for each pair of runs")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--llama-bin", type=Path, metavar="DIR", help="llama: the folder of llama-lookup")
    parser.add_argument("--batch", type=int, default=1, help="speed: so many prompts at once")
    return report.main(parser, lambda options: RUNS[options.what](options), table, marker)


if __name__ == "__main__":
    sys.exit(main())
