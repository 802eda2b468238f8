"""speculative_config="auto": which drafters it uses, which of their tokens run, and that it costs little where nothing is gained."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, SamplingParams, SpeculativeConfig, _core
from llmi.speculation import auto
from llmi.speculation.methods import drafter_of
from llmi.testing import assert_lossless, assert_same_tokens

FLAT, STEEP = [(1, 1.0), (32, 1.05)], [(1, 1.0), (2, 2.0), (32, 32.0)]
REAL = [(1, 1.0), (2, 1.05), (4, 1.2), (8, 1.8), (16, 3.2)]


def choose(
    parents: list[int], kinds: list[int], expected: list[float], costs: Any = REAL, **more: Any
) -> tuple[list[int], float, float, float]:
    seen = more.pop("seen", [])
    return _core.testing.choose_nodes(
        parents, [(kind, -1) for kind in kinds], expected, costs, seen, **{"num_rows": 1, "expected_tokens": 1.0, "max_length": 16, **more}
    )


def seconds(costs: list[tuple[int, float]], rows: int) -> float:
    return float(np.interp(rows, [r for r, _ in costs], [s for _, s in costs]))


def test_the_nodes_with_the_most_tokens_per_second_are_taken() -> None:
    """Against all subsets that hold each node's parent."""
    rng = np.random.default_rng(5)
    for _ in range(150):
        size = int(rng.integers(1, 9))
        parents = [int(rng.integers(-1, i)) for i in range(size)]
        expected = (rng.integers(1, 9, size=size) / 10).tolist()
        for parent in range(-1, size):  # laws of siblings
            children = [i for i in range(size) if parents[i] == parent]
            total = sum(expected[i] for i in children)
            for i in children:
                expected[i] *= min(1.0, 0.9 / total)
        reach = [1.0] * size
        for i in range(size):
            reach[i] = expected[i] * (reach[parents[i]] if parents[i] >= 0 else 1.0)
        best = 1.01
        for subset in itertools.chain.from_iterable(itertools.combinations(range(size), n) for n in range(1, size + 1)):
            if all(parents[i] < 0 or parents[i] in subset for i in subset):
                best = max(best, (1 + sum(reach[i] for i in subset)) / seconds(REAL, 1 + len(subset)))
        nodes, cost, gain, risk = choose(parents, list(range(size)), expected)
        assert nodes == sorted(nodes) and all(parents[i] < 0 or parents[i] in nodes for i in nodes)
        value = (1 + sum(reach[i] for i in nodes)) / seconds(REAL, 1 + len(nodes)) if nodes else 1.01
        assert value == pytest.approx(best, rel=1e-6)
        assert gain == pytest.approx(sum(reach[i] for i in nodes), rel=1e-5)
        assert cost == pytest.approx(seconds(REAL, 1 + len(nodes)) - 1 if nodes else 0, abs=1e-9)
        assert risk == pytest.approx(1 - sum(expected[i] for i in nodes if parents[i] < 0), rel=1e-5)


def test_costs_and_what_was_seen_decide() -> None:
    chain = [-1, 0, 1, 2]
    assert choose(chain, [0] * 4, [0.9], FLAT)[0] == [0, 1, 2, 3] and choose(chain, [0] * 4, [0.9], STEEP)[0] == []
    assert choose(chain, [0] * 4, [0.9], FLAT, max_length=2)[0] == [0, 1] and choose(chain, [0] * 4, [0.9], FLAT, max_length=0)[0] == []
    assert choose([-1, -1], [0, 1], [0.5, 0.3])[0] == [0, 1], "siblings of two drafters"
    assert choose([-1], [0], [0.5])[0] == [0] and choose([-1], [0], [0.5], seen=[(0, False)] * 40)[0] == []
    assert choose([-1], [0], [0.02])[0] == [] and choose([-1], [0], [0.02], seen=[(0, True)] * 10)[0] == [0]
    assert choose([-1], [0], [0.5], seen=[(1, False)] * 40)[0] == [0], "another kind"
    agreed = _core.testing.choose_nodes([-1], [(0, 1)], [0.4, 0.4], REAL, [], num_rows=1, expected_tokens=1.0, max_length=4)
    assert agreed[2] == pytest.approx(0.64, rel=1e-5), "two drafters that agree"
    assert choose([-1], [0], [0.3], [(1, 1.0), (8, 2.0), (16, 4.0)], num_rows=8, expected_tokens=8.0)[0] == [], "costly rows of a full step"


