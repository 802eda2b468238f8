"""The decode trace: one row a token tried, equal with and without speculation where it must be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from llmi import LLM, DecodeTrace, SamplingParams, SpeculativeConfig
from test_speculation import Replay

PARAMS = SamplingParams(max_tokens=40, seed=3, temperature=0.9, top_p=0.9, ignore_eos=True, logprobs=1)


def trace_of(out: llmi.RequestOutput, index: int = 0) -> DecodeTrace:
    trace = out.outputs[index].trace
    assert trace is not None
    return trace


def test_plain_decoding(tiny: LLM) -> None:
    out = tiny.generate([[1, 2, 3]], PARAMS, trace=True)[0]
    columns = trace_of(out).to_dict()
    assert columns["token_id"].tolist() == out.token_ids
    assert columns["position"].tolist() == list(range(3, 43)) and set(columns["depth"]) == {1}
    assert out.outputs[0].logprobs is not None
    for i, entries in enumerate(out.outputs[0].logprobs):
        entry = entries[out.token_ids[i]]
        assert (columns["raw_logprob"][i], columns["processed_logprob"][i], columns["rank"][i]) == (
            entry.logprob,
            entry.processed_logprob,
            entry.rank,
        )
    assert np.isnan(columns["accepted"]).all() and not columns["drafted"].any()
    assert (columns["num_kept"] >= 1).all() and (columns["num_kept"] < 257).any()
    assert (np.diff(columns["time_s"]) >= 0).all() and (np.diff(columns["step"]) == 1).all()
    assert tiny.generate([[1, 2, 3]], PARAMS)[0].outputs[0].trace is None
    assert out == tiny.generate([[1, 2, 3]], PARAMS)[0]


def test_the_noise_explains_the_draw(tiny: LLM) -> None:
    """The drawn token wins the race: the least noise - processed log-probability of all kept ones."""
    out = tiny.generate([[1, 2, 3]], PARAMS.replace(max_tokens=1), trace=True)[0]
    law = tiny.sequence([1, 2, 3]).probs(PARAMS)
    row = trace_of(out).to_dict()
    rivals = [
        trace_of(tiny.generate([[1, 2, 3]], PARAMS.replace(max_tokens=1, allowed_token_ids=[int(token)]), trace=True)[0]).to_dict()[
            "noise"
        ][0]
        - np.log(law[token])
        for token in np.flatnonzero(law)
    ]
    assert row["noise"][0] - row["processed_logprob"][0] == pytest.approx(min(rivals), abs=1e-5)


@pytest.mark.parametrize("tree", [False, True])
def test_speculation_tries_more_and_emits_the_same(tiny: LLM, tree: bool, tmp_path: Path) -> None:
    plain = tiny.generate([[5, 6, 7]], PARAMS, trace=True)
    config = SpeculativeConfig(Replay(plain, tree=tree), 9 if tree else 4)
    drafted = tiny.generate([[5, 6, 7]], PARAMS, speculative_config=config, trace=True)
    assert drafted == plain
    a, b = trace_of(plain[0]), trace_of(drafted[0])
    assert a.diff(b) is None and b.diff(a) is None
    columns, metrics = b.to_dict(), drafted[0].outputs[0].spec_decode_metrics
    assert metrics is not None and np.nansum(columns["accepted"]) == metrics.num_accepted_tokens
    assert columns["depth"].max() > 2 and (columns["accepted"] == 0).sum() > 0
    kept = columns["accepted"] != 0
    assert columns["token_id"][kept].tolist() == plain[0].token_ids
    assert (columns["draft_prob"][columns["drafted"]] == 1).all()
    b.save(tmp_path / "t.npz")
    again = DecodeTrace.load(tmp_path / "t.npz")
    assert again.diff(b) is None and again.tokens == b.tokens
    assert "line-through" in b._repr_html_() and "accepted" in repr(b)
    other = tiny.generate([[5, 6, 7]], PARAMS.replace(seed=4), trace=True)
    difference = a.diff(trace_of(other[0]))
    assert difference is not None and difference.token_id != difference.other_token_id


def test_rejection_and_samples(tiny: LLM, tiny_path: Callable[..., Path]) -> None:
    with LLM(tiny_path("llama", seed=5), kv_cache_memory_bytes=1 << 22, max_model_len=128) as draft:
        config = SpeculativeConfig(llmi.DraftModel(draft), 3, "rejection")
        out = tiny.generate([[1, 2]], PARAMS.replace(n=2), speculative_config=config, trace=True)[0]
    for completion in out.outputs:
        columns = trace_of(out, completion.index).to_dict()
        assert columns["token_id"][columns["accepted"] != 0].tolist() == completion.token_ids
        drafted = columns["draft_prob"][columns["drafted"]]
        assert ((drafted > 0) & (drafted <= 1)).all() and (drafted < 1).any()


def test_greedy_and_pandas(tiny: LLM) -> None:
    pandas = pytest.importorskip("pandas")
    out = tiny.generate([[1, 2]], temperature=0, max_tokens=5, ignore_eos=True, trace=True)[0]
    frame = trace_of(out).to_pandas()
    assert isinstance(frame, pandas.DataFrame) and frame.noise.isna().all() and (frame.num_kept == 1).all()
    assert list(frame.processed_logprob) == [0.0] * 5


def test_what_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"nothing")
    with pytest.raises(llmi.InvalidParamsError, match="not a trace"):
        DecodeTrace.load(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", step=np.zeros(3))
    with pytest.raises(llmi.InvalidParamsError, match="not a trace"):
        DecodeTrace.load(tmp_path / "y.npz")


def test_explain_tells_why(tiny: LLM, tmp_path: Path) -> None:
    """Each stage is the law's own, and the largest score is the token that was drawn."""

    def processor(context: llmi.TokenContext, logits: Any) -> None:
        logits[7] += 2.0

    params = PARAMS.replace(
        max_tokens=12,
        repetition_penalty=1.3,
        logit_bias={9: 4.0},
        allowed_token_ids=list(range(5, 250)),
        logits_processors=[processor],
        min_p=0.02,
    )
    trace = trace_of(tiny.generate([[1, 2, 3]], params, trace=True)[0])
    tokens = trace.to_dict()["token_id"].tolist()
    for i, token in enumerate(tokens):
        page = trace.explain(3 + i).to_dict()
        raw = tiny.sequence([1, 2, 3, *tokens[:i]]).logits
        ids = page["token_id"]
        assert ids[0] == token and page["chosen"].tolist() == [True] + [False] * (len(ids) - 1)
        assert page["score"][0] == max(page["score"])
        assert_same_bits(page["raw"], raw[ids])
        masked = raw.copy()
        masked[:5] = masked[250:] = -np.inf
        masked[9] += np.float32(4.0)
        assert_same_bits(page["masked"], masked[ids], masked="tokens are excluded")
        seen = np.isin(ids, [1, 2, 3, *tokens[:i]])
        factor = np.float32(1.3)
        penalised = np.where(masked[ids] > 0, masked[ids] / factor, masked[ids] * factor)
        assert_same_bits(page["penalised"], np.where(seen, penalised, masked[ids]), masked="tokens are excluded")
        assert_same_bits(page["processed"], page["penalised"] + np.float32(2.0) * (ids == 7), masked="tokens are excluded")
        assert_same_bits(page["tempered"], page["processed"] / np.float32(0.9), masked="tokens are excluded")
    trace.save(tmp_path / "t.npz")
    loaded = DecodeTrace.load(tmp_path / "t.npz").explain(5)
    assert repr(loaded) == repr(trace.explain(5)) and "penalised" in repr(loaded) and loaded.to_pandas().shape[0] == len(loaded.tokens)
    assert "<table>" in loaded._repr_html_()
    with pytest.raises(llmi.InvalidParamsError, match="no position 2: it has 3 to 14"):
        trace.explain(2)


