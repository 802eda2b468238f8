"""Speculation off and on, interleaved prompt by prompt: speed-up by kind of prompt, and that no token changed.

    python benchmarks/speculation.py [--rounds 3] [--per-kind 20] [--transformers] [--llama-bin DIR] [--own-draft] [--output FILE.json]

140 prompts in seven kinds, made from committed text and code. Speed is tokens over the time between the first and the last one.
"copied" is the share of a kind's tokens, as drawn without speculation, that end four tokens which stand so in the prompt.
Peers run the first quarter of each kind: transformers' prompt lookup, and llama.cpp's (DIR holds its llama-lookup).
`--readme FILE.json` writes the table in docs from a result.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import report

import llmi
from llmi import LLM, RequestOutput, SamplingParams, _core
from llmi.models import by_name

TOPICS = [
    "tea",
    "rain",
    "bridges",
    "bees",
    "chess",
    "glass",
    "maps",
    "salt",
    "owls",
    "clocks",
    "bread",
    "rivers",
    "paper",
    "moss",
    "trains",
    "stars",
    "kites",
    "soap",
    "roots",
    "ink",
]


Chat = list[dict[str, str]]


def make_prompts(per_kind: int) -> dict[str, list[Chat]]:
    """Chats of seven kinds; summaries, code edits and questions have their answer's words in the prompt.

    A code edit's answer is begun, as editors do: asked without that, as "new code" is, a small model writes something else.
    """
    text = re.sub(r"\s+", " ", (report.ROOT / "tests/data/text.txt").read_text(encoding="utf-8"))
    passages = [text[i * 2500 : i * 2500 + 900].split(" ", 1)[1].rsplit(" ", 1)[0] for i in range(per_kind)]
    edits = (report.ROOT / "benchmarks/code_edits.txt").read_text(encoding="utf-8").split("=== ")[1:]
    kinds: dict[str, list[Chat]] = {name: [] for name in ("summary", "code edit", "question", "translation", "chat", "maths", "new code")}

    def ask(kind: str, question: str, answer: str | None = None) -> None:
        kinds[kind].append([{"role": "user", "content": question}] + ([{"role": "assistant", "content": answer}] if answer else []))

    for i in range(per_kind):
        topic, passage = TOPICS[i % len(TOPICS)], passages[i]
        variable, function = edits[i % len(edits)].split("\n", 1)
        code = "\n".join(
            f"def {topic}_{name}(values):\n    total = 0\n    for value in values:\n        total {op}= value\n    return total\n"
            for name, op in (("sum", "+"), ("difference", "-"), ("product", "*"))
        )
        renamed = f"with every `{variable}` renamed to `result{i}`:\n\n```python"
        ask("summary", f"Repeat the key sentences of this text word for word:\n\n{passage}")
        ask("code edit", f"Rewrite this function {renamed}\n{function}```", f"Here is the function {renamed}")
        ask("question", f"{passage}\n\nQuote the sentence of the text above that explains its first term.")
        ask("translation", f"Translate into French: The {topic} on the table is {i + 2} years old, and nobody knows who brought it.")
        ask("chat", f"Tell me a short story about {topic}.")
        ask("maths", f"A shop sells {topic} at {i + 3} coins each. How much do {2 * i + 5} cost? Explain step by step.")
        ask("new code", f"Rewrite this file with every `total` renamed to `result{i}`:\n\n{code}")
    return kinds


def prompt_ids(tokenizer: llmi.Tokenizer, chat: Chat) -> list[int]:
    """Where the answer is begun already, it is gone on with; a model without a template reads plain text."""
    if not tokenizer.chat_template:
        return list(tokenizer.encode("\n\n".join(message["content"] for message in chat)))
    begun = chat[-1]["role"] == "assistant"
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=not begun, continue_final_message=begun)
    assert isinstance(ids, list)
    return ids


def copied_share(out: RequestOutput) -> float:
    """Of the output's tokens: those that end four tokens which stand so in the prompt."""
    prompt, ids = list(out.prompt_token_ids), [*out.prompt_token_ids, *out.token_ids]
    known = {tuple(prompt[i : i + 4]) for i in range(len(prompt) - 3)}
    return float(np.mean([tuple(ids[i - 3 : i + 1]) in known for i in range(len(prompt), len(ids))]))


