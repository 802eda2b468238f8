"""Sequences of the lab: every way to the same tokens gives the same bits."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import llmi
from bits import assert_same_bits
from llmi import LLM, Capture, SamplingParams, TokenSequence, TokenTree, _core, log_softmax
from llmi.testing import tiny_model


@pytest.fixture(params=["llama", "gemma3"], scope="module")
def llm(request: pytest.FixtureRequest, tiny_path: Callable[..., Path]) -> Any:
    with LLM(tiny_path(request.param), kv_cache_memory_bytes=1 << 23, max_model_len=512) as llm:
        yield llm


def ids(seed: int, size: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(1, 257, size=size)]


def fresh_logits(llm: LLM, tokens: list[int]) -> Any:
    with llm.sequence(tokens) as sequence:
        return sequence.logits


def test_all_ways_give_the_same_bits(llm: LLM) -> None:
    tokens = ids(0, 90)
    whole = llm.sequence(tokens[:1]).extend(tokens[1:])
    one = llm.sequence(tokens[:1])
    for i, token in enumerate(tokens[1:]):
        assert_same_bits(one.extend([token])[0], whole[i])
    for cut in (1, 17, 64, 89):
        assert_same_bits(llm.sequence(tokens[:cut]).logits, whole[cut - 2] if cut > 1 else fresh_logits(llm, tokens[:1]))
    # What generation reports is the same law.
    out = llm.generate(tokens, max_tokens=2, temperature=0, logprobs=0, prompt_logprobs=0)[0]
    assert out.prompt_logprobs is not None and out.prompt_logprobs[5] is not None and out.outputs[0].logprobs
    assert log_softmax(whole[3])[tokens[5]] == np.float32(out.prompt_logprobs[5][tokens[5]].logprob)
    assert log_softmax(whole[-1])[out.token_ids[0]] == np.float32(out.outputs[0].logprobs[0][out.token_ids[0]].logprob)


def test_sampling_equals_generation(llm: LLM) -> None:
    """Drawn by hand, token by token, with hooks and penalties: the tokens of generate()."""

    def push(context: llmi.TokenContext, logits: Any) -> None:
        context.state["calls"] = context.state.get("calls", 0) + 1
        logits[context.state["calls"]] += 4

    params = SamplingParams(
        temperature=0.9, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.1, max_tokens=25, ignore_eos=True, logits_processors=[push]
    )
    expected = llm.generate([5, 6, 7], params.replace(seed=12))[0].token_ids
    sequence = llm.sequence([5, 6, 7], seed=12)
    for _ in range(25):
        sequence.extend([sequence.sample(params)])
    assert sequence.token_ids[3:].tolist() == expected
    greedy = llm.generate([5, 6, 7], temperature=0, max_tokens=1, ignore_eos=True)[0].token_ids[0]
    first = llm.sequence([5, 6, 7])
    assert first.sample(SamplingParams(temperature=0)) == greedy == int(first.probs(SamplingParams(temperature=0)).argmax())


def test_probs_is_the_processed_law(llm: LLM) -> None:
    params = SamplingParams(temperature=0.7, top_k=9, min_p=0.01, logprobs=-1, max_tokens=1, seed=3)
    entries = llm.generate([9, 8, 7], params)[0].outputs[0].logprobs
    assert entries is not None
    law = llm.sequence([9, 8, 7]).probs(params)
    assert law.sum() == pytest.approx(1, abs=1e-5)
    for token, entry in entries[0].items():
        assert law[token] == pytest.approx(math.exp(entry.processed_logprob), rel=1e-5)
    assert np.count_nonzero(law) <= 9
    shifted = llm.sequence([9, 8, 7]).probs(params, logits=np.zeros(257, np.float32))
    assert np.count_nonzero(shifted) == 9 and shifted.max() == pytest.approx(1 / 9)


@pytest.mark.parametrize("prompt_len", [1, 15, 31, 60, 250])
def test_trees_equal_chains(llm: LLM, prompt_len: int) -> None:
    """Each node's row equals the row of its path, on both sides of block, window and span edges."""
    prompt = ids(prompt_len, prompt_len)
    paths = [[5, 6, 7, 8, 9, 10, 11, 12], [5, 6, 20, 21], [30], [5, 40, 41], [30, 31, 32, 33, 34, 35, 36, 37, 38, 39]]
    tree = TokenTree.from_paths(paths)
    sequence = llm.sequence(prompt)
    rows = sequence.extend(tree)
    node_of: dict[tuple[int, ...], int] = {}
    for node, (token, parent) in enumerate(zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True)):
        before = next((path for path, index in node_of.items() if index == parent), ())
        node_of[(*before, token)] = node
    for path in paths:
        expected = llm.sequence(prompt).extend(path)
        for depth in range(len(path)):
            assert_same_bits(rows[node_of[tuple(path[: depth + 1])]], expected[depth])
    # A committed path is as good as computed.
    path = [node_of[tuple(paths[4][: depth + 1])] for depth in range(10)]
    sequence.commit(path)
    assert sequence.token_ids.tolist() == prompt + paths[4]
    assert_same_bits(sequence.logits, fresh_logits(llm, prompt + paths[4]))
    assert_same_bits(sequence.extend([1, 2])[-1], fresh_logits(llm, [*prompt, *paths[4], 1, 2]))


