"""Beam search against its definition in NumPy (tests/support/beam_oracle.py), bit for bit, and what surrounds it: refusals, streams, receipts,
records."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import beam_oracle
import sampler_oracle
from beam_oracle import Rules
from features import DEVICES, crowded_llm, one_by_one
from llmi import (
    LLM,
    BeamSearchParams,
    Constraint,
    ConstraintError,
    Outputs,
    SamplingParams,
    _core,
)
from llmi.testing import assert_same_tokens

Array = np.ndarray[Any, Any]
PROMPT = [5, 11, 3, 17, 5, 11]
ENDS = [0, 7, 19]
CORE_FIELDS = [name for name in vars(_core.SamplingParams) if not name.startswith("_")]


@pytest.fixture(scope="module")
def path(tiny_path: Callable[..., Path]) -> Path:
    return tiny_path("llama", vocab_size=48, num_layers=2)


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=128) as llm:
        yield llm


class Rows:
    """Rows of logits by the tokens before them, computed by the lab."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.known: dict[tuple[int, ...], Array] = {}

    def __call__(self, tokens: list[int]) -> Array:
        key = tuple(tokens)
        if key not in self.known:
            with self.llm.sequence(tokens) as sequence:
                self.known[key] = np.array(sequence.logits)
        return self.known[key]


@pytest.fixture(scope="module")
def rows(llm: LLM) -> Rows:
    return Rows(llm)


def rules_of(params: BeamSearchParams, **changes: Any) -> Rules:
    shared = ("length_penalty", "length_includes_prompt", "early_stopping", "do_sample", "diversity_penalty")
    given: dict[str, Any] = {name: getattr(params, name) for name in shared}
    given |= {"width": params.beam_width, "max_tokens": int(params.max_tokens or 0), "num_groups": params.num_beam_groups}
    ends = params.eos_token_id if isinstance(params.eos_token_id, list) else ENDS[:1]
    return Rules(**{**given, "ends": frozenset(ends), "seed": params.seed or 0, **changes})


def beams(width: int, **fields: Any) -> BeamSearchParams:
    return BeamSearchParams(**{"beam_width": width, "max_tokens": 10, "eos_token_id": ENDS, **fields})


def check(output: Any, found: beam_oracle.Found, n: int | None = None) -> None:
    """Tokens, indices, reasons, and the bits of sums and scores."""
    expected = found.hypotheses[:n]
    assert [c.token_ids for c in output.outputs] == [beam.tokens for beam in expected]
    assert [c.beam_indices for c in output.outputs] == [beam.indices for beam in expected]
    assert [c.cumulative_logprob for c in output.outputs] == [beam.total for beam in expected]
    assert [c.score for c in output.outputs] == [beam.score for beam in expected]
    assert [c.finish_reason for c in output.outputs] == [beam.reason for beam in expected]


SETTINGS: list[dict[str, Any]] = [
    {"early_stopping": stopping, "length_penalty": penalty} for stopping in (False, True, "never") for penalty in (-1.0, 0.0, 1.0, 2.0, 0.7)
]


# --- the definition


def test_the_widest_search_finds_the_best_text(tiny_path: Callable[..., Path]) -> None:
    """With a beam for each text of 4 tokens and no stop before the last step, nothing better is left out."""
    with LLM(tiny_path("llama", vocab_size=4, num_layers=1, seed=5), kv_cache_memory_bytes=1 << 22, max_model_len=64) as llm:
        toy = Rows(llm)
        for penalty in (-1.0, 0.0, 1.0, 2.0):
            params = beams(64, n=1, max_tokens=4, eos_token_id=[0], length_penalty=penalty, early_stopping="never")
            output = llm.generate([[1, 2, 3]], params)[0].outputs[0]
            best = beam_oracle.exhaustive(toy, [1, 2, 3], rules_of(params))
            assert (output.token_ids, output.score) == (best.tokens, best.score)


@pytest.mark.parametrize("width", range(1, 17))
def test_each_width_equals_numpy(llm: LLM, rows: Rows, width: int) -> None:
    for i, settings in enumerate(SETTINGS[width % 3 :: 3]):
        params = beams(width, **settings, length_includes_prompt=i % 2 == 1)
        check(llm.generate([PROMPT], params)[0], beam_oracle.search(rows, PROMPT, rules_of(params)))


