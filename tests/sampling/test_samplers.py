"""Every sampler against its definition in NumPy, bit for bit, and against transformers where that has it; state, refusals, and the lab."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sampler_oracle as oracle
from bits import assert_same_bits
from llmi import (
    LLM,
    InvalidParamsError,
    PromptLookup,
    SamplingParams,
    SpeculativeConfig,
    TokenSequence,
    TokenTree,
    UnsupportedCombinationError,
    _core,
)
from llmi.params.beams import BEAM_ALIASES, BEAMS
from llmi.params.foreign_options import CALL_FOREIGN
from llmi.params.sampling import ALIASES, SAMPLING
from llmi.params.steps import COMPANIONS, FILTERS, ORDERS, STEPS

T = _core.testing
Array = np.ndarray[Any, Any]
VOCAB = 300
FIELDS = [name for name in vars(_core.SamplingParams) if not name.startswith("_")]

#: Of laws that filters have left, and of the odd rows below.
ODD = {"masked": "filters leave tokens out", "equal_rows": "a row of ties has one value throughout"}


def rows(count: int = 12) -> Iterator[Array]:
    """Random rows and odd ones: ties, cut tokens, one token left, all equal."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        row = (rng.standard_normal(VOCAB) * (0.3, 1.0, 3.0, 8.0, 40.0)[seed % 5]).astype(np.float32)
        if seed % 3 == 1:
            row[rng.integers(0, VOCAB, 40)] = row[rng.integers(0, VOCAB)]
        if seed % 4 == 2:
            row[rng.random(VOCAB) < 0.7] = -np.inf
            row[5] = 1.0
        if seed % 5 == 3:
            row[:20] = row.max() + 1  # ties at the top
        yield row
    one = np.full(VOCAB, -np.inf, np.float32)
    one[77] = -3.5
    yield one
    two = one.copy()
    two[12] = -3.5
    yield two
    yield np.zeros(VOCAB, np.float32)


def core(**fields: Any) -> Any:
    params = _core.SamplingParams()
    params.max_tokens = 100
    for name, value in fields.items():
        setattr(params, name, value)
    return params


def values_of(params: Any) -> dict[str, Any]:
    return {name: getattr(params, name) for name in FIELDS}


def core_state(state: oracle.State) -> Any:
    result = _core.SamplerState()
    result.mu, result.weighted_sum, result.total_weight = state.mu, state.weighted_sum, state.total_weight
    return result


def both(params: Any, row: Array, tokens: list[int], state: oracle.State | None = None, sample_index: int = 0) -> tuple[Array, Array]:
    """(llmi's law, NumPy's)."""
    values = values_of(params)
    state = state or oracle.State.first(values)
    token = int(np.flatnonzero(row > -np.inf)[0])
    law, _ = T.law_and_next_state(params, tokens, core_state(state), row, token, sample_index)
    expected, _ = oracle.law(row, tokens, len(tokens), values, state, sample_index)
    return law, expected


ALONE: list[dict[str, Any]] = [
    {"typical_p": 0.2},
    {"typical_p": 0.9},
    {"typical_p": 0.999999},
    {"epsilon_cutoff": 3e-4},
    {"epsilon_cutoff": 0.4},
    {"eta_cutoff": 3e-4},
    {"eta_cutoff": 0.3},
    {"top_h": 0.4},
    {"top_h": 1.0},
    {"top_h": 1e-6},
    {"top_n_sigma": 0.5},
    {"top_n_sigma": 1.7},
    {"top_n_sigma": 1e30},
    {"top_n_sigma": 0.0},
    {"p_less": True},
    {"xtc_probability": 1.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.51},
    {"xtc_probability": 0.5, "xtc_threshold": 0.002},
    {"dynatemp_range": 0.5},
    {"dynatemp_range": 3.0, "dynatemp_exponent": 2.5, "temperature": 0.7},
    {"dynatemp_range": 0.5, "dynatemp_exponent": 0.0},
    {"mirostat": 1},
    {"mirostat": 1, "mirostat_tau": 0.3},
    {"mirostat": 1, "mirostat_tau": 40.0},
    {"mirostat": 2},
    {"mirostat": 2, "mirostat_tau": 1.2, "temperature": 0.6},
    {"mirostat": 2, "mirostat_tau": 0.0},
    {"adaptive_p": 0.0},
    {"adaptive_p": 0.3},
    {"adaptive_p": 1.0, "adaptive_p_decay": 0.0},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 3},
    {"penalty_last_n": 0, "repetition_penalty": 1.5},
    {"penalty_last_n": 5, "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25},
    {"dry_multiplier": 0.8},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_base": 1.0},
    {"dry_multiplier": 1e30, "dry_base": 1e30, "dry_allowed_length": 1},
    {"dry_multiplier": 0.8, "dry_breakers": [[7], [9, 11]]},
    {"dry_multiplier": 0.8, "dry_penalty_last_n": 9},
    {"dry_multiplier": 0.8, "dry_penalty_last_n": 0},
]
HISTORY = [3, 7, 9, 11, 3, 7, 9, 11, 5, 3, 7, 9, 3, 7, 9]


