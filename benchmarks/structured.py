"""Structured output: valid outputs, compile and mask times, and speed next to free decoding.

    python benchmarks/structured.py --schemas FOLDER [--parts valid compile mask overhead all_on gap] [--count 2000] [--output FILE.json]

FOLDER is a checkout of guidance-ai/jsonschemabench; schemas are drawn from MaskBench's files by a seed, and those that are refused are
counted. Parts (each can be run alone; the table of several files takes the first that has a part):
- valid: one output a schema at T = 1; those that end by themselves are checked by the `jsonschema` package with formats, and those that end
  by length are counted apart and must be prefixes of the language. Numbers are read as decimals, as the standard has them.
- compile: from parameters to the first mask, one thread; a tenth of --count schemas at least 100.
- mask: `Constraint.allowed` along outputs, and the library's own call on the same places, interleaved.
- overhead: tokens a second under an array of texts over free decoding, forced drafts and small heads off; 1, 8 and 32 sequences, --rounds
rounds, interleaved.
- all_on: 100 schemas at T = 0, 256 tokens at most, with PromptLookup: tokens a second over those of free decoding of as many tokens.
- gap: the longest time between two tokens of 8 streams while 100 requests with a schema each come at once, over that without them
  (`quiet`), and over that while as many requests without a schema come (`plain`: their prompts take the same steps).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import report

from llmi import LLM, AsyncLLM, InvalidParamsError, LlmiError, PromptLookup, SamplingParams, StructuredOutputsParams, _core
from llmi.structured import constraint_of

PROMPT = "An example in JSON: "
BATCH = 128
#: Of `valid`: a small model at T = 1 ends its strings more often behind texts whose strings are short.
RECORDS = (
    "Short records in JSON, one on a line.\n"
    + 2
    * """{"name":"Ann","age":31,"tags":["a","b"]}
{"id":7,"items":[],"note":""}
{"x":0.5,"kind":"small","parts":[{"id":1}]}
{"url":"http://a.org","ok":true}
{"type":"none","version":"1.0","list":["x"]}
{"title":"A map","by":{"name":"Bo"},"year":1999}
{"data":null,"error":"no"}
[{"key":"k","value":2}]
{"date":"2001-02-03","at":"home","count":0}
{"a":"b","c":{"d":"e"}}
[1,2,3]
"text"
"""
)
ARRAY = {"type": "array", "items": {"type": "string"}, "minItems": 60}


def files_of(folder: Path, seed: int) -> Iterator[dict[str, Any]]:
    """MaskBench's schemas in an order that the seed says; numbers are as in the text."""
    paths = sorted((folder / "maskbench" / "data").glob("*.json"))
    if not paths:
        raise SystemExit(f"{folder}/maskbench/data has no JSON files: give --schemas a checkout of guidance-ai/jsonschemabench")
    for index in np.random.default_rng(seed).permutation(len(paths)):
        yield json.loads(paths[index].read_text())["schema"]


def params_of(schema: dict[str, Any], **fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "structured_outputs": StructuredOutputsParams(json=schema), **fields})


