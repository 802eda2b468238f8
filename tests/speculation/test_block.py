"""Verification of whole drafts: block verification enumerated and drawn, and judges written in Python."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, Draft, SamplingParams, SpeculativeConfig, VerifyContext, _core
from llmi.testing import assert_lossless, assert_same_tokens, random_drafter, verification_law
from test_verification import AlwaysAccept, Fixed, Lossless, PlainResidual, Trees, dyadic, threshold

T = _core.testing
NEVER = 1 - 1e-17


# --- the shipped block verifier, enumerated


def lengths_and_residuals(chain: list[int], laws: list[Any], targets: list[Any]) -> list[tuple[float, Any]]:
    """For each accepted length: its probability, found through the verifier's thresholds, and the law that it draws from."""
    size = len(chain)
    reached = []
    for node in range(size):

        def accepts(u: float, node: int = node) -> bool:
            uniforms = [NEVER] * node + [u] + [NEVER] * (size - node - 1)
            return bool(T.verify_block(chain, laws, targets, uniforms)[0] == node + 1)

        reached.append(threshold(accepts))
    result = []
    for length in range(size + 1):
        uniforms = [1e-18 if node + 1 == length else NEVER for node in range(size)]
        probability = (reached[length - 1] if length else 1.0) * float(np.prod([1 - p for p in reached[length:]]))
        accepted, law, after_rejection = T.verify_block(chain, laws, targets, uniforms)
        if probability > 0:
            assert accepted == length and after_rejection == (length < size)
        result.append((probability, np.asarray(law) / max(np.sum(law), 1e-300)))
    return result


def emitted_law(
    target: Callable[[tuple[int, ...]], Any], draft: Callable[[tuple[int, ...]], Any], vocab: int, size: int
) -> dict[Any, float]:
    """Law of the first size + 1 tokens: what a round emits, then the target's own."""
    law: dict[Any, float] = {}

    def go_on(tokens: tuple[int, ...], mass: float) -> None:
        if len(tokens) == size + 1:
            law[tokens] = law.get(tokens, 0.0) + mass
            return
        for token, probability in enumerate(target(tokens)):
            if probability:
                go_on((*tokens, token), mass * probability)

    for chain in itertools.product(range(vocab), repeat=size):
        laws = [draft(chain[:i]) for i in range(size)]
        mass = float(np.prod([row[token] for row, token in zip(laws, chain, strict=True)]))
        if mass == 0:
            continue
        targets = [target(chain[:i]) for i in range(size + 1)]
        for length, (probability, residual) in enumerate(lengths_and_residuals(list(chain), laws, targets)):
            for token, drawn in enumerate(residual):
                if probability * drawn:
                    go_on((*chain[:length], token), mass * probability * float(drawn))
    return law


def random_laws(rng: np.random.Generator, vocab: int) -> Callable[[tuple[int, ...]], Any]:
    known: dict[tuple[int, ...], Any] = {}
    return lambda path: known.setdefault(path, dyadic(rng, vocab))


def test_block_verification_emits_the_target_exactly() -> None:
    rng = np.random.default_rng(4)
    for _ in range(60):
        vocab, size = [(2, 3), (3, 2), (4, 2), (2, 1), (5, 1)][int(rng.integers(5))]
        target, draft = random_laws(rng, vocab), random_laws(rng, vocab)
        law = emitted_law(target, draft, vocab, size)
        for tokens in itertools.product(range(vocab), repeat=size + 1):
            expected = float(np.prod([target(tokens[:i])[token] for i, token in enumerate(tokens)]))
            assert law.get(tokens, 0.0) == pytest.approx(expected, abs=1e-6)


