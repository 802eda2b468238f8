"""Engines of models whose layers have states: every request has the bits of a lone run, in any company; what a snapshot serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import llmi
from features import expect_short_answers, mixed_params, one_by_one
from llmi import LLM, Eagle, PromptLookup, SamplingParams, SpeculativeConfig, TokenTree
from llmi.testing import assert_same_tokens
from tiny_eagle import tiny_eagle
from tiny_families import make

pytestmark = pytest.mark.parity
NUM_REQUESTS = 24
OPTIONS: dict[str, Any] = {"quantization": "q8_0", "max_model_len": 160}
TOKENS = [(7 * i + 3) % 257 for i in range(150)]


def requests() -> tuple[list[list[int]], list[SamplingParams]]:
    rng = np.random.default_rng(5)
    prompts = [(rng.integers(1, 257, size=2 + i % 9).tolist() * 9)[: 3 + (5 * i) % 60] for i in range(NUM_REQUESTS)]
    return prompts, mixed_params(NUM_REQUESTS)


@pytest.fixture(autouse=True, scope="module")
def audited() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMI_AUDIT", "1")
        yield


@pytest.fixture(scope="module")
def path(families: Path) -> Path:
    return make("lfm2", families).path


@pytest.fixture(scope="module")
def roomy(path: Path) -> Iterator[LLM]:
    with LLM(path, kv_cache_memory_bytes=1 << 25, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def plain(path: Path) -> Iterator[LLM]:
    with LLM(path, kv_cache_memory_bytes=1 << 25, enable_prefix_caching=False, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(plain: LLM) -> Any:
    return one_by_one(plain, *requests(), use_tqdm=False)


COMPANIES: dict[str, Callable[[Path], LLM]] = {
    "roomy": lambda path: LLM(path, kv_cache_memory_bytes=1 << 25, **OPTIONS),
    "snapshots": lambda path: LLM(path, kv_cache_memory_bytes=1 << 25, state_snapshot_interval=16, **OPTIONS),
    "pieces of 7": lambda path: LLM(path, kv_cache_memory_bytes=1 << 25, max_num_batched_tokens=7, **OPTIONS),
    "no prefix cache": lambda path: LLM(path, kv_cache_memory_bytes=1 << 25, enable_prefix_caching=False, num_threads=1, **OPTIONS),
    "few pages": lambda path: expect_short_answers(LLM(path, kv_cache_memory_bytes=3 << 17, **OPTIONS)),
}


@pytest.mark.parametrize("company", COMPANIES)
def test_a_request_has_the_bits_of_a_lone_run(path: Path, alone: Any, company: str) -> None:
    """In a batch, in pieces, behind known beginnings, preempted, and behind drafts: tokens and log-probabilities."""
    prompts, params = requests()
    with COMPANIES[company](path) as llm:
        for config in (None, None, SpeculativeConfig(PromptLookup(), 7), SpeculativeConfig(PromptLookup(), "auto")):
            together = llm.generate(prompts, params, speculative_config=config, use_tqdm=False)
            assert_same_tokens(together, alone)
            for one, other in zip(together, alone, strict=True):
                assert one.outputs[0].logprobs == other.outputs[0].logprobs


@pytest.mark.parametrize("verification", ["rejection", "typical"])
def test_judged_drafts_do_not_depend_on_the_batch(path: Path, roomy: LLM, verification: str) -> None:
    prompts, params = requests()
    config = SpeculativeConfig(PromptLookup(), 5, verification)
    lone = one_by_one(roomy, prompts, params, speculative_config=config, use_tqdm=False)
    with COMPANIES["pieces of 7"](path) as llm:
        assert_same_tokens(llm.generate(prompts, params, speculative_config=config, use_tqdm=False), lone)


def bits(sequence: Any) -> bytes:
    return np.asarray(sequence.logits).tobytes()


def cold(llm: LLM, tokens: list[int]) -> bytes:
    """The last row's bits without a known beginning."""
    llm.reset_prefix_cache()
    return bits(llm.sequence(tokens))


