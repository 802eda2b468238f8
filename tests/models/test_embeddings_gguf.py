"""Encoders and rerankers in GGUF files give what their folders give; what such a file lacks is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import encoder_gguf
from llmi import LLM, InvalidParamsError, ModelFileError, UnsupportedModelError
from tiny_encoders import QUERY, TEXTS, make

pytestmark = pytest.mark.parity
SIZES: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 24, "dtype": "float32"}


@pytest.mark.parametrize(
    ("name", "changes"),
    [("bert", {"bert.pooling_type": 1}), ("modernbert", {}), ("xlm_roberta_scores", {}), ("qwen3_reranker", {})],
)
def test_a_gguf_gives_what_its_folder_gives(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    make(name, tmp_path / "folder")
    overrides = {"classifier_from_token": ["no", "yes"]} if name == "qwen3_reranker" else None
    with (
        LLM(encoder_gguf.write(tmp_path / "m.gguf", tmp_path / "folder", changes), **SIZES) as one,
        LLM(tmp_path / "folder", hf_overrides=overrides, **SIZES) as other,
    ):
        if name in ("bert", "modernbert"):
            vectors, wanted = ([output.outputs.embedding for output in llm.embed(TEXTS)] for llm in (one, other))
            for vector, each in zip(vectors, wanted, strict=True):
                length = np.linalg.norm(each.astype(np.float64))  # ModernBERT's folder does not normalise
                assert np.array_equal(vector, each) if name == "bert" else np.abs(vector - each / length).max() < 1e-6
            assert one.embed(TEXTS[0])[0].prompt_token_ids == other.embed(TEXTS[0])[0].prompt_token_ids
            return
        scores, expected = (llm.score(QUERY, TEXTS) for llm in (one, other))
        for got, each in zip(scores, expected, strict=True):
            assert got.prompt_token_ids == each.prompt_token_ids and got.outputs.score == pytest.approx(each.outputs.score, abs=1e-6)
        with pytest.raises(InvalidParamsError, match="no head for tokens"):
            one.generate([5])


@pytest.mark.parametrize(
    ("name", "changes", "without", "problem"),
    [
        ("bert_scores", {}, "?", r"cls\.weight: the file has no dense layer in front of the score"),
        ("qwen3_reranker", {"qwen3.classifier.output_labels": ["no", "yes"]}, "?", r"classifier\.output_labels"),
        ("qwen3_reranker", {"tokenizer.chat_template.rerank": "{query}{document}"}, "?", "another prompt than Qwen3-Reranker's"),
        ("qwen3_reranker", {}, "cls", r"cls\.output\.weight: the head has no tensor of this name"),
        ("bert", {"bert.pooling_type": 5}, "?", "pooling_type: 5 is not run"),
    ],
)
def test_what_a_gguf_lacks_is_named(name: str, changes: dict[str, Any], without: str, problem: str, tmp_path: Path) -> None:
    make(name, tmp_path / "folder")
    path = encoder_gguf.write(tmp_path / "m.gguf", tmp_path / "folder", changes, without)
    with LLM(path, **SIZES) as llm, pytest.raises((ModelFileError, UnsupportedModelError), match=problem):
        llm.score("a", "b")