def test_the_budget_bounds_what_is_lost() -> None:
    def balance(num_steps: int, drafts: list[tuple[float, int]], has_head: bool = False) -> float:
        return float(_core.testing.draft_budget(num_steps, drafts, has_head)[0])

    assert balance(0, []) == pytest.approx(0.3) and balance(10, []) == pytest.approx(0.35) and balance(1000, []) == pytest.approx(0.6)
    assert balance(0, [(0.1, 0)] * 4) == pytest.approx(-0.1) and balance(0, [(0.1, 1)] * 9) == pytest.approx(0.6)
    assert balance(0, [], True) == pytest.approx(0.6) and balance(1000, [], True) == pytest.approx(1.2)


def test_bad_luck_does_not_stop_what_pays() -> None:
    def allows(drafts: list[tuple[float, int]]) -> bool:
        return bool(_core.testing.draft_budget(0, drafts)[1])

    pays = [(0.1, 1), (0.1, 0), (0.1, 0)] * 8
    assert allows([]) and not allows([(0.1, 0)] * 3), "nothing was gained so far"
    assert allows([*pays, *[(0.1, 0)] * 7]), "the account is empty, and the last dozen gained"
    assert not allows([*pays, *[(0.1, 0)] * 24])


def random_table(vocab_size: int) -> llmi.CorpusDrafter:
    """Sure of itself and wrong: each token has one successor."""
    rng = np.random.default_rng(0)
    order = rng.permutation(vocab_size)
    return llmi.CorpusDrafter([[int(order[i]), int(order[i - 1])] * 9 for i in range(vocab_size)])


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_little_is_drafted_for_nothing(tiny_path: Callable[..., Path], verification: str) -> None:
    """A table that is always wrong: on a new engine few tokens of a short answer are drafted, and fewer later."""
    params = SamplingParams(temperature=1.5, max_tokens=64, ignore_eos=True, seed=3)
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm:
        config = SpeculativeConfig([random_table(257), llmi.PromptLookup()], "auto", verification)
        counts = []
        for i in range(4):
            m = llm.generate([[i + 1, 2, 3]], params, speculative_config=config)[0].outputs[0].spec_decode_metrics
            assert m is not None
            counts.append(m.num_draft_tokens - m.num_accepted_tokens)
        if verification == "coupled":  # measured costs decide
            assert 0 < counts[0] <= 24 and counts[3] <= 12, counts
        else:  # 20 where nothing bounds the losses
            assert all(0 < count <= 14 for count in counts), counts


def test_a_good_table_is_used_to_the_full(tiny_path: Callable[..., Path]) -> None:
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, seed=0)
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm:
        prompts = [[i + 1, 2 * i + 3] for i in range(4)]
        plain = llm.generate(prompts, params)
        table = llmi.CorpusDrafter([[*out.prompt_token_ids, *out.token_ids] for out in plain])
        for verification in ("coupled", "rejection", "block"):
            outs = llm.generate(prompts, params, speculative_config=SpeculativeConfig([table, llmi.PromptLookup()], "auto", verification))
            assert [out.token_ids for out in outs] == [out.token_ids for out in plain]
            for out in outs:
                m = out.outputs[0].spec_decode_metrics
                assert m is not None and m.drafter == "CorpusDrafter+PromptLookup"
                # Coupled, measured costs decide: on a busy machine a tiny model's rows are costly.
                assert m.num_accepted_tokens > 5 or verification == "coupled", verification


