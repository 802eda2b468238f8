"""Every sampling feature, by name, and requests that use them; shared by the matrices."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmi import LLM, BeamSearchParams, Outputs, SamplingParams, TokenContext, _core

# What device="cuda" may be in a test: the emulation, and a GPU where there is one.
DEVICES = ["emulated", *(["cuda"] if not _core.system_info()["why_no_cuda"] else [])]
#: Whether tests take whole grids; CI takes slices (CONTRIBUTING.md).
WHOLE_GRIDS = os.environ.get("LLMI_WHOLE_GRIDS") == "1"


def there(monkeypatch: pytest.MonkeyPatch, table: str) -> dict[str, Any]:
    """Arguments of an engine that computes by this table, or on this device."""
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1" if table == "emulated" else "0")
    if table in DEVICES:
        monkeypatch.delenv("LLMI_ISA", raising=False)
        return {"device": "cuda"}
    monkeypatch.setenv("LLMI_ISA", table)
    return {"device": "cpu"}


def has_bits_of_its_own(device: str, kv_cache_dtype: str) -> bool:
    """A GPU's tensor cores add products in an order of their own; the host carries the same kernels out in the CPU's."""
    return device == "cuda" and kv_cache_dtype == "bfloat16"


def one_by_one(llm: LLM, prompts: list[list[int]], params: list[Any], **options: Any) -> Outputs:
    """Each request in a call of its own: what it must give in any company."""
    return Outputs(llm.generate([prompt], one, **options)[0] for prompt, one in zip(prompts, params, strict=True))


def mixed_params(number: int) -> list[SamplingParams]:
    """Greedy and drawn, with and without a filter, of four lengths."""
    return [
        SamplingParams(
            temperature=[0.0, 0.7, 1.2][i % 3], top_k=5 * (i % 2), max_tokens=5 + 8 * (i % 4), seed=i, logprobs=3, ignore_eos=True
        )
        for i in range(number)
    ]


def expect_short_answers(llm: LLM) -> LLM:
    """Answers that end at once: admission then reckons with such, and a crowd of long ones meets preemption."""
    llm.generate([[1]] * 40, max_tokens=32, stopping_criteria=[lambda _: True], use_tqdm=False)
    return llm


def crowded_llm(path: Path, num_pages: int, **engine: Any) -> LLM:
    """An engine with little memory: requests meet preemption and recomputation."""
    with LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=160) as probe:
        memory = probe._page_bytes * num_pages
    return expect_short_answers(LLM(path, kv_cache_memory_bytes=memory, max_num_seqs=12, **engine))


def enumerable_llm(make: Callable[..., Path], **model: Any) -> LLM:
    """A model of 16 tokens, whose laws can be enumerated; `make` writes tiny ones."""
    return LLM(make("llama", vocab_size=16, **model), kv_cache_memory_bytes=1 << 24, max_model_len=128)


def stateful(context: TokenContext, logits: Any) -> None:
    """A processor with memory: bans what it saw drawn three steps ago."""
    seen = context.state.setdefault("seen", [])
    seen.append(int(context.token_ids[-1]))
    if len(seen) > 3:
        logits[seen[-3]] = -np.inf


def own_sampler(context: TokenContext, law: Any) -> int:
    return int(np.argsort(-law, kind="stable")[len(context.token_ids) % 3])


#: Vectors of tiny models.
STEERING = 2 * np.random.default_rng(7).standard_normal((2, 64))
FEATURES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.7},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1},
    "filters": {"temperature": 0.9, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "typical_p": {"typical_p": 0.6, "temperature": 0.8},
    "cutoffs": {"epsilon_cutoff": 0.002, "eta_cutoff": 0.003, "top_h": 0.9, "top_n_sigma": 2.5},
    "p_less": {"p_less": True, "temperature": 1.3},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.01, "n": 2},
    "dynatemp": {"temperature": 0.9, "dynatemp_range": 0.6, "dynatemp_exponent": 1.5},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 4.0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.3, "n": 2},
    "adaptive_p": {"adaptive_p": 0.2, "adaptive_p_decay": 0.7, "min_p": 0.05, "n": 2},
    "dry": {
        "dry_multiplier": 1.5,
        "dry_base": 1.6,
        "dry_allowed_length": 1,
        "dry_penalty_last_n": 40,
        "dry_sequence_breakers": ["a", "bc"],
        "temperature": 0.4,
    },
    "no_repeat_ngram": {"no_repeat_ngram_size": 2, "temperature": 0.3},
    "penalty_last_n": {
        "penalty_last_n": 7,
        "repetition_penalty": 1.6,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.3,
        "temperature": 0.5,
    },
    "sampler_order": {
        "sampler_order": ("xtc_probability", "top_k", "temperature", "repetition_penalty", "typical_p"),
        "xtc_probability": 0.4,
        "xtc_threshold": 0.005,
        "top_k": 60,
        "temperature": 1.4,
        "repetition_penalty": 1.3,
        "typical_p": 0.9,
    },
    # Two sequences each: they fit into a crowded engine if they are short.
    "guidance": {"guidance_scale": 1.8, "negative_prompt": [5, 9, 11, 40, 5, 9], "n": 2, "temperature": 1.1, "max_tokens": 16},
    "guidance alone": {"guidance_scale": -0.7, "repetition_penalty": 1.2, "top_p": 0.8, "max_tokens": 16},
    "dola": {"dola_layers": "high", "n": 2},
    "dola transformers": {"dola_layers": [0, 1], "dola_rule": "transformers", "temperature": 0.0},
    "steering": {"steering": {1: STEERING[0], -1: STEERING[1]}, "n": 2, "temperature": 1.2},
    "steering with guidance": {"steering": {0: STEERING[1]}, "guidance_scale": 1.6, "top_p": 0.8, "max_tokens": 16},
    "bias": {"logit_bias": {5: 3.0, 6: -float("inf")}},
    "allowed": {"allowed_token_ids": list(range(40, 90))},
    "bad_words": {"bad_words": ["ab", "c", "de f"]},
    "min_tokens": {"min_tokens": 10, "ignore_eos": False, "stop_token_ids": [7, 8, 9]},
    "stop": {"stop": ["a", "\n", "zz"], "ignore_eos": False},
    "stop_ids": {"stop_token_ids": list(range(100, 140))},
    "n": {"n": 3, "temperature": 1.2},
    "logprobs": {"logprobs": 5},
    "prompt_logprobs": {"prompt_logprobs": 2, "top_p": 0.8},
    "processor": {"logits_processors": [stateful], "n": 2},
    "grammar": {"structured_outputs": {"regex": "([a-f]{1,3}[0-9 ])*"}, "n": 2, "logits_processors": [stateful]},
    "grammar to its end": {"structured_outputs": {"regex": "[a-z]{2,40}[.]"}, "ignore_eos": False, "repetition_penalty": 1.2},
    "sampler": {"sampler": own_sampler},
    "criterion": {"stopping_criteria": [lambda context: len(context.token_ids) % 19 == 0 and "nineteen"]},
    "no_text": {"detokenize": False},
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4, "temperature": 0.0, "max_tokens": 20},
    "contrastive with a processor": {
        "penalty_alpha": 0.4,
        "top_k": 9,
        "temperature": 0.0,
        "max_tokens": 20,
        "logits_processors": [stateful],
        "repetition_penalty": 1.2,
        "min_tokens": 5,
    },
}

#: Those that a drafter named in the call goes with.
DRAFTED = [name for name in FEATURES if "penalty_alpha" not in FEATURES[name]]


#: Beam searches, which no drafter that a call names goes with.
BEAM_FEATURES: dict[str, dict[str, Any]] = {
    "beams": {"beam_width": 3, "length_penalty": 0.5},
    "beams that end": {"beam_width": 3, "n": 2, "early_stopping": "never", "eos_token_id": [*range(60)]},
    "beams and stops": {
        "beam_width": 3,
        "stop": ["a", "e", "zz"],
        "early_stopping": True,
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
    },
    "beam-sample": {"beam_width": 3, "do_sample": True, "temperature": 1.3, "top_k": 40, "length_penalty": 2.0},
    "beams and a processor": {"beam_width": 2, "logits_processors": [stateful], "mirostat": 2, "mirostat_tau": 4.0},
    "steered beams": {"beam_width": 3, "steering": {2: STEERING[0]}},
    "groups of beams": {"beam_width": 2, "num_beam_groups": 2, "diversity_penalty": 0.7, "stop_token_ids": list(range(100, 140))},
}
ALL_FEATURES = {**FEATURES, **BEAM_FEATURES}


def make_request(name: str, seed: int, *, longest: int = 60, max_tokens: int = 48) -> tuple[list[int], SamplingParams | BeamSearchParams]:
    """A random prompt with this feature."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(1, 257, size=int(rng.integers(1, longest))).tolist()
    if "penalty_alpha" in ALL_FEATURES[name]:
        prompt = prompt[:20]  # its hidden states take more than the cache of a tiny model
    base = {"temperature": 1.0, "max_tokens": max_tokens, "seed": seed, "ignore_eos": True, "logprobs": 1}
    if name in BEAM_FEATURES:  # short ones, which fit into a crowded engine's cache
        fields = {**base, "max_tokens": max_tokens // 4, "ignore_eos": False, **BEAM_FEATURES[name]}
        return prompt[: longest // 2], BeamSearchParams(**fields)
    return prompt, SamplingParams(**{**base, **FEATURES[name]})