def test_tree_rules(llm: LLM) -> None:
    sequence = llm.sequence([1, 2, 3])
    sequence.extend(TokenTree([4, 5, 6], [-1, -1, 0]))
    for forbidden in (lambda: sequence.extend([1]), sequence.fork, sequence.sample):
        with pytest.raises(llmi.InvalidParamsError, match="tree"):
            forbidden()
    with pytest.raises(llmi.InvalidParamsError, match="not a child"):
        sequence.commit([1, 2])
    sequence.rollback(0)
    assert sequence.token_ids.tolist() == [1, 2, 3]
    assert_same_bits(sequence.logits, fresh_logits(llm, [1, 2, 3]))
    with pytest.raises(llmi.InvalidParamsError, match="no tree"):
        sequence.commit([0])
    with pytest.raises(llmi.InvalidParamsError, match="stands twice"):
        sequence.extend(TokenTree([4, 4], [-1, -1]))


def test_forks_share_and_go_their_ways(llm: LLM) -> None:
    tokens = ids(3, 70)
    parent = llm.sequence(tokens, seed=1)
    _ = parent.logits
    free = llm.memory_report().num_free_blocks
    forks = [parent.fork() for _ in range(4)]
    assert llm.memory_report().num_free_blocks == free, "a fork costs nothing"
    assert llm.memory_report().num_shared_blocks > 0
    rows = llm.extend({fork: [10 + i] for i, fork in enumerate(forks)})
    for i, fork in enumerate(forks):
        assert fork.parent is parent
        assert_same_bits(rows[fork][0], fresh_logits(llm, [*tokens, 10 + i]))
    assert_same_bits(parent.extend([99])[0], fresh_logits(llm, [*tokens, 99]))
    # Own noise, from the parent's key and the ordinal; or the parent's.
    again = llm.sequence(tokens, seed=1)
    assert again.fork().seed == forks[0].seed != forks[1].seed
    assert again.fork(same_noise=True).seed == 1
    for fork in forks:
        fork.close()
    with pytest.raises(llmi.InvalidParamsError, match="closed"):
        llm.extend({forks[0]: [1]})


def test_rollback_and_sync(llm: LLM) -> None:
    tokens = ids(4, 120)
    sequence = llm.sequence(tokens[:50])
    sequence.extend(tokens[50:])
    for drop in (1, 20, 50, 0):  # past a window: computed again
        sequence.rollback(drop)
        assert np.array_equal(sequence.logits, fresh_logits(llm, sequence.token_ids.tolist()))
    other = [*tokens[:30], 1, 2, 3]
    assert sequence.sync(other) == 30
    assert_same_bits(sequence.logits, fresh_logits(llm, other))
    assert sequence.sync(other) == 33
    with pytest.raises(llmi.InvalidParamsError, match="the sequence has 33"):
        sequence.rollback(34)