def test_searches_end_early_and_late(llm: LLM, rows: Rows) -> None:
    """The settings above tell the rules apart."""
    results = set()
    for settings in SETTINGS:
        found = beam_oracle.search(rows, PROMPT, rules_of(beams(4, **settings, max_tokens=16)))
        results.add((found.steps, tuple(tuple(beam.tokens) for beam in found.hypotheses)))
        check(llm.generate([PROMPT], beams(4, **settings, max_tokens=16))[0], found)
    assert len(results) >= 6 and len({steps for steps, _ in results}) >= 3


@pytest.mark.parametrize("stopping", [False, True])
def test_one_beam_is_greedy(llm: LLM, stopping: bool) -> None:
    for seed in range(6):
        prompt = np.random.default_rng(seed).integers(1, 48, size=7).tolist()
        greedy = llm.generate([prompt], temperature=0, max_tokens=20, eos_token_id=ENDS, logprobs=3)[0].outputs[0]
        beam = llm.generate([prompt], beams(1, max_tokens=20, early_stopping=stopping, logprobs=3))[0].outputs[0]
        assert (beam.token_ids, beam.text, beam.finish_reason, beam.stop_reason) == (
            greedy.token_ids,
            greedy.text,
            greedy.finish_reason,
            greedy.stop_reason,
        )
        assert [{t: e.logprob for t, e in entries.items()} for entries in beam.logprobs or []] == [
            {t: e.logprob for t, e in entries.items()} for entries in greedy.logprobs or []
        ]


def test_ties_go_by_rank_logit_and_id(llm: LLM) -> None:
    """Every candidate of a beam has the same score: one token's bias makes up for the others'."""
    allowed = [40, 12, 31, 22]

    def level(context: Any, row: Array) -> Array:
        result = np.full_like(row, -np.inf)
        result[allowed] = -1.0
        return result

    params = beams(3, max_tokens=3, logits_processors=[level])
    plain = Rows(llm)
    found = beam_oracle.search(plain, PROMPT, rules_of(params), lambda tokens, row, rank: level(None, row))
    assert len({beam.total for beam in found.hypotheses}) == 1
    check(llm.generate([PROMPT], params)[0], found)


# --- what is inside beams


def process_of(params: BeamSearchParams, llm: LLM, prompt_len: int) -> beam_oracle.Process:
    """The steps of tests/support/sampler_oracle.py on log-probabilities, with their state along each path."""
    core = llm._builder.core_params(params._settle(), params.seed or 0, 10)
    values = {name: getattr(core, name) for name in CORE_FIELDS}
    states: dict[tuple[int, ...], Any] = {}
    laws: dict[tuple[int, ...], tuple[Array, Array]] = {}

    def process(tokens: list[int], row: Array, rank: int) -> Array:
        key = tuple(tokens)
        state = sampler_oracle.State.first(values)
        if key[:-1] in laws:
            state = states[key[:-1]].after(values, *laws[key[:-1]], key[-1])
        states[key] = state
        laws[key] = sampler_oracle.law(row, tokens, prompt_len, values, state, rank)
        return laws[key][0]

    return process


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.4, "frequency_penalty": 0.3, "presence_penalty": 0.2},
        {"no_repeat_ngram_size": 2, "top_k": 6},
        {"temperature": 0.6, "top_p": 0.8, "min_p": 0.02},
        {"dry_multiplier": 1.0, "dry_allowed_length": 1, "typical_p": 0.9},
        {"mirostat": 2, "mirostat_tau": 0.5, "mirostat_eta": 0.5},
        {"adaptive_p": 0.3, "adaptive_p_decay": 0.5},
        {"xtc_probability": 0.5, "xtc_threshold": 0.02, "seed": 4},
        {"temperature": 0.0, "top_k": 2},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_penalties_and_filters_act_on_log_probabilities(llm: LLM, rows: Rows, fields: dict[str, Any]) -> None:
    params = beams(4, **fields)
    found = beam_oracle.search(rows, PROMPT, rules_of(params), process_of(params, llm, len(PROMPT)))
    check(llm.generate([PROMPT], params)[0], found)
    plain = beam_oracle.search(rows, PROMPT, rules_of(beams(4)))
    if fields["temperature" if "temperature" in fields else next(iter(fields))] != 0.0:
        assert [beam.total for beam in found.hypotheses] != [beam.total for beam in plain.hypotheses], "nothing was changed"


