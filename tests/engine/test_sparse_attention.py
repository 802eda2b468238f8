"""sparse_attention: what a row sees depends on its own tokens alone, whatever the batch, the chunks, the cache and the drafts do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from features import crowded_llm, one_by_one, there
from llmi import LLM, BeamSearchParams, Capture, PromptLookup, SamplingParams, SpeculativeConfig, TokenTree, _core
from llmi.testing import assert_same_tokens

RNG = np.random.default_rng(5)
PROMPTS: list[list[int]] = [RNG.integers(1, 257, size=size).tolist() for size in (1, 37, 90, 120, 5)]
STREAMING = {"method": "streaming", "sinks": 4, "window": 24}
BLOCKS = {"method": "blocks", "tokens": 64, "sinks": 16, "recent": 16}
VIEWS: list[dict[str, Any]] = [STREAMING, BLOCKS]
NAMES = [view["method"] for view in VIEWS]
ENGINE: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 22, "max_model_len": 200}


def differently(view: dict[str, Any]) -> dict[str, Any]:
    return view | ({"window": 40} if "window" in view else {"recent": 32})


@pytest.fixture(params=VIEWS, ids=NAMES)
def view(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def mixed(view: dict[str, Any]) -> list[Any]:
    base = SamplingParams(max_tokens=20, seed=3, ignore_eos=True, temperature=0.8, logprobs=1)
    return [
        base.replace(sparse_attention=view, n=2, prompt_logprobs=0),
        base,
        base.replace(sparse_attention=view),
        base.replace(sparse_attention=differently(view), temperature=0.0),
        BeamSearchParams(max_tokens=12, beam_width=3, sparse_attention=view, logprobs=0),
    ]


@pytest.mark.parametrize("kv_cache_dtype", ["float16", "int8"])
def test_the_same_in_any_company(tiny_path: Callable[..., Path], view: dict[str, Any], kv_cache_dtype: str) -> None:
    """Alone and in a batch with others, in chunks, with drafts, after preemptions and from the prefix cache, whatever the blocks' size."""
    path, params = tiny_path(), mixed(view)
    options: dict[str, Any] = {**ENGINE, "kv_cache_dtype": kv_cache_dtype}
    with LLM(path, **options) as llm:
        alone = one_by_one(llm, PROMPTS, params)
        assert_same_tokens(llm.generate(PROMPTS, params), alone)
        assert llm.generate(PROMPTS[3], params[3])[0].num_cached_tokens > 80
        assert_same_tokens(llm.generate(PROMPTS, params), alone)
        drawn, texts = [one for one in params if isinstance(one, SamplingParams)], PROMPTS[:4]
        for drafter in (PromptLookup(), SpeculativeConfig(Tree(), 6)):
            llm.reset_prefix_cache()
            out = llm.generate(texts, drawn, speculative_config=drafter)
            assert_same_tokens(out, llmi.Outputs(list(alone)[:4]))
    plain = one_by_one(LLM(path, **options), PROMPTS, [one.replace(sparse_attention=None) for one in params])
    assert [a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in zip(plain, alone, strict=True)] == [True, True, False, False, True]
    for other in ({"max_num_batched_tokens": 16}, {"block_size": 64, "num_threads": 1}, {"enable_prefix_caching": False}):
        with LLM(path, **options, **other) as llm:
            assert_same_tokens(llm.generate(PROMPTS, params), alone)


class Tree(llmi.Drafter):
    """Proposes trees, some of whose nodes are the text's own."""

    def propose(self, context: Any) -> Any:
        ids = context.token_ids.tolist()
        return TokenTree([ids[-1], 3, ids[-1], 7, 9], [-1, -1, 0, 1, 2])