@pytest.mark.parametrize("case", ALONE, ids=str)
def test_each_sampler_equals_numpy(case: dict[str, Any]) -> None:
    for seed, row in enumerate(rows()):
        row[HISTORY[seed % 9]] = max(row.max(), 0)  # something for penalties to change
        law, expected = both(core(seed=seed, **case), row, HISTORY)
        assert_same_bits(law, expected, seed, **ODD)
        assert (law > -np.inf).any()


def random_fields(rng: np.random.Generator) -> dict[str, Any]:
    """A set of parameters with several steps."""
    choices: dict[str, list[Any]] = {
        "temperature": [0.5, 1.0, 1.3],
        "min_p": [0.01, 0.2],
        "top_k": [1, 7, 60],
        "top_p": [0.5, 0.95],
        "typical_p": [0.3, 0.9],
        "epsilon_cutoff": [1e-3, 0.1],
        "eta_cutoff": [1e-3, 0.1],
        "top_h": [0.3, 0.9],
        "top_n_sigma": [0.7, 2.0],
        "p_less": [True],
        "xtc_probability": [0.5, 1.0],
        "dynatemp_range": [0.3, 2.0],
        "adaptive_p": [0.0, 0.2, 0.8],
        "dry_multiplier": [0.5, 2.0],
        "no_repeat_ngram_size": [2, 3],
        "repetition_penalty": [1.3],
        "frequency_penalty": [0.4],
        "presence_penalty": [-0.3],
        "penalty_last_n": [4],
    }
    names = rng.choice(list(choices), size=int(rng.integers(1, 7)), replace=False)
    fields = {str(name): choices[name][int(rng.integers(len(choices[name])))] for name in names}
    if rng.random() < 0.5:
        fields["sampler_order"] = [str(name) for name in rng.permutation(STEPS)]
    return fields


def test_steps_in_any_order_equal_numpy() -> None:
    source = list(rows(10))
    for seed in range(400):
        rng = np.random.default_rng(seed)
        fields = random_fields(rng)
        history = rng.integers(0, 12, size=int(rng.integers(1, 40))).tolist()
        law, expected = both(core(seed=seed, **fields), source[seed % len(source)], history, sample_index=seed % 3)
        assert_same_bits(law, expected, (fields, history), **ODD)


def test_state_follows_the_drawn_tokens() -> None:
    """Mirostat and adaptive_p over many positions, on draws from a peer that need not keep to the law."""
    for fields in ({"mirostat": 1, "mirostat_eta": 0.5}, {"mirostat": 2, "mirostat_tau": 2.0}, {"adaptive_p": 0.4, "min_p": 0.01}):
        params = core(**fields)
        values = values_of(params)
        ours, theirs = _core.SamplerState(), oracle.State.first(values)
        rng = np.random.default_rng(1)
        for position in range(30):
            row = (rng.standard_normal(VOCAB) * 4).astype(np.float32)
            expected, before = oracle.law(row, [1], 1, values, theirs)
            kept = np.flatnonzero(expected > -np.inf)
            token = int(rng.integers(VOCAB)) if position % 4 == 3 else int(rng.choice(kept))
            law, ours = T.law_and_next_state(params, [1], ours, row, token, 0)
            assert_same_bits(law, expected, **ODD)
            theirs = theirs.after(values, expected, before, token)
            if position:
                assert (
                    (ours.mu == theirs.mu)
                    if params.mirostat
                    else (ours.weighted_sum, ours.total_weight) == (theirs.weighted_sum, theirs.total_weight)
                )


