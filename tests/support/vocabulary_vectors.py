"""llama.cpp's vocabularies with vectors, by command: `python tests/support/vocabulary_vectors.py FOLDER [--write]`.

FOLDER holds ggml-vocab-*.gguf with .inp and .out; they are in the source distribution of llama-cpp-python, under vendor/llama.cpp/models.
Each text of .inp must have the ids of .out. `--write` keeps of each vocabulary what these texts need, in tests/data/vocabularies.json,
which test_vocabulary_slices.py reads.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import unicodedata
import unittest.mock
import warnings
from pathlib import Path
from typing import Any

SLICES = Path(__file__).parents[1] / "data" / "vocabularies.json"
GGML = "tokenizer.ggml."
KEPT = ("model", "pre", "add_bos_token", "add_eos_token", "add_space_prefix")
IDS = ("bos", "eos", "unknown", "seperator")


def vectors(path: Path) -> list[tuple[str, list[int]]]:
    """Texts and their ids."""
    texts = Path(f"{path}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    lines = Path(f"{path}.out").read_text(encoding="utf-8").split("\n")
    assert len(lines) >= len(texts) and not any(lines[len(texts) :])  # some files end with an empty line
    return [(text, [int(word) for word in line.split()]) for text, line in zip(texts, lines, strict=False)]


def wrong(path: Path, cases: list[tuple[str, list[int]]], compose: bool = True) -> list[str]:
    """The texts whose ids differ. compose: False where no characters are composed first, as llama.cpp does none."""
    from llmi import Tokenizer
    from llmi.text import gguf_byte_pairs, gguf_pre_tokenizers

    rules = {name: dataclasses.replace(rule, compose=rule.compose and compose) for name, rule in gguf_pre_tokenizers.RULES.items()}
    with warnings.catch_warnings(), unittest.mock.patch.object(gguf_byte_pairs, "RULES", rules):
        warnings.simplefilter("ignore")
        tokenizer = Tokenizer(path)
    return [text for text, ids in cases if tokenizer.encode(text, add_special_tokens=False) != ids]


def metadata_of(path: Path) -> dict[str, Any]:
    """The keys that describe the tokenizer, without their prefix."""
    from llmi.models.files import open_gguf

    file = open_gguf(path)
    merges = {"merges": file.strings(GGML + "merges")} if file.metadata(without=set())[GGML + "model"] in ("gpt2", "gemma4") else {}
    return {key[len(GGML) :]: value for key, value in (file.metadata(without=set())).items() if key.startswith(GGML)} | merges


def slice_of(path: Path) -> dict[str, Any]:
    """What the texts need of a vocabulary: tokens and merges that occur in them, with new ids in the same order."""
    from llmi.text.token_bytes import byte_level_alphabet

    data, cases = metadata_of(path), vectors(path)
    byte_level = data["model"] == "gpt2"
    alphabet = {byte: character for character, byte in byte_level_alphabet().items()}

    def written(text: str) -> str:
        if byte_level:
            return "".join(alphabet[byte] for form in {text, unicodedata.normalize("NFC", text)} for byte in form.encode())
        if data["model"] == "bert":
            return unicodedata.normalize("NFD", text).lower() + text.lower()
        return "▁" + text.replace(" ", "▁")

    texts = "\x00".join(written(text) for text, _ in cases)
    types = data["token_type"]
    used = {token for _, ids in cases for token in ids}
    kept = []
    for token, text in enumerate(data["tokens"]):
        bare = text.removeprefix("▁") if data["model"] == "bert" else text
        named = token in (data.get(f"{name}_token_id") for name in IDS)
        if (
            token in used
            or named
            or types[token] == 6
            or (types[token] == 1 and bare and bare in texts)
            or (types[token] == 4 and text in texts)
        ):
            kept.append(token)
    new = {token: number for number, token in enumerate(kept)}
    result = {key: data[key] for key in KEPT if key in data}
    result |= {f"{name}_token_id": new[data[f"{name}_token_id"]] for name in IDS if f"{name}_token_id" in data}
    result |= {"tokens": [data["tokens"][token] for token in kept], "token_type": [types[token] for token in kept]}
    if data["model"] == "llama":
        result["scores"] = [data["scores"][token] for token in kept]
    if "merges" in data:
        known = set(result["tokens"])
        result["merges"] = [
            m for m in data["merges"] if {m.replace(" ", "", 1), *m.split(" ", 1)} <= known and m.replace(" ", "", 1) in texts
        ]
    return {"vocabulary": result, "cases": [[text, [new[token] for token in ids]] for text, ids in cases]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="write the slices")
    options = parser.parse_args()
    files = [path for path in sorted(options.folder.glob("*.gguf")) if Path(f"{path}.inp").exists()]
    num_right = 0
    for path in files:
        cases = vectors(path)
        failed = wrong(path, cases)
        left = wrong(path, cases, compose=False) if failed else []
        num_right += not left
        print(f"{path.name}: {len(cases) - len(failed)} of {len(cases)} texts", *(f"\n    {text!r:.60}" for text in failed))
        if failed and not left:
            print("    which llmi composes first, as the model's own tokenizer does; uncomposed, all are equal")
    print(f"{num_right} of {len(files)} files")
    if options.write:
        slices = {path.name.removeprefix("ggml-vocab-").removesuffix(".gguf"): slice_of(path) for path in files}
        lines = [f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in slices.items()]
        SLICES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return num_right < len(files)


if __name__ == "__main__":
    sys.exit(main())
