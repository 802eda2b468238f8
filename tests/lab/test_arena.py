"""Replays and forecasts: what they predict is what happens."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, SamplingParams, SpeculativeConfig, TokenTree, drafter_arena, speculation_forecast
from test_speculation import Replay
from tiny_eagle import tiny_eagle

PROMPTS = [[5, 6, 7, 5, 6, 7, 5], [1, 2, 3, 4], [9, 9, 9]]
PARAMS = SamplingParams(max_tokens=60, seed=2, temperature=0.4, ignore_eos=True)


def test_the_arena_counts_what_a_run_counts(tiny: LLM, tiny_path: Callable[..., Path]) -> None:
    """At a fixed length of 16, replay and run draft and accept the same tokens."""
    plain = tiny.generate(PROMPTS, PARAMS)
    replay = Replay(plain, error_rate=0.2)
    with LLM(tiny_path("llama", seed=5), kv_cache_memory_bytes=1 << 22, max_model_len=256) as draft:
        drafters: dict[str, Any] = {
            "lookup": llmi.PromptLookup(),
            "replay": replay,
            "model": llmi.DraftModel(draft),
            "none": lambda context: None,
        }
        report = drafter_arena(plain, drafters)
        for row in report:
            outs = tiny.generate(PROMPTS, PARAMS, speculative_config=SpeculativeConfig(drafters[row.drafter], 16))
            metrics = [out.outputs[0].spec_decode_metrics for out in outs]
            assert row.num_accepted_tokens == sum(m.num_accepted_tokens for m in metrics if m)
            assert row.num_draft_tokens == sum(m.num_draft_tokens for m in metrics if m)
            assert row.num_drafts == sum(m.num_drafts for m in metrics if m)
    assert report[1].acceptance_rate > 0.1 and report[3].num_drafts == 0
    assert "lookup" in repr(report) and "<table>" in report._repr_html_()
    frame = report.to_pandas()
    assert set(frame.drafter) == set(drafters) and frame[frame.drafter == "replay"].acceptance.iloc[0] == pytest.approx(0.8, abs=0.15)


@pytest.mark.parametrize("sampler", [{"mirostat": 2}, {"adaptive_p": 0.5}], ids=str)
def test_samplers_that_remember(tiny: LLM, tiny_path: Callable[..., Path], sampler: dict[str, Any]) -> None:
    """The recorded tokens do not say what the sampler remembered, on which the draft model's laws depend."""
    plain = tiny.generate(PROMPTS, PARAMS.replace(temperature=0.8, seed=3, **sampler))
    with (
        LLM(tiny_path("llama", seed=5), kv_cache_memory_bytes=1 << 22, max_model_len=256) as draft,
        pytest.raises(llmi.LlmiError, match="run the drafter"),
    ):
        drafter_arena(plain, {"model": llmi.DraftModel(draft)})


def test_trees_in_the_arena(tiny: LLM) -> None:
    plain = tiny.generate([[1, 2, 3]], PARAMS.replace(max_tokens=12))
    future = plain[0].token_ids

    def tree(context: llmi.DraftContext) -> Any:
        done = len(context.token_ids) - context.prompt_len
        return TokenTree.from_paths([[0, 1], future[done : done + 3]], max_nodes=context.num_speculative_tokens)

    [row] = drafter_arena(plain, {"tree": tree})
    metrics = (
        tiny.generate([[1, 2, 3]], PARAMS.replace(max_tokens=12), speculative_config=SpeculativeConfig(tree, 16))[0]
        .outputs[0]
        .spec_decode_metrics
    )
    assert metrics is not None and row.num_accepted_tokens == metrics.num_accepted_tokens > 5
    with pytest.raises(llmi.UnsupportedCombinationError, match="no target"):
        drafter_arena(plain, {"draws": lambda context: context.draw([0.0] * 257)[0]})
    with pytest.raises(llmi.InvalidParamsError, match="one drafter"):
        drafter_arena(plain, {"two": SpeculativeConfig([tree, tree])})