def test_eviction_beside_running_requests(tiny_path: Callable[..., Path]) -> None:
    """More sequences than memory, with requests running: some are evicted and computed again; no bit changes."""
    path = tiny_path()
    prompts = [ids(i, 60) for i in range(24)]
    params = SamplingParams(max_tokens=40, seed=2, ignore_eos=True, logprobs=0)
    with LLM(path, kv_cache_memory_bytes=1 << 24, max_model_len=256) as roomy:
        expected = roomy.generate(prompts, params)
        rows = {i: roomy.sequence(prompts[i]).extend([1, 2, 3])[-1] for i in range(24)}
        memory = roomy._page_bytes * 40
    with LLM(path, kv_cache_memory_bytes=memory, max_model_len=128) as llm:
        sequences = [llm.sequence(prompt) for prompt in prompts]
        result: list[Any] = []
        thread = threading.Thread(target=lambda: result.append(llm.generate(prompts, params)))
        thread.start()
        for sequence in sequences:
            _ = sequence.logits
        for i in range(0, 24, 6):
            answers = llm.extend({sequence: [1, 2] for sequence in sequences[i : i + 6]})
            assert len(answers) == 6
        thread.join()
        assert result[0] == expected
        assert any(sequence._core.num_computed == 0 for sequence in sequences), "nothing was evicted"
        for i, sequence in enumerate(sequences):
            assert_same_bits(sequence.extend([3])[0], rows[i])
        # A request finds room although sequences hold all of it.
        assert llm.generate(prompts[:4], params) == expected[:4]
        with pytest.raises(llmi.OutOfMemoryError, match="extend fewer at once"):
            llm.extend({llm.sequence(ids(i, 100)): [] for i in range(12)})
        assert llm.generate(prompts[:4], params) == expected[:4]


def test_generate_continues_a_sequence(llm: LLM) -> None:
    tokens = ids(6, 100)
    sequence = llm.sequence(tokens[:80])
    sequence.extend(tokens[80:])
    params = SamplingParams(max_tokens=12, seed=5, ignore_eos=True, logprobs=1, n=2)
    out = llm.generate(sequence, params)[0]
    assert out == llm.generate(tokens, params)[0]
    assert out.num_cached_tokens == 99
    assert sequence.token_ids.tolist() == tokens, "the sequence itself is untouched"
    assert_same_bits(sequence.extend([1])[0], fresh_logits(llm, [*tokens, 1]))


def test_capture(llm: LLM) -> None:
    layers = llm.model_info.num_layers
    sequence = llm.sequence([1, 2, 3], capture=Capture(hidden_states=(0, -1), layer_logits=(1, layers)))
    assert sorted(sequence.layer_logits) == [1, layers]
    assert_same_bits(sequence.layer_logits[layers], sequence.logits)
    assert not np.array_equal(sequence.layer_logits[1], sequence.logits)
    sequence.extend([4, 5])
    assert {layer: values.shape for layer, values in sequence.hidden_states.items()} == {0: (2, 64), layers: (2, 64)}
    again = llm.sequence([1, 2, 3, 4], capture=Capture(hidden_states=(0,))).fork()
    assert_same_bits(again.hidden_states[0][0], sequence.hidden_states[0][0])
    with pytest.raises(ValueError, match="read-only"):
        sequence.logits[0] = 1
    with pytest.raises(llmi.InvalidParamsError, match="layer 9"):
        llm.sequence([1], capture=Capture(hidden_states=(9,)))
    with pytest.raises(llmi.InvalidParamsError, match=r"attention: layer 0 is neither -1 nor in \[1, "):
        llm.sequence([1], capture=Capture(attention=(0,)))


@pytest.mark.unsanitized
def test_text_and_scores(smollm: LLM) -> None:
    sequence = smollm.sequence("The capital of France is", seed=0)
    while len(sequence) < sequence.prompt_len + 3:
        sequence.extend([sequence.sample(SamplingParams(temperature=0))])
    out = smollm.generate("The capital of France is", temperature=0, max_tokens=3, logprobs=0)[0]
    assert sequence.output_text == out.text
    assert sequence.text == "The capital of France is" + out.text
    assert sequence.cumulative_logprob == pytest.approx(out.outputs[0].cumulative_logprob, abs=1e-5)
    assert len(sequence.block_table) >= 1


def test_wrong_use(llm: LLM, tiny: LLM) -> None:
    with pytest.raises(llmi.InvalidParamsError, match="outside"):
        llm.sequence([300])
    sequence = llm.sequence([1])
    with pytest.raises(llmi.InvalidParamsError, match="token id 257"):
        sequence.extend([257])
    with pytest.raises(llmi.InvalidParamsError, match="exceed max_model_len"):
        sequence.extend([1] * 600)
    with pytest.raises(llmi.InvalidParamsError, match="another LLM"):
        llm.extend({tiny.sequence([1]): [1]})
    assert sequence.token_ids.tolist() == [1]
    with pytest.raises(llmi.InvalidParamsError, match="empty sequence"):
        _ = llm.sequence([]).logits
    assert llm.sequence([]).extend([4]).shape == (1, 257)


# --- strategies