@pytest.mark.parametrize(
    "fields",
    [
        {"adaptive_p": 0.0},
        {"adaptive_p": 0.3, "min_p": 0.02},
        {"sampler_order": ["temperature", "frequency_penalty"], "frequency_penalty": 0.5},
        {"sampler_order": ["top_k", "temperature", "dry_multiplier"], "top_k": 50, "dry_multiplier": 1.0},
        {"mirostat": 2},
        {"top_p": 0.8},
        {"penalty_alpha": 0.9, "top_k": 4, "temperature": 0},
    ],
    ids=str,
)
def test_the_largest_score_is_drawn(tiny: LLM, fields: dict[str, Any]) -> None:
    params = SamplingParams(**{"temperature": 0.8, "max_tokens": 40, "seed": 3, "ignore_eos": True, **fields})
    trace = trace_of(tiny.generate([[1, 2, 3]], params, trace=True)[0])
    for position in range(3, 43):
        page = trace.explain(position).to_dict()
        assert page["chosen"][0] and page["score"][0] == max(page["score"]) > -np.inf
        assert np.array_equal(page["kept"], page["drawn"] > -np.inf)
    if "penalty_alpha" in fields:
        assert page["kept"].sum() == 4


def test_a_search_without_draws_has_no_noise(tiny: LLM) -> None:
    common: dict[str, Any] = {"beam_width": 6, "max_tokens": 4}
    for fields, draws in (({"num_beam_groups": 3, "diversity_penalty": 0.05}, False), ({"do_sample": True, "seed": 1}, True)):
        trace = trace_of(tiny.generate([[1, 2, 3]], llmi.BeamSearchParams(**common, **fields), trace=True)[0])
        assert np.isfinite(trace.to_dict()["noise"]).all() == draws and np.isnan(trace.to_dict()["noise"]).all() != draws