def test_no_state_at_temperature_0() -> None:
    row = next(rows())
    _, state = T.law_and_next_state(core(mirostat=2, temperature=0.0), [1], _core.SamplerState(), row, int(row.argmax()), 0)
    assert math.isnan(state.mu)
    law, _ = T.law_and_next_state(core(typical_p=0.1, top_k=3, xtc_probability=1.0, temperature=0.0), [1], _core.SamplerState(), row, 0, 0)
    assert_same_bits(law, row)


@pytest.mark.parametrize(
    ("field", "value"),
    [("typical_p", 0.0), ("epsilon_cutoff", 1.0), ("eta_cutoff", -0.1), ("top_h", 1.5), ("top_n_sigma", math.inf), ("xtc_probability", 2.0),
     ("xtc_threshold", math.nan), ("dynatemp_range", -1.0), ("dynatemp_exponent", math.inf), ("mirostat", 3), ("mirostat_tau", -1.0),
     ("mirostat_eta", math.nan), ("adaptive_p", 1.1), ("adaptive_p_decay", 1.0), ("penalty_last_n", -2), ("no_repeat_ngram_size", -1),
     ("dry_multiplier", -1.0), ("dry_base", 0.5), ("dry_allowed_length", 0), ("dry_penalty_last_n", -2), ("sampler_order", ["top_q"]),
     ("sampler_order", ["top_k", "top_k"])],
)  # fmt: skip
def test_the_core_refuses_values_out_of_range(field: str, value: Any) -> None:
    with pytest.raises(_core.CoreError) as error:
        T.process_logits(core(**{field: value}), [0], 1, next(rows()))
    assert error.value.kind == "invalid_argument" and error.value.field == field


def test_the_core_refuses_an_order_that_lacks_a_step() -> None:
    with pytest.raises(_core.CoreError, match="lacks 'typical_p'"):
        T.process_logits(core(typical_p=0.5, sampler_order=["temperature"]), [0], 1, next(rows()))


# --- transformers' own samplers


def warpers() -> dict[str, tuple[Callable[[float], Any], list[float]]]:
    """By name: transformers' class, and values to try."""
    from transformers.generation import logits_process as process

    return {
        "typical_p": (process.TypicalLogitsWarper, [0.2, 0.9]),
        "epsilon_cutoff": (process.EpsilonLogitsWarper, [3e-4, 0.1]),
        "eta_cutoff": (process.EtaLogitsWarper, [3e-4, 0.1]),
        "top_h": (process.TopHLogitsWarper, [0.3, 0.8]),
    }


def borders(name: str, row: Array, value: float) -> Array:
    """How far each token is from the reference's border: in probability, or in the quantity that is summed."""
    p = np.exp(row.astype(np.float64) - row.max())
    p /= p.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = -np.log(p)
        entropy = float(np.nansum(np.where(p > 0, p * surprise, 0)))
    if name in ("epsilon_cutoff", "eta_cutoff"):
        return np.abs(p - (value if name == "epsilon_cutoff" else min(value, math.sqrt(value) * math.exp(-entropy))))
    order = np.lexsort((np.arange(len(row)), np.abs(surprise - entropy))) if name == "typical_p" else oracle.ranked(row)[:100]
    terms = p[order] if name == "typical_p" else p[order] / p[order].sum() * -np.log(p[order] / p[order].sum())
    sums = np.cumsum(terms)
    wanted = value if name == "typical_p" else value * sums[-1]
    distance = np.full(len(row), np.inf)
    distance[order] = np.minimum(np.abs(sums - wanted), np.abs(sums - terms - wanted))
    return distance