def greedy(sequence: TokenSequence, num_tokens: int) -> Generator[Any, Any, list[int]]:
    for _ in range(num_tokens):
        yield {sequence: [int(sequence.logits.argmax())]}
    return sequence.token_ids[sequence.prompt_len :].tolist()  # type: ignore[no-any-return]


def test_strategies_are_batched(llm: LLM) -> None:
    prompts = [ids(i, 10 + 7 * i) for i in range(9)]
    before = llm.get_metrics()["num_running"]
    expected = [out.token_ids for out in llm.generate(prompts, temperature=0, max_tokens=12, ignore_eos=True)]
    assert llm.run(greedy, prompts, num_tokens=12) == expected
    assert llm.run(greedy, prompts[0], num_tokens=12) == expected[:1]
    assert llm.get_metrics()["num_running"] == before


def test_a_strategy_over_two_models_and_generation(llm: LLM, tiny: LLM) -> None:
    made: list[TokenSequence] = []

    def both(sequence: TokenSequence, amateur: LLM) -> Generator[Any, Any, tuple[list[int], list[int], list[str]]]:
        weak = amateur.sequence(sequence.token_ids)
        made.append(weak)
        yield {weak: []}
        for _ in range(6):
            token = int((log_softmax(sequence.logits) - 0.5 * log_softmax(weak.logits)).argmax())
            yield {sequence: [token], weak: [token]}
        one = yield llmi.Generate([sequence], max_tokens=3, ignore_eos=True)
        two = yield llmi.Generate([sequence.fork(), sequence], SamplingParams(max_tokens=2, ignore_eos=True))
        return sequence.token_ids.tolist(), one[0].token_ids, [out.text for out in two]

    prompts = [ids(i, 20) for i in range(4)]
    together = llm.run(both, prompts, seed=7, amateur=tiny)
    assert all(sequence._core.is_closed for sequence in made)
    assert together[0] == llm.run(both, prompts[:1], seed=7, amateur=tiny)[0], "a prompt's result depends on its own seed alone"
    assert len(together[2][0]) == 26 and len(together[2][1]) == 3