def test_explain_at_temperature_zero(tiny: LLM) -> None:
    trace = trace_of(tiny.generate([[1, 2, 3]], PARAMS.replace(temperature=0, max_tokens=3), trace=True)[0])
    page = trace.explain(4).to_dict()
    assert np.isnan(page["noise"]).all() and page["score"][0] == page["raw"].max() and "tempered" not in repr(trace.explain(4))


@pytest.mark.parametrize("speculates", [False, True])
def test_what_a_mask_cost_the_law(tiny: LLM, speculates: bool) -> None:
    """The mass that the free law gives to forbidden tokens, and the KL, at each position: from the rows themselves, in float64."""
    allowed = list(range(97, 123))
    params = SamplingParams(
        max_tokens=12, seed=3, temperature=0.7, ignore_eos=True, allowed_token_ids=allowed, logit_bias={97: 3.0, 98: float("-inf")}
    )
    plain = tiny.generate([[1, 2, 3]], params, trace=True)
    out = (
        tiny.generate([[1, 2, 3]], params, trace=True, speculative_config=SpeculativeConfig(Replay(plain, tree=False), 4))[0]
        if speculates
        else plain[0]
    )
    cost = trace_of(out).mask_cost()
    assert cost.positions.tolist() == list(range(3, 15))
    for i, (mass, kl) in enumerate(zip(cost.forbidden_mass, cost.kl, strict=True)):
        raw = tiny.sequence([1, 2, 3, *out.token_ids[:i]]).logits.astype(np.float64)
        law = np.exp(raw - raw.max())
        law /= law.sum()
        kept = [token for token in allowed if token != 98]
        masked = law[kept] / law[kept].sum()
        assert mass == pytest.approx(1 - law[kept].sum(), rel=1e-6) and 0 < mass < 1
        assert kl == pytest.approx(float((masked * np.log(masked / law[kept])).sum()), rel=1e-6)
    assert cost.total_kl == pytest.approx(cost.kl.sum()) and "12 of them limited" in repr(cost)
    assert cost == trace_of(plain[0]).mask_cost()


def test_a_mask_of_nearly_nothing_or_all_is_exact(tiny: LLM, tmp_path: Path) -> None:
    def cost(**params: Any) -> llmi.MaskCost:
        trace = trace_of(tiny.generate([[1, 2, 3]], max_tokens=1, seed=1, trace=True, **params)[0])
        trace.save(tmp_path / "t.npz")
        assert DecodeTrace.load(tmp_path / "t.npz").mask_cost() == trace.mask_cost()
        return trace.mask_cost()

    free = cost()
    assert free.forbidden_mass.tolist() == free.kl.tolist() == [0.0] and "0 of them limited" in repr(free)
    raw = tiny.sequence([1, 2, 3]).logits.astype(np.float64)
    least = int(raw.argmin())
    total = np.log(np.exp(raw - raw.max()).sum()) + raw.max()
    one = cost(logit_bias={least: float("-inf")})
    assert one.forbidden_mass[0] == pytest.approx(np.exp(raw[least] - total), rel=1e-9)
    alone = cost(allowed_token_ids=[least])
    assert alone.kl[0] == pytest.approx(total - raw[least], rel=1e-9) and alone.forbidden_mass[0] == pytest.approx(
        1 - np.exp(raw[least] - total)
    )
    beams = trace_of(tiny.generate([[1, 2, 3]], beam_width=2, max_tokens=2, trace=True)[0])
    assert np.isnan(beams.mask_cost().kl).all(), "rows of beams are not kept"
