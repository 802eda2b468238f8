"""Particle filters: resamplers, laws and evidence against enumeration, equal runs, and how they end."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, ConstraintError, HookError, InvalidParamsError, SamplingParams, UnsupportedCombinationError, smc
from llmi.smc import RESAMPLERS, ParticleFilter, ParticleOutput, Prefix, numeric, parameters
from llmi.testing import assert_same_distribution
from smc_enumeration import CASES, EOS, LETTERS, PROMPT, NoRepeats, compare, threshold_of, tiny_llm


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with tiny_llm() as llm:
        yield llm


# --- noise and arithmetic


def test_philox_is_random123s() -> None:
    """Known answers of Random123 (kat_vectors, philox4x32 10)."""
    ones = 0xFFFFFFFF
    known = [
        ([0, 0, 0, 0], 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([ones] * 4, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], 0x299F31D0A4093822, [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
    ]
    for counter, seed, words in known:
        assert [int(word[0]) for word in numeric.philox([np.array([word], np.uint64) for word in counter], seed)] == words


def test_uniforms_depend_on_each_part_of_their_key() -> None:
    first = numeric.uniforms(1, 5, 7, 1000)
    assert np.array_equal(first[:10], numeric.uniforms(1, 5, 7, 10)) and len(set(first)) == 1000
    assert first.min() > 0 and first.max() < 1 and abs(first.mean() - 0.5) < 0.04
    for other in (numeric.uniforms(2, 5, 7, 1000), numeric.uniforms(1, 6, 7, 1000), numeric.uniforms(1, 5, 8, 1000)):
        assert not set(first) & set(other)


def test_purposes_are_in_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "numerics.md"
    if page.is_file():
        text = page.read_text(encoding="utf-8")
        assert re.search(rf"^\| {numeric.TOKEN_NOISE} \| tokens of a particle filter", text, re.MULTILINE)
        assert re.search(rf"^\| {numeric.RESAMPLING_NOISE} \| its resampling", text, re.MULTILINE)


def test_exp_and_log() -> None:
    x = np.random.default_rng(0).uniform(-690, 690, 10_000)
    assert np.abs(numeric.exp(x) / np.exp(x) - 1).max() < 5e-16
    assert numeric.exp(np.array([0.0, -math.inf, -701.0])).tolist() == [1.0, 0.0, 0.0]
    for value in [*np.exp(x[:1000]), 1.0, 1 - 1e-12, 1 + 1e-12, 5e-324]:
        assert numeric.log(float(value)) == pytest.approx(math.log(value), rel=5e-16, abs=1e-300)
    assert numeric.log(0.0) == -math.inf


# --- resamplers

WEIGHTS = np.array([0.0, 0.31, 0.02, 0.0, 0.4, 0.145, 0.125, 0.0])


@pytest.mark.parametrize("name", RESAMPLERS)
def test_expected_counts(name: str) -> None:
    """n times the weight in the mean, whatever the noise is scaled to; never a particle of weight 0."""
    rounds, size = 20_000, 8
    numbers = np.random.default_rng(1).random((rounds, size))
    counts = np.zeros(size)
    squares = np.zeros(size)
    for row in numbers:
        seen = np.bincount(RESAMPLERS[name](WEIGHTS, row), minlength=size)
        counts += seen
        squares += seen**2
        low, high = np.floor(size * WEIGHTS), np.ceil(size * WEIGHTS)
        if name == "systematic":
            assert ((seen >= low) & (seen <= high)).all()
        if name == "residual":
            assert (seen >= low).all()
        assert not seen[WEIGHTS == 0].any() and seen.sum() == size
    mean = counts / rounds
    error = np.sqrt(np.maximum(squares / rounds - mean**2, 1e-12) / rounds)
    assert (np.abs(mean - size * WEIGHTS) < 5 * error + 1e-9).all()


def test_points_of_resampling() -> None:
    """Each slot's own number decides it, by the definition."""
    numbers = np.random.default_rng(2).random(8)
    ends = np.cumsum(WEIGHTS).tolist()

    def holder(point: float) -> int:
        return next(i for i, end in enumerate(ends) if point < end)

    assert RESAMPLERS["multinomial"](WEIGHTS, numbers).tolist() == [holder(u) for u in numbers]
    assert RESAMPLERS["stratified"](WEIGHTS, numbers).tolist() == [holder((i + u) / 8) for i, u in enumerate(numbers)]
    assert RESAMPLERS["systematic"](WEIGHTS, numbers).tolist() == [holder((i + numbers[0]) / 8) for i in range(8)]
    assert RESAMPLERS["residual"](WEIGHTS, numbers)[:7].tolist() == [1, 1, 4, 4, 4, 5, 6]


