"""What tokens depend on under each way to verify drafts: the sequence alone, never the batch, the step's budget or the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from features import crowded_llm, enumerable_llm, expect_short_answers
from llmi import LLM, DraftContext, Drafter, PromptLookup, SamplingParams, SpeculativeConfig, TokenTree, Verification
from llmi.testing import assert_same_tokens

NUM_REQUESTS = 60
VERIFICATIONS = ["coupled", "rejection", "block", "typical"]


class Law(Drafter):
    """Draws from a law of its own, and remembers what became of its drafts."""

    def propose(self, context: DraftContext) -> Any:
        from llmi import Draft

        seen = context.state or 0
        vocab_size = context._llm.model_info.vocab_size
        ids, rows = [], []
        for depth in range(min(context.num_speculative_tokens, 3 + seen % 4)):
            logits = np.cos(np.arange(vocab_size) * (1 + int(context.token_ids[-1]) + depth)).astype(np.float32)
            drawn, laws = context.draw(logits, path=ids)
            ids.append(drawn[0])
            rows.append(laws[0])
        return Draft(ids, None, rows)

    def observe(self, context: DraftContext, num_accepted: int, target_logprobs: Any) -> None:
        context.state = (context.state or 0) + 1 + num_accepted


class Bush(Drafter):
    """A tree of point masses, wider than deep: more nodes than tokens follow."""

    def propose(self, context: DraftContext) -> Any:
        last, vocab_size = int(context.token_ids[-1]), context._llm.model_info.vocab_size
        paths = [[(last * 3 + k) % vocab_size, (last + k) % vocab_size, 5] for k in range(4)]
        return TokenTree.from_paths(paths, context.num_speculative_tokens)


DRAFTERS: dict[str, Callable[[], Any]] = {"lookup": PromptLookup, "law": Law, "tree": Bush}


def requests(vocab_size: int) -> tuple[list[list[int]], list[SamplingParams]]:
    rng = np.random.default_rng(5)
    prompts, params = [], []
    for i in range(NUM_REQUESTS):
        part = rng.integers(1, vocab_size, size=2 + i % 9).tolist()
        prompts.append((part * 4)[: 3 + i % 30])
        params.append(
            SamplingParams(
                temperature=[0.0, 0.7, 1.2][i % 3],
                top_k=[0, 5][i % 2],
                max_tokens=50 if i % 4 == 1 else 4 + i % 5,
                seed=i,
                n=1 + (i % 10 == 0),
                ignore_eos=True,
            )
        )
    return prompts, params


@pytest.fixture(scope="module")
def engines(tiny_path: Callable[..., Path]) -> Any:
    path = tiny_path("llama", vocab_size=16)
    engines = {
        "roomy": LLM(path, kv_cache_memory_bytes=1 << 24, max_model_len=128),
        "budget 16": LLM(path, kv_cache_memory_bytes=1 << 24, max_model_len=128, max_num_batched_tokens=16),
        "budget 64": LLM(path, kv_cache_memory_bytes=1 << 24, max_model_len=128, max_num_batched_tokens=64),
        "budget 3": LLM(path, kv_cache_memory_bytes=1 << 24, max_model_len=128, max_num_batched_tokens=3, enable_prefix_caching=False),
        "few pages": crowded_llm(path, 10, max_model_len=128),
    }
    yield engines
    for llm in engines.values():
        llm.close()


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("verification", VERIFICATIONS)
def test_tokens_do_not_depend_on_the_batch(engines: dict[str, LLM], verification: str, drafter: str) -> None:
    """60 requests alone, and together at step budgets of 3, 16, 64 and 2,048 tokens, and with a cache that most do not fit into."""
    if verification == "block" and drafter == "tree":
        pytest.skip("block verification takes chains")
    prompts, params = requests(16)
    lengths: list[Any] = [7, "auto"] if drafter == "lookup" else [7]
    for length in lengths:
        config = SpeculativeConfig(DRAFTERS[drafter](), length, verification)
        roomy = engines["roomy"]
        alone = [
            roomy.generate([prompt], one, speculative_config=config, use_tqdm=False)[0] for prompt, one in zip(prompts, params, strict=True)
        ]
        for name, llm in engines.items():
            if name == "few pages":
                expect_short_answers(llm)
            together = llm.generate(prompts, params, speculative_config=config, use_tqdm=False)
            assert len(together) == NUM_REQUESTS
            try:
                assert_same_tokens(together, type(together)(alone))
            except AssertionError as error:
                raise AssertionError(f"{name}, length {length}: {error}") from None
    assert engines["few pages"]._engine.stats()["num_preemptions"] > 0


# --- rules are enumerated


class TooLenient(Verification):
    """Exact but for a factor."""

    lossless = True  # a lie

    def __init__(self, factor: float = 1.05) -> None:
        self.factor = factor

    def accept_probability(self, token_id: int, target_probs: Any, draft_probs: Any) -> float:
        return min(1.0, float(super().accept_probability(token_id, target_probs, draft_probs)) * self.factor)


class LenientForOne(Verification):
    """Exact but for a token far up in the vocabulary."""

    lossless = True

    def accept_probability(self, token_id: int, target_probs: Any, draft_probs: Any) -> float:
        exact = float(super().accept_probability(token_id, target_probs, draft_probs))
        return min(1.0, exact * 1.02) if token_id == 11 else exact


class ResidualOfRatio(Verification):
    lossless = True

    def residual(self, target_probs: Any, draft_probs: Any) -> Any:
        return target_probs / target_probs.sum()


class ResidualNotCut(Verification):
    lossless = True

    def residual(self, target_probs: Any, draft_probs: Any) -> Any:
        left = np.maximum(target_probs - draft_probs, target_probs / 50)
        return left / left.sum()


class ForPointMasses(Verification):
    """Exact where drafts are point masses, and nowhere else."""

    lossless = True

    def accept_probability(self, token_id: int, target_probs: Any, draft_probs: Any) -> float:
        return target_probs[token_id]  # type: ignore[no-any-return]


class JudgeByCoins(Verification):
    lossless = True

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def verify(self, context: Any) -> tuple[list[int], int]:
        draft = context.draft
        for node, token in enumerate(draft.token_ids):
            target = context.target_probs(node)
            row = np.eye(len(target))[token] if draft.draft_probs is None else np.asarray(draft.draft_probs[node], np.float64)
            if context.uniform(node) >= min(1.0, self.factor * target[token] / row[token]):
                return list(range(node)), context.draw(np.maximum(target - row, 0), node)
        return list(range(len(draft))), context.target_token(len(draft))


@pytest.fixture(scope="module")
def small(tiny_path: Callable[..., Path]) -> Any:
    with enumerable_llm(tiny_path) as llm:
        yield llm


def lossless(rule: Verification, drafter: Any, llm: LLM) -> None:
    from llmi.testing import assert_lossless

    assert_lossless(SpeculativeConfig(drafter, 2, rule), llm, [[1, 2, 3, 1, 2]], [SamplingParams(temperature=0.8)], num_tokens=20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [TooLenient(), TooLenient(1.001), TooLenient(0.98), LenientForOne(), ResidualOfRatio(), ResidualNotCut(), JudgeByCoins(1.01)],
    ids=lambda rule: f"{type(rule).__name__}-{getattr(rule, 'factor', '')}",
)
def test_a_rule_that_is_a_little_lossy_is_found(small: LLM, rule: Verification) -> None:
    """So few draws as here would not show it: the rule is enumerated."""
    with pytest.raises(AssertionError, match=r"lossy: .*total variation .*exact"):
        lossless(rule, Law(), small)
    if not isinstance(rule, LenientForOne):
        with pytest.raises(AssertionError, match="lossy"):
            lossless(rule, lambda context: [3, 5][: context.num_speculative_tokens], small)


@pytest.mark.slow
def test_exact_rules_pass(small: LLM) -> None:
    for rule in (TooLenient(1.0), JudgeByCoins()):
        lossless(rule, Law(), small)
    lossless(ForPointMasses(), lambda context: [3, 5][: context.num_speculative_tokens], small)
    with pytest.raises(AssertionError, match="lossy"):
        lossless(ForPointMasses(), Law(), small)
