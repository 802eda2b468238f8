"""The prefix cache: the tree against a plain Python model, and its effect (none but speed) on real requests.

`PYTHONPATH=tests/support python tests/cache/test_prefix_cache.py --steps 1000000` drives the model longer, `--configurations 2000` compares random engines with solo runs.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bits import assert_same_bits
from features import expect_short_answers, make_request
from llmi import LLM, Outputs, SamplingParams, _core
from llmi.engine.options import POLICIES
from llmi.testing import assert_same_tokens, tiny_model

BLOCK = 16
NUM_PAGES = 24
CHUNKS = [[letter * 100 + i for i in range(BLOCK)] for letter in (1, 2, 3)]  # texts are made of few blocks, so that they meet
CHUNKS += [CHUNKS[0][:size] + [1000 * size + i for i in range(BLOCK - size)] for size in (5, 12)]  # some of them in part
MOST_COMPARED = 8


class PlainSequence:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.table: list[int] = []
        self.num_indexed = 0


class Pair:
    """The C++ cache beside a model of it: dictionaries, linear search, exact least-recently-used order."""

    def __init__(self) -> None:
        self.cache = _core.testing.Cache([0], BLOCK, NUM_PAGES, True)
        self.nodes: dict[tuple[int, ...], list[int]] = {}  # path -> [last used, page]
        self.sequences: dict[int, PlainSequence] = {}
        self.clock = 0
        self.next_page = 0

    # --- the model's parts

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def references(self, page: int) -> int:
        held = sum(sequence.table.count(page) for sequence in self.sequences.values())
        return held + sum(entry[1] == page for entry in self.nodes.values())

    def num_free(self) -> int:
        used = {page for sequence in self.sequences.values() for page in sequence.table} | {entry[1] for entry in self.nodes.values()}
        return NUM_PAGES - len(used)

    def place(self, sequence: PlainSequence) -> tuple[int, ...]:
        return tuple(sequence.tokens[: sequence.num_indexed * BLOCK])

    def unpin(self, path: tuple[int, ...]) -> None:
        stamp = self.tick()
        if path:
            self.nodes[path][0] = stamp

    def evict(self) -> bool:
        pinned = {self.place(sequence) for sequence in self.sequences.values()}
        leaves = [
            path for path in self.nodes if path not in pinned and not any(len(o) > len(path) and o[: len(path)] == path for o in self.nodes)
        ]
        if not leaves:
            return False
        del self.nodes[min(leaves, key=lambda path: self.nodes[path][0])]
        return True

    def new_page(self) -> int:
        self.next_page += 1
        return self.next_page

    def index(self, sequence: PlainSequence) -> None:
        while (sequence.num_indexed + 1) * BLOCK <= len(sequence.tokens):
            before = self.place(sequence)
            block = sequence.num_indexed
            sequence.num_indexed += 1
            path = self.place(sequence)
            if path not in self.nodes:
                self.nodes[path] = [self.tick(), sequence.table[block]]
            sequence.table[block] = self.nodes[path][1]
            self.unpin(before)

    # --- operations, on both

    def attach(self, tokens: list[int]) -> int:
        most = max(0, len(tokens) - 1)
        found = 0
        while found + BLOCK <= most and tuple(tokens[: found + BLOCK]) in self.nodes:
            found += BLOCK
        before = tuple(tokens[:found])
        rest = tokens[found : min(most, found + BLOCK - 1)]
        part = 0
        children = [path for path in reversed(self.nodes) if path[:-BLOCK] == before]  # the newest first
        for path in children[:MOST_COMPARED]:
            same = next((i for i, (a, b) in enumerate(zip(path[-BLOCK:], rest, strict=False)) if a != b), len(rest))
            if same > part:
                part, in_part = same, path
        self.tick()  # the root
        sequence = PlainSequence()
        for end in range(BLOCK, found + 1, BLOCK):
            self.nodes[tuple(tokens[:end])][0] = self.tick()
            sequence.table.append(self.nodes[tuple(tokens[:end])][1])
        if part > 0:
            sequence.table.append(self.nodes[in_part][1])
        sequence.tokens = tokens[: found + part]
        sequence.num_indexed = found // BLOCK
        number, got = self.cache.attach(tokens, most)
        assert got == found + part
        self.sequences[number] = sequence
        return int(number)

    def append(self, number: int, tokens: list[int]) -> bool:
        sequence = self.sequences[number]
        first = len(sequence.tokens) // BLOCK
        blocks = -(-(len(sequence.tokens) + len(tokens)) // BLOCK)

        def needed() -> int:
            copies = sum(self.references(page) > 1 for page in sequence.table[first:blocks])
            return max(0, blocks - len(sequence.table)) + copies

        possible = True
        while possible and needed() > self.num_free():
            possible = self.evict()
        assert self.cache.append(number, tokens) == possible
        if possible:
            for i in range(first, min(blocks, len(sequence.table))):
                if self.references(sequence.table[i]) > 1:
                    sequence.table[i] = self.new_page()
            while len(sequence.table) < blocks:
                sequence.table.append(self.new_page())
            sequence.tokens += tokens
            self.index(sequence)
        return possible

    def rollback(self, number: int, count: int) -> None:
        sequence = self.sequences[number]
        count = min(count, len(sequence.tokens))
        assert self.cache.rollback(number, count)
        before = self.place(sequence)
        remaining = len(sequence.tokens) - count
        moved = sequence.num_indexed > remaining // BLOCK
        sequence.tokens = sequence.tokens[:remaining]
        sequence.num_indexed = min(sequence.num_indexed, remaining // BLOCK)
        del sequence.table[-(-remaining // BLOCK) :]
        if moved:
            self.unpin(before)

    def fork(self, number: int) -> int:
        child = int(self.cache.fork(number))
        parent = self.sequences[number]
        copy = self.sequences[child] = PlainSequence()
        copy.tokens, copy.table, copy.num_indexed = list(parent.tokens), list(parent.table), parent.num_indexed
        return child

    def free(self, number: int) -> None:
        self.cache.free(number)
        self.unpin(self.place(self.sequences.pop(number)))

    def check(self) -> None:
        assert self.cache.audit() == ""
        assert self.cache.num_free == self.num_free()
        assert self.cache.num_nodes == len(self.nodes)
        for path in self.nodes:
            assert self.cache.match(list(path)) == len(path)
        for number, sequence in self.sequences.items():
            assert self.cache.marks(number)[0] == sequence.tokens, "a page holds another text"

    def step(self, rng: random.Random) -> None:
        """One random operation."""
        kind = rng.random()
        number = rng.choice(list(self.sequences)) if self.sequences else None
        if number is None or (kind < 0.2 and len(self.sequences) < 6):
            self.attach([token for _ in range(rng.randrange(5)) for token in rng.choice(CHUNKS)])
        elif kind < 0.6:
            size = rng.choice([1, 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
            offset = len(self.sequences[number].tokens) % BLOCK
            text = [token for _ in range(4) for token in rng.choice(CHUNKS)]
            self.append(number, text[offset : offset + size])
        elif kind < 0.7:
            self.rollback(number, rng.randrange(40))
        elif kind < 0.8 and len(self.sequences) < 6:
            self.fork(number)
        elif kind < 0.98:
            self.free(number)
        else:
            self.cache.clear()
            while self.evict():
                pass


class TreeMachine(RuleBasedStateMachine):
    """The same, shrunk by hypothesis when it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    @rule(seed=st.integers(0, 1 << 30))
    def step(self, seed: int) -> None:
        self.pair.step(random.Random(seed))

    @invariant()
    def agrees(self) -> None:
        self.pair.check()


TreeMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestTreeMachine = TreeMachine.TestCase


def drive(steps: int, seed: int) -> Pair:
    rng = random.Random(seed)
    pair = Pair()
    for step in range(steps):
        pair.step(rng)
        assert pair.cache.audit() == ""
        if step % 16 == 0:
            pair.check()
    pair.check()
    return pair


def test_many_random_steps() -> None:
    pair = drive(6000, 1)
    assert pair.cache.num_evicted > 200 and pair.cache.num_copies_on_write > 100


def test_window_groups_need_what_they_see() -> None:
    """A hit needs the window group's last blocks; they stay in the tree after their sequence has gone on."""
    cache = _core.testing.Cache([0, 20], BLOCK, 64, True)
    text = list(range(1000, 1160))
    first, _ = cache.attach(text, 160)
    for begin in range(0, 160, 8):
        assert cache.append(first, text[begin : begin + 8])
    assert cache.num_window_blocks_returned > 5
    assert cache.match(text) == 160
    second, found = cache.attach(text[:100], 99)
    assert found == 99
    marks = cache.marks(second)
    assert marks[0] == text[:99]
    assert marks[1] == [-1] * 80 + text[80:99], "blocks behind the window are not taken"
    assert cache.append(second, text[96:110]) and cache.audit() == ""
    cache.free(first)
    cache.free(second)
    assert cache.num_available == 64 and cache.audit() == ""


