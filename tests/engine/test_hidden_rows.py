"""Rows of hidden states that drafters read: each committed token's once, at its position, with the bits of plain computation."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from features import crowded_llm
from llmi import LLM, Capture, DraftContext, Drafter, PromptLookup, SamplingParams, SpeculativeConfig, TokenTree
from llmi.testing import assert_same_tokens

LAYERS = (0, 2, -1)


class Reader(Drafter):
    """Keeps every row that it is given, by sequence, and proposes trees in which a branch is often right; in some rounds nothing."""

    capture = Capture(hidden_states=LAYERS)

    def __init__(self, width: int = 2) -> None:
        self.width = width
        self.rows: dict[tuple[str, int], list[tuple[int, dict[int, Any]]]] = {}
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.seen: list[bytes] = []

    def propose(self, context: DraftContext) -> TokenTree | None:
        key = (context.request_id, context.index)
        ids = context.token_ids.tolist()
        self.rows.setdefault(key, []).append((context.first_row, {layer: rows.copy() for layer, rows in context.hidden_rows.items()}))
        self.tokens[key] = ids
        self.seen.append(b"".join(rows.tobytes() for rows in context.hidden_rows.values()))
        for rows in context.hidden_rows.values():
            assert context.first_row + len(rows) == len(ids) - 1, "the last token alone has no row"
        if len(ids) % 5 == 0:
            return None
        paths = [[(ids[-1] + 1 + step) % 40, (ids[-1] + 2 + step) % 40] for step in range(self.width)]
        return TokenTree.from_paths([ids[-2:], *paths], context.num_speculative_tokens)


def check(llm: LLM, reader: Reader) -> list[int]:
    """Every sequence's rows follow each other from the first on, and are those of its tokens. Returns where each begins."""
    assert reader.rows
    begins = []
    last = llm.model_info.num_layers
    for key, parts in reader.rows.items():
        ids = reader.tokens[key]
        expected = llm.hidden_states([ids], LAYERS)[0]
        repeats = "" if len(set(ids)) == len(ids) else "a token comes again"
        begins.append(parts[0][0])
        place = begins[-1]
        for first, rows in parts:
            assert first == place, (key, first, place)
            for layer in LAYERS:
                got = rows[last if layer == -1 else layer]
                assert got.dtype == np.float32, (key, layer, first)
                assert_same_bits(got, expected[layer][first : first + len(got)], (key, layer, first), equal_rows=repeats)
            place += len(rows[0])
        assert place == len(ids) - 1
    return begins


PROMPTS = [[1, 2, 3], [4] * 40, [5, 6] * 12, [1, 2, 3, 9, 9, 9]]


@pytest.mark.parametrize("verification", ["coupled", "rejection", "typical", "block"])
def test_each_row_comes_once(crowded: LLM, roomy: LLM, verification: Any) -> None:
    """In chunks, beside others, with siblings, after preemption, in rounds without a draft, and past rejected branches."""
    reader = Reader(0 if verification == "block" else 2)
    config = SpeculativeConfig(reader, 4, verification=verification)
    params = [SamplingParams(max_tokens=25, seed=seed, temperature=0.7, top_k=3, ignore_eos=True, n=1 + seed % 3) for seed in range(4)]
    union: Any = SpeculativeConfig([PromptLookup(), reader], 4) if verification == "coupled" else config
    crowded.reset_prefix_cache()
    outs = crowded.generate(PROMPTS, params, speculative_config=[config, config, None, union])
    accepted = sum(s.spec_decode_metrics.num_accepted_tokens for out in outs for s in out.outputs if s.spec_decode_metrics)
    drafted = sum(s.spec_decode_metrics.num_draft_tokens for out in outs for s in out.outputs if s.spec_decode_metrics)
    assert 5 < accepted < drafted and len(reader.rows) == 1 + 2 + 1
    assert sum(out.metrics.num_preemptions for out in outs) > 0
    begins = check(roomy, reader)
    assert verification == "coupled" or begins == [0] * len(begins)
    if verification == "coupled":
        assert_same_tokens(outs, crowded.generate(PROMPTS, params))


def test_what_the_prefix_cache_gave(tiny_path: Any) -> None:
    """Coupled, rows begin where the target computed its first one; else nothing comes from the cache, and drafts see the same as alone."""
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=160) as llm:
        prompt = [*range(1, 60)]
        alone: list[bytes] = []
        for verification, before in (("rejection", []), ("coupled", []), ("rejection", [prompt]), ("coupled", [prompt, [*prompt, 7]])):
            llm.reset_prefix_cache()
            for other in before:
                llm.generate([other], max_tokens=3, seed=5)
            reader = Reader()
            config = SpeculativeConfig(reader, 3, verification=verification)  # type: ignore[arg-type]
            out = llm.generate([prompt], max_tokens=12, seed=3, ignore_eos=True, speculative_config=config)[0]
            hit = bool(before) and verification == "coupled"
            assert (out.num_cached_tokens > 0) == hit and check(llm, reader) == [out.num_cached_tokens]
            if verification == "rejection":
                alone = alone or reader.seen
                assert reader.seen == alone, "what others computed reached a draft"
        with llm.sequence(prompt) as source:
            _ = source.logits
            for verification in ("coupled", "rejection"):
                reader = Reader()
                config = SpeculativeConfig(reader, 3, verification=verification)  # type: ignore[arg-type]
                llm.generate(source, max_tokens=12, seed=3, ignore_eos=True, speculative_config=config)
                assert (check(llm, reader)[0] > 0) == (verification == "coupled")