def test_block_verification_never_accepts_less_in_the_mean() -> None:
    """Sun et al., theorem 2; somewhere it accepts more."""
    rng = np.random.default_rng(5)
    gains = []
    for _ in range(40):
        target, draft = random_laws(rng, 3), random_laws(rng, 3)
        means = {"block": 0.0, "token": 0.0}
        for chain in itertools.product(range(3), repeat=2):
            laws, targets = [draft(chain[:i]) for i in range(2)], [target(chain[:i]) for i in range(3)]
            mass = float(laws[0][chain[0]] * laws[1][chain[1]])
            if mass == 0:
                continue
            means["block"] += mass * sum(n * p for n, (p, _) in enumerate(lengths_and_residuals(list(chain), laws, targets)))
            ratios = [T.accept_probability(token, targets[i].tolist(), laws[i].tolist()) for i, token in enumerate(chain)]
            means["token"] += mass * (ratios[0] + ratios[0] * ratios[1])
        gains.append(means["block"] - means["token"])
    assert min(gains) > -1e-6 and max(gains) > 0.01


# --- end to end


@pytest.mark.parametrize(
    ("name", "size"), [("fixed", 300), *(pytest.param(name, 1000, marks=pytest.mark.slow) for name in ("model", "fixed", "points"))]
)
def test_block_draws_follow_the_exact_law(small: LLM, weak: LLM, name: str, size: int) -> None:
    drafter: Any = {"model": llmi.DraftModel(weak), "fixed": Fixed(), "points": lambda context: [3, 5][: context.num_speculative_tokens]}[
        name
    ]
    assert_lossless(SpeculativeConfig(drafter, 2, "block"), small, num_tokens=size)


def test_block_at_temperature_zero_is_greedy(small: LLM, weak: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, seed=1, logprobs=2)
    plain = small.generate([[1, 2], [3]], params)
    drafted = small.generate([[1, 2], [3]], params, speculative_config=SpeculativeConfig(llmi.DraftModel(weak), 3, "block"))
    assert_same_tokens(drafted, plain)
    assert sum(out.outputs[0].spec_decode_metrics.num_accepted_tokens for out in drafted) > 5  # type: ignore[union-attr]


class TargetTokens(llmi.Verification):
    """Coupled verification, written as a judge: the tokens of plain decoding, whatever is drafted."""

    lossless = True

    def verify(self, context: VerifyContext) -> tuple[list[int], int]:
        path: list[int] = []
        row = 0
        while True:
            token = context.target_token(row)
            node = [i for i, parent in enumerate(context.draft.parents) if parent == row - 1 and context.draft.token_ids[i] == token]
            if not node:
                return path, token
            path += node
            row = node[0] + 1


def stateful(context: Any, logits: Any) -> None:
    seen = context.state.setdefault("seen", [])
    assert len(seen) == len(context.token_ids) - context.prompt_len, "a processor's state missed a token"
    seen.append(int(context.token_ids[-1]))
    logits[seen[-1]] -= 1.0 + 0.1 * len(seen)
    logits[len(context.output_text) % 16] += 0.5


@pytest.mark.parametrize("tree", [False, True])
def test_laws_of_a_judge_are_those_of_plain_decoding(small: LLM, weak: LLM, tree: bool) -> None:
    """Penalties, masks, processors with state, stop rules, n > 1 and log-probabilities along every path."""
    params = [
        SamplingParams(max_tokens=30, seed=1, ignore_eos=True, logprobs=2, repetition_penalty=1.2, presence_penalty=0.2, top_p=0.9),
        SamplingParams(max_tokens=30, seed=2, ignore_eos=True, logprobs=2, logits_processors=[stateful], n=3),
        SamplingParams(max_tokens=30, seed=3, ignore_eos=True, logprobs=2, temperature=0, frequency_penalty=0.4),
        SamplingParams(max_tokens=30, seed=4, stop_token_ids=[5], min_tokens=4, logprobs=2, top_k=8),
    ]
    prompts = [[i + 1, 2, 3] for i in range(len(params))]
    plain = small.generate(prompts, params)
    drafter = Trees(weak) if tree else random_drafter(0.7)
    drafted = small.generate(prompts, params, speculative_config=SpeculativeConfig(drafter, 6, TargetTokens()))
    assert_same_tokens(drafted, plain)
    metrics = [sample.spec_decode_metrics for out in drafted for sample in out.outputs]
    assert sum(m.num_accepted_tokens for m in metrics if m) > 10