def test_pinned_paths_give_up_what_lies_behind_their_window() -> None:
    cache = _core.testing.Cache([20], BLOCK, 6, True)
    text = list(range(2000, 2200))
    only, _ = cache.attach(text, 200)
    for begin in range(0, 200, 10):
        assert cache.append(only, text[begin : begin + 10]), "blocks that the window has left must come back"
        assert cache.audit() == ""
    assert cache.match(text[:10]) == 0, "a block that gave up its page is no hit, nor is a part of it"


def test_salts_are_apart() -> None:
    cache = _core.testing.Cache([0], BLOCK, 16, True)
    text = list(range(50))
    mine, _ = cache.attach(text, 50, "me")
    cache.append(mine, text)
    assert (cache.match(text, "me"), cache.match(text, ""), cache.match(text, "you")) == (48, 0, 0)
    cache.free(mine)
    for i in range(1000):  # salts leave nothing behind
        other, found = cache.attach(text, 50, f"salt {i}")
        assert found == 0
        cache.free(other)
    assert cache.match(text, "me") == 48 and cache.num_nodes == 3


# --- through the engine


@pytest.fixture(params=["llama", "gemma3"])
def llm(request: pytest.FixtureRequest, tiny_path: Callable[..., Path]) -> Any:
    with LLM(tiny_path(request.param), kv_cache_memory_bytes=1 << 23, max_model_len=512) as llm:
        yield llm


def ids(seed: int, size: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(1, 257, size=size)]


PARAMS = SamplingParams(max_tokens=20, seed=3, ignore_eos=True, logprobs=1, temperature=0.8)


def test_hits_change_nothing_but_the_work(llm: LLM) -> None:
    prompt = ids(0, 100)
    first = llm.generate(prompt, PARAMS)
    computed = llm.get_metrics()["num_prompt_tokens"]
    again = llm.generate(prompt, PARAMS)
    assert_same_tokens(again, first)
    assert (first[0].num_cached_tokens, again[0].num_cached_tokens) == (0, 99)
    assert llm.get_metrics()["num_prompt_tokens"] - computed == 1
    # What was generated is known too: the next turn of a chat.
    turn = prompt + first[0].token_ids + ids(1, 30)
    second = llm.generate(turn, PARAMS)
    assert second[0].num_cached_tokens == 112  # 119 tokens were computed
    llm.reset_prefix_cache()
    third = llm.generate(turn, PARAMS)
    assert third[0].num_cached_tokens == 0
    assert_same_tokens(third, second)
    stats = llm.get_metrics()
    assert stats["num_prefix_hit_tokens"] == 99 + 112 and stats["num_prefix_queried_tokens"] == 99 * 2 + 149 * 2
    assert stats["num_free_pages"] == stats["num_pages"] and stats["num_cached_pages"] > 0


