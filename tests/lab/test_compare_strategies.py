"""llmi.testing.compare_strategies: strategies of each kind beside each other, their texts, costs and scores."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from llmi import LLM, BeamSearchParams, Generate, InvalidParamsError, SamplingParams, TokenSequence, smc
from llmi.testing import compare_strategies

PROMPTS = ["ab", "cde"]


def greedy_by_hand(sequence: TokenSequence, count: int) -> Generator[Any, Any, list[int]]:
    tokens = []
    for _ in range(count):
        tokens.append(int(np.argmax(sequence.logits)))
        yield {sequence: [tokens[-1]]}
    return tokens


def generated(sequence: TokenSequence) -> Generator[Any, Any, Any]:
    return (yield Generate([sequence], max_tokens=6, temperature=0, ignore_eos=True))


@pytest.mark.slow
def test_each_kind_of_strategy(tiny: LLM) -> None:
    greedy = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    particles = smc.ParticleFilter(4)
    strategies = {
        "greedy": greedy,
        "beams": BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True),
        "sampling": greedy.replace(temperature=1.0),
        "contrastive": {"penalty_alpha": 0.6, "top_k": 4, "max_tokens": 6, "ignore_eos": True},
        "guidance": {"guidance_scale": 2.0, "negative_prompt": "a", "max_tokens": 6, "temperature": 0, "ignore_eos": True},
        "particles": (particles, {"max_tokens": 6}),
        "by hand": (greedy_by_hand, {"count": 6}),
        "generated": generated,
    }
    report = compare_strategies(strategies, PROMPTS, llm=tiny, seed=5)
    rows = {row.name: row for row in report}
    assert list(rows) == list(strategies)
    texts = [output.text for output in tiny.generate(PROMPTS, greedy, use_tqdm=False)]
    assert rows["greedy"].texts == rows["by hand"].texts == rows["generated"].texts == texts
    beams = tiny.generate(PROMPTS, BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True), use_tqdm=False)
    assert rows["beams"].texts == [output.text for output in beams]
    found = [particles.run(tiny, prompt, max_tokens=6, seed=5 + index).texts() for index, prompt in enumerate(PROMPTS)]
    assert rows["particles"].texts == [max(one, key=lambda text: one[text]) for one in found]
    assert rows["sampling"].texts == [
        output.text for output in tiny.generate(PROMPTS, greedy.replace(temperature=1.0, seed=5), use_tqdm=False)
    ]
    # Both prompts in one batch: a prefill, then one forward a token; by hand and with beams the same forwards. 2 + 3 prompt rows.
    assert (rows["greedy"].num_forwards, rows["greedy"].num_rows) == (6, 5 + 2 * 5)
    assert rows["by hand"].num_forwards == 7 and rows["beams"].num_rows == 5 + 2 * 3 * 5
    assert rows["contrastive"].num_rows > rows["greedy"].num_rows and rows["guidance"].num_rows > rows["greedy"].num_rows
    assert all(row.seconds > 0 and row.score < 0 for row in report)
    likelihoods = tiny.loglikelihood(list(zip(PROMPTS, texts, strict=True)), use_tqdm=False)
    assert rows["greedy"].scores == [pytest.approx(float(one.token_logprobs.mean())) for one in likelihoods]
    assert rows["beams"].score >= rows["sampling"].score
    shown = repr(report).splitlines()
    assert shown[0].split() == ["strategy", "tokens", "forwards", "rows", "seconds", "score"] and len({len(line) for line in shown}) == 1
    assert "<table>" in report._repr_html_() and list(report.to_pandas().columns) == ["strategy", "prompt", "score", "text"]
    assert len(report.plot().axes) == 2


def test_a_score_of_ones_own(tiny: LLM) -> None:
    asked: list[tuple[str, str]] = []

    def score(prompt: str, text: str) -> float:
        asked.append((prompt, text))
        return float(len(text))

    report = compare_strategies({"one": {"max_tokens": 3, "temperature": 0, "ignore_eos": True}}, [[98, 99]], score=score, llm=tiny)
    assert asked == [("ab", report[0].texts[0])] and report[0].score == len(report[0].texts[0])


@pytest.mark.parametrize(
    ("strategies", "message"), [({}, "empty"), ({"x": 5}, "x: a strategy is"), ({"x": {"max_tokens": -1}}, "x: .*max_tokens")]
)
def test_what_is_refused(tiny: LLM, strategies: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParamsError, match=message):
        compare_strategies(strategies, PROMPTS, llm=tiny)


def test_a_strategy_that_returns_no_text(tiny: LLM) -> None:
    def nothing(sequence: TokenSequence) -> Generator[Any, Any, object]:
        yield {sequence: [5]}
        return object()

    with pytest.raises(InvalidParamsError, match="returns a text, token ids or the output of Generate"):
        compare_strategies({"x": nothing}, PROMPTS, llm=tiny)