def banning(context: Any, row: Array) -> None:
    """Bans what this beam's path has met three steps ago, which it remembers itself."""
    seen = context.state.setdefault("seen", [])
    seen.append(int(context.token_ids[-1]))
    if len(seen) >= 3:
        row[seen[-3]] = -np.inf


def test_each_beam_has_its_own_state(llm: LLM, rows: Rows) -> None:
    def process(tokens: list[int], row: Array, rank: int) -> Array:
        path = tokens[len(PROMPT) - 1 :]
        if len(path) >= 3:
            row[path[-3]] = -np.inf
        return row

    params = beams(5, max_tokens=14, logits_processors=[banning])
    found = beam_oracle.search(rows, PROMPT, rules_of(params), process)
    check(llm.generate([PROMPT], params)[0], found)
    assert [beam.tokens for beam in found.hypotheses] != [
        beam.tokens for beam in beam_oracle.search(rows, PROMPT, rules_of(params)).hypotheses
    ]


class Parity(Constraint[int]):
    """Even and odd ids take turns; a text may end after four tokens, and must after six."""

    def initial_state(self) -> int:
        return 0

    def allowed(self, state: int) -> Iterable[int]:
        return [] if state == 6 else [token for token in range(1, 48) if token % 2 == state % 2 and token not in ENDS]

    def advance(self, state: int, token_id: int) -> int:
        return state + 1

    def is_final(self, state: int) -> bool:
        return state >= 4


def test_constraints(llm: LLM, rows: Rows) -> None:
    def process(tokens: list[int], row: Array, rank: int) -> Array:
        state = len(tokens) - len(PROMPT)
        kept = [*Parity().allowed(state), *(ENDS if state >= 4 else [])]
        result = np.full_like(row, -np.inf)
        result[kept] = row[kept]
        return result

    params = beams(4, structured_outputs=Parity(), early_stopping="never")
    found = beam_oracle.search(rows, PROMPT, rules_of(params), process)
    assert all(5 <= len(beam.tokens) <= 7 for beam in found.hypotheses)
    check(llm.generate([PROMPT], params)[0], found)


class DeadEnd(Parity):
    """Allows nothing after an odd token at the third place."""

    def __init__(self, always: bool) -> None:
        self.always = always

    def allowed(self, state: int) -> Iterable[int]:
        return [] if state >= 100 else range(1, 48)

    def advance(self, state: int, token_id: int) -> int:
        return 100 if state >= 100 or (state == 2 and (self.always or token_id % 2)) else state + 1

    def is_final(self, state: int) -> bool:
        return False


def test_a_beam_with_nothing_allowed_is_dropped(llm: LLM) -> None:
    output = llm.generate([PROMPT], beams(6, structured_outputs=DeadEnd(False), max_tokens=8))[0]
    assert output.outputs and all(c.token_ids[2] % 2 == 0 for c in output.outputs)
    with pytest.raises(ConstraintError, match="DeadEnd"):
        llm.generate([PROMPT], beams(6, structured_outputs=DeadEnd(True), max_tokens=8))

    def nothing(context: Any, row: Array) -> None:
        row[:] = -np.inf

    def nothing_later(context: Any, row: Array) -> None:
        row[:] = -np.inf if len(context.token_ids) > len(PROMPT) + 1 else row

    for groups in ({}, {"num_beam_groups": 2, "diversity_penalty": 1.0}):
        for processor in (nothing, nothing_later):
            with pytest.raises(ConstraintError, match="no beam is left"):
                llm.generate([PROMPT], beams(2, logits_processors=[processor], **groups))


