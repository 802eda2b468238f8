"""Heads in "auto": found by the model's digest, run where they are worth their time, and deaf to other requests where drafts are judged."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from features import crowded_llm, enumerable_llm, expect_short_answers
from llmi import LLM, Eagle, ModelFileError, Outputs, SamplingParams, SpeculativeConfig
from llmi.models.safetensors_file import read_safetensors, write_safetensors
from llmi.speculation import auto
from llmi.testing import assert_lossless, assert_same_tokens
from llmi.testing.tiny import save_safetensors
from packed_heads import pack_all
from tiny_eagle import tiny_eagle

SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 23, "max_model_len": 256}
PARAMS = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, detokenize=False)


def ship(llm: LLM, folder: Path, digest: str | None = None, table: bool = True, good: bool = True) -> None:
    """Puts heads for the model into the folder, as `python benchmarks/ship.py` writes them, and a table of its vocabulary."""
    heads = tiny_eagle(llm, folder / "heads", layer_scale=0.3 if good else 30.0)
    config = json.loads((heads / "config.json").read_text())
    config["llmi"] = {"kind": "eagle", "target_digest": digest or llm.model_info.sha256}
    tensors, _ = read_safetensors(heads / "model.safetensors")
    if not good:
        tensors = {name: -tensor for name, tensor in tensors.items()}
    write_safetensors(folder / "eagle.safetensors", pack_all(tensors), {"config": json.dumps(config)})
    shutil.rmtree(heads)
    if table:
        drafter = llmi.CorpusDrafter([list(range(1, 60))])
        llm.generate([[1]], max_tokens=2, speculative_config=drafter)
        drafter.save(folder / "corpus.safetensors")


def forget() -> None:
    auto.shipped_table.cache_clear()
    auto._config_of.cache_clear()


@pytest.fixture(scope="module")
def model(tiny_path: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of so many layers that the drafter's own is a small part of a step, and of so weak ones that the drafter can be right."""
    folder = tmp_path_factory.mktemp("model") / "weak"
    shutil.copytree(tiny_path("llama", vocab_size=64, num_layers=15), folder)
    tensors, _ = read_safetensors(folder / "model.safetensors")
    weak = {name: tensor * np.float32(0.05) for name, tensor in tensors.items() if name.endswith(("o_proj.weight", "down_proj.weight"))}
    save_safetensors(folder / "model.safetensors", {**tensors, **weak})
    return folder


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[LLM]:
    with LLM(model, **SMALL) as llm:
        yield llm


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder instead of what is installed."""
    monkeypatch.setattr(auto, "SHIPPED", tmp_path)
    forget()
    yield tmp_path
    forget()


def prompt(seed: int, size: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(1, 64, size)]


def metrics(outputs: Outputs) -> Any:
    found = outputs[0].outputs[0].spec_decode_metrics
    assert found is not None
    return found


def test_heads_are_found_by_the_digest(plain: LLM, model: Path, shipped: Path, caplog: pytest.LogCaptureFixture) -> None:
    ship(plain, shipped)
    prompts = [prompt(i, 5 + 9 * i) for i in range(4)]
    params = [PARAMS, PARAMS.replace(temperature=0.7, seed=3), PARAMS.replace(n=2, temperature=1, seed=1), PARAMS]
    expected = plain.generate(prompts, params)
    with LLM(model, speculative_config="auto", **SMALL) as llm, caplog.at_level(logging.INFO, "llmi"):
        outputs = llm.generate(prompts, params)
        assert_same_tokens(outputs, expected)
        assert metrics(outputs).drafter == "Eagle+CorpusDrafter+PromptLookup"
        report = llm.memory_report()
        assert report.drafter_bytes > 30_000 and report.draft_kv_bytes == report.kv_bytes // 16, (
            "fifteen layers and the drafter's, of equal size"
        )
        assert "of the KV" in repr(report)
        assert_same_tokens(llm.generate(prompts, params, speculative_config=SpeculativeConfig("auto")), expected)
        both = llm.generate(prompts, params, speculative_config=SpeculativeConfig(["auto", lambda context: [1]]))
        assert_same_tokens(both, expected)
    assert not [line for line in caplog.messages if "train-heads" in line]
    with LLM(model, speculative_config=["auto", Eagle(shipped / "eagle.safetensors")], **SMALL) as llm:
        outputs = llm.generate(prompts, params)
        assert_same_tokens(outputs, expected)
        assert metrics(outputs).drafter == "CorpusDrafter+PromptLookup+Eagle", "one layer drafts once"


def test_heads_draft_where_the_others_have_nothing(plain: LLM, model: Path, shipped: Path) -> None:
    """Of a text that is drawn, so that nothing is copied in it: what is accepted comes from the heads."""
    ship(plain, shipped, table=False)
    prompts = [prompt(10 + i, 12) for i in range(6)]
    params = PARAMS.replace(temperature=4, seed=1)

    def accepted(llm: LLM, drafter: Any) -> int:
        outputs = llm.generate(prompts, params, speculative_config=SpeculativeConfig(drafter, verification="rejection"))
        return sum(metrics(Outputs([output])).num_accepted_tokens for output in outputs)

    with LLM(model, speculative_config="auto", **SMALL) as llm:
        counts = {
            name: accepted(llm, drafter) for name, drafter in {"auto": "auto", "heads": Eagle(shipped / "eagle.safetensors", 4)}.items()
        }
    lookup = accepted(plain, [llmi.PromptLookup(), llmi.PromptLookup()])
    assert min(counts.values()) > 70 > 1.5 * lookup, (counts, lookup)


def test_judged_drafts_that_are_sized_have_no_siblings(plain: LLM, model: Path, shipped: Path) -> None:
    """Each would be verified whether it is worth its row or not; a draft of a fixed size has those that were asked for."""
    ship(plain, shipped, table=False)
    heads = Eagle(shipped / "eagle.safetensors", choices=[(0,), (1,), (0, 0), (0, 1)])

    def places(config: SpeculativeConfig) -> list[tuple[int, int]]:
        """(position, depth) of each drafted token that a walk has met."""
        outputs = llm.generate(prompt(90, 12), PARAMS.replace(temperature=4, seed=1), speculative_config=config, trace=True)
        columns = outputs[0].outputs[0].trace.to_dict()
        rows = zip(*(columns[name] for name in ("position", "depth", "drafted")), strict=True)
        return [(int(position), int(depth)) for position, depth, drafted in rows if drafted]

    with LLM(model, speculative_config=heads, **SMALL) as llm:
        sized, fixed = (places(SpeculativeConfig(heads, number, "rejection")) for number in ("auto", 4))
    assert len(sized) == len(set(sized)) > 3
    assert len(fixed) > len(set(fixed)) > 3


def test_a_model_without_heads_gets_a_line(plain: LLM, model: Path, shipped: Path, caplog: pytest.LogCaptureFixture) -> None:
    ship(plain, shipped, digest="0" * 64)
    with caplog.at_level(logging.INFO, "llmi"), LLM(model, speculative_config="auto", **SMALL) as llm:
        for _ in range(2):
            assert metrics(llm.generate(prompt(1, 9), PARAMS)).drafter == "CorpusDrafter+PromptLookup"
        assert llm.memory_report().draft_kv_bytes == 0
    lines = [line for line in caplog.messages if "llmi train-heads" in line]
    assert len(lines) == 1 and "no heads" in lines[0]
    assert not [line for line in caplog.messages if "trained on" in line]
    caplog.clear()
    ship(plain, shipped)
    forget()
    with caplog.at_level(logging.INFO, "llmi"), LLM(model, **SMALL) as llm:
        assert metrics(llm.generate(prompt(1, 9), PARAMS, speculative_config="auto")).drafter == "CorpusDrafter+PromptLookup"
    assert [line for line in caplog.messages if "loaded with it" in line]


def test_damaged_heads_are_refused(plain: LLM, model: Path, shipped: Path) -> None:
    ship(plain, shipped, table=False)
    whole = (shipped / "eagle.safetensors").read_bytes()
    (shipped / "eagle.safetensors").write_bytes(whole[:-5])
    with pytest.raises(ModelFileError, match=r"eagle\.safetensors"):
        LLM(model, speculative_config="auto", **SMALL)


@pytest.mark.skipif(os.environ.get("LLMI_EMULATE_CUDA") == "0", reason="switched off")
@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_on_a_device(plain: LLM, model: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch, verification: str) -> None:
    """Heads run there, and under coupled verification no token depends on them."""
    ship(plain, shipped)
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    config = SpeculativeConfig("auto", verification=verification)
    with LLM(model, device="cuda", speculative_config=config, **SMALL) as emulated:
        prompts = [prompt(80 + i, 12) for i in range(3)]
        params = PARAMS.replace(max_tokens=24, temperature=0.5, seed=2)
        outputs = emulated.generate(prompts, params)
        assert sum(metrics(Outputs([output])).num_accepted_tokens for output in outputs) > 0
        if verification == "coupled":
            assert_same_tokens(outputs, emulated.generate(prompts, params, speculative_config=None))


def test_bad_heads_are_hardly_run(plain: LLM, model: Path, shipped: Path) -> None:
    """Heads that are nearly always wrong: a short answer has few drafts, and a later one fewer."""
    ship(plain, shipped, table=False, good=False)
    params = SamplingParams(temperature=1.5, max_tokens=64, ignore_eos=True, seed=3)
    with LLM(model, speculative_config=SpeculativeConfig("auto", verification="rejection"), **SMALL) as llm:
        for i in range(3):
            m = metrics(llm.generate([i + 1, 2, 3], params))
            assert 0 < m.num_draft_tokens - m.num_accepted_tokens <= 24
    with LLM(model, speculative_config="auto", **SMALL) as llm:
        drafted = [metrics(llm.generate([i + 1, 2, 3], params)) for i in range(6)]
        assert all(m.num_draft_tokens - m.num_accepted_tokens <= 24 for m in drafted)
        assert sum(m.num_drafts for m in drafted[3:]) <= 24


@pytest.mark.parametrize("verification", ["rejection", "block"])
def test_nothing_that_others_did_reaches_a_draft(plain: LLM, model: Path, shipped: Path, verification: str) -> None:
    """Alone on an engine without a past; after others; after hits, one of them made without a drafter; among others under preemption."""
    ship(plain, shipped)
    config = SpeculativeConfig("auto", verification=verification)
    prompts = [(prompt(20 + i, 6) * 6)[: 18 + 2 * i] for i in range(8)]
    temperatures = (0.0, 0.3, 1.0)
    params = [
        SamplingParams(max_tokens=40, seed=i, ignore_eos=True, temperature=temperatures[i % 3], top_k=12, n=1 + (i == 4)) for i in range(8)
    ]

    def runs(outputs: Outputs) -> list[tuple[Any, ...]]:
        entries = [entry for output in outputs for entry in output.outputs]
        numbers = [entry.spec_decode_metrics for entry in entries]
        return [
            (list(entry.token_ids), m.num_drafts, m.num_draft_tokens, m.num_accepted_tokens)
            for entry, m in zip(entries, numbers, strict=True)
        ]

    alone = []
    for item, entry in zip(prompts, params, strict=True):
        with LLM(model, speculative_config=config, **SMALL) as fresh:
            alone += runs(fresh.generate(item, entry))
    assert sum(drafted for _, _, drafted, _ in alone) > 100
    with LLM(model, speculative_config=config, **SMALL) as llm:
        llm.generate([item[:9] for item in prompts], params[::-1])
        for item, entry in zip(prompts, params, strict=True):  # under "coupled" the engine learns for all requests
            llm.generate(item, entry, speculative_config="auto")
        assert runs(llm.generate(prompts, params)) == alone, "after others"
        llm.reset_prefix_cache()
        llm.generate(prompts, params, speculative_config=None)
        assert runs(llm.generate(prompts, params)) == alone, "after hits without a drafter"
        assert runs(llm.generate(prompts, params)) == alone, "after hits"
    with crowded_llm(model, 13, max_model_len=140, max_num_batched_tokens=48, speculative_config=config) as crowded:
        expect_short_answers(crowded)
        before = crowded.get_metrics()["num_preemptions"]
        assert runs(crowded.generate(prompts, params)) == alone, "under pressure"
        assert crowded.get_metrics()["num_preemptions"] > before


@pytest.mark.parametrize("verification", ["coupled", "rejection", "block"])
def test_lossless(tiny_path: Callable[..., Path], shipped: Path, verification: str) -> None:
    with enumerable_llm(tiny_path, num_layers=15) as model:
        ship(model, shipped, table=False)
        path = model.model_info.path
    config = SpeculativeConfig("auto", verification=verification)
    with LLM(path, kv_cache_memory_bytes=1 << 24, max_model_len=128, speculative_config=config) as llm:
        assert_lossless(config, llm, num_tokens=150)


def test_under_pressure(plain: LLM, model: Path, shipped: Path) -> None:
    ship(plain, shipped)
    prompts = [prompt(60 + i, 5 + 7 * i) for i in range(8)]
    params = PARAMS.replace(max_tokens=50)
    expected = plain.generate(prompts, params)
    with crowded_llm(model, 18, max_model_len=110, max_num_batched_tokens=24, speculative_config="auto") as crowded:
        for _ in range(3):
            expect_short_answers(crowded)
            assert_same_tokens(crowded.generate(prompts, params), expected)
        assert crowded.get_metrics()["num_preemptions"] > 0


def test_what_is_installed_is_what_was_made() -> None:
    """The shipped files have the digests that their receipt says, and take at most 4 MB."""
    folder = Path(llmi.__file__).parent / "speculation" / "shipped"
    files = [path.name for path in folder.glob("*.safetensors")]
    digests = json.loads((Path(__file__).parents[2] / "benchmarks/results/shipped-heads.json").read_text())["files"]
    assert sorted(digests) == sorted(files) and sum((folder / name).stat().st_size for name in files) <= 4_000_000
    for name, digest in digests.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