def decode_speed(out: RequestOutput) -> float:
    """Tokens per second between the first and the last."""
    return (len(out.token_ids) - 1) / float(out.metrics.inter_token_latencies_s.sum())


def measure(llm: LLM, prompts: list[Chat], params: SamplingParams, config: Any, rounds: int) -> dict[str, Any]:
    """One kind at one temperature: paired ratios, acceptance, and how many prompts' tokens changed."""
    ratios, changed, forecast, copied = [], 0, [], []
    counts = np.zeros(3)
    for prompt in prompts:
        ids = prompt_ids(llm.tokenizer, prompt)
        for number in range(rounds):
            order = (None, config) if number % 2 == 0 else (config, None)
            outs = {entry is not None: llm.generate([ids], params, speculative_config=entry, use_tqdm=False)[0] for entry in order}
            ratios.append(decode_speed(outs[True]) / decode_speed(outs[False]))
            if number == 0:
                changed += outs[True].token_ids != outs[False].token_ids
                metrics = outs[True].outputs[0].spec_decode_metrics
                assert metrics is not None
                counts += (metrics.num_drafts, metrics.num_draft_tokens, metrics.num_accepted_tokens)
                copied.append(copied_share(outs[False]))
                forecast.append(expected_speed_up(llm, len(outs[True].token_ids), metrics))
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
    drafts, drafted, accepted = counts
    return {
        "speed_up": float(np.median(ratios)),
        "copied": float(np.mean(copied)),
        "interval_95": [float(x) for x in np.percentile(medians, [2.5, 97.5])],
        "forecast": float(np.median(forecast)),
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / drafts if drafts else None,
        "prompts": len(prompts),
        "prompts_changed": int(changed),
    }


def expected_speed_up(llm: LLM, num_tokens: int, metrics: llmi.SpecDecodeMetrics) -> float:
    """From c(M), what was accepted and what drafting took: plain steps' time over the drafted run's."""
    curve = llm.cost_curve()
    sizes = sorted(curve)
    steps = num_tokens - 1 - metrics.num_accepted_tokens
    if not metrics.num_drafts:
        return 1.0
    per_draft = float(np.interp(1 + metrics.num_draft_tokens / metrics.num_drafts, sizes, [curve[size] for size in sizes]))
    seconds = (steps - metrics.num_drafts) * curve[1] + metrics.num_drafts * per_draft + metrics.draft_time_s
    return (num_tokens - 1) * curve[1] / seconds


def quarter(texts: list[Chat]) -> list[Chat]:
    """The first quarter of the prompts, for the peers."""
    return texts[: max(1, len(texts) // 4)]


def paired_calls(
    model: Any, tokenizer: llmi.Tokenizer, chats: list[Chat], plain: dict[str, Any], drafted: dict[str, Any]
) -> dict[str, Any]:
    """Whole calls of transformers' generate, without and with what `drafted` adds to `plain`, by turns."""
    import torch

    ratios, changed = [], 0
    for number, chat in enumerate(chats):
        ids = torch.tensor([prompt_ids(tokenizer, chat)])
        outputs, seconds = {}, {}
        for drafts in (False, True) if number % 2 == 0 else (True, False):
            torch.manual_seed(1)
            start = time.perf_counter()
            tokens = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **plain, **(drafted if drafts else {}))
            seconds[drafts], outputs[drafts] = time.perf_counter() - start, tokens[0].tolist()
        ratios.append(seconds[False] / seconds[True])
        changed += outputs[False] != outputs[True]
    return {"speed_up": float(np.median(ratios)), "prompts_changed": changed, "prompts": len(chats)}


def transformers_peers(prompts: dict[str, list[Chat]], max_tokens: int) -> dict[str, dict[str, Any]]:
    """The same prompts through transformers (fp32, from the same file): its prompt lookup, off and on; and its assisted
    generation, drafted for by the first four fifths of the model's own layers, greedy, three prompts a kind."""
    import torch
    from transformers import AutoModelForCausalLM

    path = by_name.fetch("smollm2-135m-instruct")
    tokenizer = llmi.Tokenizer(path)
    torch.set_num_threads(_core.system_info()["num_threads"])
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    results: dict[str, dict[str, Any]] = {"transformers": {}, "transformers, assisted": {}}

    def measure_kind(peer: str, kind: str, temperature: float, chats: list[Chat], plain: dict[str, Any], drafted: dict[str, Any]) -> None:
        entry = paired_calls(model, tokenizer, chats, {"max_new_tokens": max_tokens, **plain}, drafted)
        results[peer][f"{kind}, T = {temperature:g}"] = entry
        print(peer, kind, temperature, json.dumps(entry), flush=True)

    for kind, chats in prompts.items():
        for temperature in (0.0, 1.0):
            sampling: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0} if temperature else {"do_sample": False}
            lookup = {"prompt_lookup_num_tokens": 10}
            measure_kind("transformers", kind, temperature, quarter(chats), {"min_new_tokens": max_tokens, **sampling}, lookup)
    model.generation_config.eos_token_id = None  # all tokens are drawn; a least length would switch drafts off
    for kind, chats in prompts.items():
        measure_kind("transformers, assisted", kind, 0.0, chats[:3], {"do_sample": False}, {"assistant_early_exit": 24})
    return results


