"""llama.cpp's vocabularies with vectors: what their texts need of each is kept in data/vocabularies.json (see vocabulary_vectors.py)."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

import vocabulary_vectors
from llmi.text.gguf_pre_tokenizers import GROUPS, RULES
from test_vocabulary_files import GGML, byte_level, gguf, read

SLICES: dict[str, dict[str, Any]] = json.loads(vocabulary_vectors.SLICES.read_text(encoding="utf-8"))


def written(path: Path, vocabulary: dict[str, Any]) -> Path:
    metadata: dict[str, Any] = {}
    for key, value in vocabulary.items():
        kind = {"token_type": "i32", "scores": "f32"}.get(key) or ("bool" if isinstance(value, bool) else "u32")
        metadata[GGML + key] = value if isinstance(value, str) or key in ("tokens", "merges") else (kind, value)
    return gguf(path, metadata)


@pytest.mark.parametrize("name", SLICES)
def test_ids_are_those_of_the_vectors(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "v.gguf", SLICES[name]["vocabulary"])
    cases = [(text, ids) for text, ids in SLICES[name]["cases"]]
    assert vocabulary_vectors.wrong(path, cases, compose=False) == []


def test_all_fifteen_are_there() -> None:
    assert len(SLICES) == 15 and all(len(entry["cases"]) >= 46 for entry in SLICES.values())


def test_qwen_composes_characters_as_its_own_tokenizer_does(tmp_path: Path) -> None:
    """Three texts of qwen35's vectors are not composed: llmi gives them the ids of the composed ones, and all others those of the
    vectors."""
    path = written(tmp_path / "v.gguf", SLICES["qwen35"]["vocabulary"])
    differing = vocabulary_vectors.wrong(path, SLICES["qwen35"]["cases"])
    not_composed = [text for text, _ in SLICES["qwen35"]["cases"] if not unicodedata.is_normalized("NFC", text)]
    assert differing == not_composed and len(differing) == 3
    tokenizer, _ = read(path)
    assert tokenizer.encode("re\u0301sume\u0301") == tokenizer.encode("r\u00e9sum\u00e9")


#: A name of each group that is not like another, and how it cuts the text.
PROBE = "He'LL pay 1234567 for\n\n  the HeHe, don't 中文abc ไทย $5+3\t\thello  "
CUTS = {
    "gpt-2": "He|'|LL| pay| 1234567| for|\n\n | the| HeHe|,| don|'t| 中文abc| ไทย| $|5|+|3|\t|\t|hello|  ",
    "smollm": "He|'|LL| pay| |1|2|3|4|5|6|7| for|\n\n | the| HeHe|,| don|'t| 中文abc| ไทย| $|5|+|3|\t|\t|hello|  ",
    "llama-bpe": "He|'LL| pay| |123|456|7| for|\n\n| | the| HeHe|,| don|'t| 中文abc| ไทย| $|5|+|3|\t|\thello|  ",
    "qwen2": "He|'LL| pay| |1|2|3|4|5|6|7| for|\n\n| | the| HeHe|,| don|'t| 中文abc| ไทย| $|5|+|3|\t|\thello|  ",
    "gpt-4o": "He'LL| pay| |123|456|7| for|\n\n| | the| He|He|,| don't| 中文abc| ไทย| $|5|+|3|\t|\thello|  ",
    "tiny_aya": "He'LL| pay| |1|234|567| for|\n\n| | the| He|He|,| don't| 中文abc| ไทย| $|5|+|3|\t|\thello|  ",
    "tekken": "He|'LL| pay| |1|2|3|4|5|6|7| for|\n\n| | the| He|He|,| don|'t| 中文abc| ไทย| $|5|+|3|\t|\thello|  ",
    "kimi-k2": "He'LL| pay| |123|456|7| for|\n\n| | the| He|He|,| don't| |中文|abc| ไทย| $|5|+|3|\t|\thello|  ",
    "deepseek-v3": "He|'LL| pay| |123|456|7| for|\n\n| | the| HeHe|,| don|'t| |中文|abc| ไทย| $|5|+|3|\t|\thello|  ",
    "spark2_5": "He|'LL| pay| |1|2|3|4|5|6|7| for|\n|\n| | the| HeHe|,| don|'t| |中文|abc| ไทย| $|5|+|3|\t|\thello|  ",
    "youtu": "He'LL| pay| |1|2|3|4|5|6|7| for|\n\n| | the| He|He|,| don't| |中文|abc| ไทย| $|5|+|3|\t|\thello|  ",
    "bloom": "He'LL| pay| 1234567| for|\n\n | the| HeHe|,| don't| 中文abc| ไทย| $5+3|\t\t|hello|  ",
    "viking": "He'LL| pay| |1|2|3|4|5|6|7| for|\n\n | the| HeHe|,| don't| 中文abc| ไทย| $|5|+|3|\t\t|hello|  ",
    "chameleon": "He|'|LL| pay| |1|2|3|4|5|6|7| for|\n|\n|  |the| HeHe|,| don|'|t| 中文abc| ไทย| |$|5|+|3|\t|\t|hello|  ",
    "jais-2": "He|'LL| pay| |123|456|7| for|\n\n| | the| HeHe|,| don|'t| 中文abc| ไทย| $|5|+|3|\t|\thello|  ",
    "bailingmoe": "He|'LL| pay| |1|2|3|4|5|6|7| for|\n\n| | the| HeHe|,| don|'t| 中文abc| ไทย| $|5|+|3|\t|\thello|  ",
    "seed-coder": "He|'LL| pay| |1|2|3|4|5|6|7| for|\n\n| | the| HeHe|,| don|'t| 中文abc| ไทย| $|5|+|3|\t|\thello|  ",
    "minicpm5": "He|'LL| pay| |123|456|7| for|\n\n| | the| HeHe|,| don|'t| 中文abc| ไทย| $|5|+|3|\t|\thello|  ",
    "exaone-moe": "He|'LL| pay| |1|2|3|4|5|6|7| for|\n\n| | the HeHe|,| don|'t| 中文abc ไทย| $|5|+|3|\t|\thello|  ",
    "superbpe": "He'LL pay |1|234|567| for\n\n  the HeHe, don't 中文abc ไทย $|5|+|3|\t\thello  ",
    "afmoe": "He|'LL| pay| |1|234|567| for|\n\n| | the| HeHe|,| don|'t| |中文|abc| |ไ|ทย| $|5|+|3|\t|\thello|  ",
    "laguna": "He|'LL| pay| |1|2|3|4|5|6|7| for|\n\n| | the| HeHe|,| don|'t| 中文abc| ไทย| $|5|+|3|\t|\thello|  ",
    "ufakzeka": "He|'LL| pay| |1|2|3|4|5|6|7| for|\n\n| | the| HeHe|,| don|'t| 中文abc| ไทย| $|5|+|3|\t|\thello|  ",
    "gemma4": "He'LL pay 1234567 for|\n\n|  the HeHe, don't 中文abc ไทย $5+3\t\thello  ",
}


@pytest.mark.parametrize("name", CUTS)
def test_how_each_group_cuts(name: str) -> None:
    words = [PROBE[start:end] for _, (start, end) in RULES[name].pre_tokenizer().pre_tokenize_str(PROBE)]
    assert words == CUTS[name].split("|")


def test_each_name_stands_once_and_is_read(tmp_path: Path) -> None:
    """Also where a vocabulary has no more than single bytes: each text comes back."""
    names = [name for group, _ in GROUPS for name in group.split()]
    assert len(names) == len(set(names)) == len(RULES) == 90
    plain = [f"<0x{byte:02X}>" for byte in range(256)]
    for name, rule in RULES.items():
        metadata = byte_level(pre=name, bos_token_id=("u32", 0))
        if not rule.byte_level:
            tokens = ["<|endoftext|>", *plain, "▁", "h", "e", "l", "o", "he", "ll"]
            metadata = byte_level(
                pre=name, bos_token_id=("u32", 0), tokens=tokens, token_type=("i32", [3] + [6] * 256 + [1] * 7), merges=["h e", "l l"]
            )
        tokenizer, seen = read(gguf(tmp_path / "v.gguf", metadata))
        assert not seen and tokenizer.decode(tokenizer.encode(PROBE)) == PROBE
        assert (tokenizer.encode("")[:1] == [0]) == rule.add_bos
