"""dola_layers: the row's rule in NumPy and by transformers' code, the sequence API as oracle, configurations, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from features import crowded_llm, one_by_one, own_sampler, stateful
from llmi import (
    LLM,
    Constraint,
    ConstraintError,
    InvalidParamsError,
    NonFiniteLogitsError,
    PromptLookup,
    SamplingParams,
    SpeculativeConfig,
    UnsupportedCombinationError,
    _core,
    log_softmax,
)
from llmi.params.rows import layers_of
from llmi.testing import assert_same_tokens
from test_promise import DRAFTERS, VERIFICATIONS

needs_testing = pytest.mark.skipif(not hasattr(_core, "testing"), reason="this build has no testing submodule")
T = getattr(_core, "testing", None)


# --- the row's rule


def fma(a: float, b: float, c: float) -> np.float32:
    """a b + c of fp32 numbers, rounded once: the product is exact in fp64, and so is what its sum with c loses."""
    product = np.float64(a) * np.float64(b)
    total = product + np.float64(c)
    part = total - product
    lost = (product - (total - part)) + (np.float64(c) - part)
    rounded = np.float32(total)
    if lost != 0 and np.float64(rounded) != total:
        other = np.nextafter(rounded, np.float32(np.sign(total - np.float64(rounded)) * np.inf))
        if total == (np.float64(rounded) + np.float64(other)) / 2:  # a tie that the lost part decides
            return max(rounded, other) if lost > 0 else min(rounded, other)
    return rounded


def divergence(a: Any, b: Any, of_mean: bool) -> float:
    """As kernels/ops/vocab.h states it: fp32 terms, 16 lanes, chunks of 4,096 ids."""
    exp, log = (
        np.vectorize(lambda x, name=name: np.float32(T.scalar_math(name, float(x))), otypes=[np.float32]) for name in ("exp32", "log32")
    )
    p, q = exp(a), exp(b)
    mean = (p + q) * np.float32(0.5)
    log_mean = log(np.maximum(mean, np.float32(2.0**-126)))
    if of_mean:
        terms = mean * ((log_mean - a) + (log_mean - b))
    else:
        terms = np.array([fma(*row) for row in zip(q, b - log_mean, p * (a - log_mean), strict=True)], np.float32)
    total = 0.0
    for begin in range(0, len(a), 4096):
        lanes = np.zeros(16, np.float32)
        for i, term in enumerate(terms[begin : begin + 4096]):
            lanes[i % 16] += term
        for width in (8, 4, 2, 1):
            lanes = lanes[:width] + lanes[width:]
        total += float(lanes[0])
    return float(np.float32(total * 0.5))


def normalised(row: Any) -> Any:
    return row - np.float32(T.log_sum_exp("reference", row))


def contrast(final: Any, layers: Any, by_transformers: bool) -> tuple[Any, int]:
    """The definition: (row, chosen layer)."""
    f, rows = normalised(final), [normalised(row) for row in layers]
    distances = [divergence(f, row, by_transformers) for row in rows]
    chosen = int(np.argmax(distances)) if len(rows) > 1 else 0
    bound = f.max() + np.float32(np.log(0.1))
    return np.where(f >= bound, f - rows[chosen], np.float32(-np.inf)), chosen


@needs_testing
@pytest.mark.parametrize("by_transformers", [False, True])
@pytest.mark.parametrize("size", [5, 257, 4112, 5003])
def test_the_rows_rule(cpu_table: str, size: int, by_transformers: bool) -> None:
    rng = np.random.default_rng(size)
    for spread in (1.0, 6.0) if size < 4000 else (4.0,):
        final = rng.normal(0, spread, size).astype(np.float32)
        layers = rng.normal(0, spread, (3, size)).astype(np.float32) + np.float32(0.4) * final
        layers[2, : size // 2] -= 200  # whose probabilities are 0
        expected, chosen = contrast(final, layers, by_transformers)
        row, index = T.contrast_layers(cpu_table, final, layers, by_transformers)
        assert index == chosen
        assert_same_bits(row, expected, masked="half of the tokens have the probability 0")
        assert np.isneginf(row).any()
        a, b = normalised(final), normalised(layers[0])
        assert T.layer_divergence(cpu_table, a, b, by_transformers) == divergence(a, b, by_transformers)
        exact = jensen_shannon(a, b) if not by_transformers else divergence_of_mean(a, b)
        assert abs(divergence(a, b, by_transformers) - exact) < 1e-5 * max(1, exact)
    assert abs(T.layer_divergence(cpu_table, a, a, by_transformers)) < 1e-6


def jensen_shannon(a: Any, b: Any) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    m = np.logaddexp(a, b) - np.log(2)
    return float((np.exp(a) * (a - m) + np.exp(b) * (b - m)).sum() / 2)


def divergence_of_mean(a: Any, b: Any) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    m = np.logaddexp(a, b) - np.log(2)
    return float((np.exp(m) * ((m - a) + (m - b))).sum() / 2)


@needs_testing
def test_the_first_of_equal_layers_and_bad_rows(cpu_table: str) -> None:
    rng = np.random.default_rng(1)
    final, layer = rng.normal(0, 3, (2, 100)).astype(np.float32)
    for rule in (False, True):
        assert T.contrast_layers(cpu_table, final, np.stack([final, layer, layer]), rule)[1] == 1
        assert T.contrast_layers(cpu_table, final, layer[None], rule)[1] == 0
        row, _ = T.contrast_layers(cpu_table, np.full(100, np.nan, np.float32), np.stack([layer, final]), rule)
        assert T.argmax(cpu_table, row) == -1  # which the engine refuses


@pytest.mark.parity
@needs_testing
def test_transformers_code() -> None:
    """Its functions of version 4.52.4, written out: softmax, F.kl_div with the mean over the vocabulary, and the filter."""
    import torch

    functional = torch.nn.functional
    rng = np.random.default_rng(2)
    for seed in range(20):
        rows = torch.from_numpy(rng.normal(0, 1 + seed % 5, (5, 600)).astype(np.float32))
        final, layers = rows[0], rows[1:] + 0.3 * rows[0]
        mean = 0.5 * (final.softmax(-1) + layers.softmax(-1))
        divergences = [
            0.5
            * (
                functional.kl_div(final.log_softmax(-1), m, reduction="none").mean(-1)
                + functional.kl_div(layer.log_softmax(-1), m, reduction="none").mean(-1)
            )
            for m, layer in zip(mean, layers, strict=True)
        ]
        chosen = int(torch.stack(divergences).argmax())
        scores, base = final.log_softmax(-1), layers[chosen].log_softmax(-1)
        cut = scores < scores.max() + np.log(0.1)
        base[cut], scores[cut] = -1e-3, -torch.inf
        row, index = T.contrast_layers("reference", final.numpy(), layers.numpy(), True)
        assert index == chosen
        kept = ~cut.numpy()
        assert np.array_equal(np.isfinite(row), kept) and np.abs(row[kept] - (scores - base).numpy()[kept]).max() < 1e-5


@pytest.mark.parametrize(
    ("layers", "tied", "low", "high"),
    [
        (30, True, list(range(2, 15, 2)), list(range(15, 30, 2))),
        (30, False, list(range(0, 15, 2)), list(range(15, 30, 2))),
        (48, True, list(range(2, 20, 2)), list(range(28, 48, 2))),
        (4, True, [2], [2]),
        (3, False, [0], [1]),
        (2, True, [1], [1]),
        (1, True, [0], [0]),
    ],
)
def test_low_and_high(layers: int, tied: bool, low: list[int], high: list[int]) -> None:
    assert layers_of("high", layers, tied) == high
    assert layers_of("low", layers, tied) == low


# --- the sequence API as oracle


def oracle(llm: LLM, prompt: Any, layers: tuple[int, ...], params: SamplingParams) -> tuple[list[int], list[float]]:
    """(tokens, raw log-probabilities) by the paper's rule."""
    tokens, raw = [], []
    plain = params.replace(dola_layers=None)
    with llm.sequence(prompt, seed=params.seed, capture=llmi.Capture(layer_logits=layers)) as seq:
        for _ in range(params.max_tokens or 0):
            final = log_softmax(seq.logits)
            early = max((log_softmax(seq.layer_logits[layer]) for layer in layers), key=lambda row: jensen_shannon(final, row))
            row = np.where(final >= final.max() + np.float32(np.log(0.1)), final - early, np.float32(-np.inf))
            token = seq.sample(plain, logits=row)
            tokens.append(token)
            raw.append(float(final[token]))
            llm.extend({seq: [token]})
    return tokens, raw


