"""A user's card from file to receipt: LLM, inspect, replay, SelfDraft."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import llmi
from llmi import LLM, InvalidParamsError, ModelFileError, SelfDraft, UnsupportedModelError, replay
from llmi.cli.commands import main
from llmi.families import Config, ModelSpec, Style, dense, family, forget_family
from llmi.models.inspection import inspect_model
from llmi.testing import tiny_model


@family("tern", hf="TernForCausalLM")
def tern(c: Config) -> ModelSpec:
    spec = dense(c, Style())
    for layer in spec.layers:
        layer.attention.window = c.positive("local_span")
    return spec


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tiny_model(path=tmp_path / "tern", vocab_size=257)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"architectures": ["TernForCausalLM"], "model_type": "tern", "local_span": 4}))
    llmi.register_family(tern)
    yield path
    forget_family("tern")


def open_llm(path: Path) -> LLM:
    return LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=64)


def test_a_users_family_from_file_to_receipt(folder: Path) -> None:
    with open_llm(folder) as llm:
        assert llm.model_info.architecture == "tern"
        output = llm.generate("abcdefgh", max_tokens=12, seed=3, logprobs=1)[0]
        assert llm.generate("abcdefgh", max_tokens=12, seed=3, logprobs=1, speculative_config=SelfDraft(skip_layers=[0]))[0] == output
        receipt = output.receipt()
        report = inspect_model(folder)
        assert report.config["windows"] == [4, 4] and report.spec is not None
        assert receipt.fields["family"] == "tern" and receipt.fields["spec_sha256"] == report.spec.digest()
        assert "max_model_len" not in receipt.fields
        receipt.fields["model"] = str(folder)
        assert replay(receipt) and replay(receipt, llm)
    llmi.register_family(family("tern", hf="TernForCausalLM")(lambda c: dense(c, Style()) if c.has("local_span") else ModelSpec()))
    with pytest.raises(InvalidParamsError, match=r"read by the card 'tern'.*another card"):
        replay(receipt)
    llmi.register_family(tern)
    assert replay(receipt)


def test_a_card_that_does_not_fit_the_tensors(folder: Path) -> None:
    llmi.register_family(
        family("tern", hf="TernForCausalLM")(lambda c: dense(c, Style(head_norms=True)) if c.has("local_span") else ModelSpec())
    )
    with pytest.raises(ModelFileError, match="q_norm"):
        open_llm(folder)
    llmi.register_family(
        family("tern", hf="TernForCausalLM")(lambda c: dense(c, Style(gated=False)) if c.has("local_span") else ModelSpec())
    )
    with pytest.raises(UnsupportedModelError, match="gate_proj"):
        open_llm(folder)


def test_inspect_shows_the_spec(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--spec"]) == 0
    out = capsys.readouterr().out
    report = inspect_model(folder)
    assert "attention.window                 4" in out and report.spec is not None and report.spec.digest() in out
    assert main(["inspect", str(folder)]) == 0
    assert "attention.window" not in capsys.readouterr().out


def test_a_rotary_choice_is_named_and_kept(tmp_path: Path) -> None:
    """In the numerics id, and with the length in receipts: replay opens an engine that chooses the same table."""
    half = [1.0] * 8
    scaling = {"rope_type": "longrope", "short_factor": half, "long_factor": [4.0] * 8, "original_max_position_embeddings": 32}
    path = tiny_model(path=tmp_path, vocab_size=257, rope_scaling=scaling)
    ids = {}
    for length, choice in ((32, "short"), (64, "long")):
        with LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=length) as llm:
            output = llm.generate("abc", max_tokens=8, temperature=0, logprobs=1)[0]
            ids[choice] = output
            assert llm.model_info.numerics_id.endswith(f"-rope:longrope_{choice}")
            receipt = output.receipt()
            assert receipt.fields["max_model_len"] == length
            receipt.fields["model"] = str(path)
            assert replay(receipt)
    assert ids["short"] != ids["long"]