def test_stop_strings_and_criteria(llm: LLM, rows: Rows) -> None:
    letters = llm.tokenizer.decode(list(range(1, 48)))
    stops = [letters[20], letters[33] + letters[5]]

    def stopped(output: list[int]) -> bool:
        return any(stop in llm.tokenizer.decode(output) for stop in stops)

    for width in (2, 5):
        params = beams(width, stop=stops, early_stopping="never", max_tokens=12)
        found = beam_oracle.search(rows, PROMPT, rules_of(params, stops=stopped))
        output = llm.generate([PROMPT], params)[0]
        check(output, found)
        for completion in output.outputs:
            assert not any(stop in completion.text for stop in stops)
            assert completion.stop_reason in (*stops, None, *ENDS)
        params = beams(width, stopping_criteria=[lambda context: int(context.token_ids[-1]) % 4 == 1 and "one"], max_tokens=12)
        found = beam_oracle.search(rows, PROMPT, rules_of(params, stops=lambda output: output[-1] % 4 == 1))
        output = llm.generate([PROMPT], params)[0]
        check(output, found)
        assert any(completion.stop_reason == "one" for completion in output.outputs)


def test_masks(llm: LLM, rows: Rows) -> None:
    allowed = [0, 7, *range(20, 40)]

    def process(tokens: list[int], row: Array, rank: int) -> Array:
        row[[token for token in range(48) if token not in allowed or (token in ENDS and len(tokens) - len(PROMPT) < 4)]] = -np.inf
        row[25] += np.float32(1.5)
        return row

    params = beams(4, allowed_token_ids=allowed, min_tokens=4, logit_bias={25: 1.5})
    check(llm.generate([PROMPT], params)[0], beam_oracle.search(rows, PROMPT, rules_of(params), process))


def test_log_probabilities_add_up(llm: LLM) -> None:
    for completion in llm.generate([PROMPT], beams(4, logprobs=2, temperature=0.7, repetition_penalty=1.2))[0].outputs:
        total = 0.0
        assert completion.logprobs is not None and len(completion.logprobs) == len(completion.token_ids)
        for token, entries in zip(completion.token_ids, completion.logprobs, strict=True):
            total += entries[token].processed_logprob
        assert total == completion.cumulative_logprob
        assert len(completion.beam_indices or []) == len(completion.token_ids)


# --- beam-sample and groups


def test_beam_sample_equals_numpy(llm: LLM, rows: Rows) -> None:
    seen = set()
    for seed, width in itertools.product(range(4), (1, 3, 8)):
        for fields in ({}, {"temperature": 1.5, "top_k": 12}):
            params = beams(width, do_sample=True, seed=seed, max_tokens=6, eos_token_id=[0], **fields)
            process = process_of(params, llm, len(PROMPT)) if fields else None
            found = beam_oracle.search(rows, PROMPT, rules_of(params), process)
            check(llm.generate([PROMPT], params)[0], found)
            seen.add(tuple(tuple(beam.tokens) for beam in found.hypotheses))
    assert len(seen) >= 20


def test_beam_sample_draws_by_its_law(tiny_path: Callable[..., Path]) -> None:
    """The first step of two beams: pairs of tokens, drawn without replacement, against enumeration."""
    runs = 1200
    with LLM(tiny_path("llama", vocab_size=5, num_layers=1, seed=3), kv_cache_memory_bytes=1 << 23, max_model_len=64) as llm:
        with llm.sequence([1, 2, 3]) as sequence:
            p = np.exp(sequence.logits.astype(np.float64) - sequence.logits.max())
        p /= p.sum()
        params = [beams(1, do_sample=True, seed=seed, max_tokens=1, ignore_eos=True, eos_token_id=None) for seed in range(runs)]
        outputs = llm.generate([[1, 2, 3]] * runs, params, use_tqdm=False)
    # K = 2 candidates are drawn; the likelier one of the pair is the result.
    expected = np.zeros(5)
    for a, b in itertools.permutations(range(5), 2):
        expected[a if (p[a], -a) > (p[b], -b) else b] += p[a] * p[b] / (1 - p[a])
    counts = np.bincount([output.token_ids[0] for output in outputs], minlength=5)
    kept = expected > 0
    assert counts[~kept].sum() == 0
    chi = float((((counts - runs * expected) ** 2)[kept] / (runs * expected[kept])).sum())
    assert chi < 23, (counts / runs, expected)  # p = 1e-4 at 4 degrees of freedom