def test_a_later_hit_leaves_no_gap(tiny_path: Any, tiny: LLM) -> None:
    """A request that was preempted inside its prompt finds all of it computed by another one, and still gets the rows that it lacks."""
    prompt, reader = [*range(1, 65)], Reader()
    with crowded_llm(tiny_path(), 8, max_model_len=112, max_num_batched_tokens=2, scheduling_policy="priority") as llm:
        llm.enqueue([[7] * 30], max_tokens=80, ignore_eos=True)
        llm.enqueue([prompt], max_tokens=8, ignore_eos=True, priority=1, speculative_config=SpeculativeConfig(reader, 2))
        for _ in range(400):
            llm._engine.step()
            if llm.get_metrics()["num_preemptions"] > 0:
                break
        llm.enqueue([prompt], max_tokens=2)
        out = llm.wait_for_completion()[1]
        assert out.metrics.num_preemptions > 0
    assert check(tiny, reader) == [0]


def test_on_a_device(tiny_path: Any, device: str) -> None:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=160, max_num_batched_tokens=24, device="cuda") as llm:
        reader = Reader()
        llm.generate(PROMPTS[:2], max_tokens=10, seed=1, ignore_eos=True, n=2, speculative_config=SpeculativeConfig(reader, 3))
        check(llm, reader)


def test_a_row_begins_with_one_draft_of_the_head(tiny: LLM) -> None:
    """context.head on the last row is the row of logits that the token was drawn from; draw takes both of its forms."""
    seen: list[int] = []

    class Repeats(Drafter):
        """Draws from the head: what the target drew a token ago, with its noise of the next one."""

        capture = Capture(hidden_states=[-1])

        def propose(self, context: DraftContext) -> list[int]:
            (last,) = context.hidden_rows
            assert_same_bits(context.hidden_rows[last][-1], context.hidden_states[last])
            row = context.hidden_rows[last][-1:]
            norm = tiny.weights["model.norm.weight"]
            normed = (row / np.sqrt((row.astype(np.float64) ** 2).mean() + 1e-6) * norm).astype(np.float32)
            whole = context.head(normed)
            ids, few = context.head(normed, shortlist=[9, 8, 7, 100, 33])
            assert_same_bits(few, whole[:, ids])  # type: ignore[index]
            tokens, laws = context.draw(whole, num_tokens=2)
            assert context.draw(whole[0], num_tokens=2)[0] == tokens  # type: ignore[index]
            few_tokens, few_laws = context.draw((ids, few), num_tokens=3)
            assert set(few_tokens) <= {9, 8, 7, 100, 33} and len(few_tokens) == 3
            assert all((law > 0).sum() <= 5 for law in few_laws) and len(laws) == 2
            seen.append(len(few_tokens))
            return tokens[:1]

    for verification in ("coupled", "rejection"):
        tiny.generate(
            [1, 2, 3], seed=1, max_tokens=6, ignore_eos=True, speculative_config=SpeculativeConfig(Repeats(), 1, verification=verification)
        )  # type: ignore[arg-type]
    assert len(seen) > 5


def test_what_a_drafter_may_not(tiny: LLM) -> None:
    kept: list[DraftContext] = []
    errors: list[Exception] = []

    class Wrong(Drafter):
        def propose(self, context: DraftContext) -> None:
            kept.append(context)
            assert context.draw(([5, 6], np.zeros(2, np.float32)))[0] == []  # the masks leave none of them

            def elsewhere() -> None:
                with pytest.raises(llmi.EngineBusyError, match="the thread that called the drafter") as info:
                    context.head(np.zeros((1, 64)))
                errors.append(info.value)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            for source in (np.zeros((2, 257)), ([5, 6], np.zeros(3)), "ab"):
                with pytest.raises(llmi.InvalidParamsError, match="source") as info:
                    context.draw(source)  # type: ignore[arg-type]
                errors.append(info.value)

    def criterion(_: Any) -> bool:
        with pytest.raises(llmi.EngineBusyError):
            kept[-1].head(np.zeros((1, 64)))
        return False

    tiny.generate(
        [1, 2], max_tokens=5, seed=1, ignore_eos=True, allowed_token_ids=[8, 9, 10], speculative_config=SpeculativeConfig(Wrong(), 2)
    )
    assert len(errors) >= 4
    tiny.generate([1, 2], max_tokens=3, seed=1, ignore_eos=True, stopping_criteria=[criterion])
    assert kept[-1].head(np.zeros((1, 64))).shape == (1, 257)  # type: ignore[union-attr]  # outside, it waits its turn
