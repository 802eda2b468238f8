"""Laws of decoding, for tests: exact distributions, comparisons with a stated false-alarm rate, losslessness."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from llmi.llm import LLM
from llmi.params.sampling import SamplingParams
from llmi.speculation.config import SpeculationLike, SpeculativeConfig, parse_speculation
from llmi.speculation.verification import Verification
from llmi.testing.rules import assert_exact_verification
from llmi.text.prompts import Prompt

#: The samplers of assert_lossless; each is tested with every batch size.
SAMPLERS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.9, repetition_penalty=1.2, presence_penalty=0.3),
    SamplingParams(temperature=1.3, top_k=20, min_p=0.02, frequency_penalty=0.2, n=2),
)
BATCH_SIZES = (1, 5, 16)


def exact_distribution(llm: LLM, prompt: Prompt, sampling_params: SamplingParams, *, num_tokens: int) -> dict[tuple[int, ...], float]:
    """The true law of the first num_tokens tokens, by summing the tree of all that may be drawn.

    Meant for small vocabularies and few tokens: the tree has as many leaves as the law has outcomes. End-of-text is a token
    like any other.
    """
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(num_tokens):
        sequences = {path: llm.sequence(prompt) for path in law}
        llm.extend({sequence: path for path, sequence in sequences.items()})
        grown: dict[tuple[int, ...], float] = {}
        for path, sequence in sequences.items():
            probs = sequence.probs(sampling_params).astype(np.float64)
            for token in np.flatnonzero(probs):
                grown[(*path, int(token))] = law[path] * float(probs[token])
            sequence.close()
        law = grown
    return law


def assert_same_distribution(
    draws: Callable[[int], Any] | Mapping[Any, int],
    expected: Mapping[Any, float | Fraction],
    *,
    num_draws: int = 100_000,
    false_alarm: float = 1e-9,
) -> None:
    """Fails if draws do not follow `expected`, by Pearson's chi-square and the G-test.

    Parameters
    ----------
    draws : counts by outcome, or a function of the number of a draw that returns its outcome
    expected : probabilities by outcome; they sum to 1
    num_draws : int
        How often a function is called.
    false_alarm : float
        Probability that a right sampler fails, both tests together. Outcomes expected less than 10 times are pooled.
    """
    counts: dict[Any, int] = {}
    if callable(draws):
        for number in range(num_draws):
            outcome = draws(number)
            counts[outcome] = counts.get(outcome, 0) + 1
    else:
        counts = dict(draws)
    total = sum(counts.values())
    assert abs(float(sum(expected.values())) - 1) < 1e-3, "the expected probabilities do not sum to 1"
    impossible = {outcome for outcome, count in counts.items() if count and not expected.get(outcome)}
    assert not impossible, f"outcomes of probability 0 were drawn: {sorted(map(str, impossible))[:5]}"
    cells, pooled = [], [0.0, 0.0]
    for outcome, probability in expected.items():
        wanted, seen = float(probability) * total, float(counts.get(outcome, 0))
        if wanted >= 10:
            cells.append((wanted, seen))
        else:
            pooled = [pooled[0] + wanted, pooled[1] + seen]
    if pooled[0] >= 10:
        cells.append((pooled[0], pooled[1]))
    if len(cells) < 2:
        return
    chi_square = sum((seen - wanted) ** 2 / wanted for wanted, seen in cells)
    g = 2 * sum(seen * math.log(seen / wanted) for wanted, seen in cells if seen)
    degrees = len(cells) - 1
    distance = 0.5 * sum(abs(seen - wanted) for wanted, seen in cells) / total
    for name, statistic in (("chi-square", chi_square), ("G", g)):
        tail = chi_square_tail(statistic, degrees)
        assert tail >= false_alarm / 2, (
            f"{name} = {statistic:.1f} with {degrees} degrees of freedom: p = {tail:.2g} over {total} draws; "
            f"total variation seen {distance:.4f}, {math.sqrt(degrees / (2 * math.pi * total)):.4f} would be chance"
        )


def chi_square_tail(statistic: float, degrees: int) -> float:
    """P(chi-square >= statistic): the regularised upper incomplete gamma function (series and continued fraction)."""
    a, x = degrees / 2, statistic / 2
    if x <= 0:
        return 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while abs(term) > abs(total) * 1e-15:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1 - front * total)
    # Lentz's continued fraction.
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    h = d
    for i in range(1, 10_000):
        an = -i * (i - a)
        b += 2
        d = 1 / (an * d + b or tiny)
        c = b + an / c or tiny
        h *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return front * h


def assert_lossless(
    speculation: SpeculationLike,
    llm: LLM | None = None,
    prompts: Iterable[Prompt] | None = None,
    sampling_params: Iterable[SamplingParams] | None = None,
    *,
    num_tokens: int = 2000,
    false_alarm: float = 1e-9,
) -> None:
    """Fails if speculation changes what is generated.

    Coupled: tokens, text and log-probabilities equal those without, over samplers x batch sizes 1, 5 and 16. Rejection,
    block, or a Verification that calls itself lossless: the law of the first three tokens equals the exact one, by draws.
    A Verification is enumerated before: its accept_probability and residual in fractions, over standing pairs of laws, for drawn
    drafts or point masses, as the drafter gives; its verify by summing over its draws and finding the thresholds of its coins. So
    a rule that is a little too lenient is found, which draws would not show. A verify that is too long for that is judged by draws
    alone.

    Parameters
    ----------
    speculation : SpeculativeConfig, Drafter, function or dict
    llm : LLM, optional
        None: a tiny model with random weights.
    prompts, sampling_params : optional
        None: random prompts with repetitions in them; a standing set of samplers.
    num_tokens : int
        The least number of tokens that are compared (coupled); twenty times as many are drawn (rejection).
    """
    from llmi.llm import LLM
    from llmi.testing.tiny import tiny_model
    from llmi.testing.tokens import assert_same_tokens

    config = parse_speculation(speculation)
    assert config is not None, "speculation is off"
    owned = llm is None
    target = (
        llm
        if llm is not None
        else LLM(tiny_model(vocab_size=256 if config.verification == "coupled" else 16), kv_cache_memory_bytes=1 << 24)
    )
    try:
        if config.verification != "coupled":
            assert isinstance(config.verification, str) or config.verification.lossless, "this Verification calls itself lossy"
            texts = list(prompts) if prompts is not None else [[1, 2, 3, 1, 2]]
            samplers = list(sampling_params) if sampling_params is not None else [SamplingParams(temperature=0.8), SamplingParams(top_k=4)]
            if isinstance(config.verification, Verification):
                assert_exact_verification(target, config, texts, samplers)
            _assert_exact_law(config, target, texts, samplers, num_tokens * 20, false_alarm)
            return
        samplers = list(sampling_params) if sampling_params is not None else list(SAMPLERS)
        texts = list(prompts) if prompts is not None else _prompts(target.model_info.vocab_size, 16)
        each = max(8, -(-num_tokens // (len(samplers) * len(texts) * len(BATCH_SIZES))))
        for sampler in samplers:
            params = [sampler.replace(max_tokens=each, seed=7 + i, logprobs=1, ignore_eos=True) for i in range(len(texts))]
            plain = target.generate(texts, params, speculative_config=None, use_tqdm=False)
            for batch in BATCH_SIZES:
                outputs = type(plain)()
                for begin in range(0, len(texts), batch):
                    outputs += target.generate(
                        texts[begin : begin + batch], params[begin : begin + batch], speculative_config=config, use_tqdm=False
                    )
                assert_same_tokens(outputs, plain)
    finally:
        if owned:
            target.close()


_RUNS_AT_ONCE = 512  # each run has 128 samples, whose outputs take about 2 KB a sample


def _prompts(vocab_size: int, count: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    prompts = []
    for i in range(count):
        part = rng.integers(1, vocab_size, size=3 + 5 * (i % 7)).tolist()
        prompts.append(part + part + part[: 1 + i % 3])
    return prompts


def _assert_exact_law(
    config: SpeculativeConfig, llm: LLM, texts: list[Prompt], samplers: list[SamplingParams], num_draws: int, false_alarm: float
) -> None:
    cases = len(texts) * len(samplers)
    for text in texts:
        for sampler in samplers:
            # The first token comes before any draft: two more are verified.
            expected = exact_distribution(llm, text, sampler, num_tokens=3)
            counts: dict[tuple[int, ...], int] = {}
            runs = -(-num_draws // 128)
            for begin in range(0, runs, _RUNS_AT_ONCE):
                seeds = range(begin, min(begin + _RUNS_AT_ONCE, runs))
                params = [sampler.replace(n=128, seed=seed, max_tokens=3, ignore_eos=True, detokenize=False) for seed in seeds]
                for out in llm.generate([text] * len(seeds), params, speculative_config=config, use_tqdm=False):
                    for completion in out.outputs:
                        key = tuple(completion.token_ids)
                        counts[key] = counts.get(key, 0) + 1
            assert_same_distribution(counts, expected, false_alarm=false_alarm / cases)