@pytest.mark.parametrize(("width", "groups", "penalty"), [(4, 2, 0.5), (6, 3, 1.5), (6, 2, 0.1), (3, 3, 5.0)])
def test_groups_equal_numpy(llm: LLM, rows: Rows, width: int, groups: int, penalty: float) -> None:
    for settings in SETTINGS[::4]:
        params = beams(width, num_beam_groups=groups, diversity_penalty=penalty, **settings)
        check(llm.generate([PROMPT], params)[0], beam_oracle.search(rows, PROMPT, rules_of(params)))


# --- bits depend on nothing else


def many(num: int = 10) -> tuple[list[list[int]], list[Any]]:
    """Searches and samplings side by side."""
    rng = np.random.default_rng(3)
    prompts = [rng.integers(1, 48, size=int(rng.integers(1, 40))).tolist() for _ in range(num)]
    params: list[Any] = []
    for i in range(num):
        fields = {**SETTINGS[i % len(SETTINGS)], "logprobs": 1, "seed": i}
        if i % 5 == 4:
            params.append(SamplingParams(n=2, max_tokens=12, seed=i, logprobs=1, eos_token_id=ENDS))
        elif i % 5 == 3:
            params.append(beams(2 + i % 3, do_sample=True, temperature=1.2, **fields))
        elif i % 5 == 2:
            params.append(beams(4, num_beam_groups=2, diversity_penalty=0.5, n=2, **fields))
        else:
            params.append(beams(2 + i % 4, logits_processors=[banning] if i % 3 == 0 else (), **fields))
    return prompts, params


@pytest.fixture(scope="module")
def alone(llm: LLM) -> Outputs:
    return one_by_one(llm, *many())


def test_beside_others(llm: LLM, alone: Outputs) -> None:
    assert_same_tokens(llm.generate(*many()), alone)
    assert_same_tokens(llm.generate(*many()), alone)  # prefix hits


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_chunks_and_block_sizes(path: Path, alone: Outputs, block_size: int) -> None:
    with LLM(
        path, kv_cache_memory_bytes=1 << 23, max_model_len=128, block_size=block_size, max_num_batched_tokens=16, max_num_seqs=16
    ) as llm:
        assert_same_tokens(llm.generate(*many()), alone)


def test_preemption(path: Path, alone: Outputs) -> None:
    with crowded_llm(path, 13, max_model_len=64, max_num_batched_tokens=24) as llm:
        assert_same_tokens(llm.generate(*many()), alone)
        assert llm.get_metrics()["num_preemptions"] > 0


@pytest.mark.parametrize("table", _core.system_info()["tables"])
def test_instruction_sets(path: Path, alone: Outputs, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMI_ISA", table)
    with LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=128) as llm:
        assert llm._table == table
        assert_same_tokens(llm.generate(*many()), alone)


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_devices(path: Path, alone: Outputs, device: str) -> None:
    prompts, params = many()
    with LLM(path, device="cuda", kv_cache_memory_bytes=1 << 22, max_model_len=128) as llm:
        assert_same_tokens(llm.generate(prompts[:5], params[:5]), Outputs(alone[:5]))


# --- groups, against transformers 4.52.4


def test_references_of_the_last_version_with_groups(tmp_path: Path) -> None:
    """Where its ending rule finds the same texts as the later one, which llmi follows."""
    import beam_references as references

    lengths = 0
    with LLM(references.model_path(tmp_path), dtype="float32", kv_cache_memory_bytes=1 << 23, max_model_len=64) as llm:
        for case in json.loads(references.FILE.read_text()):
            options = {name: value for name, value in case.items() if name not in ("prompt", "outputs", "scores")}
            params = BeamSearchParams(**options, num_return_sequences=case["num_beams"], eos_token_id=references.ENDS)
            output = llm.generate([case["prompt"]], params)[0]
            check(output, beam_oracle.search(Rows(llm), case["prompt"], rules_of(params)))
            own = [(references.without_end(c.token_ids), pytest.approx(c.score, rel=1e-4)) for c in output.outputs]
            assert list(zip(case["outputs"], case["scores"], strict=True)) == own
            lengths += len(own)
    assert lengths == 17