def test_residual_copies_are_exact() -> None:
    """Where n times each weight is whole, the particles are those copies, whatever rounding made of the weights."""
    rng = np.random.default_rng(3)
    for size in range(1, 400):
        for counts in (np.ones(size, np.int64), rng.multinomial(size, np.full(5, 0.2))):
            chosen = RESAMPLERS["residual"](counts / size, rng.random(size))
            assert chosen.tolist() == np.repeat(np.arange(len(counts)), counts).tolist()


def test_systematic_counts_are_exact() -> None:
    """By integration over its one number: the mean over a fine grid of it is n times the weight, up to the grid."""
    grid = (np.arange(4000) + 0.5) / 4000
    counts = sum(np.bincount(RESAMPLERS["systematic"](WEIGHTS, np.full(8, u)), minlength=8) for u in grid)
    assert np.abs(counts / 4000 - 8 * WEIGHTS).max() < 1e-3


@pytest.mark.parametrize("name", RESAMPLERS)
def test_edges_of_resampling(name: str) -> None:
    extreme = np.array([2.0**-53, 1 - 2.0**-53, 1 - 2.0**-53])
    assert RESAMPLERS[name](np.array([0.0, 1.0, 0.0]), extreme).tolist() == [1, 1, 1]
    equal = np.full(4, 0.25)
    assert RESAMPLERS["multinomial"](np.array([0.5, 0.5]), np.array([0.5, 0.25])).tolist() == [1, 0]
    if name != "multinomial":
        assert RESAMPLERS[name](equal, np.array([0.3, 0.9, 0.1, 0.6])).tolist() == [0, 1, 2, 3]


def test_effective_sample_size() -> None:
    assert smc.effective_sample_size(np.full(7, 0.3)) == pytest.approx(7)
    assert smc.effective_sample_size(np.array([0.0, 2.0, 0.0])) == 1
    assert smc.effective_sample_size(np.array([1.0, 3.0])) == pytest.approx(1.6)
    assert smc.effective_sample_size(np.zeros(3)) == 0


# --- against enumeration


@pytest.mark.parametrize(
    ("name", "resampler"), [("plain", "systematic"), ("constrained", "residual"), ("both", "stratified"), ("plain", "multinomial")]
)
def test_enumeration(llm: LLM, name: str, resampler: str) -> None:
    """A slice of `python tests/support/smc_enumeration.py`: fewer runs, and so a wider bound."""
    case = CASES[name]
    assert 10 <= len(case.outcomes) <= 25 and (case.params.max_tokens or 0) >= 3
    settings = {"num_particles": 400, "ess_threshold": threshold_of(llm, case, 400), "resampler": resampler}
    result = compare(llm, case, settings, range(40))
    assert result.distance - result.chance < 0.01 and result.distance < 0.03, result
    assert abs(result.errors) < 4, result
    assert 0.1 <= result.resampled <= 0.9, result


def test_resampling_at_every_step(llm: LLM) -> None:
    """The evidence is the product of the steps' own."""
    result = compare(llm, CASES["plain"], {"num_particles": 400, "ess_threshold": 1.0}, range(40))
    assert result.resampled == 1 and abs(result.errors) < 4 and result.distance - result.chance < 0.01, result