def test_an_interrupt_loses_no_blocks(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the core's call and the TokenSequence that owns what it made, and where a core's object goes without one."""

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    free = tiny.memory_report().num_free_blocks
    with tiny.sequence(ids(0, 20)) as parent:
        _ = parent.logits
        with monkeypatch.context() as patched:
            patched.setattr(TokenSequence, "__init__", interrupt)
            with pytest.raises(KeyboardInterrupt):
                parent.fork()
    assert tiny.memory_report().num_free_blocks == free
    core = _core.LabSequence(tiny._engine, ids(0, 20), [], [], [], None, _core.SparseView())
    extension = _core.LabExtension(sequence=core, token_ids=[7], parents=[], is_tree=False, wants_last=False)
    _core.lab_extend(tiny._engine, [extension])
    assert tiny.memory_report().num_free_blocks < free
    del core, extension
    assert tiny.memory_report().num_free_blocks == free and tiny.get_metrics()["audit"] == ""


def test_beams_in_a_strategy(tiny: LLM) -> None:
    """They are those of generate; a sequence alone, which has the law of one text, refuses them."""

    def search(sequence: TokenSequence) -> Generator[Any, Any, list[tuple[list[int], float | None]]]:
        by_name = yield llmi.Generate([sequence], beam_width=3, max_tokens=4)
        given = yield llmi.Generate([sequence], llmi.BeamSearchParams(beam_width=3, max_tokens=4))
        assert given[0].outputs == by_name[0].outputs
        return [(out.token_ids, out.score) for out in given[0].outputs]

    expected = tiny.generate([[1, 2]], beam_width=3, max_tokens=4)[0].outputs
    assert tiny.run(search, [[1, 2]]) == [[(out.token_ids, out.score) for out in expected]]
    with tiny.sequence([1, 2]) as sequence:
        for call in (sequence.probs, sequence.sample):
            with pytest.raises(llmi.UnsupportedCombinationError, match="beam_width"):
                call(llmi.BeamSearchParams(beam_width=2))


def test_strategy_errors(llm: LLM) -> None:
    def bad(sequence: TokenSequence) -> Generator[Any, Any, None]:
        yield {sequence: [1]}
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        llm.run(bad, [[1]])
    with pytest.raises(llmi.StrategyErrors) as error:  # which `except* ZeroDivisionError` catches: the others' results are kept
        llm.run(bad, [[1], [2]])
    assert {index: type(each) for index, each in error.value.errors.items()} == {0: ZeroDivisionError, 1: ZeroDivisionError}

    def wrong(sequence: TokenSequence) -> Generator[Any, Any, None]:
        yield 7

    with pytest.raises(llmi.InvalidParamsError, match="a strategy yields"):
        llm.run(wrong, [[1]])
    with pytest.raises(llmi.InvalidParamsError, match="generator function"):
        llm.run(lambda sequence: 1, [[1]])  # type: ignore[arg-type,return-value]
    assert llm.get_metrics()["audit"] == ""


# --- every order of operations


class Lab(RuleBasedStateMachine):
    """Sequences under random operations, against a dictionary of token lists."""

    @initialize(architecture=st.sampled_from(["llama", "gemma3"]))
    def start(self, architecture: str) -> None:
        self.llm = LLM(_model(architecture), kv_cache_memory_bytes=_memory(architecture), max_model_len=96)
        self.held: list[tuple[TokenSequence, list[int]]] = []

    def _pick(self, index: int) -> tuple[TokenSequence, list[int]]:
        return self.held[index % len(self.held)]

    @rule(tokens=st.lists(st.integers(1, 256), min_size=1, max_size=40))
    def new(self, tokens: list[int]) -> None:
        if len(self.held) < 8:
            self.held.append((self.llm.sequence(tokens), list(tokens)))

    @rule(index=st.integers(0, 99), tokens=st.lists(st.integers(1, 256), max_size=12))
    def extend(self, index: int, tokens: list[int]) -> None:
        if self.held and len(self._pick(index)[1]) + len(tokens) <= 96:
            sequence, known = self._pick(index)
            assert sequence.extend(tokens).shape == (len(tokens), 257)
            known += tokens

    @rule(index=st.integers(0, 99))
    def fork(self, index: int) -> None:
        if self.held and len(self.held) < 8:
            sequence, known = self._pick(index)
            self.held.append((sequence.fork(), list(known)))

    @rule(index=st.integers(0, 99), num_tokens=st.integers(0, 30))
    def rollback(self, index: int, num_tokens: int) -> None:
        if self.held:
            sequence, known = self._pick(index)
            num_tokens = min(num_tokens, len(known) - 1)
            sequence.rollback(num_tokens)
            del known[len(known) - num_tokens :]

    @rule(index=st.integers(0, 99), tokens=st.lists(st.integers(1, 256), min_size=3, max_size=3, unique=True), keep=st.integers(0, 3))
    def tree(self, index: int, tokens: list[int], keep: int) -> None:
        if self.held and len(self._pick(index)[1]) + 3 <= 96:
            sequence, known = self._pick(index)
            sequence.extend(TokenTree([*tokens, tokens[0]], [-1, -1, 0, 2]))
            path = [[], [1], [0, 2], [0, 2, 3]][keep]
            sequence.commit(path)
            known += [[*tokens, tokens[0]][node] for node in path]

    @rule(index=st.integers(0, 99))
    def close(self, index: int) -> None:
        if self.held:
            self.held.pop(index % len(self.held))[0].close()

    @rule(index=st.integers(0, 99))
    def look(self, index: int) -> None:
        if self.held:
            sequence, known = self._pick(index)
            logits = sequence.logits
            assert_same_bits(logits, _reference(self.llm.model_info.architecture, known))

    @invariant()
    def agrees(self) -> None:
        for sequence, known in getattr(self, "held", []):
            assert sequence.token_ids.tolist() == known
        if hasattr(self, "llm"):
            assert self.llm.get_metrics()["audit"] == ""

    def teardown(self) -> None:
        if hasattr(self, "llm"):
            self.llm.close()


_models: dict[str, Any] = {}


def _model(architecture: str) -> Path:
    if architecture not in _models:
        path = tiny_model(architecture, vocab_size=257, num_layers=3)
        _models[architecture] = path, LLM(path, kv_cache_memory_bytes=1 << 24, max_model_len=128)
    return _models[architecture][0]  # type: ignore[no-any-return]


def _memory(architecture: str) -> int:
    return int(_models[architecture][1]._page_bytes) * (16 if architecture == "llama" else 30)


def _reference(architecture: str, tokens: list[int]) -> Any:
    return fresh_logits(_models["llama" if architecture == "llama" else "gemma3"][1], tokens)


TestLab = Lab.TestCase
TestLab.settings = settings(max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