@pytest.fixture
def shipped(tiny: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of shipped tables with one for the tiny model."""
    monkeypatch.setattr(auto, "SHIPPED", tmp_path)
    auto.shipped_table.cache_clear()
    path = tmp_path / "corpus.safetensors"
    table = llmi.CorpusDrafter([list(range(1, 200))])
    tiny.generate([[1]], max_tokens=2, speculative_config=table)
    table.save(path)
    yield path
    auto.shipped_table.cache_clear()


@pytest.mark.parametrize("form", ["auto", {"method": "auto"}, SpeculativeConfig("auto"), ["auto"]], ids=str)
def test_auto_uses_what_there_is(tiny_path: Callable[..., Path], shipped: Path, form: Any) -> None:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=64) as llm:
        plain = llm.generate([[1, 2, 3]], max_tokens=20, seed=1)
        form = SpeculativeConfig(form) if isinstance(form, list) else form
        outs = llm.generate([[1, 2, 3]], max_tokens=20, seed=1, speculative_config=form)
        assert_same_tokens(outs, plain)
        m = outs[0].outputs[0].spec_decode_metrics
        assert m is not None and m.drafter == "CorpusDrafter+PromptLookup" and llm.memory_report().drafter_bytes > 0
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=64, speculative_config="auto") as llm:
        assert_same_tokens(llm.generate([[1, 2, 3]], max_tokens=20, seed=1), plain)


def test_a_model_without_any_gets_lookup_and_a_line(
    tiny_path: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auto, "SHIPPED", tmp_path / "none")
    auto.shipped_table.cache_clear()
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=64) as llm, caplog.at_level(logging.INFO, "llmi"):
        for _ in range(3):
            m = llm.generate([[1, 2, 1, 2]], max_tokens=8, seed=1, speculative_config="auto")[0].outputs[0].spec_decode_metrics
            assert m is not None and m.drafter == "PromptLookup"
        lines = [record.getMessage() for record in caplog.records if "llmi train-heads" in record.getMessage()]
        assert len(lines) == 1, "one line for each LLM"
        judged = llm.generate([[1, 2, 1, 2]], max_tokens=50, seed=1, speculative_config=SpeculativeConfig("auto", verification="rejection"))
        m = judged[0].outputs[0].spec_decode_metrics
        assert m is not None and m.num_draft_tokens <= 30, "not sixteen at once, as a draft of one length would be"
        assert_lossless("auto", llm, [[1, 2, 3, 1, 2]] * 4, [SamplingParams(temperature=0.5)], num_tokens=200)


def test_methods_of_vllm() -> None:
    assert drafter_of({"method": "ngram", "prompt_lookup_max": 3}) == llmi.PromptLookup(3)
    assert drafter_of({"method": "suffix"}) == llmi.PromptLookup(24)
    assert drafter_of(
        {"method": "suffix", "suffix_decoding_max_tree_depth": 8, "suffix_decoding_max_spec_factor": 1.0}
    ) == llmi.PromptLookup(8)
    assert SpeculativeConfig.from_dict({"method": "suffix", "num_speculative_tokens": 7}).num_speculative_tokens == 7
    bad: list[tuple[dict[str, Any], str]] = [
        ({}, "empty"),
        ({"method": "suffix", "model": "x"}, "'suffix' has no model"),
        ({"method": "suffix", "prompt_lookup_max": 3}, "'suffix' has no prompt_lookup_max"),
        ({"method": "ngram", "suffix_decoding_max_tree_depth": 3}, "'ngram' has no suffix_decoding_max_tree_depth"),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 0}, "suffix_decoding_max_tree_depth"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 1.5}, "suffix_decoding_min_token_prob"),
        ({"method": "auto", "model": "x"}, "'auto' has no model"),
        ({"method": "sufix"}, "'sufix' is unknown: ngram, suffix, draft_model, eagle, eagle3, medusa or auto"),
        ({"methods": "suffix"}, "no key 'methods'"),
    ]
    for given, message in bad:
        with pytest.raises(llmi.LlmiError, match=message):
            drafter_of(given)