def test_after_preemptions(tiny_path: Callable[..., Path], view: dict[str, Any]) -> None:
    prompts = [RNG.integers(1, 257, size=40 + index).tolist() for index in range(8)]
    view = view | ({"window": 70} if "window" in view else {})  # so that a sequence grows
    params = [SamplingParams(max_tokens=80, seed=i, ignore_eos=True, logprobs=1, sparse_attention=view) for i in range(8)]
    with LLM(tiny_path(), **ENGINE) as llm:
        expected = llm.generate(prompts, params)
    with crowded_llm(tiny_path(), 24, max_model_len=160) as llm:
        assert_same_tokens(llm.generate(prompts, params), expected)
        assert llm._engine.stats()["num_preemptions"] > 0


def test_each_instruction_set(tiny_path: Callable[..., Path], view: dict[str, Any], cpu_table: str, monkeypatch: Any) -> None:
    params = SamplingParams(max_tokens=12, seed=1, ignore_eos=True, logprobs=1, sparse_attention=view)
    with LLM(tiny_path(), **ENGINE) as llm:
        expected = llm.generate(PROMPTS, params)
    with LLM(tiny_path(), **ENGINE, **there(monkeypatch, cpu_table)) as llm:
        assert_same_tokens(llm.generate(PROMPTS, params), expected)


def test_a_prompt_row_is_what_decoding_makes_of_it(tiny_path: Callable[..., Path], view: dict[str, Any]) -> None:
    """The rows of a prompt, one at a time or at once, in the lab and in hidden_states, and the weights that are shown."""
    with LLM(tiny_path(), dtype="float32", **ENGINE) as llm:
        prompt = PROMPTS[3]
        with llm.sequence([], sparse_attention=view) as whole, llm.sequence([], sparse_attention=view) as slow:
            rows = whole.extend(prompt)
            assert_same_bits(rows, np.concatenate([slow.extend([token]) for token in prompt]))
            hidden = llm.hidden_states([prompt], normed=True, sparse_attention=view)[0][-1]
            assert_same_bits(llm.head(hidden), rows)
            assert not np.array_equal(llm.head(llm.hidden_states([prompt], normed=True)[0][-1])[-1], rows[-1])
            child = whole.fork()
            whole.extend([5, 6, 7])
            whole.rollback(3)
            assert_same_bits(whole.extend([9]), child.extend([9]))
            score = llm._score([whole.token_ids.tolist()], False, None, view)[0].prompt_token_logprobs.sum()
            assert whole.sparse_attention == child.sparse_attention == view and np.isfinite(score)
            out = llm.generate(child, max_tokens=3, temperature=0)[0]
            assert out.params_resolved["sparse_attention"][0] == view and out.num_cached_tokens > 0
            expected = llm.generate([child.token_ids.tolist()], max_tokens=3, temperature=0, sparse_attention=view)
            assert_same_tokens(llmi.Outputs([out]), expected)
            with pytest.raises(llmi.UnsupportedCombinationError, match="full attention"):
                llm.hidden_states(child)


def test_streaming_sees_sinks_and_window_and_gives_blocks_back(tiny_path: Callable[..., Path]) -> None:
    with LLM(tiny_path(), **ENGINE) as llm, llm.sequence([], sparse_attention=STREAMING, capture=Capture(attention=[1, 3])) as sequence:
        sequence.extend(PROMPTS[3])
        for layer in (1, 3):
            weights = sequence.attention[layer][-1]
            assert np.array_equal(np.flatnonzero(weights.sum(0)), [0, 1, 2, 3, *range(96, 120)])
        [table] = sequence._core.block_table
        assert [page >= 0 for page in table] == [True, *[False] * 5, True, True]
        returned = llm._engine.stats()["num_window_blocks_returned"]
        llm.generate([PROMPTS[2]], max_tokens=90, ignore_eos=True, sparse_attention=STREAMING)
        assert llm._engine.stats()["num_window_blocks_returned"] == returned + (90 + 89 + 1 - 24) // 16 - 1
    memory = LLM(tiny_path(), **ENGINE)._page_bytes * 6
    with LLM(tiny_path(), kv_cache_memory_bytes=memory, max_model_len=64, max_num_batched_tokens=16) as small:
        assert small.generate([[5, 9]], max_tokens=60, ignore_eos=True, sparse_attention=STREAMING)[0].outputs[0].finish_reason == "length"