@pytest.mark.parity
@pytest.mark.parametrize("name", ["typical_p", "epsilon_cutoff", "eta_cutoff", "top_h"])
def test_kept_sets_equal_those_of_transformers(name: str) -> None:
    import torch

    make, tried = warpers()[name]
    compared = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        row = (rng.standard_normal(VOCAB) * (1.0, 3.0, 6.0)[seed % 3]).astype(np.float32)
        if seed % 4 == 1:
            row[rng.random(VOCAB) < 0.5] = -np.inf
        for value in tried:
            with torch.no_grad():
                theirs = make(value)(torch.zeros((1, 1), dtype=torch.long), torch.from_numpy(row[None].astype(np.float64)))[0].numpy()
            ours = T.process_logits(core(**{name: value}), [0], 1, row)
            if borders(name, row, value).min() < 1e-5:
                continue
            compared += 1
            assert np.array_equal(ours > -np.inf, theirs > -np.inf), (seed, value)
    assert compared > 60


@pytest.mark.parity
def test_repeated_ngrams_equal_those_of_transformers() -> None:
    import torch
    from transformers.generation import logits_process as process

    for seed in range(50):
        rng = np.random.default_rng(seed)
        history, size = rng.integers(0, 4, size=int(rng.integers(1, 30))).tolist(), 1 + seed % 4
        theirs = process.NoRepeatNGramLogitsProcessor(size)(torch.tensor([history]), torch.zeros((1, 6)))[0].numpy()
        ours = T.process_logits(core(no_repeat_ngram_size=size), history, len(history), np.zeros(6, np.float32))
        assert np.array_equal(ours > -np.inf, theirs > -np.inf), (history, size)


# --- the public parameters


@pytest.fixture(scope="module")
def llm(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=200) as made:
        yield made


PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]
CHANGES: dict[str, Any] = {
    "typical_p": 0.2, "epsilon_cutoff": 0.01, "eta_cutoff": 0.02, "top_h": 0.3, "top_n_sigma": 0.5, "p_less": True, "xtc_probability": 1.0,
    "dynatemp_range": 0.9, "mirostat": 2, "adaptive_p": 0.5, "dry_multiplier": 30.0, "no_repeat_ngram_size": 1, "penalty_last_n": 2,
    "sampler_order": "llama.cpp",
}  # fmt: skip
COMPANION_CHANGES: dict[str, Any] = {
    "xtc_threshold": 0.001, "dynatemp_exponent": 4.0, "mirostat_tau": 1.0, "mirostat_eta": 5.0, "adaptive_p_decay": 0.0, "dry_base": 3.0,
    "dry_allowed_length": 9, "dry_penalty_last_n": 3, "dry_sequence_breakers": ["f"],
}  # fmt: skip
BASE: dict[str, Any] = {"max_tokens": 40, "seed": 3, "ignore_eos": True, "temperature": 0.9, "repetition_penalty": 1.3, "min_p": 0.002}


def generate(llm: LLM, **params: Any) -> list[int]:
    return llm.generate([PROMPT], use_tqdm=False, **{**BASE, **params})[0].token_ids


def test_every_field_changes_tokens(llm: LLM) -> None:
    assert {*CHANGES, *COMPANION_CHANGES} >= {*FILTERS, *COMPANIONS} - {"temperature", "min_p", "top_k", "top_p"}
    for name, value in CHANGES.items():
        more: dict[str, Any] = {"min_p": 0.0} if name == "mirostat" else {}
        if name == "dry_multiplier":
            more = {"allowed_token_ids": [5, 6, 7, 8]}  # so that much is repeated
        assert generate(llm, **{name: value}, **more) != generate(llm, **more), name


@pytest.mark.parametrize("name", COMPANIONS)
def test_every_companion_changes_the_law(llm: LLM, name: str) -> None:
    owner = COMPANIONS[name]
    base = {"temperature": 0.5, "seed": 5, owner: {"mirostat": 2, "dry_multiplier": 2.0, "xtc_probability": 1.0}.get(owner, CHANGES[owner])}
    e, f, g = (llm.tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "efg")

    def laws(**more: Any) -> list[Any]:
        params, result = SamplingParams(**base, **more), []
        with llm.sequence([e, f, g, e, f, g, 200, e, f, g, e, f], seed=4) as sequence:
            for _ in range(5):  # state
                result.append(sequence.probs(params))
                sequence.extend([sequence.sample(params)])
        return result

    assert not np.array_equal(laws(), laws(**{name: COMPANION_CHANGES[name]})), name


