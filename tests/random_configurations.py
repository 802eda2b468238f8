"""Random sets of parameters: each request alone, beside others under pressure, in chunks, drafted, in steps and streamed gives the same bits.

`python tests/random_configurations.py --count 5000` runs many on tiny models and counts, for each field, the configurations in which it
changes a token; tests/test_random_configurations.py runs a few.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from features import crowded_llm, stateful
from llmi import LLM, Draft, DraftContext, Drafter, Outputs, PromptLookup, SamplingParams, SpeculativeConfig
from llmi.params.steps import FILTERS, PENALTIES, STEPS
from llmi.testing import assert_same_tokens, tiny_model

#: Values that change tokens of tiny models, whose laws are flat; each is taken with a probability of its own.
VALUES: dict[str, list[Any]] = {
    "temperature": [0.0, 0.3, 0.7, 1.0, 1.4], "top_k": [3, 40, 150], "top_p": [0.3, 0.9], "min_p": [0.02, 0.3],
    "typical_p": [0.2, 0.7, 0.95], "epsilon_cutoff": [0.002, 0.01], "eta_cutoff": [0.002, 0.02], "top_h": [0.2, 0.8],
    "top_n_sigma": [0.5, 1.5, 2.5], "p_less": [True], "xtc_probability": [0.3, 1.0], "dynatemp_range": [0.2, 0.9],
    "adaptive_p": [0.05, 0.4], "dry_multiplier": [0.8, 5.0], "no_repeat_ngram_size": [1, 2, 3], "repetition_penalty": [0.8, 1.5],
    "frequency_penalty": [-0.4, 0.6], "presence_penalty": [0.5], "penalty_last_n": [0, 3, 20], "logit_bias": [{5: 3.0, 6: -np.inf}],
    "bad_words": [[[7], [8, 9]]], "allowed_token_ids": [list(range(3, 200))], "min_tokens": [6], "n": [2, 3],
    "logits_processors": [[stateful]], "stop_token_ids": [[11, 12]], "logprobs": [0, 3], "prompt_logprobs": [1],
}  # fmt: skip
COMPANIONS: dict[str, dict[str, list[Any]]] = {
    "xtc_probability": {"xtc_threshold": [0.002, 0.006, 0.1]}, "dynatemp_range": {"dynatemp_exponent": [0.5, 2.0]},
    "adaptive_p": {"adaptive_p_decay": [0.0, 0.5, 0.99]}, "mirostat": {"mirostat_tau": [1.0, 5.0], "mirostat_eta": [0.1, 1.0]},
    "dry_multiplier": {
        "dry_base": [1.0, 2.5], "dry_allowed_length": [1, 3], "dry_penalty_last_n": [8, 30], "dry_sequence_breakers": [[], ["a", "bcd"]],
    },
}  # fmt: skip
#: The fields that must be seen to change tokens.
COUNTED = (*(name for name in VALUES if name not in ("temperature", "n", "logprobs", "prompt_logprobs")), "mirostat", "sampler_order",
           *(name for companions in COMPANIONS.values() for name in companions))  # fmt: skip


def random_fields(rng: np.random.Generator) -> dict[str, Any]:
    """Fields that fit together."""

    def pick(values: list[Any]) -> Any:
        return values[int(rng.integers(len(values)))]

    names = [name for name in VALUES if rng.random() < 0.18]
    fields = {name: pick(VALUES[name]) for name in names}
    if rng.random() < 0.15:
        fields = {name: value for name, value in fields.items() if name not in FILTERS or name == "temperature"} | {
            "mirostat": pick([1, 2])
        }
    for owner in [name for name in COMPANIONS if name in fields]:
        fields |= {name: pick(values) for name, values in COMPANIONS[owner].items() if rng.random() < 0.5}
    if rng.random() < 0.3:
        steps = [str(name) for name in rng.permutation(STEPS)]
        fields["sampler_order"] = steps if rng.random() < 0.8 else sorted(steps, key=lambda name: name not in PENALTIES)
    return fields


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
        if prompt[-1] == 8:  # which begins one of the bad words
            prompt[-1] = 10
        return cls(seed, prompt, random_fields(rng))

    def params(self, **changes: Any) -> SamplingParams:
        base = {"temperature": 1.0, "max_tokens": 24, "seed": self.seed, "ignore_eos": True}
        return SamplingParams(**{**base, **self.fields, **changes})

    def without(self, name: str) -> SamplingParams | None:
        """The same without one field and what belongs to it; None where another field needs it."""
        gone = {name, *COMPANIONS.get(name, {})}
        fields = {key: value for key, value in self.fields.items() if key not in gone}
        return Configuration(self.seed, self.prompt, fields).params()


class Echo(Drafter):
    """What the text said after the same token before, with an error now and then."""

    def propose(self, context: DraftContext) -> Draft | list[int]:
        tokens = context.token_ids.tolist()
        found = [i for i, token in enumerate(tokens[:-1]) if token == tokens[-1]]
        drafted = tokens[found[-1] + 1 :][: context.num_speculative_tokens] if found else [tokens[0]]
        return [(token + (len(tokens) % 5 == 0)) % 257 for token in drafted]


class Engines:
    """A roomy engine, one with little memory and small chunks, and one on the emulated device."""

    def __init__(self, path: Path, emulated: bool) -> None:
        self.roomy = LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=160)
        self.crowded = crowded_llm(path, 60, max_model_len=140, max_num_batched_tokens=48)
        self.device = LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=160, device="cuda") if emulated else None

    def close(self) -> None:
        for llm in (self.roomy, self.crowded, self.device):
            if llm is not None:
                llm.close()


def runs_of(engines: Engines) -> Iterator[tuple[str, Callable[[list[Any], list[SamplingParams]], Outputs]]]:
    """Other ways to run requests, by name."""

    def generated(llm: LLM, **options: Any) -> Callable[[list[Any], list[SamplingParams]], Outputs]:
        return lambda prompts, params: llm.generate(prompts, params, use_tqdm=False, **options)

    def stepped(prompts: list[Any], params: list[SamplingParams]) -> Outputs:
        engines.crowded.enqueue(prompts, params)
        return engines.crowded.wait_for_completion()

    yield "batched, preempted, in chunks", generated(engines.crowded)
    yield "batched, prefix hits", generated(engines.roomy)
    yield "prompt lookup", generated(engines.crowded, speculative_config=SpeculativeConfig(PromptLookup(), 3))
    yield "echo", generated(engines.roomy, speculative_config=SpeculativeConfig(Echo(), 4))
    yield "stepped", stepped
    if engines.device is not None:
        yield "emulated device", generated(engines.device)


def check(engines: Engines, first: int, count: int, changed: collections.Counter[str] | None = None) -> None:
    """Configurations [first, first + count). changed: counts the fields that change a token."""
    configurations = [Configuration.random(first + i) for i in range(count)]
    params = [configuration.params() for configuration in configurations]
    prompts: list[Any] = [configuration.prompt for configuration in configurations]
    alone = Outputs()
    for prompt, entry in zip(prompts, params, strict=True):
        alone += engines.roomy.generate([prompt], [entry], use_tqdm=False)
    for name, run in runs_of(engines):
        for output, expected, configuration in zip(run(prompts, params), alone, configurations, strict=True):
            try:
                assert_same_tokens(Outputs([output]), Outputs([expected]))
            except AssertionError as error:
                raise AssertionError(f"configuration {configuration.seed}, {name}: {configuration.fields}\n{error}") from None
    if changed is None:
        return
    pairs = [(i, name) for i, entry in enumerate(configurations) for name in entry.fields if name in COUNTED]
    others = engines.roomy.generate([prompts[i] for i, _ in pairs], [configurations[i].without(name) for i, name in pairs], use_tqdm=False)
    for (i, name), output in zip(pairs, others, strict=True):
        changed[name] += [c.token_ids for c in output.outputs] != [c.token_ids for c in alone[i].outputs]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--emulated", action="store_true", help="also on the emulated device (LLMI_EMULATE_CUDA=1)")
    arguments = parser.parse_args()
    changed: collections.Counter[str] = collections.Counter()
    begin = time.perf_counter()
    for i, architecture in enumerate(("llama", "gemma3")):
        engines = Engines(tiny_model(architecture, vocab_size=257, num_layers=2), arguments.emulated)
        for first in range(arguments.first + 16 * i, arguments.first + arguments.count, 32):
            check(engines, first, min(16, arguments.first + arguments.count - first), changed)
        engines.close()
    print(
        json.dumps(
            {
                "configurations": arguments.count,
                "differ": 0,
                "seconds": round(time.perf_counter() - begin),
                "changed": {name: changed[name] for name in COUNTED},
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