def test_without_weights_it_is_sampling(llm: LLM) -> None:
    """No potential, power 1: equal weights, evidence 1 exactly, and the law of plain sampling."""
    params = SamplingParams(temperature=2.0, top_k=3, max_tokens=3, ignore_eos=True, seed=5)
    out = ParticleFilter(20_000).run(llm, PROMPT, params)
    assert out.log_evidence == 0 and not out.resampled.any() and set(out.ess) == {20_000.0}
    counts: dict[Any, int] = {}
    for particle in out.particles:
        counts[tuple(particle.token_ids)] = counts.get(tuple(particle.token_ids), 0) + 1
    assert_same_distribution(counts, llmi.testing.exact_distribution(llm, PROMPT, params, num_tokens=3))
    assert out.num_rows <= 3 + 9, "one row for each distinct history"


def test_the_conditional_is_not_the_masked_law(llm: LLM) -> None:
    """Masking alone draws from another law; the test of the constrained case can tell."""
    case = CASES["constrained"]
    law, _ = case.exact(llm)
    masked: dict[Any, int] = {}
    for out in llm.generate([PROMPT] * 20, [case.params.replace(n=100, seed=seed, structured_outputs=NoRepeats()) for seed in range(20)]):
        for sample in out.outputs:
            masked[tuple(sample.token_ids)] = masked.get(tuple(sample.token_ids), 0) + 1
    distance = 0.5 * sum(abs(masked.get(outcome, 0) / 2000 - share) for outcome, share in law.items())
    assert distance > 0.1


def test_grammars(tiny_path: Callable[..., Path]) -> None:
    """The evidence of a choice is the sum of its texts' probabilities; the law is theirs over that sum."""
    pytest.importorskip("llguidance", reason="the extra `structured` brings llguidance")
    texts, params = ["ab", "ac", "b"], SamplingParams(temperature=3.0, max_tokens=4, logit_bias={EOS: 9.0}, seed=1)
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=64) as llm:
        masses = {}
        for text in texts:
            ids = [*llm.tokenizer.encode(text), EOS]
            masses[text] = 1.0
            for i, token in enumerate(ids):
                with llm.sequence([*PROMPT, *ids[:i]]) as sequence:
                    masses[text] *= float(sequence.probs(params)[token])
        out = ParticleFilter(4000, constraint={"choice": texts}, must_end=True).run(llm, PROMPT, params)
        assert out.evidence == pytest.approx(sum(masses.values()), rel=0.1)
        law = out.texts()
        assert set(law) == set(texts)
        assert all(abs(law[text] - mass / sum(masses.values())) < 0.05 for text, mass in masses.items())
        equal = ParticleFilter(4000, constraint=llmi.StructuredOutputsParams(choice=texts), must_end=True).run(llm, PROMPT, params)
        assert equal == out


def test_greedy_law(llm: LLM) -> None:
    out = ParticleFilter(5, power=2.0).run(llm, PROMPT, temperature=0, max_tokens=6, seed=1)
    assert out.law() == {tuple(llm.generate(PROMPT, temperature=0, max_tokens=6)[0].token_ids): pytest.approx(1)}
    assert out.log_evidence == 0


# --- a run is a function of prompt, parameters and seed

GUIDED = ParticleFilter(48, potential=lambda prefix: 1.5 * len(set(prefix.token_ids)), ess_threshold=0.9)