@pytest.fixture(scope="module")
def roomy(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path("gemma3"), kv_cache_memory_bytes=1 << 24, max_model_len=160) as llm:
        yield llm


@pytest.mark.parametrize("layers", [(0, 1, 2), (1,), (2, 1)])
def test_captured_layers_give_the_same_tokens(roomy: LLM, layers: tuple[int, ...]) -> None:
    for prompt in ([3, 1, 4, 1, 5, 9, 2, 6], [2] * 33):
        for params in (
            SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=0, dola_layers=list(layers)),
            SamplingParams(
                temperature=0.9, seed=3, max_tokens=10, ignore_eos=True, logprobs=0, dola_layers=list(layers), repetition_penalty=1.2
            ),
        ):
            tokens, raw = oracle(roomy, prompt, layers, params)
            [completion] = roomy.generate([prompt], params)[0].outputs
            assert completion.token_ids == tokens and completion.logprobs is not None
            assert [entries[token].logprob for entries, token in zip(completion.logprobs, tokens, strict=True)] == raw


def test_smollm(smollm: LLM) -> None:
    prompt = "Once upon a time, there was"
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, repetition_penalty=1.2)
    tokens, _ = oracle(smollm, prompt, tuple(range(15, 30, 2)), params)
    assert smollm.generate(prompt, params.replace(dola_layers="high"))[0].outputs[0].token_ids == tokens
    texts = {
        tuple(smollm.generate(prompt, params.replace(**fields))[0].outputs[0].token_ids)
        for fields in (
            {},
            {"dola_layers": "high"},
            {"dola_layers": "low", "dola_rule": "transformers"},
            {"dola_layers": "high", "dola_rule": "transformers"},
        )
    }
    assert len(texts) == 4


