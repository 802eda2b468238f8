"""Speculation off and on, interleaved prompt by prompt: speed-up by kind of prompt, and that no token changed.

    python benchmarks/speculation.py [--rounds 3] [--per-kind 20] [--transformers] [--llama-bin DIR] [--own-draft] [--output FILE.json]

120 prompts in six kinds, made from the committed text. Speed is tokens over the time between the first and the last one.
Peers run the first quarter of each kind: transformers' prompt lookup, and llama.cpp's (DIR holds its llama-lookup).
`--readme FILE.json` writes the README's table from a result.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import report

import llmi
from llmi import LLM, RequestOutput, SamplingParams, _core, _models

TOPICS = [
    "tea", "rain", "bridges", "bees", "chess", "glass", "maps", "salt", "owls", "clocks", "bread", "rivers", "paper", "moss", "trains", "stars",
    "kites", "soap", "roots", "ink",
]  # fmt: skip


def make_prompts(per_kind: int) -> dict[str, list[str]]:
    """Chats of six kinds; the first three have their answer's words in the prompt."""
    text = re.sub(r"\s+", " ", (report.ROOT / "tests/data/text.txt").read_text(encoding="utf-8"))
    passages = [text[i * 2500 : i * 2500 + 900].split(" ", 1)[1].rsplit(" ", 1)[0] for i in range(per_kind)]
    kinds: dict[str, list[str]] = {name: [] for name in ("summary", "code edit", "question", "translation", "chat", "maths")}
    for i in range(per_kind):
        topic, passage = TOPICS[i % len(TOPICS)], passages[i]
        code = "\n".join(
            f"def {topic}_{name}(values):\n    total = 0\n    for value in values:\n        total {op}= value\n    return total\n"
            for name, op in (("sum", "+"), ("difference", "-"), ("product", "*"))
        )
        kinds["summary"].append(f"Repeat the key sentences of this text word for word:\n\n{passage}")
        kinds["code edit"].append(f"Rewrite this file with every `total` renamed to `result{i}`:\n\n{code}")
        kinds["question"].append(f"{passage}\n\nQuote the sentence of the text above that explains its first term.")
        kinds["translation"].append(
            f"Translate into French: The {topic} on the table is {i + 2} years old, and nobody knows who brought it."
        )
        kinds["chat"].append(f"Tell me a short story about {topic}.")
        kinds["maths"].append(f"A shop sells {topic} at {i + 3} coins each. How much do {2 * i + 5} cost? Explain step by step.")
    return kinds


def decode_speed(out: RequestOutput) -> float:
    """Tokens per second between the first and the last."""
    return (len(out.token_ids) - 1) / float(out.metrics.inter_token_latencies_s.sum())


def measure(llm: LLM, prompts: list[str], params: SamplingParams, config: Any, rounds: int) -> dict[str, Any]:
    """One kind at one temperature: paired ratios, acceptance, and how many prompts' tokens changed."""
    ratios, changed, forecast = [], 0, []
    counts = np.zeros(3)
    for prompt in prompts:
        messages = [{"role": "user", "content": prompt}]
        for number in range(rounds):
            order = (None, config) if number % 2 == 0 else (config, None)
            ask = partial(llm.chat, messages) if llm.tokenizer.chat_template else partial(llm.generate, prompt)
            outs = {entry is not None: ask(params, speculative_config=entry, use_tqdm=False)[0] for entry in order}
            ratios.append(decode_speed(outs[True]) / decode_speed(outs[False]))
            if number == 0:
                changed += outs[True].token_ids != outs[False].token_ids
                metrics = outs[True].outputs[0].spec_decode_metrics
                assert metrics is not None
                counts += (metrics.num_drafts, metrics.num_draft_tokens, metrics.num_accepted_tokens)
                forecast.append(expected_speed_up(llm, len(outs[True].token_ids), metrics))
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
    drafts, drafted, accepted = counts
    return {
        "speed_up": float(np.median(ratios)),
        "interval_95": [float(x) for x in np.percentile(medians, [2.5, 97.5])],
        "forecast": float(np.median(forecast)),
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / drafts if drafts else None,
        "prompts": len(prompts),
        "prompts_changed": int(changed),
    }


def expected_speed_up(llm: LLM, num_tokens: int, metrics: llmi.SpecDecodeMetrics) -> float:
    """From c(M) and what was accepted: plain steps' time over the drafted run's."""
    curve = llm.cost_curve()
    sizes = sorted(curve)
    steps = num_tokens - 1 - metrics.num_accepted_tokens
    if not metrics.num_drafts:
        return 1.0
    per_draft = float(np.interp(1 + metrics.num_draft_tokens / metrics.num_drafts, sizes, [curve[size] for size in sizes]))
    seconds = (steps - metrics.num_drafts) * curve[1] + metrics.num_drafts * per_draft
    return (num_tokens - 1) * curve[1] / seconds