def test_switched_off_and_salted(tiny_path: Callable[..., Path]) -> None:
    prompt = ids(0, 64)
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=128, enable_prefix_caching=False) as llm:
        plain = llm.generate([prompt, prompt], PARAMS)
        assert [out.num_cached_tokens for out in llm.generate([prompt], PARAMS)] == [0]
        assert llm.get_metrics()["num_cached_pages"] == 0
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=128) as llm:
        for salt, cached in (("a", 0), ("b", 0), ("a", 63), ("", 0)):
            out = llm.generate({"prompt_token_ids": prompt, "cache_salt": salt}, PARAMS)[0]
            assert out.num_cached_tokens == cached
            assert out == plain[0]


def test_a_block_is_known_in_part(llm: LLM) -> None:
    """Prompts that part inside a block share it up to there, and none writes into another's."""
    stem = ids(5, 41)
    prompts = [stem + ids(seed, 20) for seed in range(6, 12)]
    llm.generate(prompts[0], PARAMS)
    rest = llm.generate(prompts[1:], PARAMS, use_tqdm=False)
    assert [out.num_cached_tokens for out in rest] == [41] * 5
    assert llm.get_metrics()["num_copies_on_write"] >= 5
    known = llm.generate(prompts, PARAMS, use_tqdm=False)
    assert [out.num_cached_tokens for out in known] == [60] * 6
    with LLM(llm.model_info.path, kv_cache_memory_bytes=1 << 23, max_model_len=512, enable_prefix_caching=False) as other:
        expected = other.generate(prompts, PARAMS, use_tqdm=False)
    assert_same_tokens(rest, Outputs(expected[1:]))
    assert_same_tokens(known, expected)


def test_prompt_logprobs_with_a_warm_cache(llm: LLM) -> None:
    prompt = ids(2, 90)
    params = PARAMS.replace(prompt_logprobs=2)
    cold = llm.generate(prompt, params)
    assert_same_tokens(llm.generate(prompt, params), cold)
    assert llm.generate(prompt, PARAMS)[0].num_cached_tokens == 89
    assert llm.loglikelihood([(prompt[:50], prompt[50:])])[0].token_logprobs.tolist() == [
        next(iter(entry.values())).logprob for entry in (cold[0].prompt_logprobs or [])[50:] if entry is not None
    ]


def test_sequences_share_with_requests(llm: LLM) -> None:
    prompt = ids(4, 100)
    llm.generate(prompt, PARAMS)
    computed = llm.get_metrics()
    sequence = llm.sequence(prompt)
    logits = sequence.logits
    assert sequence._core.num_computed == 100
    llm.reset_prefix_cache()
    with LLM(llm.model_info.path, kv_cache_memory_bytes=1 << 22, max_model_len=128) as other:
        assert_same_bits(other.sequence(prompt).logits, logits)
    assert computed["audit"] == ""


def test_least_recently_used_goes_first(tiny_path: Callable[..., Path]) -> None:
    texts = [ids(i, 65) for i in range(4)]
    one = PARAMS.replace(max_tokens=1)
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=128) as probe:
        memory = probe._page_bytes * 12
    with LLM(tiny_path(), kv_cache_memory_bytes=memory, max_model_len=128) as llm:
        for text in (texts[0], texts[1], texts[0], texts[2]):  # the third does not fit beside both
            llm.generate(text, one)
        assert llm.generate(texts[0], one)[0].num_cached_tokens == 64, "it was used last but one"
        assert llm.generate(texts[1], one)[0].num_cached_tokens < 64
        assert llm.get_metrics()["num_prefix_evictions"] > 0


def test_random_configurations(tiny_path: Callable[..., Path]) -> None:
    """Shared beginnings, little memory, cancels, samples, hooks, priorities, speculation: always the solo run's bits."""
    counts = random_configurations(tiny_path, 40, seed=0)
    print(counts)
    for name, least in (
        ("num_prefix_hit_tokens", 2000),
        ("num_prefix_evictions", 100),
        ("num_preemptions", 20),
        ("num_copies_on_write", 20),
        ("cancels", 20),
    ):
        assert counts[name] >= least, counts


KV_TYPES = ("float16", "int8", "bfloat16", "fp8")