def test_equal_seeds_equal_runs(llm: LLM, tmp_path: Path) -> None:
    """Whatever else runs, and however few sequences and pages an engine has."""
    params = SamplingParams(temperature=2.0, max_tokens=8, seed=3)
    out = GUIDED.run(llm, PROMPT, params)
    assert out.resampled.any() and not out.resampled[-1] and out.seed == 3
    assert GUIDED.run(llm, PROMPT, params) == out != GUIDED.run(llm, PROMPT, params.replace(seed=4))
    with llm.stream([5, 6], max_tokens=50, ignore_eos=True) as stream:
        next(iter(stream))
        assert GUIDED.run(llm, PROMPT, params) == out
    path = llmi.testing.tiny_model(vocab_size=16, num_layers=1, path=tmp_path)
    for sizes in ({"max_num_seqs": 3}, {"max_num_batched_tokens": 4}, {"kv_cache_memory_bytes": 1 << 14}, {"block_size": 16}):
        with LLM(path, max_model_len=64, **{"kv_cache_memory_bytes": 1 << 22, **sizes}) as other:  # type: ignore[arg-type]
            assert GUIDED.run(other, PROMPT, params) == out, sizes


def test_noise_is_the_particles_and_the_steps_own(llm: LLM) -> None:
    """Under one law for all steps, tokens of a particle and of a step are independent."""
    flat = {"allowed_token_ids": [3, 7], "temperature": 1000.0, "max_tokens": 12, "ignore_eos": True, "seed": 9}
    out = ParticleFilter(4000).run(llm, PROMPT, **flat)
    tokens = np.array([particle.token_ids for particle in out.particles]) == 7
    assert np.abs(tokens.mean(0) - 0.5).max() < 0.05
    assert np.abs(np.corrcoef(tokens.T) - np.eye(12)).max() < 0.08
    fewer = ParticleFilter(10).run(llm, PROMPT, **flat)
    assert [particle.token_ids for particle in fewer.particles] == [particle.token_ids for particle in out.particles[:10]]


def test_any_form_of_a_prompt(llm: LLM) -> None:
    params = {"max_tokens": 4, "seed": 1, "temperature": 2.0}
    out = GUIDED.run(llm, PROMPT, **params)
    with llm.sequence(PROMPT[:1]) as sequence:
        sequence.extend(PROMPT[1:])
        assert GUIDED.run(llm, sequence, **params) == out
        assert sequence.token_ids.tolist() == PROMPT
    assert out.prompt_token_ids == PROMPT
    assert GUIDED.run(llm, PROMPT, SamplingParams(**params)) == out
    assert len({GUIDED.run(llm, PROMPT, max_tokens=2).seed for _ in range(3)}) == 3, "a seed is drawn and shown"


def test_the_engines_seed(tmp_path: Path) -> None:
    path = llmi.testing.tiny_model(vocab_size=16, num_layers=1, path=tmp_path)
    with LLM(path, max_model_len=64, kv_cache_memory_bytes=1 << 20, seed=4) as llm:
        out = GUIDED.run(llm, PROMPT, max_tokens=3)
        assert out == GUIDED.run(llm, PROMPT, max_tokens=3) and out.seed == llm.generate(PROMPT, max_tokens=1)[0].seed


# --- what comes back


def test_outputs(llm: LLM) -> None:
    out = GUIDED.run(llm, PROMPT, max_tokens=5, seed=2, temperature=3.0, logit_bias={EOS: 4.0})
    assert pickle.loads(pickle.dumps(out)) == out and isinstance(out, ParticleOutput)
    assert sum(particle.weight for particle in out.particles) == pytest.approx(1)
    assert sum(out.law().values()) == pytest.approx(1) == sum(out.texts().values())
    assert list(out.law().values()) == sorted(out.law().values(), reverse=True)
    reasons = {particle.finish_reason for particle in out.particles}
    assert reasons == {"stop", "length"}
    for particle in out.particles:
        ended = particle.token_ids[-1] == EOS
        assert ended == (particle.finish_reason == "stop") and EOS not in particle.token_ids[:-1]
        assert len(particle.token_ids) == 5 or ended
        assert particle.text == llm.tokenizer.decode(particle.token_ids[: -1 if ended else None])
    steps = len(out.ess)
    assert out.ancestors.shape == out.step_weights.shape == (steps, 48) and out.resampled.shape == (steps,)
    assert np.allclose(out.step_weights.sum(1), 1) and np.allclose(1 / (out.step_weights**2).sum(1), out.ess)
    for row, resampled in zip(out.ancestors, out.resampled, strict=True):
        assert resampled or row.tolist() == list(range(48))
    assert out.mean(lambda particle: 1.0) == pytest.approx(1)
    assert np.isclose(out.evidence, math.exp(out.log_evidence))