def quarter(texts: list[str]) -> list[str]:
    """Enough for what is measured beside."""
    return texts[: max(1, len(texts) // 4)]


def transformers_lookup(prompts: dict[str, list[str]], max_tokens: int) -> dict[str, dict[str, Any]]:
    """The same prompts through transformers (fp32, from the same file), its prompt lookup off and on: whole calls."""
    import torch
    from transformers import AutoModelForCausalLM

    path = _models.fetch("smollm2-135m-instruct")
    tokenizer = llmi.Tokenizer(path)
    torch.set_num_threads(_core.system_info()["num_threads"])
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    results = {}
    for kind, texts in prompts.items():
        for temperature in (0.0, 1.0):
            sampling: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0} if temperature else {"do_sample": False}
            ratios, changed = [], 0
            for number, text in enumerate(quarter(texts)):
                ids = torch.tensor([tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)])
                outputs, seconds = {}, {}
                for lookup in (None, 10) if number % 2 == 0 else (10, None):
                    torch.manual_seed(1)
                    start = time.perf_counter()
                    tokens = model.generate(
                        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, min_new_tokens=max_tokens, pad_token_id=0,
                        prompt_lookup_num_tokens=lookup, **sampling,
                    )  # fmt: skip
                    seconds[lookup], outputs[lookup] = time.perf_counter() - start, tokens[0].tolist()
                ratios.append(seconds[None] / seconds[10])
                changed += outputs[None] != outputs[10]
            entry = {"speed_up": float(np.median(ratios)), "prompts_changed": changed, "prompts": len(quarter(texts))}
            results[f"{kind}, T = {temperature:g}"] = entry
            print("transformers", kind, temperature, json.dumps(entry), flush=True)
    return results


def llama_lookup(prompts: dict[str, list[str]], max_tokens: int, folder: Path) -> dict[str, dict[str, Any]]:
    """The same prompts and file through llama.cpp, greedy, its lookup drafting 8 tokens or none; speed as it reports it."""
    path = _models.fetch("smollm2-135m-instruct")
    tokenizer = llmi.Tokenizer(path)
    command = [str(folder / "llama-lookup"), "-m", str(path), "-n", str(max_tokens), "-t", str(_core.system_info()["num_threads"])]
    results = {}
    for kind, texts in prompts.items():
        ratios, changed = [], 0
        for number, text in enumerate(quarter(texts)):
            prompt = tokenizer.decode(
                tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True), skip_special_tokens=False
            )
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


def own_draft(prompts: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
    """Gemma 3 270M in bf16, drafted for by its own weights at 4 bits."""
    results = {}
    with LLM("gemma-3-270m", dtype="bfloat16", kv_cache_memory_bytes=1 << 29, max_model_len=2048, enable_prefix_caching=False) as llm:
        config = llmi.SpeculativeConfig(llmi.SelfDraft(quantization="q4_0"))
        for kind, texts in prompts.items():
            for temperature in (0.0, 1.0):
                params = SamplingParams(temperature=temperature, max_tokens=128, seed=1, ignore_eos=True, detokenize=False)
                name = f"{kind}, T = {temperature:g}"
                results[name] = measure(llm, quarter(texts), params, config, 1)
                print("own 4-bit draft", name, json.dumps(results[name]), flush=True)
    return results


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    kinds = make_prompts(arguments.per_kind)
    result: dict[str, Any] = {"rounds": arguments.rounds, "max_tokens": arguments.max_tokens, "kinds": {}}
    if arguments.transformers:
        result["transformers"] = transformers_lookup(kinds, arguments.max_tokens)
    if arguments.llama_bin:
        result["llama.cpp"] = llama_lookup(kinds, arguments.max_tokens, arguments.llama_bin)
    if arguments.own_draft:
        result["own_draft"] = own_draft(kinds)
    with LLM(kv_cache_memory_bytes=1 << 29, enable_prefix_caching=False) as llm:
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
        "| prompts | speed-up (95 %) | forecast | tokens a step | tokens changed |"
        + "".join(f" lookup of {name}; changed |" for name in peers),
        "| --- | --- | --- | --- | --- |" + " --- |" * len(peers),
    ]
    for name, entry in result["kinds"].items():
        low, high = entry["interval_95"]
        length = entry["mean_acceptance_length"]
        lines.append(
            f"| {name} | {entry['speed_up']:.2f} ({low:.2f} to {high:.2f}) | {entry['forecast']:.2f} | "
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
        lines += ["", "Gemma 3 270M in bf16 with its own weights at 4 bits as the draft, 128 tokens: "
                  f"T = 0: {gains['T = 0']}; T = 1: {gains['T = 1']}; prompts changed: {changed}."]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-kind", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--transformers", action="store_true", help="beside it transformers' prompt lookup")
    parser.add_argument("--llama-bin", type=Path, metavar="DIR", help="beside it the lookup of the llama.cpp that lies there; greedy only")
    parser.add_argument("--own-draft", action="store_true", help="beside it a bf16 target with its own 4-bit draft")
    sys.exit(report.main(parser, run, table))