@pytest.mark.parametrize("back", [1, 20, 32, 60, 100])
def test_forks_and_rollbacks(roomy: LLM, back: int) -> None:
    """Forks of forks, and back by as many rows as are logged, or more, which are computed again."""
    whole = cold(roomy, TOKENS)
    sequence = roomy.sequence(TOKENS[:13])
    for begin in range(13, 117, 9):
        sequence.extend(TOKENS[begin : min(begin + 9, 117)])
    fork = sequence.fork()
    other = fork.fork()
    for part in (sequence, fork, other):
        part.extend([9] * 5)
        part.rollback(5 + back)
    for part in (other, sequence, fork):
        part.extend(TOKENS[len(part.token_ids) :])
        assert bits(part) == whole


def test_trees_behind_a_rollback(roomy: LLM) -> None:
    """Back to a version from where nothing is logged, then a tree whose inputs lie where older ones lay."""
    sequence = roomy.sequence(TOKENS[:60])
    sequence.extend(TOKENS[60:150])
    for back in (54, 30):
        sequence.rollback(back)
        begin = len(sequence.token_ids)
        sequence.extend(TokenTree(TOKENS[begin : begin + 20], None))
        sequence.commit(list(range(11)))
        assert bits(sequence) == bits(roomy.sequence(TOKENS[: begin + 11]).fork())
        sequence.extend(TOKENS[begin + 11 : 150])
        assert bits(sequence) == cold(roomy, TOKENS)


def test_trees_leave_the_state_as_it_is(roomy: LLM) -> None:
    """Each node has the bits of its own path; a path that is committed has the state of its tokens, whatever its siblings were."""
    parents = [-1, 0, -1, 2, 2, 4]
    for path in ([], [0, 1], [2], [2, 4, 5]):
        sequence = roomy.sequence(TOKENS[:40])
        sequence.logits  # noqa: B018 (computes them)
        rows = sequence.extend(TokenTree(TOKENS[100:106], parents))
        for node in range(6):
            way, at = [], node
            while at >= 0:
                way, at = [TOKENS[100 + at], *way], parents[at]
            assert np.asarray(rows[node]).tobytes() == bits(roomy.sequence(TOKENS[:40] + way))
        sequence.commit(path)
        sequence.extend(TOKENS[40:60])
        assert bits(sequence) == cold(roomy, TOKENS[:40] + [TOKENS[100 + node] for node in path] + TOKENS[40:60])


def answer(llm: LLM, tokens: list[int], **options: Any) -> Any:
    return llm.generate([tokens], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=3), use_tqdm=False, **options)[0]


def expect_as_cold(llm: LLM, plain: LLM, tokens: list[int], num_cached: int, **options: Any) -> None:
    """The answer behind a beginning of this length, and its bits."""
    warm = answer(llm, tokens, **options)
    assert warm.num_cached_tokens == num_cached
    cold = answer(plain, tokens)
    assert (warm.outputs[0].token_ids, warm.outputs[0].logprobs) == (cold.outputs[0].token_ids, cold.outputs[0].logprobs)


def test_a_hit_is_as_long_as_the_last_snapshot_on_its_path(path: Path, plain: LLM) -> None:
    """Of a prompt that is at, before and behind the end of a block; and where two prompts part, for a third one."""
    with COMPANIES["roomy"](path) as llm:
        for length, cached in ((96, 80), (97, 96), (95, 80), (50, 48)):
            llm.reset_prefix_cache()
            answer(llm, TOKENS[:length])
            expect_as_cold(llm, plain, TOKENS[:length], cached)
            expect_as_cold(llm, plain, [*TOKENS[:length], 9, 9, 9], cached)
        llm.reset_prefix_cache()
        for last, cached in enumerate((0, 0, 48, 48)):  # 55 tokens in common: the second prompt leaves a snapshot behind the third block
            expect_as_cold(llm, plain, [*TOKENS[:55], *([last] * 40)], cached)