def test_stop_tokens_and_ignored_ends(llm: LLM) -> None:
    params = {"max_tokens": 6, "seed": 1, "temperature": 3.0}
    out = ParticleFilter(64).run(llm, PROMPT, stop_token_ids=[11], **params)
    assert any(particle.finish_reason == "stop" and particle.token_ids[-1] == 11 for particle in out.particles)
    assert all(11 not in particle.token_ids[:-1] for particle in out.particles)
    out = ParticleFilter(64).run(llm, PROMPT, ignore_eos=True, logit_bias={EOS: 9.0}, **params)
    assert {particle.finish_reason for particle in out.particles} == {"length"}
    assert any(EOS in particle.token_ids[:-1] for particle in out.particles)


def test_processors_keep_state_by_history(llm: LLM) -> None:
    """A processor with a memory of its own sees each history as plain decoding would."""

    def twice(context: llmi.TokenContext, logits: Any) -> None:
        context.state["seen"] = context.state.get("seen", 0) + 1
        if context.state["seen"] % 2 == 0:  # every second token repeats the one before
            keep = logits[context.token_ids[-1]]
            logits[:] = -np.inf
            logits[context.token_ids[-1]] = keep

    out = GUIDED.run(llm, PROMPT, max_tokens=6, seed=1, temperature=2.0, ignore_eos=True, logits_processors=[twice])
    assert all(particle.token_ids[::2] == particle.token_ids[1::2] for particle in out.particles)
    assert len(out.law()) > 3


def test_caches_are_given_back(llm: LLM) -> None:
    before = llm.memory_report().num_free_blocks
    for _ in range(3):
        GUIDED.run(llm, PROMPT, max_tokens=6, seed=1, temperature=2.0)
    assert llm.memory_report().num_free_blocks == before


# --- what ends a run


class Nothing(NoRepeats):
    """Texts that end nowhere: after two letters nothing may follow."""

    def allowed(self, state: tuple[int, ...]) -> list[int]:
        return list(LETTERS) if len(state) < 2 else []

    def is_final(self, state: tuple[int, ...]) -> bool:
        return False


def test_all_weights_zero(llm: LLM) -> None:
    params = {"max_tokens": 4, "seed": 1}
    with pytest.raises(ConstraintError, match=r"constraint: the weights of all 16 particles are 0 after 3 tokens") as dead:
        ParticleFilter(16, constraint=Nothing()).run(llm, PROMPT, **params)
    assert dead.value.hook == "constraint"
    with pytest.raises(HookError, match=r"potential: .* are 0 after 2 tokens") as empty:
        ParticleFilter(16, potential=lambda prefix: 0.0 if len(prefix.token_ids) < 2 else -math.inf).run(llm, PROMPT, **params)
    assert empty.value.hook == "potential"
    with pytest.raises(HookError, match=r"potential: .* before the first token"):
        ParticleFilter(16, potential=lambda prefix: -math.inf).run(llm, PROMPT, **params)
    with pytest.raises(HookError, match=r"must_end: .* after 4 tokens"):
        ParticleFilter(16, must_end=True).run(llm, PROMPT, logit_bias={EOS: -100.0}, **params)
    with pytest.raises(HookError, match="constraint and potential"):
        ParticleFilter(
            64, constraint=Nothing(), potential=lambda prefix: -math.inf if 11 in prefix.token_ids else 0.0, ess_threshold=0.0
        ).run(llm, PROMPT, **params)