class RejectionAsJudge(llmi.Verification):
    """Token by token, through coins and draws."""

    lossless = True

    def verify(self, context: VerifyContext) -> tuple[list[int], int]:
        draft = context.draft
        for node, token in enumerate(draft.token_ids):
            target = context.target_probs(node)
            row = np.asarray(draft.draft_probs[node], np.float64)
            if context.uniform(node) >= min(1.0, target[token] / row[token]):
                return list(range(node)), context.draw(np.maximum(target - row, 0), node)
        return list(range(len(draft))), context.draw(context.target_probs(len(draft)), len(draft))


@pytest.mark.slow
def test_a_judge_may_be_exact(small: LLM, weak: LLM) -> None:
    assert_lossless(SpeculativeConfig(llmi.DraftModel(weak), 2, RejectionAsJudge()), small, num_tokens=400)


class FirstAlways(llmi.Verification):
    lossless = True  # a lie

    def verify(self, context: VerifyContext) -> tuple[list[int], int]:
        return [0], context.target_token(1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_is_read_behind_a_token_that_is_cut(small: LLM, temperature: float) -> None:
    """A drafted token that the law excludes may lead where no token is left; plain decoding never goes there."""

    class Excluded(llmi.Drafter):
        def propose(self, context: llmi.DraftContext) -> Any:
            return [7, 8, 9][: context.num_speculative_tokens]

    def exclude(context: llmi.TokenContext, row: Any) -> None:
        row[7] = -np.inf
        if 7 in context.token_ids.tolist():
            row[:] = -np.inf

    params = SamplingParams(temperature=temperature, seed=1, max_tokens=12, ignore_eos=True, logits_processors=[exclude])
    drafts = SpeculativeConfig(Excluded(), 3, verification="block")
    output = small.generate([[5, 6, 3]], params, speculative_config=drafts, use_tqdm=False)[0].outputs[0]
    assert len(output.token_ids) == 12 and 7 not in output.token_ids
    assert output.spec_decode_metrics is not None and output.spec_decode_metrics.num_drafts > 0


def test_a_lossy_judge_is_found_out(small: LLM, weak: LLM) -> None:
    with pytest.raises(AssertionError, match="total variation"):
        assert_lossless(SpeculativeConfig(llmi.DraftModel(weak), 2, FirstAlways()), small, num_tokens=400, false_alarm=1e-6)


def judge(answer: Callable[[VerifyContext], Any]) -> llmi.Verification:
    class Judge(llmi.Verification):
        def verify(self, context: VerifyContext) -> Any:
            return answer(context)

    return Judge()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda context: ([1], 3), "node 1 is not a child of the root"),
        (lambda context: ([0, 0], 3), "node 0 is not a child of 0"),
        (lambda context: ([0], 99), "99, is outside the vocabulary"),
        (lambda context: ([], context.draw([1.0, 2.0], 0)), r"probs must be \[vocab_size\]"),
        (lambda context: ([], context.draw([0.0] * 16, 0)), "all zero"),
        (lambda context: ([], context.draw([-1.0] * 16, 0)), "negative"),
        (lambda context: ([], int(context.target_probs(7)[0])), "no such row"),
        (lambda context: 5, "verify"),
    ],
)
def test_bad_judgements_end_their_request_alone(small: LLM, answer: Any, message: str) -> None:
    params = SamplingParams(max_tokens=8, seed=2, ignore_eos=True)
    plain = small.generate([[1], [2], [3]], params)
    config = SpeculativeConfig(lambda context: [3, 4], 2, judge(answer))
    outputs = small.generate([[1], [2], [3]], params, speculative_config=[None, config, None], on_error="return")
    assert isinstance(outputs[1].error, llmi.HookError)
    if message != "verify":
        with pytest.raises(llmi.HookError, match=message):
            raise outputs[1].error
    assert (outputs[0], outputs[2]) == (plain[0], plain[2])


