"""Random sets of parameters: each request alone, beside others under pressure, in chunks, drafted, in steps, streamed and from asyncio
gives the same bits.

`nice python tests/support/random_configurations.py --count 5000` runs many, one chunk in twenty of them on SmolLM2, the others on tiny models, and
counts, for each field, the configurations in which it changes a token; tests/engine/test_random_configurations.py runs a few.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import llmi
from features import crowded_llm, stateful
from llmi import LLM, AsyncLLM, Draft, DraftContext, Drafter, Outputs, PromptLookup, SamplingParams, SpeculativeConfig
from llmi.models import by_name
from llmi.params.sampling import FIELDS
from llmi.params.steps import FILTERS, PENALTIES, STEPS
from llmi.testing import assert_same_tokens, tiny_model

CHUNK = 16  # configurations that run together

#: Values that change tokens of tiny models, whose laws are flat; each is taken with a probability of its own.
VALUES: dict[str, list[Any]] = {
    "temperature": [0.0, 0.3, 0.7, 1.0, 1.4], "top_k": [3, 40, 150], "top_p": [0.3, 0.9], "min_p": [0.02, 0.3],
    "typical_p": [0.2, 0.7, 0.95], "epsilon_cutoff": [0.002, 0.01], "eta_cutoff": [0.002, 0.02], "top_h": [0.2, 0.8],
    "top_n_sigma": [0.5, 1.5, 2.5], "p_less": [True], "xtc_probability": [0.5, 1.0], "dynatemp_range": [0.2, 0.9],
    "adaptive_p": [0.05, 0.4], "dry_multiplier": [0.5, 3.0], "no_repeat_ngram_size": [1, 2, 3], "repetition_penalty": [0.8, 1.5],
    "frequency_penalty": [-0.4, 0.6], "presence_penalty": [0.5], "penalty_last_n": [0, 3, 20], "logit_bias": [{5: 3.0, 6: -np.inf}],
    "bad_words": [[[7], [8, 9]]], "allowed_token_ids": [list(range(3, 200))], "min_tokens": [6], "n": [2, 3],
    "logits_processors": [[stateful]], "stop_token_ids": [[11, 12], list(range(20, 60))], "logprobs": [0, 3], "prompt_logprobs": [1],
    "guidance_scale": [0.0, 0.6, 1.5, 3.0], "dola_layers": ["high", [0], [0, 1]], "penalty_alpha": [0.3, 0.6],
    "steering": [{1: 3}, {0: 4, -1: 5}],  # seeds, of which `Configuration.params` makes vectors
}  # fmt: skip
#: Languages that end and such that need not, wide and narrow, with free text before a trigger.
STRUCTURED: list[dict[str, Any]] = [
    {
        "json": {
            "type": "object",
            "properties": {"n": {"type": "string", "maxLength": 6}, "k": {"enum": ["ab", "ac", 7]}},
            "required": ["n"],
            "additionalProperties": False,
        }
    },
    {"json": {"type": "array", "items": {"type": ["integer", "boolean", "string"]}}, "whitespace": "any"},
    {"regex": "[a-f]{3}(-[0-9]+)*!"},
    {"regex": r"[\s\S]*"},
    {"choice": ["yes", "no", "yesterday", "non"]},
    {"grammar": 'start: "x" item+\nitem: /[0-9a-z]/ | "(" item ")"'},
    {
        "structural_tag": {
            "type": "structural_tag",
            "triggers": ["a"],
            "structures": [{"begin": "ab", "schema": {"type": "integer"}, "end": ";"}],
        }
    },
]
COMPANIONS: dict[str, dict[str, list[Any]]] = {
    "xtc_probability": {"xtc_threshold": [0.001, 0.003, 0.006]},
    "dynatemp_range": {"dynatemp_exponent": [0.5, 2.0]},
    "adaptive_p": {"adaptive_p_decay": [0.0, 0.5, 0.99]},
    "mirostat": {"mirostat_tau": [1.0, 5.0], "mirostat_eta": [0.1, 1.0]},
    "dry_multiplier": {
        "dry_base": [1.0, 4.0],
        "dry_allowed_length": [1, 4],
        "dry_penalty_last_n": [5, 20],
        "dry_sequence_breakers": [["a", "r"], ["b", "cd", "s"]],
    },
    "guidance_scale": {"negative_prompt": [[5, 6, 7], [98, 99] * 9, list(range(30, 70))]},
    "dola_layers": {"dola_rule": ["transformers"]},
}
#: Fields of BeamSearchParams alone, by kind of beams; one kind is taken. Forced words end in an error where masks forbid them:
#: tests/beams/test_beams.py has them.
BEAMS: dict[str, dict[str, list[Any]]] = {
    "plain": {"length_penalty": [-1.0, 0.0, 2.0], "early_stopping": [True, "never"], "length_includes_prompt": [True]},
    "sampled": {"do_sample": [True], "early_stopping": [True]},
    "groups": {"num_beam_groups": [2], "diversity_penalty": [0.3, 2.0]},
}
#: A field that is not there yet: SamplingParams and BeamSearchParams say so, and it is left out.
BEAM_PARAMS: type | None = getattr(llmi, "BeamSearchParams", None)
BEAM_FIELDS = {field.name for field in dataclasses.fields(BEAM_PARAMS)} if BEAM_PARAMS is not None else set()
ABSENT = [
    *(name for name in (*VALUES, *itertools.chain(*COMPANIONS.values())) if name not in FIELDS),
    *(name for name in ("beam_width", *itertools.chain(*BEAMS.values())) if name not in BEAM_FIELDS),
]
#: The fields that must be seen to change tokens.
COUNTED = tuple(
    name
    for name in (
        *(name for name in VALUES if name not in ("temperature", "n", "logprobs", "prompt_logprobs")),
        "mirostat",
        "sampler_order",
        "structured_outputs",
        *itertools.chain(*COMPANIONS.values()),
        "beam_width",
        *dict.fromkeys(itertools.chain(*BEAMS.values())),
    )
    if name not in ABSENT
)
#: Token ids of six letters (of others in SmolLM2), for texts that repeat themselves.
LETTERS = [98, 99, 100, 101, 102, 103]
_MASKS = {"allowed_token_ids", "bad_words", "logit_bias", "logits_processors", "min_tokens", "no_repeat_ngram_size", "stop_token_ids"}
#: What contrastive search, whose temperature is 0, cannot be given.
_NOT_CONTRASTIVE = {"n", "temperature", "guidance_scale", "negative_prompt", "dola_layers", "dola_rule", "sampler_order", "mirostat"}


#: Texts of letters, which many prompts repeat.
TEXTS = [LETTERS * 3, LETTERS[::-1] * 3, [id for id in LETTERS for _ in range(3)]]


def pick(rng: np.random.Generator, values: list[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def random_fields(rng: np.random.Generator) -> dict[str, Any]:
    """Fields that fit together."""
    fields = {name: pick(rng, VALUES[name]) for name in VALUES if rng.random() < 0.18 and name not in ABSENT}
    if rng.random() < 0.15:
        fields = {name: value for name, value in fields.items() if name not in FILTERS or name == "temperature"}
        fields["mirostat"] = pick(rng, [1, 2])
    if "min_tokens" in fields:
        fields.setdefault("stop_token_ids", list(range(10, 90)))
    if "penalty_alpha" in fields:
        fields = {name: value for name, value in fields.items() if name not in (*_NOT_CONTRASTIVE, *FILTERS)}
        fields |= {"temperature": 0.0, "top_k": pick(rng, [2, 4, 7])}
    if "guidance_scale" in fields:
        fields.pop("dola_layers", None)  # the two cannot be set together
    if "dola_layers" in fields:  # it leaves few tokens: masks could cut all of them
        fields = {name: value for name, value in fields.items() if name not in _MASKS}
    for owner in [name for name in COMPANIONS if name in fields]:
        fields |= {name: pick(rng, values) for name, values in COMPANIONS[owner].items() if rng.random() < 0.6 and name not in ABSENT}
    if rng.random() < 0.2 and not fields.keys() & {"penalty_alpha", "dola_layers", "dry_multiplier"}:
        fields = {name: value for name, value in fields.items() if name not in _MASKS}  # which could leave nothing together
        fields["structured_outputs"] = pick(rng, STRUCTURED)
    if rng.random() < 0.3 and "penalty_alpha" not in fields:
        steps = [str(name) for name in rng.permutation(STEPS)]
        fields["sampler_order"] = steps if rng.random() < 0.8 else sorted(steps, key=lambda name: name not in PENALTIES)
    return fields


def beam_fields(rng: np.random.Generator, fields: dict[str, Any]) -> dict[str, Any]:
    """The same as beams: those fields that beams have too, and some of their own."""
    width = int(rng.choice([2, 3]))
    kind = pick(rng, list(BEAMS))
    own: dict[str, Any] = {"beam_width": 2 * width if kind == "groups" else width, "n": int(rng.integers(1, width + 1))}
    own |= {name: pick(rng, values) for name, values in BEAMS[kind].items() if kind != "plain" or rng.random() < 0.5}
    taken = {name: value for name, value in fields.items() if name in BEAM_FIELDS and name not in ("mirostat", "adaptive_p")}
    if kind == "sampled" and taken.get("temperature") == 0:
        taken["temperature"] = 0.7
    return {name: value for name, value in (taken | own).items() if name not in ABSENT}


def of_letters(rng: np.random.Generator, fields: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """A prompt that repeats itself, and fields for a text that does: what DRY is for."""
    part = [pick(rng, LETTERS) for _ in range(int(rng.integers(2, 9)))]
    prompt = (part * 20)[: int(rng.integers(16, 50))]
    fields = {name: value for name, value in fields.items() if name not in ("no_repeat_ngram_size", "dola_layers", "dola_rule")}
    return prompt, fields | {"allowed_token_ids": LETTERS, "temperature": pick(rng, [0.3, 0.6, 1.0])}


@dataclasses.dataclass
class Configuration:
    """A request by the number of its configuration."""

    seed: int
    prompt: list[int]
    fields: dict[str, Any]

    @classmethod
    def random(cls, seed: int) -> Configuration:
        rng = np.random.default_rng(seed)
        part = rng.integers(1, 257, size=int(rng.integers(1, 12))).tolist()
        prompt = (part * 5)[: int(rng.integers(1, 50))]
        fields = random_fields(rng)
        if "penalty_alpha" not in fields:
            if "dry_multiplier" in fields and rng.random() < 0.9:
                prompt, fields = of_letters(rng, fields)
            if BEAM_PARAMS is not None and rng.random() < 0.25:
                fields = beam_fields(rng, fields)
        if prompt[-1] == 8:  # which begins one of the bad words
            prompt[-1] = 10
        return cls(seed, prompt, fields)

    def drafted(self) -> bool:
        """Whether a drafter may be named in its call."""
        return "beam_width" not in self.fields and "penalty_alpha" not in self.fields

    def params(self, hidden_size: int = 64) -> Any:
        """SamplingParams, or BeamSearchParams."""
        base: dict[str, Any] = {
            "temperature": 1.0,
            "max_tokens": 24,
            "seed": self.seed,
            "ignore_eos": not self.fields.keys() & {"stop_token_ids", "structured_outputs"},
        }
        base |= self.fields
        if "steering" in base:
            base["steering"] = {
                layer: 2 * np.random.default_rng(seed).standard_normal(hidden_size) for layer, seed in base["steering"].items()
            }
        if "beam_width" not in self.fields:
            return SamplingParams(**base)
        assert BEAM_PARAMS is not None
        return BEAM_PARAMS(**{name: value for name, value in base.items() if name in BEAM_FIELDS})

    def without(self, name: str, hidden_size: int = 64) -> Any:
        """The same without one field and what belongs to it."""
        gone = {name, *COMPANIONS.get(name, {}), *(itertools.chain(*BEAMS.values()) if name == "beam_width" else ())}
        if name in ("num_beam_groups", "diversity_penalty"):  # neither goes without the other
            gone |= {"num_beam_groups", "diversity_penalty"}
        if name == "top_k" and "penalty_alpha" in self.fields:  # which needs one
            return Configuration(self.seed, self.prompt, self.fields | {"top_k": 64}).params(hidden_size)
        return Configuration(self.seed, self.prompt, {key: value for key, value in self.fields.items() if key not in gone}).params(
            hidden_size
        )


class Echo(Drafter):
    """What the text said after the same token before, with an error now and then."""

    def propose(self, context: DraftContext) -> Draft | list[int]:
        tokens = context.token_ids.tolist()
        found = [i for i, token in enumerate(tokens[:-1]) if token == tokens[-1]]
        drafted = tokens[found[-1] + 1 :][: context.num_speculative_tokens] if found else [tokens[0]]
        return [(token + (len(tokens) % 5 == 0)) % 257 for token in drafted]


class Engines:
    """A roomy engine, one with little memory and small chunks, and one on the emulated device."""

    def __init__(self, path: Path, emulated: bool, roomy_bytes: int = 1 << 23) -> None:
        self.table = llmi.CorpusDrafter(TEXTS)  # of the vocabulary of this model
        self.roomy = LLM(path, kv_cache_memory_bytes=roomy_bytes, max_model_len=160)
        self.crowded = crowded_llm(path, 60, max_model_len=140, max_num_batched_tokens=48)
        self.device = LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=160, device="cuda") if emulated else None

    def close(self) -> None:
        for llm in (self.roomy, self.crowded, self.device):
            if llm is not None:
                llm.close()


Run = Callable[[list[Any], list[Any]], Iterable[Any]]


def runs_of(engines: Engines) -> Iterator[tuple[str, bool, Run]]:
    """Other ways to run requests: name, whether a drafter is named, and the way."""

    def generated(llm: LLM, **options: Any) -> Run:
        return lambda prompts, params: llm.generate(prompts, params, use_tqdm=False, **options)

    def stepped(prompts: list[Any], params: list[Any]) -> Outputs:
        engines.crowded.enqueue(prompts, params)
        return engines.crowded.wait_for_completion()

    yield "batched, preempted, in chunks", False, generated(engines.crowded)
    yield "batched, prefix hits", False, generated(engines.roomy)
    yield "prompt lookup", True, generated(engines.crowded, speculative_config=SpeculativeConfig(PromptLookup(), 3))
    yield "token recycling", True, generated(engines.crowded, speculative_config=SpeculativeConfig(llmi.TokenRecycling(), 4))
    yield "table and lookup", True, generated(engines.roomy, speculative_config=SpeculativeConfig([engines.table, PromptLookup()]))
    yield "echo", True, generated(engines.roomy, speculative_config=SpeculativeConfig(Echo(), 4))
    yield "stepped", False, stepped
    yield "asyncio", False, lambda prompts, params: asyncio.run(from_asyncio(engines.crowded, prompts, params))
    if engines.device is not None:
        yield "emulated device", False, generated(engines.device)


async def from_asyncio(llm: LLM, prompts: list[Any], params: list[Any]) -> list[Any]:
    """The last output of each request, of readers that all read at once."""
    async with AsyncLLM(llm=llm) as server:

        async def last(prompt: Any, entry: Any) -> Any:
            outputs = [output async for output in server.generate(prompt, entry)]
            assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
            return outputs[-1]

        return list(await asyncio.gather(*(last(*pair) for pair in zip(prompts, params, strict=True))))


def check(engines: Engines, first: int, count: int, changed: collections.Counter[str] | None = None) -> list[str]:
    """What differs in configurations [first, first + count). changed: counts the fields that change a token."""
    configurations = [Configuration.random(first + i) for i in range(count)]
    hidden_size = engines.roomy.model_info.hidden_size
    params = [configuration.params(hidden_size) for configuration in configurations]
    prompts: list[Any] = [configuration.prompt for configuration in configurations]
    alone = Outputs()
    for prompt, entry in zip(prompts, params, strict=True):
        alone += engines.roomy.generate([prompt], [entry], use_tqdm=False)
    differences = []
    for name, drafter, run in runs_of(engines):
        some = [i for i, configuration in enumerate(configurations) if configuration.drafted() or not drafter]
        for i, output in zip(some, run([prompts[i] for i in some], [params[i] for i in some]), strict=True):
            try:
                assert_same_tokens(Outputs([output]), Outputs([alone[i]]))
            except AssertionError as error:
                differences.append(f"configuration {configurations[i].seed}, {name}: {configurations[i].fields}: {error}")
    if changed is None:
        return differences
    pairs = [(i, name) for i, entry in enumerate(configurations) for name in entry.fields if name in COUNTED]
    others = engines.roomy.generate(
        [prompts[i] for i, _ in pairs], [configurations[i].without(name, hidden_size) for i, name in pairs], use_tqdm=False
    )
    for (i, name), output in zip(pairs, others, strict=True):
        changed[name] += [c.token_ids for c in output.outputs] != [c.token_ids for c in alone[i].outputs]
    return differences


def kind_of(chunk: int) -> str:
    """The model of a chunk."""
    return "smollm2" if chunk % 20 == 19 else ("llama", "gemma3")[chunk % 2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--emulated", action="store_true", help="also on the emulated device (LLMI_EMULATE_CUDA=1)")
    arguments = parser.parse_args()
    for name in dict.fromkeys(ABSENT):
        print(f"{name}: no such field in this version, left out")
    engines = {name: Engines(tiny_model(name, vocab_size=257, num_layers=2), arguments.emulated) for name in ("llama", "gemma3")}
    engines["smollm2"] = Engines(by_name.fetch("smollm2-135m-instruct"), False, 1 << 26)
    changed: collections.Counter[str] = collections.Counter()
    models: collections.Counter[str] = collections.Counter()
    differ, begin, end = 0, time.perf_counter(), arguments.first + arguments.count
    for first in range(arguments.first, end, CHUNK):
        chunk, count = first // CHUNK, min(CHUNK, end - first)
        differences = check(engines[kind_of(chunk)], first, count, changed)
        print("\n".join(differences), end="\n" * bool(differences))
        differ += len(differences)
        models[kind_of(chunk)] += count
        if chunk % 10 == 9 or first + count == end:
            numbers = {
                "configurations": sum(models.values()),
                "models": models,
                "differ": differ,
                "seconds": round(time.perf_counter() - begin),
            }
            print(json.dumps(numbers | {"changed": {name: changed[name] for name in COUNTED}}), flush=True)
    for made in engines.values():
        made.close()
    return int(differ > 0)


if __name__ == "__main__":
    raise SystemExit(main())