def test_some_weights_zero(llm: LLM) -> None:
    out = ParticleFilter(200, potential=lambda prefix: -math.inf if 11 in prefix.token_ids else 0.0, ess_threshold=0.0).run(
        llm, PROMPT, max_tokens=3, seed=1, temperature=3.0
    )
    dead = [particle for particle in out.particles if particle.finish_reason == "dead"]
    assert dead and all(particle.weight == 0 and particle.token_ids[-1] == 11 for particle in dead)
    assert out.evidence == pytest.approx(1 - len(dead) / 200)
    assert all(11 not in ids for ids in out.law())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "potential returns a number"),
        (math.inf, "potential returns a number"),
        ("x", "not 'x'"),
        (True, "not True"),
        (None, "not None"),
    ],
)
def test_wrong_potentials(llm: LLM, value: Any, message: str) -> None:
    with pytest.raises(HookError, match=message):
        ParticleFilter(4, potential=lambda prefix: value).run(llm, PROMPT, max_tokens=2)


def test_hooks_that_raise(llm: LLM) -> None:
    class Broken(NoRepeats):
        def advance(self, state: tuple[int, ...], token_id: int) -> tuple[int, ...]:
            raise ZeroDivisionError("mine")

    with pytest.raises(HookError, match="constraint raised ZeroDivisionError: mine") as caught:
        ParticleFilter(4, constraint=Broken()).run(llm, PROMPT, max_tokens=2)
    assert isinstance(caught.value.__cause__, ZeroDivisionError) and caught.value.hook == "constraint"
    with pytest.raises(HookError, match="potential raised KeyError"):
        ParticleFilter(4, potential=lambda prefix: {}["x"]).run(llm, PROMPT, max_tokens=2)
    assert llm.generate(PROMPT, max_tokens=2)[0].token_ids, "the engine goes on"


def test_an_interrupt_keeps_whole_steps(llm: LLM) -> None:
    def late(prefix: Prefix) -> float:
        if len(prefix.token_ids) == 4:
            raise KeyboardInterrupt
        return 1.5 * len(set(prefix.token_ids))

    params = SamplingParams(max_tokens=8, seed=1, temperature=2.0, ignore_eos=True)
    free = llm.memory_report().num_free_blocks
    with pytest.raises(KeyboardInterrupt) as caught:
        ParticleFilter(32, potential=late).run(llm, PROMPT, params)
    assert isinstance(caught.value, smc.ParticlesInterrupted)
    kept = caught.value.output
    whole = ParticleFilter(32, potential=lambda prefix: 1.5 * len(set(prefix.token_ids))).run(llm, PROMPT, params)
    assert {particle.finish_reason for particle in kept.particles} == {"abort"} and len(kept.ess) == 3
    assert np.array_equal(kept.ess, whole.ess[:3]) and np.array_equal(kept.ancestors, whole.ancestors[:3])
    assert sum(particle.weight for particle in kept.particles) == pytest.approx(1)
    assert all(len(particle.token_ids) == 3 for particle in kept.particles)
    assert llm.memory_report().num_free_blocks == free
    assert pickle.loads(pickle.dumps(caught.value)).output == kept


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_particles", 0),
        ("num_particles", 2.0),
        ("num_particles", True),
        ("power", 0.0),
        ("power", -1.0),
        ("power", math.nan),
        ("power", math.inf),
        ("resampler", "best"),
        ("resampler", None),
        ("ess_threshold", -0.1),
        ("ess_threshold", 1.1),
        ("ess_threshold", "half"),
        ("must_end", 1),
        ("potential", 3),
        ("constraint", "abc"),
        ("constraint", NoRepeats),
    ],
)
def test_wrong_arguments(name: str, value: Any) -> None:
    with pytest.raises(InvalidParamsError, match=name) as caught:
        ParticleFilter(**{name: value})
    assert caught.value.parameter == name


def _after_letters(context: Any, logits: Any) -> None:
    logits[LETTERS[0]] += 4.0


