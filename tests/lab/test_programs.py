"""Programs that a decoding researcher writes: short, and they run on a real model."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, SamplingParams

PROMPTS = ["The capital of France is", "Once upon a time", "2 + 2 ="]


def test_best_of_n(smollm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    def reward(text: str) -> float:
        return -abs(len(text) - 100)

    for out in smollm.generate(PROMPTS, n=16, temperature=0.8, seed=1, max_tokens=32):
        print(max(out.outputs, key=lambda c: reward(c.text)).text)
    assert len(capsys.readouterr().out) > 100


def test_self_consistency(smollm: LLM) -> None:
    for out in smollm.generate(["Q: What is 3 + 4? A: The answer is"], n=20, temperature=0.7, max_tokens=16, seed=2):
        votes = Counter(m[-1] for c in out.outputs if (m := re.findall(r"-?\d+", c.text)))
        assert votes.most_common(1)[0][1] >= 2


def test_own_stopping_rule(smollm: LLM) -> None:
    def two_paragraphs(context: llmi.TokenContext) -> bool | str:
        return context.output_text.count("\n\n") >= 2 and "two paragraphs"

    outs = smollm.generate(["Once upon a time"], stopping_criteria=[two_paragraphs], max_tokens=300, temperature=0)
    assert outs[0].outputs[0].stop_reason == "two paragraphs" and outs[0].text.count("\n\n") == 2


def test_watermark(smollm: LLM) -> None:
    def green(previous: int, size: int, key: int = 15485863, gamma: float = 0.25) -> Any:
        return np.random.default_rng(key * previous).permutation(size)[: int(gamma * size)]

    def watermark(context: llmi.TokenContext, logits: Any, delta: float = 2.0) -> None:
        logits[green(int(context.token_ids[-1]), len(logits))] += delta

    shares = []
    for processors in ([], [watermark]):
        out = smollm.generate("Once upon a time", logits_processors=processors, max_tokens=60, seed=3, ignore_eos=True)[0]
        ids = [*out.prompt_token_ids, *out.token_ids]
        hits = [b in set(green(a, smollm.model_info.vocab_size).tolist()) for a, b in itertools.pairwise(ids)]
        shares.append(sum(hits) / len(hits))
    assert shares[1] > shares[0] + 0.15, shares


def test_perplexity_of_a_file(smollm: LLM, text: str, tmp_path: Path) -> None:
    (tmp_path / "wiki.txt").write_text(text[:6000])
    perplexity = smollm.perplexity((tmp_path / "wiki.txt").read_text())[0]
    assert 3 < perplexity.perplexity < 30 and perplexity.num_tokens > 1000


def test_streaming(smollm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    with smollm.stream("Once upon a time", max_tokens=50) as stream:
        for chunk in stream:
            print(chunk.text, end="", flush=True)
    assert capsys.readouterr().out == stream.outputs[0].text != ""


def test_two_llms_at_once(smollm_path: Path) -> None:
    big, draft = LLM(smollm_path, kv_cache_memory_bytes=1 << 30), LLM(smollm_path, kv_cache_memory_bytes=1 << 28)
    assert big.generate("Hello", temperature=0)[0].text == draft.generate("Hello", temperature=0)[0].text
    big.close()
    draft.close()


def test_two_strategies_with_common_random_numbers(smollm: LLM) -> None:
    a, b = SamplingParams(top_p=0.9, max_tokens=24), SamplingParams(min_p=0.05, max_tokens=24)

    def quality(text: str) -> float:
        return float(len(set(text.split())))

    diff: list[float] = []
    same = 0
    for seed in range(6):
        left, right = (smollm.generate(PROMPTS, p.replace(seed=seed)) for p in (a, b))
        diff += [quality(x.text) - quality(y.text) for x, y in zip(left, right, strict=True)]
        same += sum(x.token_ids[0] == y.token_ids[0] for x, y in zip(left, right, strict=True))
    assert math.isfinite(float(np.mean(diff) / (np.std(diff) + 1)))
    assert same >= 9, "equal noise: the two laws mostly draw the same first token"


def test_chat_answers(smollm: LLM) -> None:
    messages = [{"role": "user", "content": "Name the capital of France."}]
    out = smollm.chat(messages, temperature=0)[0]
    assert "Paris" in out.text and out.outputs[0].finish_reason == "stop"
    both = smollm.chat([messages, [{"role": "user", "content": "Say hello."}]], temperature=0, max_tokens=16)
    assert both[0].text == out.text and len(both) == 2