def random_configurations(tiny_path: Callable[..., Path], number: int, seed: int) -> dict[str, int]:
    """Compares each of 14 requests, twice, with its solo run; counts what happened on the way."""
    rng = np.random.default_rng(seed)
    features = ["greedy", "filters", "penalties", "n", "prompt_logprobs", "processor", "stop", "criterion", "bias"]
    counts = dict.fromkeys(("num_prefix_hit_tokens", "num_prefix_evictions", "num_preemptions", "num_copies_on_write", "cancels"), 0)
    solos = {
        (name, kv): LLM(tiny_path(name), kv_cache_dtype=kv, kv_cache_memory_bytes=1 << 23, max_model_len=320, enable_prefix_caching=False)
        for name in ("llama", "gemma3")
        for kv in KV_TYPES
    }
    for index in range(number):
        name, kv = ("llama", "gemma3")[index % 2], KV_TYPES[index // 2 % len(KV_TYPES)]
        stems = [ids(int(rng.integers(1 << 30)), int(rng.integers(20, 150))) for _ in range(3)]
        requests = []
        for i in range(14):
            prompt, params = make_request(features[int(rng.integers(len(features)))], int(rng.integers(1 << 30)), longest=40, max_tokens=30)
            stem = stems[int(rng.integers(3))]
            requests.append((stem[: int(rng.integers(10, len(stem)))] + prompt if i % 5 else prompt, params))
        prompts, params_list = [p for p, _ in requests], [q for _, q in requests]
        solo = solos[name, kv]
        pages = int(rng.integers(20, 60)) * (1 if name == "llama" else 2)
        larger = 2 if rng.random() < 0.2 else 1
        engine: dict[str, Any] = {
            "kv_cache_dtype": kv,
            "kv_cache_memory_bytes": solo._page_bytes * pages * larger,
            "max_model_len": 260,
            "block_size": 16 * larger,
            "max_num_batched_tokens": int(rng.choice([16, 50, 2048])),
            "max_num_seqs": int(rng.choice([3, 8, 64])),
            "scheduling_policy": str(rng.choice(POLICIES)),
            "waiting_served_ratio": 0.5 if rng.random() < 0.2 else None,
            "enable_prefix_caching": bool(rng.random() < 0.9),
            "num_threads": int(rng.integers(1, 3)),
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 4} if rng.random() < 0.5 else None,
        }
        with LLM(tiny_path(name), **engine) as llm:
            expect_short_answers(llm)
            aborted = threading.Thread(target=abandon, args=(llm, prompts[:3]))
            aborted.start()
            got = llm.generate(prompts, params_list, priority=rng.integers(0, 3, size=14).tolist(), use_tqdm=False)
            aborted.join()
            got_again = llm.generate(prompts[::-1], params_list[::-1], use_tqdm=False)
            stats = llm.get_metrics()
            assert stats["audit"] == "" and stats["num_free_pages"] == stats["num_pages"]
        expected = Outputs(solo.generate(p, q, use_tqdm=False)[0] for p, q in requests)
        assert_same_tokens(got, expected)
        assert_same_tokens(Outputs(got_again[::-1]), expected)
        counts["cancels"] += 3
        for key in counts:
            counts[key] += stats.get(key, 0)
    for solo in solos.values():
        solo.close()
    return counts


def abandon(llm: LLM, prompts: list[list[int]]) -> None:
    """Streams that are left after their first words."""
    for prompt in prompts:
        with llm.stream(prompt, max_tokens=60, ignore_eos=True) as stream:
            next(stream)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=0, help="of the tree against its model")
    parser.add_argument("--configurations", type=int, default=0, help="random engines against solo runs")
    arguments = parser.parse_args()
    if arguments.steps:
        result = drive(arguments.steps, seed=7)
        print({"steps": arguments.steps, "evicted": result.cache.num_evicted, "copies": result.cache.num_copies_on_write})
    if arguments.configurations:
        paths = {name: tiny_model(name, vocab_size=257, num_layers=3) for name in ("llama", "gemma3")}
        totals = random_configurations(lambda name: paths[name], arguments.configurations, seed=1)
        print({"configurations": arguments.configurations, **totals})
        assert min(totals.values()) >= arguments.configurations // 4, "too little happened to have tested anything"
    sys.exit(0)