def test_what_a_judge_refuses(small: LLM, weak: LLM) -> None:
    with pytest.raises(llmi.DraftError, match="takes chains"):
        small.generate([1], max_tokens=8, seed=1, ignore_eos=True, speculative_config=SpeculativeConfig(Trees(weak), 6, "block"))
    with pytest.raises(llmi.InvalidParamsError, match=r"\[1, 64\]"):
        SpeculativeConfig(llmi.PromptLookup(), 65, "block")
    kept: list[VerifyContext] = []

    def keep(context: VerifyContext) -> tuple[list[int], int]:
        kept.append(context)
        assert context.target_logits.shape == (len(context.draft) + 1, 16) and context.draft.draft_probs is None
        return [], context.target_token(0)

    small.generate([1], max_tokens=4, seed=1, ignore_eos=True, speculative_config=SpeculativeConfig(lambda context: [3], 1, judge(keep)))
    with pytest.raises(ValueError, match="during the call of verify alone"):
        kept[0].target_token(0)


# --- laws in fractions


def fractions(rng: np.random.Generator, size: int) -> list[Fraction]:
    return [Fraction(int(value * 4096), 4096) for value in dyadic(rng, size)]


def test_verification_law_in_fractions() -> None:
    rng = np.random.default_rng(6)
    for _ in range(40):
        size = int(rng.integers(2, 6))
        target, draft = fractions(rng, size), fractions(rng, size)
        expected = {token: value for token, value in enumerate(target) if value}
        for siblings in (1, 2, 3):
            assert verification_law("rejection", target, draft, num_siblings=siblings) == expected
            assert verification_law(Lossless(), target, draft, num_siblings=siblings) == expected
    target, draft = [Fraction(1, 4), Fraction(3, 4)], [Fraction(1, 2), Fraction(1, 2)]
    assert verification_law(AlwaysAccept(), target, draft) == {0: Fraction(1, 2), 1: Fraction(1, 2)}
    assert verification_law(PlainResidual(), target, draft) == {0: Fraction(5, 16), 1: Fraction(11, 16)}
    assert sum(verification_law(llmi.Typical(), target, draft).values()) == 1
    with pytest.raises(llmi.InvalidParamsError, match="verification_law needs"):
        verification_law("coupled", target, draft)


def test_siblings_without_a_law_of_their_own_are_lossy() -> None:
    class PlainSiblings(llmi.Verification):
        def residual(self, target_probs: Any, draft_probs: Any) -> Any:
            return target_probs

    rng = np.random.default_rng(7)
    target, draft = fractions(rng, 4), fractions(rng, 4)
    assert verification_law(PlainSiblings(), target, draft, num_siblings=2) != dict(enumerate(target))


def test_draft_is_what_was_proposed(small: LLM) -> None:
    seen: list[Draft] = []

    def look(context: VerifyContext) -> tuple[list[int], int]:
        seen.append(context.draft)
        return [], context.target_token(0)

    config = SpeculativeConfig(Fixed(), 2, judge(look))
    small.generate([1], max_tokens=6, seed=1, ignore_eos=True, speculative_config=config)
    assert seen and all(len(draft) == 2 and draft.draft_probs[0].sum() == pytest.approx(1, abs=1e-5) for draft in seen[:-1])


def test_noise_is_new_in_each_round(small: LLM) -> None:
    """A position that a round judged in vain is judged again: with other coins and draws, or the law is bent."""
    coins: dict[int, list[float]] = {}
    draws: dict[int, list[int]] = {}

    def reject(context: VerifyContext) -> tuple[list[int], int]:
        for row in range(len(context.draft) + 1):
            position = len(context.token_ids) + row
            coins.setdefault(position, []).append(context.uniform(row))
            draws.setdefault(position, []).append(context.draw(np.full(16, 1 / 16), row))
            assert context.uniform(row) == coins[position][-1] != context.uniform(row, 1)
        return [], context.target_token(0)

    config = SpeculativeConfig(lambda context: [3, 5], 2, judge(reject))
    small.generate([1], max_tokens=40, seed=1, ignore_eos=True, speculative_config=config)
    repeated = [values for values in coins.values() if len(values) == 3]
    assert len(repeated) > 20 and all(len(set(values)) == 3 for values in repeated)
    assert sum(len(set(values)) > 1 for values in draws.values() if len(values) == 3) > 20