def llama_lookup(prompts: dict[str, list[Chat]], max_tokens: int, folder: Path) -> dict[str, dict[str, Any]]:
    """The same prompts and file through llama.cpp, greedy, its lookup drafting 8 tokens or none; speed as it reports it."""
    path = by_name.fetch("smollm2-135m-instruct")
    tokenizer = llmi.Tokenizer(path)
    command = [str(folder / "llama-lookup"), "-m", str(path), "-n", str(max_tokens), "-t", str(_core.system_info()["num_threads"])]
    results = {}
    for kind, texts in prompts.items():
        ratios, changed = [], 0
        for number, text in enumerate(quarter(texts)):
            prompt = tokenizer.decode(prompt_ids(tokenizer, text), skip_special_tokens=False)
            answers, speeds = {}, {}
            for length in (0, 8) if number % 2 == 0 else (8, 0):
                options = ["--temp", "0", "--spec-draft-n-max", str(length), "-p", prompt]
                done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
                answers[length] = done.stdout.split("<|im_start|>assistant")[-1].split("<|im_end|>")[0].strip()
                found = re.search(r"decoded .*speed: +([\d.]+) t/s", done.stderr)
                assert found, done.stderr
                speeds[length] = float(found[1])
            ratios.append(speeds[8] / speeds[0])
            common = min(map(len, answers.values()))  # a draft accepted whole may run past the last token
            changed += answers[0][:common] != answers[8][:common]
        results[f"{kind}, T = 0"] = {"speed_up": float(np.median(ratios)), "prompts_changed": changed, "prompts": len(quarter(texts))}
        print("llama.cpp", kind, json.dumps(results[f"{kind}, T = 0"]), flush=True)
    return results