def test_transformers_rule_takes_inner_layers_without_the_norm(tiny_path: Callable[..., Path]) -> None:
    """Hidden states through the head alone, in fp32 by NumPy: the chosen tokens are those of the engine."""
    path = tiny_path("llama")
    with LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=96, dtype="float32") as llm:
        capture = llmi.Capture(layer_logits=(3,), hidden_states=(1, 2, 3))
        prompt, layers, matched = [5, 7, 11, 13], (1, 2), 0
        norm = np.sqrt
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, dola_layers=list(layers), dola_rule="transformers")
        tokens = llm.generate([prompt], params)[0].outputs[0].token_ids
        with llm.sequence(prompt, capture=capture) as seq:
            # The head as a matrix, from rows that the engine gives: logits of a normed state are linear in it.
            states, rows = [], []
            for token in range(1, 129):
                with llm.sequence([token, token * 3 % 257], capture=capture) as probe:
                    hidden = probe.hidden_states[3][-1].astype(np.float64)
                    states.append(hidden / norm((hidden**2).mean() + 1e-5))
                    rows.append(probe.logits.astype(np.float64))
            head = np.linalg.lstsq(np.array(states), np.array(rows), rcond=None)[0]
            assert np.abs(np.array(states) @ head - np.array(rows)).max() < 1e-3, "the norm has weights of its own"
            for token in tokens:
                final = log_softmax(seq.logits)
                early = [log_softmax((seq.hidden_states[layer][-1].astype(np.float64) @ head).astype(np.float32)) for layer in layers]
                base = max(early, key=lambda row: divergence_of_mean(final, row))
                row = np.where(final >= final.max() + np.log(0.1), final - base, -np.inf)
                order = np.sort(row)
                if order[-1] - order[-2] > 1e-2:
                    assert int(row.argmax()) == token
                    matched += 1
                llm.extend({seq: [token]})
        assert matched >= 2


