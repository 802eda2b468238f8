"""What ranks gather in a step is what `llmi inspect --tp` says."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from llmi import LLM, _core
from llmi.cli.rank_lines import parse_degrees, parse_link, rank_lines
from llmi.models.inspection import inspect_model
from llmi.ranks import forecast, workers
from llmi.testing import tiny_model
from rank_threads import RankThreads, decoder_on_ranks
from spec_models import LATENT_PARTS, MIXERS, PARTS, TinyModel, mixture

MODELS = {**PARTS, **LATENT_PARTS, **{f"mixture {seed}": mixture(seed) for seed in range(8)}, **dict.fromkeys(MIXERS, PARTS["window"])}


@pytest.mark.parametrize("name", MODELS)
def test_the_bytes_of_a_step(name: str, tmp_path: Path) -> None:
    """One row, a few, and more than an MLP takes at once. Each step has the logits of all of its rows."""
    model = TinyModel(MODELS[name])
    if name in MIXERS:
        model.mix(1, name)
    path = model.save(tmp_path)
    try:
        _core.check_ranks(model.json(), str(path), 2, [])
    except _core.CoreError:
        pytest.skip("no rule splits it")
    numbers = _core.spec_numbers(model.json(), str(path))
    files = _core.ModelFiles(str(path))
    for count in (2, 3):
        group = _core.RankGroup(count, spins=False)
        with decoder_on_ranks(files, model.json(), count, group=group) as decoder:
            for num_sequences, length in ((1, 1), (1, 5), (10, 30)):
                pieces = [(decoder.new_sequence(), [7] * length, None) for _ in range(num_sequences)]
                num_rows = num_sequences * length
                before = group.traffic
                decoder.forward(pieces, [])
                after = group.traffic
                expected = forecast.gathers(model.spec, numbers, num_rows, num_rows, count, num_sequences)
                assert (after["num_gathers"] - before["num_gathers"], after["gathered_bytes"] - before["gathered_bytes"]) == expected
                assert after["num_tells"] - before["num_tells"] == 4


def test_a_running_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt's step, and one for each further token."""
    monkeypatch.setattr(workers, "Ranks", RankThreads)
    path = tiny_model("gemma3", vocab_size=4200, path=tmp_path)
    report = inspect_model(path)
    spec = forecast.spec_fields(report)
    with LLM(path, kv_cache_memory_bytes=1 << 22, tensor_parallel_size=3) as llm:
        before = llm._ranks.group.traffic  # type: ignore[union-attr]
        llm.generate([list(range(5, 40))], max_tokens=9, ignore_eos=True)
        after = llm._ranks.group.traffic  # type: ignore[union-attr]
    counts, sizes = zip(forecast.gathers(spec, report.config, 35, 1, 3), *[forecast.gathers(spec, report.config, 1, 1, 3)] * 8, strict=True)
    assert after["num_gathers"] - before["num_gathers"] == sum(counts)
    assert after["gathered_bytes"] - before["gathered_bytes"] == sum(sizes)


def test_what_inspect_says(tmp_path: Path) -> None:
    """The ranks' parts add up, a link's time is latency and bytes, and ranks of a slow network are slower from 2 on."""
    report = inspect_model(tiny_model(vocab_size=8200, hidden_size=128, path=tmp_path))
    ranks = forecast.shares(report, 3)
    split = [tensor for tensor in report.tensors if tensor.name in ranks[0].held["held"]]
    whole = sum(tensor.num_bytes for tensor in report.tensors) - sum(tensor.num_bytes for tensor in split)
    assert sum(rank.weight_bytes - whole for rank in ranks) == sum(tensor.num_bytes for tensor in split)
    assert sum(rank.held["vocabulary"] for rank in ranks) == 8200
    slow = parse_link("2000,0.1")
    assert slow.exchange_s(4, 10, 1_000_000) == pytest.approx(10 * 0.002 * 2 + 750_000 / 12.5e6)
    assert forecast.slower_from(report, slow, 1e10, 1e11) == 2
    lines = rank_lines(report, [2, 3], [], slow, 1e10, 1e11)
    assert f"{max(rank.weight_bytes for rank in ranks) / 1e6:,.1f} MB of weights" in lines[4] and lines[-1].endswith(
        "2 ranks decode slower than 1"
    )


@pytest.mark.parametrize("text", ["2x", "0", "2,,3", "", "257", "-1"])
def test_wrong_degrees(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="numbers in"):
        parse_degrees(text)


@pytest.mark.parametrize("text", ["5", "wifi", "0,1", "nan,1", "1,2,3", "-5,10", "1,inf"])
def test_wrong_links(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="US,GBPS"):
        parse_link(text)


def test_stages(tmp_path: Path) -> None:
    """Each layer is in one stage; a token of one sequence passes them all, and a message goes from each to the next."""
    report = inspect_model(tiny_model(vocab_size=8200, num_layers=5, path=tmp_path))
    one, two = forecast.shares(report, 1), forecast.shares(report, 1, 2)
    layers = [share.held["layers"] for share in two]
    assert layers[0][0] == 0 and layers[0][1] == layers[1][0] and layers[1][1] == 5 and layers[0][1] < 3  # the head is the first one's
    assert sum(share.kv_bytes for share in two) == one[0].kv_bytes
    link = parse_link("100,1")
    times = [forecast.forecast(report, found, link, 1e9, 1e12) for found in (one, two)]
    norms = sum(share.read_bytes for share in two) - one[0].read_bytes  # each has them
    expected = times[0].decode_s + norms / 1e9 + 2 * (1e-4 + 4 * 64 / 125e6)
    assert times[1].decode_s == pytest.approx(expected) and times[1].num_stages == 2
    assert any("in each of 2 stages" in line for line in rank_lines(report, [2], [2], link, 1e9, 1e12))