@pytest.mark.parametrize("length", [1, 4, 20])
def test_the_arena_drafts_as_many_as_it_is_told(tiny: LLM, length: int) -> None:
    plain = tiny.generate(PROMPTS, PARAMS)
    config = SpeculativeConfig(llmi.PromptLookup(), length)
    [row] = drafter_arena(plain, {"lookup": config})
    metrics = [out.outputs[0].spec_decode_metrics for out in tiny.generate(PROMPTS, PARAMS, speculative_config=config)]
    assert row.num_draft_tokens == sum(m.num_draft_tokens for m in metrics if m) > 0
    assert row.num_accepted_tokens == sum(m.num_accepted_tokens for m in metrics if m)
    assert row.tried[length:] == [0] * len(row.tried[length:]) and sum(row.accepted) == row.num_accepted_tokens
    vllms = {"method": "ngram", "num_speculative_tokens": length, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
    assert drafter_arena(plain, {"lookup": vllms}) == [row]
    wide = drafter_arena(plain, {"short": SpeculativeConfig(llmi.PromptLookup(), 1), "long": SpeculativeConfig(llmi.PromptLookup(), 20)})
    assert [len(each.tried) for each in wide] == [20, 20], "a heat map has one width"


def test_the_arena_refuses_what_it_does_not_count(tiny: LLM) -> None:
    plain = tiny.generate(PROMPTS, PARAMS)

    class Policy:
        def choose(self, acceptance: Any, cost_curve: Any, num_running: int) -> int:
            return 1

    for name, config in {
        "verification": SpeculativeConfig(llmi.PromptLookup(), 4, "typical"),
        "num_speculative_tokens": SpeculativeConfig(llmi.PromptLookup(), Policy()),
    }.items():
        with pytest.raises(llmi.UnsupportedCombinationError) as error:
            drafter_arena(plain, {"it": config})
        assert error.value.parameter == name
    with pytest.raises(llmi.DraftError, match="20 tokens where at most 16"):
        drafter_arena(plain, {"long": lambda context: [1] * 20})


def drafters_of_the_package(draft: LLM) -> dict[str, Any]:
    return {
        "PromptLookup": llmi.PromptLookup(),
        "CorpusDrafter": llmi.CorpusDrafter([[5, 6, 7, 5, 6, 7, 5], [1, 2, 3, 4]]),
        "DraftModel": llmi.DraftModel(draft),
        "SelfDraft": llmi.SelfDraft(exit_layer=2),
        "TokenRecycling": llmi.TokenRecycling(),
        "Lookahead": llmi.Lookahead(2, 3),
        "auto": "auto",
        "a capture": Captures(),
        "draws": lambda context: context.draw(np.arange(257, dtype=np.float32))[0],
    }


class Captures(llmi.Drafter):
    """Drafts what the last row's hidden state says, by its sign."""

    capture = llmi.Capture(hidden_states=[1])

    def propose(self, context: llmi.DraftContext) -> list[int]:
        return [int(context.hidden_states[1][0] > 0) + 5, 6]


def test_the_arena_takes_every_drafter(tiny: LLM, tiny_path: Callable[..., Path]) -> None:
    """Those that read the target's rows are run with it, and refused by name without it. At a fixed length all count what the engine
    counts."""
    plain = tiny.generate(PROMPTS, PARAMS)
    with LLM(tiny_path("llama", seed=5), kv_cache_memory_bytes=1 << 22, max_model_len=256) as draft:
        drafters = drafters_of_the_package(draft)
        report = drafter_arena(plain, {name: drafter for name, drafter in drafters.items() if name != "TokenRecycling"}, llm=tiny)
        for row in report:
            config: Any = "auto" if row.drafter == "auto" else SpeculativeConfig(drafters[row.drafter], 16)
            metrics = [out.outputs[0].spec_decode_metrics for out in tiny.generate(PROMPTS, PARAMS, speculative_config=config)]
            if row.drafter != "auto":  # whose length follows this machine's timing
                assert row.num_draft_tokens == sum(m.num_draft_tokens for m in metrics if m) > 0, row.drafter
                assert row.num_accepted_tokens == sum(m.num_accepted_tokens for m in metrics if m), row.drafter
            assert sum(row.accepted) == row.num_accepted_tokens and all(a <= t for a, t in zip(row.accepted, row.tried, strict=True))
        assert drafter_arena(plain, {"TokenRecycling": llmi.TokenRecycling()}, llm=tiny)[0].num_draft_tokens > 0
        for name in ("TokenRecycling", "Lookahead", "auto", "a capture", "draws"):
            with pytest.raises(llmi.UnsupportedCombinationError, match="llm="):
                drafter_arena(plain, {name: drafters[name]})
        forecast = speculation_forecast(tiny, PROMPTS, drafters, PARAMS)
        assert [row.name for row in forecast] == list(drafters) and all(row.speed_up > 0 for row in forecast)
    with (
        LLM(tiny_path("llama", seed=6), kv_cache_memory_bytes=1 << 22) as another,
        pytest.raises(llmi.UnsupportedCombinationError, match="other tokens on this LLM"),
    ):
        drafter_arena(plain, {"recycling": llmi.TokenRecycling()}, llm=another)


def test_the_arena_runs_eagle(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    path = tiny_path("llama")
    with LLM(path, kv_cache_memory_bytes=1 << 24) as alone:
        heads = tiny_eagle(alone, tmp_path / "heads")
    eagle = llmi.Eagle(heads, 3)
    with LLM(path, kv_cache_memory_bytes=1 << 24, speculative_config=eagle) as target:
        plain = target.generate(PROMPTS, PARAMS, speculative_config=None)
        [row] = drafter_arena(plain, {"eagle": SpeculativeConfig(eagle, 3)}, llm=target)
        metrics = [
            out.outputs[0].spec_decode_metrics for out in target.generate(PROMPTS, PARAMS, speculative_config=SpeculativeConfig(eagle, 3))
        ]
        assert row.num_draft_tokens == sum(m.num_draft_tokens for m in metrics if m) > 0
        assert row.num_accepted_tokens == sum(row.accepted) == sum(m.num_accepted_tokens for m in metrics if m)
    with pytest.raises(llmi.UnsupportedCombinationError, match="llm="):
        drafter_arena(plain, {"eagle": eagle})


def test_the_forecast_is_of_the_given_length(tiny: LLM) -> None:
    plain = tiny.generate(PROMPTS, PARAMS)
    useless = Replay(plain, error_rate=1.0)
    [auto, given] = speculation_forecast(tiny, PROMPTS, {"auto": useless, "given": SpeculativeConfig(useless, 5)}, PARAMS)
    assert (auto.best_length, auto.speed_up, len(auto.speed_up_by_length)) == (0, 1.0, 17)
    assert given.best_length == 0 and len(given.speed_up_by_length) == 6
    assert given.speed_up == given.speed_up_by_length[5] < 1


def test_forecast(tiny: LLM) -> None:
    plain = tiny.generate(PROMPTS, PARAMS)
    perfect, useless = Replay(plain, error_rate=0.0), Replay(plain, error_rate=1.0)
    forecast = speculation_forecast(tiny, PROMPTS, {"perfect": perfect, "useless": useless}, PARAMS)
    assert forecast[0].acceptance[:3] == [1.0, 1.0, 1.0] and forecast[0].speed_up >= 1.0
    assert (forecast[1].best_length, forecast[1].speed_up) == (0, 1.0)
    assert "best length" in repr(forecast) and forecast.cost_curve == tiny.cost_curve()


def test_drafters_by_name(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    point = metadata.EntryPoint("mine", "llmi:PromptLookup", "llmi.drafters")
    monkeypatch.setattr(
        metadata, "entry_points", lambda group: metadata.EntryPoints([point]) if group == "llmi.drafters" else metadata.EntryPoints()
    )
    params = PARAMS.replace(max_tokens=10)
    for name in ("mine", "prompt_lookup"):
        assert tiny.generate(PROMPTS, params, speculative_config=SpeculativeConfig(name)) == tiny.generate(PROMPTS, params)
    with pytest.raises(llmi.InvalidParamsError, match="no drafter is called 'yours': auto, mine, prompt_lookup"):
        SpeculativeConfig("yours")


@pytest.mark.parity
def test_transformers_hooks(tiny: LLM) -> None:
    import torch
    import transformers

    class Ban(transformers.LogitsProcessor):  # type: ignore[misc,name-defined]
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            assert input_ids.shape[0] == scores.shape[0] == 1 and input_ids.dtype == torch.int64
            scores = scores.clone()
            scores[:, input_ids[0, -1]] = -float("inf")
            return scores

    class Long(transformers.StoppingCriteria):  # type: ignore[misc,name-defined]
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            return torch.tensor([input_ids.shape[1] >= 20])

    params = PARAMS.replace(logits_processors=[Ban(), transformers.TemperatureLogitsWarper(1.5)], stopping_criteria=[Long()])
    out = tiny.generate([PROMPTS[0]], params)[0]
    ids = [*out.prompt_token_ids, *out.token_ids]
    assert len(ids) == 20 and out.outputs[0].finish_reason == "stop"
    assert all(a != b for a, b in itertools.pairwise(ids))
    assert tiny.generate([PROMPTS[0]], params, speculative_config=llmi.PromptLookup())[0] == out


@pytest.mark.slow
def test_plots(tiny: LLM) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="the extra `plot` brings matplotlib")
    matplotlib.use("Agg")
    outputs = tiny.generate([[1, 2, 1, 2, 1]], PARAMS)
    report = llmi.drafter_arena(outputs, {"lookup": llmi.PromptLookup(), "short": llmi.PromptLookup(prompt_lookup_max=1)})
    figure = report.plot()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["lookup", "short"]
    forecast = llmi.speculation_forecast(tiny, [[1, 2, 1, 2, 1]], {"lookup": llmi.PromptLookup()}, PARAMS)
    assert len(forecast.plot().axes[0].lines) == 2
    with pytest.raises(llmi.UnsupportedCombinationError, match="no model so far"):
        llmi.drafter_arena(outputs, {"self": llmi.SelfDraft(exit_layer=1)})