class Drawn:
    """Schemas that compile, in the seed's order."""

    def __init__(self, llm: LLM, folder: Path, seed: int) -> None:
        self._llm = llm
        self._files = files_of(folder, seed)
        self.drawn = self.refused = 0
        self.seconds: list[float] = []

    def take(self, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for schema in self._files:
            self.drawn += 1
            begin = time.perf_counter()
            try:
                constraint_of(StructuredOutputsParams(json=schema), self._llm.tokenizer, str)
                self.seconds.append(time.perf_counter() - begin)
                found.append(schema)
            except InvalidParamsError:
                self.refused += 1
            if len(found) == count:
                break
        return found


def valid(llm: LLM, arguments: argparse.Namespace) -> dict[str, Any]:
    """Outputs that fit their schemas."""
    drawn = Drawn(llm, arguments.schemas, arguments.seed)
    numbers = dict.fromkeys(("outputs", "valid", "invalid", "by_length", "no_prefix", "errors", "unchecked"), 0)
    wrong = []
    while numbers["outputs"] < arguments.count:
        schemas = drawn.take(min(BATCH, arguments.count - numbers["outputs"]))
        if not schemas:
            break
        params = [params_of(schema, seed=numbers["outputs"] + i, max_tokens=arguments.tokens) for i, schema in enumerate(schemas)]
        for schema, out in zip(schemas, llm.generate([RECORDS] * len(schemas), params, use_tqdm=False, on_error="return"), strict=True):
            verdict = verdict_of(llm, schema, out)
            numbers["outputs"] += 1
            numbers[verdict] += 1
            if verdict in ("invalid", "no_prefix", "errors"):
                wrong.append({"verdict": verdict, "schema": schema, "text": out.outputs[0].text if out.outputs else str(out.error)})
        print(numbers, flush=True)
    return {
        **numbers,
        "drawn": drawn.drawn,
        "refused": drawn.refused,
        "seed": arguments.seed,
        "max_tokens": arguments.tokens,
        "wrong": wrong[:20],
    }


def verdict_of(llm: LLM, schema: dict[str, Any], out: Any) -> str:
    if out.error is not None:
        return "errors"
    completion = out.outputs[0]
    if completion.finish_reason == "length":
        return "by_length" if is_prefix(llm, schema, completion.token_ids) else "no_prefix"
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    checker = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        fits = checker(exact, format_checker=checker.FORMAT_CHECKER).is_valid(json.loads(completion.text, parse_float=Decimal))
    except (re.error, RecursionError):  # a pattern that Python's re does not know
        return "unchecked"
    return "valid" if fits and completion.complete else "invalid"


def is_prefix(llm: LLM, schema: dict[str, Any], token_ids: list[int]) -> bool:
    constraint = constraint_of(StructuredOutputsParams(json=schema), llm.tokenizer, str)
    assert constraint is not None
    state = constraint.initial_state()
    try:
        for token in token_ids:
            state = constraint.advance(state, token)
    except LlmiError:
        return False
    return True


def compile_times(llm: LLM, arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds from parameters to the first mask."""
    drawn = Drawn(llm, arguments.schemas, arguments.seed + 1)
    drawn.take(8)
    drawn.seconds.clear()  # the tokenizer is set up now
    drawn.take(max(100, arguments.count // 10))
    times = 1e3 * np.asarray(drawn.seconds)
    return {"schemas": len(times), **{f"p{q}_ms": float(np.percentile(times, q)) for q in (50, 90, 99)}, "max_ms": float(times.max())}


def mask_times(llm: LLM, arguments: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of a mask with the token before it, along outputs: at a sample's place in the engine, and by the library alone."""
    ends = sorted(llm.tokenizer.eos_token_ids)
    own: list[float] = []
    alone: list[float] = []
    for number, schema in enumerate(Drawn(llm, arguments.schemas, arguments.seed + 2).take(max(10, arguments.count // 40))):
        tokens = llm.generate(PROMPT, params_of(schema, seed=number, max_tokens=64), use_tqdm=False)[0].outputs[0].token_ids
        constraint = constraint_of(StructuredOutputsParams(json=schema), llm.tokenizer, str)
        assert constraint is not None and constraint._template is not None
        path = [token for token in tokens if token not in ends]
        engine, library = _core.testing.time_masks(constraint._template, ends, path, llm.model_info.vocab_size)
        own += [1e6 * seconds for seconds in engine]
        alone += [1e6 * seconds for seconds in library]
    added = float(np.median(np.asarray(own) - np.asarray(alone)))
    named = (("own", own), ("library", alone))
    return {
        "masks": len(own),
        "added_p50_us": added,
        **{f"{name}_p{q}_us": float(np.percentile(t, q)) for name, t in named for q in (50, 99)},
    }


def tokens_per_second(llm: LLM, prompts: list[str], params: SamplingParams, drafter: PromptLookup | None = None) -> tuple[float, int]:
    """Speed of decoding, and the tokens of the first output."""
    begin = time.perf_counter()
    outs = llm.generate(prompts, params, use_tqdm=False, speculative_config=drafter)
    tokens = [len(out.outputs[0].token_ids) for out in outs]
    return sum(tokens) / (time.perf_counter() - begin), tokens[0]


def overhead(llm: LLM, arguments: argparse.Namespace) -> dict[str, Any]:
    """Constrained decoding over free decoding."""
    result = {}
    for sequences in (1, 8, 32):
        prompts = [f"{i}. {PROMPT}" for i in range(sequences)]
        base = SamplingParams(temperature=1.0, seed=1, max_tokens=min(96, arguments.tokens), ignore_eos=True)
        pair = {False: base, True: base.replace(structured_outputs={"json": ARRAY})}
        for params in pair.values():
            tokens_per_second(llm, prompts, params)
        ratios = []
        for number in range(arguments.rounds):
            speed = {on: tokens_per_second(llm, prompts, pair[on])[0] for on in ((False, True) if number % 2 else (True, False))}
            ratios.append(speed[True] / speed[False])
        result[str(sequences)] = {"ratio": float(np.median(ratios)), "min": min(ratios), "max": max(ratios)}
        print(sequences, result[str(sequences)], flush=True)
    return result


def all_on(llm: LLM, arguments: argparse.Namespace) -> dict[str, Any]:
    """Schemas with all that makes them fast, over free decoding of as many tokens with the same drafter."""
    ratios = []
    for schema in Drawn(llm, arguments.schemas, arguments.seed + 3).take(min(100, arguments.count)):
        asked = params_of(schema, temperature=0.0, max_tokens=256)
        _, tokens = tokens_per_second(llm, [PROMPT], asked, PromptLookup())
        if tokens < 16:
            continue  # the prompt's own time would count, too
        free = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        pairs = [
            tokens_per_second(llm, [PROMPT], asked, PromptLookup())[0] / tokens_per_second(llm, [PROMPT], free, PromptLookup())[0]
            for _ in range(arguments.rounds)
        ]
        ratios.append(float(np.median(pairs)))
    return {"schemas": len(ratios), "geometric_mean": math.exp(float(np.mean(np.log(ratios)))), "worst": min(ratios), "best": max(ratios)}


def gap(llm: LLM, arguments: argparse.Namespace) -> dict[str, Any]:
    """Worst gap of streams while schemas compile."""
    files = files_of(arguments.schemas, arguments.seed + 4)
    schemas = [next(files) for _ in range(min(100, arguments.count))]

    async def stream(server: AsyncLLM, number: int, gaps: list[float]) -> None:
        last = time.perf_counter()
        async for _ in server.generate(
            f"{number}. Once", SamplingParams(temperature=1.0, seed=number, max_tokens=arguments.tokens, ignore_eos=True)
        ):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    async def one(server: AsyncLLM, schema: dict[str, Any] | None) -> None:
        try:
            params = SamplingParams(max_tokens=1) if schema is None else params_of(schema, max_tokens=1)
            async for _ in server.generate(PROMPT, params):
                pass
        except LlmiError:
            pass  # refused schemas compile, too

    async def worst(requests: list[dict[str, Any] | None]) -> float:
        gaps: list[list[float]] = [[] for _ in range(8)]
        async with AsyncLLM(llm=llm) as server:
            streams = [asyncio.create_task(stream(server, number, own)) for number, own in enumerate(gaps)]
            await asyncio.sleep(0.5)
            await asyncio.gather(*(one(server, schema) for schema in requests))
            await asyncio.gather(*streams)
        return 1e3 * max(max(own[2:]) for own in gaps)

    kinds: dict[str, list[dict[str, Any] | None]] = {"quiet": [], "plain": [None] * len(schemas), "schemas": [*schemas]}
    rounds = [{name: asyncio.run(worst(requests)) for name, requests in kinds.items()} for _ in range(arguments.rounds)]
    times = {f"{name}_ms": float(np.median([entry[name] for entry in rounds])) for name in kinds}
    ratios = {f"over_{name}": float(np.median([entry["schemas"] / entry[name] for entry in rounds])) for name in ("quiet", "plain")}
    return {"schemas": len(schemas), **times, **ratios}


PARTS: dict[str, Callable[[LLM, argparse.Namespace], dict[str, Any]]] = {
    "valid": valid, "compile": compile_times, "mask": mask_times, "overhead": overhead, "all_on": all_on, "gap": gap,
}  # fmt: skip


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.schemas is None:
        raise SystemExit("--schemas FOLDER is missing: a checkout of guidance-ai/jsonschemabench")
    result: dict[str, Any] = {}
    for name in arguments.parts:
        for switch in ("LLMI_FORCED_DRAFTS", "LLMI_SMALL_HEADS"):  # off where masks alone are measured
            os.environ[switch] = "0" if name == "overhead" else "1"
        with LLM(arguments.model, kv_cache_memory_bytes=1 << 29, max_model_len=2048) as llm:
            result |= {"table": llm._table, "model": arguments.model or "the default model", name: PARTS[name](llm, arguments)}
        print(name, {key: value for key, value in result[name].items() if key != "wrong"}, flush=True)
    return result


def table(result: dict[str, Any]) -> str:
    """A row for each part."""
    rows = [f"`benchmarks/structured.py`, {result.get('model', '')}, commit {result['commit'][:10]}:", "", "| | |", "| --- | --- |"]
    if part := result.get("valid"):
        rows.append(
            f"| outputs at T = 1 that do not fit their schema | {part['invalid'] + part['no_prefix']} of {part['outputs']:,} ({part['by_length']} ended by length, "
            f"{part['errors']} with an error, {part['unchecked']} not checked; {part['drawn']:,} schemas drawn, {part['refused']} refused) |"
        )
    if part := result.get("compile"):
        rows.append(f"| compile, p50 / p99 | {part['p50_ms']:.1f} / {part['p99_ms']:.0f} ms |")
    if part := result.get("mask"):
        rows.append(
            f"| a mask over the library's own, median (p99 of a mask) | +{part['added_p50_us']:.1f} us ({part['own_p99_us']:.0f} us) |"
        )
    if part := result.get("overhead"):
        ratios = ", ".join(f"{entry['ratio']:.2f}" for entry in part.values())
        rows.append(f"| constrained over free decoding, {', '.join(part)} sequences | {ratios} |")
    if part := result.get("all_on"):
        rows.append(
            f"| {part['schemas']} schemas with PromptLookup over free decoding with it, geometric mean (worst) | {part['geometric_mean']:.2f} ({part['worst']:.2f}) |"
        )
    if part := result.get("gap"):
        rows.append(
            f"| worst gap of 8 streams while {part['schemas']} requests with a schema each come, over that of as many without a schema (of none) | "
            f"{part['over_plain']:.2f} ({part['over_quiet']:.1f}) |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=Path)
    parser.add_argument("--parts", nargs="+", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--model", default=None)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=41)
    sys.exit(report.main(parser, run, table, lambda result: "structured gemma" if "gemma" in result["model"] else "structured"))