def test_snapshots_at_intervals(path: Path, plain: LLM) -> None:
    """And what the memory report says of them."""
    with LLM(path, kv_cache_memory_bytes=1 << 25, state_snapshot_interval=32, **OPTIONS) as llm:
        answer(llm, TOKENS[:100])
        report = llm.memory_report()
        assert (report.num_snapshots, report.num_state_slots - report.num_free_state_slots) == (3, 3)
        assert report.state_bytes > report.num_state_slots * report.snapshot_bytes > 0 and "3 of them snapshots" in repr(report)
        expect_as_cold(llm, plain, [*TOKENS[:70], 5, 5], 64)
        expect_as_cold(llm, plain, [*TOKENS[:40], 5, 5], 32)
        expect_as_cold(llm, plain, [*TOKENS[:20], 5, 5], 0)


@pytest.mark.parametrize("piece", [1, 2, 7, 16, 23])
def test_pieces_that_end_within_blocks(path: Path, plain: LLM, piece: int) -> None:
    """vllm#34587: a state of fewer tokens than its block has; vllm#56196: a piece shorter than the convolution, behind a hit, and written
    into the shared block. The snapshot serves many sequences, some at the same time, and stays as it is."""
    with LLM(path, kv_cache_memory_bytes=1 << 25, max_num_batched_tokens=piece, **OPTIONS) as llm:
        answer(llm, TOKENS[:67])
        prompts = [[*TOKENS[:67], *([last] * (1 + last % 3))] for last in range(4)]
        together = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True), use_tqdm=False)
        assert [output.num_cached_tokens for output in together] == [64] * 4
        for prompt, output in zip(prompts, together, strict=True):
            assert answer(llm, prompt).outputs[0].token_ids == output.outputs[0].token_ids
        expect_as_cold(llm, plain, prompts[0], 64)


def test_drafts_behind_a_hit(path: Path, plain: LLM) -> None:
    """vllm#45477, vllm#51113: rejected rows must not reach a state that others begin with."""
    prompt = (TOKENS[:10] * 6)[:58]
    with COMPANIES["snapshots"](path) as llm:
        for config in (SpeculativeConfig(PromptLookup(), 7), SpeculativeConfig(PromptLookup(), 7, "rejection"), None):
            answer(llm, prompt, speculative_config=config)
            expect_as_cold(
                llm, plain, prompt, 48, speculative_config=config if config is None or config.verification == "coupled" else None
            )


def test_states_and_pages_are_evicted_apart(path: Path) -> None:
    """Snapshots beyond the slots go, the least recently used first; blocks of K and V stay, and so do other snapshots."""
    with LLM(path, kv_cache_memory_bytes=1 << 20, max_num_seqs=1, **OPTIONS) as llm:
        slots = llm._engine.info()["num_state_slots"]
        first = [[n] * 40 for n in range(slots + 4)]
        for prompt in first:
            answer(llm, prompt)
        assert answer(llm, first[-1]).num_cached_tokens == 32
        assert answer(llm, first[0]).num_cached_tokens == 0


def broken_model(families: Path, to: Path) -> Path:
    """A model whose token 258 brings infinity into the states."""
    path = make("lfm2", families, tie_word_embeddings=False).path
    for file in path.iterdir():
        if file.suffix == ".json":
            (to / file.name).write_bytes(file.read_bytes())
    tensors = load_file(path / "model.safetensors")
    tensors["model.embed_tokens.weight"][258, 3] = np.inf
    save_file(tensors, to / "model.safetensors")
    return to


def test_infinity_in_a_state_ends_its_request_alone(families: Path, tmp_path: Path) -> None:
    """And leaves no snapshot behind: the same prompt is not known afterwards."""
    broken_model(families, tmp_path)
    prompts, _ = requests()
    params = [SamplingParams(temperature=i % 2, max_tokens=8, seed=i, allowed_token_ids=list(range(1, 257))) for i in range(6)]
    broken = [5, 258, *TOKENS[:40]]
    with LLM(tmp_path, kv_cache_memory_bytes=1 << 25, dtype="float32", max_model_len=128) as llm:
        clean = llm.generate(prompts[:6], params[:6], use_tqdm=False)
        for _ in range(2):
            mixed = llm.generate(
                [*prompts[:3], broken, *prompts[3:6]], [*params[:3], params[0], *params[3:6]], use_tqdm=False, on_error="return"
            )
            assert isinstance(mixed[3].error, llmi.NonFiniteLogitsError)
            assert "state holds NaN or infinity" in str(mixed[3].error)
            assert_same_tokens(type(clean)([*mixed[:3], *mixed[4:]]), clean)