def own_draft(prompts: dict[str, list[Chat]]) -> dict[str, dict[str, Any]]:
    """Gemma 3 270M in bf16, drafted for by its own weights at 4 bits."""
    results = {}
    with LLM("gemma-3-270m", dtype="bfloat16", kv_cache_memory_bytes=1 << 29, max_model_len=2048, enable_prefix_caching=False) as llm:
        drafter = llmi.SelfDraft(quantization="q4_0")
        config = llmi.SpeculativeConfig(drafter)
        for kind, texts in prompts.items():
            for temperature in (0.0, 1.0):
                params = SamplingParams(temperature=temperature, max_tokens=128, seed=1, ignore_eos=True, detokenize=False)
                name = f"{kind}, T = {temperature:g}"
                results[name] = measure(llm, quarter(texts), params, config, 1)
                drafter.llm.reset_prefix_cache()  # reading a prompt is part of what a draft model costs
                print("own 4-bit draft", name, json.dumps(results[name]), flush=True)
    return results


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    kinds = make_prompts(arguments.per_kind)
    result: dict[str, Any] = {"rounds": arguments.rounds, "max_tokens": arguments.max_tokens, "kinds": {}}
    if arguments.transformers:
        result |= transformers_peers(kinds, arguments.max_tokens)
    if arguments.llama_bin:
        result["llama.cpp"] = llama_lookup(kinds, arguments.max_tokens, arguments.llama_bin)
    if arguments.own_draft:
        result["own_draft"] = own_draft(kinds)
    if arguments.no_lookup:
        return result
    with LLM(kv_cache_memory_bytes=1 << 29) as llm:  # prompts come from the prefix cache: only decoding is timed
        result["numerics_id"] = llm.model_info.numerics_id
        result["cost_curve_ms"] = {rows: round(1e3 * seconds, 3) for rows, seconds in llm.cost_curve().items()}
        for kind, prompts in kinds.items():
            for temperature in (0.0, 1.0):
                params = SamplingParams(temperature=temperature, max_tokens=arguments.max_tokens, seed=1, ignore_eos=True, detokenize=False)
                entry = measure(llm, prompts, params, llmi.PromptLookup(), arguments.rounds)
                result["kinds"][f"{kind}, T = {temperature:g}"] = entry
                print(kind, temperature, json.dumps(entry), flush=True)
    return result


def table(result: dict[str, Any]) -> str:
    """Markdown rows."""
    peers = {name: result[name] for name in ("transformers", "llama.cpp") if name in result}
    lines = [
        "| prompts | copied | speed-up (95 %) | forecast | tokens a step | outputs that differ from plain decoding |"
        + "".join(f" {name}: speed-up; outputs changed |" for name in peers),
        "| --- | --- | --- | --- | --- | --- |" + " --- |" * len(peers),
    ]
    for name, entry in result["kinds"].items():
        low, high = entry["interval_95"]
        length = entry["mean_acceptance_length"]
        lines.append(
            f"| {name} | {entry['copied']:.0%} | {entry['speed_up']:.2f} ({low:.2f} to {high:.2f}) | {entry['forecast']:.2f} | "
            f"{'-' if length is None else f'{length:.2f}'} | {entry['prompts_changed']} of {entry['prompts']} |"
            + "".join(
                f" {peer[name]['speed_up']:.2f}; {peer[name]['prompts_changed']} of {peer[name]['prompts']} |" if name in peer else " - |"
                for peer in peers.values()
            )
        )
    if own := result.get("own_draft"):
        gains = {
            temperature: ", ".join(
                f"{name.split(',')[0]} {entry['speed_up']:.2f}" for name, entry in own.items() if name.endswith(temperature)
            )
            for temperature in ("T = 0", "T = 1")
        }
        changed = sum(entry["prompts_changed"] for entry in own.values())
        lines += [
            "",
            "Gemma 3 270M in bf16, drafted by its own weights at 4 bits, 128 tokens. Speed-up at T = 0: "
            f"{gains['T = 0']}; at T = 1: {gains['T = 1']}. Outputs that differ from plain decoding: {changed}.",
        ]
    if assisted := result.get("transformers, assisted"):
        gains = ", ".join(f"{name.split(',')[0]} {entry['speed_up']:.2f}" for name, entry in assisted.items())
        changed, total = (sum(entry[field] for entry in assisted.values()) for field in ("prompts_changed", "prompts"))
        lines += [
            "",
            f"Assisted generation of transformers, drafted by the model's first 24 layers. Speed-up at T = 0: {gains}. Outputs changed: {changed} of {total}.",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-kind", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--transformers", action="store_true", help="also measure transformers' prompt lookup")
    parser.add_argument(
        "--llama-bin", type=Path, metavar="DIR", help="also measure the lookup of the llama.cpp in this folder; greedy only"
    )
    parser.add_argument("--own-draft", action="store_true", help="also measure a bf16 target with its own 4-bit draft")
    parser.add_argument("--no-lookup", action="store_true", help="leave out the lookups; measure only what the other options name")
    sys.exit(report.main(parser, run, table))