#: Of every field that a run applies: a value that changes its result, and what it is given together with.
APPLIED: dict[str, tuple[Any, dict[str, Any]]] = {
    "temperature": (0.5, {}),
    "top_p": (0.4, {}),
    "top_k": (3, {}),
    "min_p": (0.5, {}),
    "seed": (2, {}),
    "max_tokens": (3, {}),
    "min_tokens": (5, {"logit_bias": {EOS: 4.0}}),
    "stop_token_ids": ([LETTERS[0]], {}),
    "eos_token_id": ([LETTERS[0]], {}),
    "ignore_eos": (True, {"logit_bias": {EOS: 4.0}}),
    "presence_penalty": (2.0, {}),
    "frequency_penalty": (2.0, {}),
    "repetition_penalty": (1.5, {}),
    "penalty_last_n": (1, {"repetition_penalty": 1.5}),
    "no_repeat_ngram_size": (1, {}),
    "dry_multiplier": (3.0, {"dry_allowed_length": 1, "allowed_token_ids": list(LETTERS)}),
    "dry_base": (9.0, {"dry_multiplier": 0.5, "dry_allowed_length": 1, "allowed_token_ids": list(LETTERS)}),
    "dry_allowed_length": (1, {"dry_multiplier": 3.0, "allowed_token_ids": list(LETTERS)}),
    "dry_penalty_last_n": (1, {"dry_multiplier": 3.0, "dry_allowed_length": 1, "allowed_token_ids": list(LETTERS)}),
    "dry_sequence_breakers": (["+"], {"dry_multiplier": 3.0, "dry_allowed_length": 1, "allowed_token_ids": list(LETTERS)}),
    "typical_p": (0.5, {}),
    "epsilon_cutoff": (0.2, {}),
    "eta_cutoff": (0.3, {}),
    "top_h": (0.3, {}),
    "top_n_sigma": (0.5, {}),
    "p_less": (True, {}),
    "xtc_probability": (1.0, {}),
    "xtc_threshold": (0.01, {"xtc_probability": 1.0}),
    "dynatemp_range": (1.5, {}),
    "dynatemp_exponent": (9.0, {"dynatemp_range": 1.5}),
    "sampler_order": (["top_p", "temperature"], {"top_p": 0.4}),
    "steering": ({1: np.linspace(-9.0, 9.0, 64)}, {}),
    "sparse_attention": ({"method": "streaming", "sinks": 1, "window": 1}, {}),
    "logit_bias": ({LETTERS[0]: 4.0}, {}),
    "bad_words": ([[LETTERS[0]]], {"logit_bias": {LETTERS[0]: 4.0}}),
    "allowed_token_ids": (list(LETTERS), {}),
    "logits_processors": ([_after_letters], {}),
    "skip_special_tokens": (False, {"logit_bias": {EOS: 4.0}, "ignore_eos": True}),
}

#: Of every other field: a value that is refused.
REFUSED: dict[str, Any] = {
    "n": 2,
    "stop": ["x"],
    "stop_regex": "x",
    "repetition_detection": {"max_pattern_size": 2, "min_count": 3},
    "thinking_token_budget": 3,
    "logprob_token_ids": [1],
    "include_stop_str_in_output": True,
    "mirostat": 2,
    "mirostat_tau": 3.0,
    "mirostat_eta": 0.2,
    "adaptive_p": 0.0,
    "adaptive_p_decay": 0.5,
    "guidance_scale": 3.0,
    "negative_prompt": [1, 2],
    "dola_layers": [1],
    "dola_rule": "transformers",
    "penalty_alpha": 0.5,
    "structured_outputs": NoRepeats(),
    "stopping_criteria": [lambda context: False],
    "sampler": lambda context, law: 1,
    "logprobs": 0,
    "prompt_logprobs": 0,
    "detokenize": False,
    "output_kind": "delta",
}


def test_every_parameter_is_applied_or_refused() -> None:
    assert {*APPLIED} == parameters.APPLIED and {*REFUSED} == {*parameters.REFUSED}, "every entry of both is tested"


