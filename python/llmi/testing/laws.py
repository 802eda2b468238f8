"""Whether speculation changes what is generated."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from llmi.llm import LLM
from llmi.params.sampling import SamplingParams
from llmi.speculation.config import SpeculationLike, SpeculativeConfig, parse_speculation
from llmi.speculation.verification import Verification
from llmi.testing.draws import assert_same_distribution
from llmi.testing.exact import exact_distribution
from llmi.testing.rules import assert_exact_verification
from llmi.testing.tiny import tiny_model
from llmi.testing.tokens import assert_same_tokens
from llmi.text.prompts import Prompt

#: The samplers of assert_lossless; each is tested with every batch size.
SAMPLERS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.9, repetition_penalty=1.2, presence_penalty=0.3),
    SamplingParams(temperature=1.3, top_k=20, min_p=0.02, frequency_penalty=0.2, n=2),
)
BATCH_SIZES = (1, 5, 16)


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
    block, or a Verification that calls itself lossless: the distribution of the first three tokens equals the exact one, by draws.
    A Verification is enumerated before: its accept_probability and residual in fractions, over standing pairs of distributions, for drawn
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

    Raises
    ------
    AssertionError
        It says where tokens or distributions part.

    Examples
    --------
    >>> params = llmi.SamplingParams(seed=1)
    >>> assert_lossless(llmi.PromptLookup(), llm, prompts=["one two one"], sampling_params=[params], num_tokens=16)
    """
    config = parse_speculation(speculation)
    assert config is not None, "speculation is off"
    owned = llm is None
    target = (
        llm
        if llm is not None
        else LLM(tiny_model(vocab_size=256 if config.verification == "coupled" else 16), kv_cache_memory_bytes=1 << 24)
    )
    try:
        texts = list(prompts) if prompts is not None else _prompts(target.model_info.vocab_size, 16)
        samplers = list(sampling_params) if sampling_params is not None else list(SAMPLERS)
        assert texts and samplers, "there is no prompt, or no sampler, to compare with"
        if config.verification != "coupled":
            assert isinstance(config.verification, str) or config.verification.lossless, "this Verification calls itself lossy"
            texts = texts if prompts is not None else [[1, 2, 3, 1, 2]]
            samplers = samplers if sampling_params is not None else [SamplingParams(temperature=0.8), SamplingParams(top_k=4)]
            if isinstance(config.verification, Verification):
                assert_exact_verification(target, config, texts, samplers)
            _assert_exact_law(config, target, texts, samplers, num_tokens * 20, false_alarm)
            return
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
            sampler = sampler.replace(max_tokens=3, ignore_eos=True, detokenize=False)
            expected = exact_distribution(llm, text, sampler, num_tokens=3)
            counts: dict[tuple[int, ...], int] = {}
            runs = -(-num_draws // 128)
            for begin in range(0, runs, _RUNS_AT_ONCE):
                seeds = range(begin, min(begin + _RUNS_AT_ONCE, runs))
                params = [sampler.replace(n=128, seed=seed) for seed in seeds]
                for out in llm.generate([text] * len(seeds), params, speculative_config=config, use_tqdm=False):
                    for completion in out.outputs:
                        key = tuple(completion.token_ids)
                        counts[key] = counts.get(key, 0) + 1
            assert_same_distribution(counts, expected, false_alarm=false_alarm / cases)