def test_hugging_face_and_llama_cpp_names() -> None:
    assert SamplingParams(typical=0.5).typical_p == 0.5  # type: ignore[call-arg]
    assert SamplingParams(mirostat_mode=2).mirostat == 2  # type: ignore[call-arg]
    assert SamplingParams(repeat_last_n=64).penalty_last_n == 64  # type: ignore[call-arg]
    assert SamplingParams(adaptive_target=0.3, adaptive_decay=0.5).adaptive_p_decay == 0.5  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["typical_p", "top_k", "top_n_sigma", "xtc_probability", "adaptive_p", "p_less", "top_h", "min_p"])
def test_mirostat_takes_no_other_filter(llm: LLM, name: str) -> None:
    value = {"top_k": 5, "min_p": 0.1}.get(name, CHANGES.get(name))
    with pytest.raises(UnsupportedCombinationError, match=f"mirostat.*{name}"):
        llm.generate([PROMPT], mirostat=1, **{name: value})
    llm.generate([PROMPT], mirostat=1, temperature=0.7, dynatemp_range=0.2, repetition_penalty=1.2, dry_multiplier=1.0, max_tokens=2)


def test_orders(llm: LLM) -> None:
    for order, message in [
        (("top_k", "top_k"), "'top_k' twice"),
        (("temperature",), "lacks 'top_k'"),
        ("hf", "lacks 'top_n_sigma'"),
        (("min_p", "top_q"), "sampler_order"),
        ("exllama", "sampler_order"),
        (("logit_bias", "top_k"), "sampler_order"),
    ]:
        more = {"top_n_sigma": 2.0} if order == "hf" else {}
        with pytest.raises(InvalidParamsError, match=message) as error:
            llm.generate([PROMPT], top_k=5, sampler_order=order, **more)
        assert error.value.parameter == "sampler_order"
        with pytest.raises(InvalidParamsError, match=message):
            SamplingParams(top_k=5, sampler_order=order, **more).validate()  # without a model
    fields = {"temperature": 0.5, "top_p": 0.8, "top_k": 20, "min_p": 0.05, "typical_p": 0.7, "repetition_penalty": 1.2}
    for preset, names in ORDERS.items():
        assert generate(llm, **fields, sampler_order=preset) == generate(llm, **fields, sampler_order=list(names))
    assert generate(llm, **fields, sampler_order=STEPS) == generate(llm, **fields)
    assert generate(llm, **fields, sampler_order="hf") != generate(llm, **fields, sampler_order="llama.cpp")


def test_xtc_is_refused_where_rows_come_again(llm: LLM) -> None:
    config = SpeculativeConfig(PromptLookup(), 3, verification="block")
    with pytest.raises(UnsupportedCombinationError, match=r"xtc_probability.*'block'"):
        llm.generate([PROMPT], xtc_probability=0.5, speculative_config=config)
    llm.generate([PROMPT], xtc_probability=0.5, temperature=0, max_tokens=2, speculative_config=config)
    llm.generate(
        [PROMPT], xtc_probability=0.5, max_tokens=2, speculative_config=SpeculativeConfig(PromptLookup(), 3, verification="rejection")
    )


def test_what_changes_nothing_is_shown_so(llm: LLM) -> None:
    resolved = llm.generate([PROMPT], temperature=0, top_k=5, typical_p=0.5, xtc_threshold=0.2, dry_multiplier=1.0, max_tokens=1)[
        0
    ].params_resolved
    assert {name for name, (_, source) in resolved.items() if source == "no effect"} >= {"top_k", "typical_p", "xtc_threshold"}
    assert resolved["top_k"] == (5, "no effect") and resolved["dry_multiplier"] == (1.0, "user") and resolved["top_p"] == (1.0, "default")
    assert generate(llm, temperature=0, typical_p=0.5, adaptive_p=0.2) == generate(llm, temperature=0)
    resolved = llm.generate([PROMPT], mirostat_tau=3.0, top_k=5, max_tokens=1)[0].params_resolved
    assert resolved["mirostat_tau"] == (3.0, "no effect") and resolved["top_k"] == (5, "user")