@pytest.mark.parametrize("name", APPLIED)
def test_applied_parameters_have_an_effect(llm: LLM, name: str) -> None:
    value, others = APPLIED[name]
    base = {"temperature": 2.0, "max_tokens": 6, "seed": 1, **others}
    without, out = (ParticleFilter(64).run(llm, PROMPT, **{**base, **own}) for own in ({}, {name: value}))
    assert without.texts() != out.texts() if name == "skip_special_tokens" else without.law() != out.law()


@pytest.mark.parametrize(
    ("name", "value"),
    [*REFUSED.items(), ("adaptive_p", 0.5), ("xtc_probability", 0.5), ("logprobs", 2), ("prompt_logprobs", 1), ("dola_layers", "high"),
     ("beam_width", 4), ("max_tokens", 100), ("max_tokens", 0), ("temperature", -1)],
)  # fmt: skip
def test_refused_sampling_params(llm: LLM, name: str, value: Any) -> None:
    more = {"top_k": 4} if name == "penalty_alpha" else {}
    with pytest.raises(InvalidParamsError, match=name) as caught:
        ParticleFilter(4).run(llm, PROMPT, **{name: value}, **more)
    assert caught.value.parameter == name


def test_refusals_name_the_filter_and_spare_what_sets_nothing(llm: LLM) -> None:
    for given in ({"mirostat": 2}, {"num_beams": 4, "do_sample": True}):
        with pytest.raises(UnsupportedCombinationError, match="ParticleFilter"):
            ParticleFilter(4).run(llm, PROMPT, **given)
    with pytest.raises(UnsupportedCombinationError, match="beam search"):
        ParticleFilter(4).run(llm, PROMPT, llmi.BeamSearchParams(beam_width=2))  # type: ignore[arg-type]
    with pytest.raises(InvalidParamsError, match="llm must be an LLM"):
        ParticleFilter(4).run(None, PROMPT)  # type: ignore[arg-type]
    plain = ParticleFilter(4).run(llm, PROMPT, max_tokens=2, seed=1)
    for field in ({"guidance_scale": 1.0}, {"adaptive_p": -3.0}, {"stop": []}, {"stopping_criteria": []}, {"num_beams": 1}):
        assert ParticleFilter(4).run(llm, PROMPT, max_tokens=2, seed=1, **field) == plain, field


def test_a_constrained_sequence_is_no_prompt(llm: LLM) -> None:
    with llm.sequence(PROMPT) as sequence:
        sequence.constrain(NoRepeats())
        for prompt in (sequence, sequence.fork()):
            with pytest.raises(UnsupportedCombinationError, match="a ParticleFilter would not: give constraint="):
                ParticleFilter(4).run(llm, prompt, max_tokens=2)
        sequence.constrain(None)
        assert ParticleFilter(4).run(llm, sequence, max_tokens=2, seed=1) == ParticleFilter(4).run(llm, PROMPT, max_tokens=2, seed=1)


def test_steering_is_that_of_generate(llm: LLM) -> None:
    """The law of the steered model, also where the prompt is a sequence without it."""
    steering = {1: np.linspace(-9.0, 9.0, 64)}
    token_ids = llm.generate(PROMPT, temperature=0, max_tokens=4, steering=steering)[0].token_ids
    assert token_ids != llm.generate(PROMPT, temperature=0, max_tokens=4)[0].token_ids
    with llm.sequence(PROMPT) as sequence:
        for prompt in (PROMPT, sequence):
            out = ParticleFilter(4).run(llm, prompt, temperature=0, max_tokens=4, steering=steering)
            assert list(out.law()) == [tuple(token_ids)]


@pytest.mark.slow
def test_plot(llm: LLM) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` brings matplotlib").use("agg")
    out = GUIDED.run(llm, PROMPT, max_tokens=5, seed=2, temperature=3.0)
    figure = out.plot()
    assert len(figure.axes) == 2
    assert out._alive()[-1].all() and not out._alive()[0].all()