# --- configurations


def crowd(count: int) -> tuple[list[list[int]], list[SamplingParams]]:
    rng = np.random.default_rng(9)
    prompts, params = [], []
    for i in range(count):
        prompts.append(rng.integers(1, 257, size=1 + (i * 13) % 60).tolist())
        params.append(
            SamplingParams(
                temperature=[0.0, 0.8, 1.0][i % 3],
                max_tokens=8 + i % 9,
                seed=i,
                n=1 + (i % 4 == 0),
                ignore_eos=True,
                logprobs=1,
                dola_layers=[None, "high", [0, 1], [2], [2, 1]][i % 5],
                dola_rule=["paper", "transformers"][i % 2],
                guidance_scale=2.0 if i % 5 == 0 else None,
                prompt_logprobs=1 if i % 6 == 0 else None,
                logits_processors=[stateful] if i % 7 == 2 else [],
                sampler=own_sampler if i % 11 == 3 else None,
            )
        )
    return prompts, params


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "together": {},
    "steps of 3": {"max_num_batched_tokens": 3},
    "blocks of 64, one thread": {"block_size": 64, "num_threads": 1},
    "static": {"scheduling_policy": "static", "max_num_seqs": 6},
    "device": {"device": "cuda"},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_configuration_moves_a_bit(tiny_path: Callable[..., Path], roomy: LLM, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    prompts, params = crowd(25 if name != "device" else 12)
    expected = one_by_one(roomy, prompts, params)
    with LLM(tiny_path("gemma3"), **{"kv_cache_memory_bytes": 1 << 24, "max_model_len": 160, **CONFIGURATIONS[name]}) as llm:
        assert_same_tokens(llm.generate(prompts, params), expected)


def test_preemption(tiny_path: Callable[..., Path], roomy: LLM) -> None:
    prompts, params = crowd(40)
    with crowded_llm(tiny_path("gemma3"), 24, max_model_len=140, max_num_batched_tokens=48) as llm:
        assert_same_tokens(llm.generate(prompts, params), one_by_one(roomy, prompts, params))
        assert llm.get_metrics()["num_preemptions"] >= 5


@pytest.mark.parametrize("verification", VERIFICATIONS)
def test_drafts_and_the_batch(tiny_path: Callable[..., Path], verification: str) -> None:
    rng = np.random.default_rng(3)
    prompts = [(rng.integers(1, 16, size=2 + i % 5).tolist() * 6)[: 4 + i] for i in range(12)]
    params = [
        SamplingParams(
            temperature=[0.0, 0.7, 1.1][i % 3],
            max_tokens=10 + i % 4,
            seed=i,
            ignore_eos=True,
            dola_layers=[[0, 2], [1]][i % 2],
            dola_rule=["paper", "transformers"][i // 2 % 2],
        )
        for i in range(12)
    ]
    path = tiny_path("llama", vocab_size=16)
    with LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=128) as llm, crowded_llm(path, 12, max_model_len=128) as few:
        plain = one_by_one(llm, prompts, params)
        accepted = 0
        for drafter in ("lookup", "law") if verification == "block" else DRAFTERS:
            config = SpeculativeConfig(DRAFTERS[drafter](), 5, verification)
            expected = one_by_one(llm, prompts, params, speculative_config=config)
            accepted += sum(output.outputs[0].spec_decode_metrics.num_accepted_tokens for output in expected)
            for engine in (llm, few):
                assert_same_tokens(engine.generate(prompts, params, speculative_config=config), expected)
            for output, drafted, one in zip(plain, expected, params, strict=True):
                if verification == "coupled" or (one.temperature == 0 and verification != "typical"):
                    assert drafted.outputs[0].token_ids == output.outputs[0].token_ids
        assert accepted > 20


def test_receipts(tiny: LLM) -> None:
    for rule in ("paper", "transformers"):
        params = SamplingParams(dola_layers="high", dola_rule=rule, max_tokens=9, seed=2, ignore_eos=True, logprobs=2, n=2)
        [output] = tiny.generate([[1, 2, 3]], params)
        assert llmi.replay(output.receipt(), tiny)
    shown = tiny.generate([[1]], max_tokens=1, dola_rule="transformers")[0].params_resolved
    assert shown["dola_rule"] == ("transformers", "no effect")


class Allow(Constraint[int]):
    """These tokens and no others."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def initial_state(self) -> int:
        return 0

    def allowed(self, state: int) -> list[int]:
        return self.tokens

    def advance(self, state: int, token_id: int) -> int:
        return state

    def is_final(self, state: int) -> bool:
        return False


# --- what is refused


@pytest.mark.parametrize(
    ("fields", "parameter", "message"),
    [
        ({"dola_layers": "middle"}, "dola_layers", "'low', 'high' or a list"),
        ({"dola_layers": []}, "dola_layers", "'low', 'high' or a list"),
        ({"dola_layers": [-1]}, "dola_layers", "'low', 'high' or a list"),
        ({"dola_layers": [1.5]}, "dola_layers", "'low', 'high' or a list"),
        ({"dola_layers": [1, 2, 1]}, "dola_layers", "holds 1 twice"),
        ({"dola_layers": "low"}, "dola_layers", "a model of 3 layers has none between its embedding and its upper half"),
        ({"dola_layers": [3]}, "dola_layers", r"holds 3: the model has the layers 0 \(its embedding\) to 2 before its last one"),
        ({"dola_layers": [1], "dola_rule": "hf"}, "dola_rule", "paper, transformers"),
        ({"dola_layers": [1], "guidance_scale": 2}, "guidance_scale", "cannot be set together"),
    ],
)
def test_bad_input(tiny: LLM, fields: dict[str, Any], parameter: str, message: str) -> None:
    steps = tiny.get_metrics()["num_steps"]
    with pytest.raises(InvalidParamsError, match=message) as error:
        tiny.generate([[1, 2, 3]], max_tokens=2, **fields)
    assert error.value.parameter == parameter
    assert tiny.get_metrics()["num_steps"] == steps


def test_masks_that_the_cut_leaves_nothing_of(tiny: LLM) -> None:
    """The contrast comes before the masks: what it has cut they cannot bring back."""
    row = tiny.sequence([1, 2, 3]).logits
    unlikely = [int(token) for token in np.argsort(row)[5:8]]
    with pytest.raises(NonFiniteLogitsError, match="the cut of dola_layers"):
        tiny.generate([[1, 2, 3]], max_tokens=2, dola_layers=[1], allowed_token_ids=unlikely)
    with pytest.raises(ConstraintError, match=r"structured_outputs allows .* the cut of dola_layers forbid"):
        tiny.generate([[1, 2, 3]], max_tokens=2, dola_layers=[1], structured_outputs=Allow(unlikely))


def test_a_sampler_under_speculation_is_refused(tiny: LLM) -> None:
    params = SamplingParams(dola_layers=[1], sampler=own_sampler, max_tokens=3)
    tiny.generate([[1, 2]], params)
    with pytest.raises(UnsupportedCombinationError, match="sampler with dola_layers"):
        tiny.generate([[1, 2]], params, speculative_config=PromptLookup())
    with LLM(tiny.model_info.path, kv_cache_memory_bytes=1 << 22, speculative_config=PromptLookup()) as drafting:
        output = drafting.generate([[1, 2]], params)[0]
        assert output.params_resolved["speculative_config"] == ("engine", "no effect")
        assert_same_tokens([output], tiny.generate([[1, 2]], params))
    with tiny.sequence([1, 2]) as seq, pytest.raises(UnsupportedCombinationError, match="a sequence has one row"):
        seq.sample(SamplingParams(dola_layers=[1]))