def test_no_block_is_shared_with_other_views(tiny_path: Callable[..., Path], view: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=4, seed=1, ignore_eos=True)
    kinds = [None, view, differently(view), view | {"sinks": 0}]
    with LLM(tiny_path(), **ENGINE) as llm:
        for kind in kinds:
            assert llm.generate([PROMPTS[3]], params.replace(sparse_attention=kind))[0].num_cached_tokens == 0
        for kind in kinds:
            assert llm.generate([PROMPTS[3]], params.replace(sparse_attention=kind))[0].num_cached_tokens > 80
        for salt in ("v4,24,0;", "4,24,0;"):
            prompt: Any = {"prompt_token_ids": PROMPTS[3], "cache_salt": salt}
            assert llm.generate([prompt], params)[0].num_cached_tokens == 0


def test_receipts(tiny_path: Callable[..., Path], view: dict[str, Any], tmp_path: Path) -> None:
    with LLM(tiny_path(), **ENGINE) as llm:
        out = llm.generate([PROMPTS[3]], SamplingParams(max_tokens=12, seed=1, sparse_attention=view, logprobs=1))[0]
        receipt = out.receipt()
        receipt.save(tmp_path / "receipt.json")
        assert receipt.fields["sampling_params"]["sparse_attention"] == view
        assert llmi.replay(tmp_path / "receipt.json", llm)
        receipt.fields["sampling_params"]["sparse_attention"] = differently(view)
        assert not llmi.replay(receipt, llm)
        beams = llm.generate([PROMPTS[3]], BeamSearchParams(max_tokens=6, beam_width=2, sparse_attention=view))[0]
        assert llmi.replay(beams.receipt(), llm)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("streaming", "a mapping such as"),
        ({"sinks": 4, "window": 9}, "a mapping such as"),
        ({"method": "h2o"}, "has the method 'h2o': give 'streaming'"),
        ({"method": "streaming", "sinks": 4}, "lacks 'window'"),
        ({"method": "streaming", "sinks": 4, "window": 9, "recent": 3}, "has 'recent'"),
        ({"method": "streaming", "sinks": 257, "window": 9}, "sinks"),
        ({"method": "streaming", "sinks": 4, "window": 0}, "window"),
        ({"method": "streaming", "sinks": True, "window": 9}, "sinks"),
        ({"method": "blocks", "tokens": 64, "sinks": 16}, "lacks 'recent'"),
        ({"method": "blocks", "tokens": 100, "sinks": 16, "recent": 16}, "tokens = 100 is no multiple of 16"),
        ({"method": "blocks", "tokens": 64, "sinks": 16, "recent": 48}, "leave nothing of tokens = 64"),
    ],
)
def test_bad_values(value: Any, message: str) -> None:
    with pytest.raises(llmi.InvalidParamsError, match=message) as caught:
        SamplingParams(sparse_attention=value).replace(n=1)._settle()
    assert (caught.value.parameter or "").startswith("sparse_attention")


def refuses(path: Path, view: dict[str, Any], message: str) -> None:
    with LLM(path, **ENGINE) as llm:
        with pytest.raises(llmi.LlmiError, match=message) as caught:
            llm.generate([[5, 9]], max_tokens=2, sparse_attention=view)
        assert "leave it out" in str(caught.value)
        with pytest.raises(llmi.LlmiError, match=message), llm.sequence([5], sparse_attention=view) as sequence:
            _ = sequence.logits
        with pytest.raises(llmi.LlmiError, match=message):
            llm.hidden_states([[5, 9]], sparse_attention=view)


def test_windows_of_the_model_itself(tiny_path: Callable[..., Path], view: dict[str, Any]) -> None:
    refuses(tiny_path("gemma3"), view, "sliding windows of its own")


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "message"), [("lfm2", "state holds all tokens"), ("gpt_oss", "of its own"), ("deepseek_v3", "latent attention")]
)
def test_models_that_have_none(families: Path, view: dict[str, Any], family: str, message: str) -> None:
    from tiny_families import make

    refuses(make(family, families).path, view, message)