def test_mirostat_and_orders_outrank_the_models_own_filters(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    for file in tiny_path().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"top_k": 64, "top_p": 0.95, "typical_p": 0.9, "no_repeat_ngram_size": 3}')
    with LLM(tmp_path, kv_cache_memory_bytes=1 << 20, max_model_len=64) as llm:
        assert llm.generate([PROMPT], max_tokens=1)[0].params_resolved["typical_p"] == (0.9, "model")
        resolved = llm.generate([PROMPT], mirostat=2, max_tokens=1)[0].params_resolved
        assert resolved["top_k"] == (64, "no effect") and resolved["no_repeat_ngram_size"] == (3, "model")
        resolved = llm.generate([PROMPT], sampler_order=["top_p"], max_tokens=1)[0].params_resolved
        assert resolved["top_k"] == (64, "no effect") and resolved["top_p"] == (0.95, "model")
        with pytest.raises(UnsupportedCombinationError, match=r"mirostat.*top_k"):
            llm.generate([PROMPT], mirostat=2, top_k=3)


#: Names of decoding methods elsewhere (transformers, vLLM, SGLang, llama.cpp, koboldcpp, exllamav3).
_KNOWN_ELSEWHERE = """typical_p epsilon_cutoff eta_cutoff top_h top_n_sigma xtc_probability dynatemp_range mirostat dry_multiplier guidance_scale
negative_prompt penalty_alpha dola_layers sampler_order no_repeat_ngram_size num_beams beam_width bad_words_ids adaptive_p watermarking
watermarking_config use_beam_search best_of num_beam_groups diversity_penalty force_words_ids min_length thinking_token_budget top_a tfs_z
smoothing_factor exponential_decay_length_penalty xtc_threshold dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers
dynatemp_exponent mirostat_tau mirostat_eta adaptive_p_decay p_less penalty_last_n"""


@pytest.mark.parametrize("name", _KNOWN_ELSEWHERE.split())
def test_each_name_has_a_meaning_or_a_reason(llm: LLM, name: str) -> None:
    if name in SAMPLING or name in ALIASES or name in ("num_beams", "beam_width"):
        assert {**BEAMS, **SAMPLING}[{**BEAM_ALIASES, **ALIASES}.get(name, name)].doc
        return
    foreign = CALL_FOREIGN[name]
    assert len(foreign.why.split()) >= 4, "a reason, or what to do instead"
    with pytest.raises(UnsupportedCombinationError) as error:
        llm.generate([PROMPT], max_tokens=1, **{name: 7.25})
    assert name in str(error.value) and foreign.why in str(error.value)


def test_each_sample_has_its_own_coin(llm: LLM) -> None:
    fields = {"xtc_probability": 0.5, "xtc_threshold": 0.002}
    with llm.sequence(PROMPT) as sequence:
        raw = np.array(sequence.logits)
    differ = 0
    for seed in range(12):
        completions = llm.generate([PROMPT], n=6, seed=seed, max_tokens=1, ignore_eos=True, use_tqdm=False, **fields)[0].outputs
        laws = [T.law_and_next_state(core(seed=seed, **fields), PROMPT, _core.SamplerState(), raw, 0, i)[0] for i in range(6)]
        assert [c.token_ids[0] for c in completions] == [T.draw(seed, len(PROMPT), i, law) for i, law in enumerate(laws)]
        differ += any(law.tobytes() != laws[0].tobytes() for law in laws)
    assert differ > 6


# --- processors


def test_masks_hold_after_processors(llm: LLM) -> None:
    def unban(context: Any, logits: Any) -> None:
        logits[:] = 0.0
        logits[9] = 50.0

    for mask in ({"allowed_token_ids": [3, 4]}, {"bad_words": [[9]]}, {"logit_bias": {9: -math.inf}}):
        assert 9 not in generate(llm, logits_processors=[unban], **mask)
    assert generate(llm, logits_processors=[unban]) == [9] * 40
    assert max(np.bincount(generate(llm, logits_processors=[unban], no_repeat_ngram_size=1))) == 1
    assert 9 not in generate(llm, logits_processors=[unban], min_tokens=40, stop_token_ids=[9])


# --- the lab


