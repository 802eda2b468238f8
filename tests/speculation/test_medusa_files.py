"""Files of Medusa heads: the layouts that are read, and those that cannot be right, which are refused by one line when the model is
loaded."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, InvalidParamsError, Medusa, ModelFileError, SpeculativeConfig, UnsupportedCombinationError
from llmi.models.safetensors_file import read_safetensors, write_safetensors
from llmi.testing import assert_same_tokens
from llmi.testing.tiny import save_safetensors
from llmi.training import plan, text
from medusa_float64 import MedusaDefinition
from test_eagle import GREEDY, OPTIONS, prompt
from test_eagle_files import change_config, check_another_target, check_broken_files
from test_medusa import check_drafts, config
from tiny_medusa import tiny_medusa

PARAMS = GREEDY.replace(max_tokens=8)


@pytest.fixture(scope="module")
def model(tiny_path: Callable[..., Path]) -> Path:
    return tiny_path("llama", vocab_size=64)


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[LLM]:
    with LLM(model, kv_cache_memory_bytes=1 << 22, **OPTIONS) as llm:
        yield llm


@pytest.fixture
def heads(plain: LLM, tmp_path: Path) -> Path:
    return tiny_medusa(plain, tmp_path / "heads", shortlist=[1, 2, 3])


def loaded(model: Path, heads: Path, **arguments: Any) -> LLM:
    return LLM(model, kv_cache_memory_bytes=1 << 22, speculative_config=Medusa(heads, **arguments), **OPTIONS)


def load(model: Path, heads: Path, **arguments: Any) -> None:
    loaded(model, heads, **arguments).close()


def tensors_of(heads: Path) -> dict[str, Any]:
    return dict(read_safetensors(heads / "model.safetensors")[0])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_size": 128}, "hidden_size"),
        ({"vocab_size": 65}, "vocab_size"),
        ({"medusa_num_heads": 4}, "3.1.weight"),
        ({"medusa_num_heads": 2}, "2.0.linear"),
        ({"medusa_num_heads": None}, "medusa_num_heads"),
        ({"medusa_num_layers": 2}, "0.1.weight"),
        ({"medusa_num_heads": 0}, "medusa_num_heads"),
        ({"medusa_num_heads": 65}, "medusa_num_heads"),
        ({"medusa_num_heads": "3"}, "medusa_num_heads"),
        ({"medusa_num_layers": 10**6}, "medusa_num_layers"),
        ({"architectures": ["LlamaForCausalLMEagle"]}, "architectures"),
        ({"truncated_vocab_size": 32}, "truncated_vocab_size"),
    ],
)
def test_a_config_that_does_not_fit(model: Path, heads: Path, changes: dict[str, object], field: str) -> None:
    change_config(heads, **changes)
    with pytest.raises(ModelFileError, match=field) as caught:
        load(model, heads)
    assert "\n" not in str(caught.value)


def test_heads_of_another_model(tiny_path: Callable[..., Path], model: Path, heads: Path, tmp_path: Path) -> None:
    """Published files have no sizes in their config: the tensors tell."""
    with pytest.raises(ModelFileError, match=r"vocabulary is 60.*another model"):
        load(tiny_path("llama", vocab_size=60), heads)
    with pytest.raises(ModelFileError, match=r"width is 128.*another model"):
        load(tiny_path("llama", vocab_size=64, hidden_size=128), heads)
    tensors = tensors_of(heads)
    tensors["1.0.linear.bias"] = np.zeros(63, np.float32)
    save_safetensors(heads / "model.safetensors", tensors)
    with pytest.raises(ModelFileError, match=r"1\.0\.linear\.bias"):
        load(model, heads)


@pytest.mark.parametrize(("listed", "what"), [([1, 64], "64"), ([-1], "-1"), ([2, 2], "twice")])
def test_a_shortlist_out_of_range(model: Path, plain: LLM, tmp_path: Path, listed: list[int], what: str) -> None:
    with pytest.raises(ModelFileError, match=what):
        load(model, tiny_medusa(plain, tmp_path / "heads", shortlist=listed))


def test_broken_files(model: Path, heads: Path) -> None:
    names = ("0.0.linear.weight", "1.0.linear.bias", "2.1.weight", "shortlist")
    renamed = {name: (name[:-1] + "_", name.replace(".", r"\.") + "|" + name[:-1] + "_") for name in names}
    check_broken_files(lambda path: load(model, path), heads, renamed)


def test_pickled_files_are_never_read(model: Path, heads: Path) -> None:
    (heads / "model.safetensors").rename(heads / "medusa_lm_head.pt")
    with pytest.raises(ModelFileError, match="convert them"):
        load(model, heads)
    with pytest.raises(ModelFileError, match="convert them"):
        Medusa(heads / "medusa_lm_head.pt")


def test_published_names(model: Path, heads: Path, plain: LLM) -> None:
    """The published name of the file; and a block that stands several times, listed once."""
    prompts = [prompt(1, 9), prompt(2, 30)]
    expected = plain.generate(prompts, GREEDY)
    (heads / "model.safetensors").rename(heads / "medusa_lm_head.safetensors")
    change_config(heads, torch_dtype="float32", transformers_version="4.34.1", architectures=["MedusaModel"])
    with loaded(model, heads) as llm:
        assert_same_tokens(llm.generate(prompts, GREEDY), expected)
    (heads / "medusa_lm_head.safetensors").rename(heads / "model.safetensors")
    tensors = tensors_of(heads)
    for head in range(3):
        tensors[f"{head}.2.weight"] = tensors.pop(f"{head}.1.weight")
    save_safetensors(heads / "model.safetensors", tensors)
    change_config(heads, medusa_num_layers=2)
    definition = MedusaDefinition(plain, heads)
    with loaded(model, heads) as llm:
        outputs = llm.generate(prompts, GREEDY, trace=True, speculative_config=config(heads))
        assert_same_tokens(outputs, expected)
        assert check_drafts(definition, outputs) > 50
        assert llm.memory_report().drafter_bytes > 0


def test_half_precision_and_quantised_targets(model: Path, heads: Path, plain: LLM) -> None:
    tensors = {name: value.astype(np.float16) if value.dtype == np.float32 else value for name, value in tensors_of(heads).items()}
    write_safetensors(heads / "model.safetensors", tensors)
    for options in ({}, {"dtype": "bfloat16"}, {"quantization": "q8_0"}, {"quantization": "q4_0"}):
        speculation = SpeculativeConfig(Medusa(heads), 2)  # a length of its own: on a slow machine "auto" drafts nothing
        with LLM(model, kv_cache_memory_bytes=1 << 22, max_model_len=256, speculative_config=speculation, **options) as llm:
            outputs = llm.generate([prompt(3, 12)], GREEDY)
            assert_same_tokens(outputs, llm.generate([prompt(3, 12)], GREEDY, speculative_config=None))
            metrics = outputs[0].outputs[0].spec_decode_metrics
            assert metrics is not None and metrics.num_drafts > 0


def test_another_target(model: Path, heads: Path, plain: LLM, caplog: pytest.LogCaptureFixture) -> None:
    check_another_target(lambda: load(model, heads), heads, "medusa", plain.model_info.sha256, caplog)


def test_where_they_may_be_given(model: Path, heads: Path, plain: LLM, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCombinationError, match="loaded with the model"):
        plain.generate([1, 2], PARAMS, speculative_config=Medusa(heads))
    other = tmp_path / "other"
    shutil.copytree(heads, other)
    with pytest.raises(UnsupportedCombinationError, match="one at most"):
        LLM(model, kv_cache_memory_bytes=1 << 22, speculative_config=[Medusa(heads), Medusa(other)], **OPTIONS)
    with loaded(model, heads, choices=[(0,), (0, 0)]) as llm:
        with pytest.raises(UnsupportedCombinationError, match="other"):
            llm.generate([1, 2], PARAMS, speculative_config=Medusa(other))
        with pytest.raises(InvalidParamsError, match=r"4 tokens.*3 heads"):
            llm.generate([1, 2], PARAMS, speculative_config=Medusa(heads, choices=[(0,) * depth for depth in range(1, 5)]))
        assert llm.generate([1, 2], PARAMS, speculative_config=Medusa(heads)) == plain.generate([1, 2], PARAMS)
    with pytest.raises(InvalidParamsError, match="4 tokens"):
        load(model, heads, choices=[(0,) * depth for depth in range(1, 5)])
    for choices in ([], [()], [(1,)], [(0, 0)], [(0,), (-1,)], [(0,), (0, 1)]):
        with pytest.raises(InvalidParamsError, match="choices"):
            Medusa(heads, choices=choices)
    assert Medusa(heads) == Medusa(heads) != Medusa(heads, choices=[(0,)])


def test_vllms_method(model: Path, heads: Path, plain: LLM) -> None:
    """A chain of as many tokens as vLLM would draft, one of each head."""
    speculation = {"method": "medusa", "model": str(heads), "num_speculative_tokens": 2}
    assert SpeculativeConfig.from_dict(speculation).drafter == Medusa(heads, choices=[(0,), (0, 0)])
    assert SpeculativeConfig.from_dict({"method": "medusa", "model": str(heads)}).drafter == Medusa(heads)
    with LLM(model, kv_cache_memory_bytes=1 << 22, speculative_config=speculation, **OPTIONS) as llm:
        outputs = llm.generate(prompt(4, 20), GREEDY)
        assert_same_tokens(outputs, plain.generate(prompt(4, 20), GREEDY))
        metrics = outputs[0].outputs[0].spec_decode_metrics
        assert metrics is not None and metrics.drafter == "Medusa" and len(metrics.num_accepted_tokens_per_pos) == 2
    for wrong in ({"method": "medusa"}, {**speculation, "prompt_lookup_max": 3}, {**speculation, "num_speculative_tokens": 0}):
        with pytest.raises(InvalidParamsError):
            SpeculativeConfig.from_dict(wrong)


def test_heads_that_train_heads_makes(tiny_path: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short training's file is read as it is, its drafts are the definition's, and some are accepted."""
    monkeypatch.setattr(plan, "FEWEST_TURNS", 24)
    monkeypatch.setattr(text, "MAX_ANSWER", 24)
    with LLM(tiny_path("llama", num_layers=2, vocab_size=200), kv_cache_memory_bytes=1 << 25, **OPTIONS) as llm:
        report = llmi.train_heads(
            llm, tmp_path / "heads", prompts=["The sea", "A cat sat", "One and one", "Snow"], steps=60, seed=3, kind="medusa"
        )
        definition = MedusaDefinition(llm, report.path)
        expected = llm.generate(["The sea", "He ran"], GREEDY)
        with loaded(Path(llm.model_info.path), report.path) as drafting:
            outputs = drafting.generate(["The sea", "He ran"], GREEDY, trace=True, speculative_config=config(report.path))
            assert_same_tokens(outputs, expected)
            assert check_drafts(definition, outputs) > 20
        assert sum(m.num_accepted_tokens for m in (output.outputs[0].spec_decode_metrics for output in outputs) if m is not None) > 0