def numpy_picks(keys: Any, queries: Any, position: int, view: dict[str, Any]) -> list[list[int]]:
    """The positions that each KV head sees: keys [positions, KV heads, size], queries [KV heads, queries, size]."""
    sinks, recent = view["sinks"] // 16, view["recent"] // 16
    most, own = view["tokens"] // 16, position // 16
    chosen = []
    for kv_head in range(keys.shape[1]):
        tiles = list(range(own + 1))
        if own + 1 > most:
            scores = []
            for tile in tiles[sinks : own + 1 - recent]:
                block = keys[16 * tile : 16 * tile + 16, kv_head].astype(np.float64)
                low, high = block.min(0), block.max(0)
                bounds = [np.maximum(q * low, q * high).sum() for q in queries[kv_head].astype(np.float64)]
                scores.append((-max(bounds), tile))
            best = [tile for _, tile in sorted(scores)[: most - sinks - recent]]
            tiles = [*range(sinks), *best, *range(own + 1 - recent, own + 1)]
        chosen.append([p for tile in sorted(tiles) for p in range(16 * tile, 16 * tile + 16) if p <= position])
    return chosen


def test_blocks_are_those_of_the_largest_bounds(cpu_table: str) -> None:
    """One row over random keys, beside NumPy: what is seen, and attention over it in float64."""
    rng = np.random.default_rng(2)
    view = _core.SparseView(sinks=16, recent=32, num_best=3)
    named = {"tokens": 96, "sinks": 16, "recent": 32}
    for slots in (40, 96, 97, 205, 500):
        q = rng.standard_normal((1, 6 * 32)).astype(np.float32)
        k, v = (rng.standard_normal((slots, 2 * 32)).astype(np.float32) for _ in range(2))
        got = _core.testing.picked_attention(cpu_table, q, k, v, 6, 2, view)
        assert_same_bits(got, _core.testing.picked_attention("reference", q, k, v, 6, 2, view))
        keys, queries = k.reshape(slots, 2, 32), q.reshape(2, 3, 32)
        for kv_head, seen in enumerate(numpy_picks(keys, queries, slots - 1, named)):
            for head in range(3):
                scores = keys[seen, kv_head].astype(np.float64) @ queries[kv_head, head]
                weights = np.exp(scores - scores.max())
                expected = weights / weights.sum() @ v.reshape(slots, 2, 32)[seen, kv_head].astype(np.float64)
                assert np.abs(got.reshape(6, 32)[3 * kv_head + head] - expected).max() < 2e-5


def test_equal_bounds_pick_the_lower_blocks(tiny_path: Callable[..., Path]) -> None:
    q = np.ones((1, 32), np.float32)
    k = np.ones((160, 16), np.float32)
    v = np.arange(160, dtype=np.float32)[:, None].repeat(16, 1)
    got = _core.testing.picked_attention("reference", q, k, v, 2, 1, _core.SparseView(sinks=0, recent=16, num_best=2))
    assert np.allclose(got, (np.arange(32).sum() + np.arange(144, 160).sum()) / 48)


def test_blocks_go_without_trees(tiny_path: Callable[..., Path]) -> None:
    with LLM(tiny_path(), **ENGINE) as llm:
        with pytest.raises(llmi.LlmiError, match="takes no tree"), llm.sequence([5], sparse_attention=BLOCKS) as sequence:
            sequence.extend(TokenTree([3, 4], [-1, -1]))
        with pytest.raises(llmi.LlmiError, match="leave one out"):
            llm.generate([[5]], max_tokens=2, penalty_alpha=0.5, top_k=4, sparse_attention=BLOCKS)


def test_devices_have_none(tiny_path: Callable[..., Path], view: dict[str, Any], device: str) -> None:
    with LLM(tiny_path(), **ENGINE, device="cuda") as llm, pytest.raises(llmi.LlmiError, match='give device="cpu"'):
        llm.generate([[5, 9]], max_tokens=2, sparse_attention=view)