def test_state_in_the_lab(llm: LLM) -> None:
    """sample() and extend() are generate; probs changes nothing; forks and rollbacks take the state along."""
    params = SamplingParams(mirostat=2, mirostat_tau=2.0, mirostat_eta=0.7, seed=11, max_tokens=12, ignore_eos=True)
    expected = llm.generate([PROMPT], params, use_tqdm=False)[0].token_ids
    with llm.sequence(PROMPT, seed=11) as sequence:
        counts = 0
        for i in range(6):
            law = sequence.probs(params)
            with llm.sequence(PROMPT + expected[:i], seed=11) as fresh:
                counts += not np.array_equal(fresh.probs(params), law)
            assert sequence.sample(params) == sequence.sample(params)
            sequence.extend([sequence.sample(params)])
        assert counts > 0, "the state counts"
        with sequence.fork(same_noise=True) as fork:
            for _ in range(6):
                fork.extend([fork.sample(params)])
            assert fork.token_ids.tolist() == PROMPT + expected
            fork.rollback(9)
            for _ in range(9):
                fork.extend([fork.sample(params)])
            assert fork.token_ids.tolist() == PROMPT + expected
        law = sequence.probs(params)
        other = (sequence.sample(params) + 1) % 256
        sequence.extend([other])
        sequence.rollback(1)
        assert_same_bits(sequence.probs(params), law)


def test_a_rollback_forgets_draws(llm: LLM) -> None:
    """Tokens that are appended again were not drawn, whatever was drawn there before."""
    params = SamplingParams(adaptive_p=0.3, adaptive_p_decay=0.5, top_k=20, temperature=0.5)
    with llm.sequence(PROMPT, seed=11) as rolled, llm.sequence(PROMPT, seed=11) as other:
        for sequence, length in ((rolled, 6), (other, 4)):
            for _ in range(length):
                sequence.extend([sequence.sample(params)])
        tokens, law = rolled.token_ids[-2:].tolist(), rolled.probs(params)
        rolled.rollback(2)
        for sequence in (rolled, other):
            sequence.extend(tokens)
        assert_same_bits(rolled.probs(params), other.probs(params))
        assert not np.array_equal(rolled.probs(params), law)


APPENDED: dict[str, Callable[[TokenSequence, int], object]] = {
    "sync": lambda sequence, token: sequence.sync([*sequence.token_ids, token]),
    "a sync to the same tokens": lambda sequence, token: (sequence.sync(sequence.token_ids), sequence.extend([token])),
    "a tree that was tried": lambda sequence, token: (
        sequence.extend(TokenTree([9, 10], [-1, -1])),
        sequence.rollback(0),
        sequence.extend([token]),
    ),
    "a rollback of nothing": lambda sequence, token: (sequence.rollback(0), sequence.extend([token])),
    "a tree that is kept": lambda sequence, token: (sequence.extend(TokenTree([token])), sequence.commit([0])),
}


@pytest.mark.parametrize("name", APPENDED)
def test_a_draw_counts_once_it_is_appended(llm: LLM, name: str) -> None:
    params = SamplingParams(mirostat=2, mirostat_tau=2.0, mirostat_eta=0.7)
    with llm.sequence(PROMPT, seed=11) as sequence, llm.sequence(PROMPT, seed=11) as plain:
        token = plain.sample(params)
        plain.extend([token])
        APPENDED[name](sequence, sequence.sample(params))
        assert sequence.token_ids[-1] == token
        assert_same_bits(sequence.probs(params), plain.probs(params))
        sequence.rollback(1)
        sequence.extend([token])
        assert not np.array_equal(sequence.probs(params), plain.probs(params)), "it was taken back, and is not drawn again"


def test_a_draw_behind_other_tokens_does_not_count(llm: LLM) -> None:
    params = SamplingParams(mirostat=2, mirostat_tau=2.0, mirostat_eta=0.7)
    with llm.sequence(PROMPT, seed=11) as sequence, llm.sequence(PROMPT, seed=11) as plain:
        token = sequence.sample(params)
        for changed in (sequence, plain):
            changed.sync([*PROMPT[:-1], PROMPT[-1] + 1])
            changed.sync(PROMPT)
            changed.extend([token])
        assert_same_bits(sequence.probs(params), plain.probs(params))