@pytest.mark.parametrize("memory", [3 << 17, 1 << 19])
def test_samples_that_are_preempted(path: Path, roomy: LLM, memory: int) -> None:
    """24 sequences over 17 pages, or over six slots: each fork needs one to write."""
    prompts = [[5, 6, 7 + last] * 3 for last in range(6)]
    params = SamplingParams(n=4, temperature=1.0, seed=2, max_tokens=20, ignore_eos=True)
    with LLM(path, kv_cache_memory_bytes=memory, **OPTIONS) as llm:
        assert_same_tokens(llm.generate(prompts, params, use_tqdm=False), roomy.generate(prompts, params, use_tqdm=False))
        assert llm._engine.stats()["num_preemptions"] > 0


def test_beams_samples_guidance_and_steering(path: Path, roomy: LLM) -> None:
    """Each forks, or runs two sequences, or has rows of its own; with room and without."""
    with COMPANIES["few pages"](path) as small:
        for options in (
            {"n": 3, "temperature": 1.0, "seed": 4},
            {"temperature": 0.8, "seed": 3, "logit_bias": {7: 1.5}},
        ):
            params = SamplingParams(max_tokens=12, ignore_eos=True, **options)
            one = roomy.generate([TOKENS[:30]], params, use_tqdm=False)
            assert_same_tokens(small.generate([TOKENS[:30]], params, use_tqdm=False), one)
        for llm in (roomy, small):
            llm.reset_prefix_cache()
        beams = [llm.beam_search([TOKENS[:30]], llmi.BeamSearchParams(beam_width=3, max_tokens=10)) for llm in (roomy, small)]
        assert [b.tokens for b in beams[0][0].sequences] == [b.tokens for b in beams[1][0].sequences]


def test_attention_weights_are_refused_by_the_layer(roomy: LLM) -> None:
    with pytest.raises(llmi.InvalidParamsError, match="layer 1 has no attention"):
        roomy.sequence(TOKENS[:5], capture=llmi.Capture(attention=[1])).logits  # noqa: B018 (computes them)
    sequence = roomy.sequence(TOKENS[:5], capture=llmi.Capture(attention=[2], hidden_states=[1]))
    sequence.extend(TOKENS[5:8])
    assert sequence.attention[2].shape == (3, 4, 8)


def test_eagle_behind_a_known_beginning(families: Path, tmp_path: Path) -> None:
    """Coupled drafts begin in the block behind it; judged ones do not depend on hits, so there is none."""
    path = make("qwen3_5_text", families).path
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 160, "kv_cache_memory_bytes": 1 << 25}
    prompts = [TOKENS[:67], TOKENS[:64], TOKENS[:65], [*TOKENS[:80], 5]]
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True, logprobs=2)

    def answers(llm: LLM, **given: Any) -> Any:
        return one_by_one(llm, prompts, [params] * 4, use_tqdm=False, **given)

    with LLM(path, enable_prefix_caching=False, **options) as llm:
        heads = tiny_eagle(llm, tmp_path / "heads")
        expected = answers(llm)
    with LLM(path, speculative_config=SpeculativeConfig(Eagle(heads, 3), 3), **options) as llm:
        first, again = answers(llm), answers(llm)
        assert [output.num_cached_tokens for output in again] == [64, 48, 64, 80]
        for outputs in (first, again):
            assert_same_tokens(outputs, expected)
            assert [output.outputs[0].logprobs for output in outputs] == [output.outputs[0].logprobs for output in expected]
            assert all(output.outputs[0].spec_decode_metrics.num_draft_tokens > 0 for output in outputs)
        judged = [answers(llm, speculative_config=SpeculativeConfig(Eagle(heads, 3), 3, "rejection")) for _ in range(2)]
        assert [output.num_cached_tokens for output in judged[1]] == [0] * 4
        assert_same_tokens(judged[1], judged[0])
