"""What AutoTokenizer of transformers 4.57.6 gave for the files of test_tokenizer_settings.py, whose rules llmi follows; version 5 reads
several of them otherwise.

To write the file anew, in an environment with transformers 4.57.6 and tokenizers 0.22:

    LLMI_RECORD_TOKENIZERS=1 python -m pytest -n 0 tests/text/test_tokenizer_settings.py

tokenizers 0.23 no longer finds a token of tokenizer.json that is added again with other flags: where 4.57.6 on top of it answers otherwise,
that stands in `since_0_23` (written by the same command where tokenizers 0.23 is installed under the version number 0.22.2, which 4.57.6
asks for).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "data" / "tokenizers_transformers_4_57.json"
RECORDING = os.environ.get("LLMI_RECORD_TOKENIZERS") == "1"


@dataclasses.dataclass(frozen=True)
class Answers:
    """Of one directory: `ids` in the order of `calls`, the two ids (or None), and whether each added token is special."""

    ids: list[list[int]]
    bos: int | None
    eos: int | None
    added: dict[int, bool]


def calls(texts: list[str]) -> Iterator[tuple[str, bool, bool]]:
    """(text, add_special_tokens, parse_special) of each encoding."""
    return itertools.product(texts, (True, False), (True, False))


def ask(directory: Path, texts: list[str]) -> Answers:
    """What the installed transformers answers."""
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(directory)
    ids = [reference.encode(text, add_special_tokens=around, split_special_tokens=not special) for text, around, special in calls(texts)]
    added = {token_id: added.special for token_id, added in reference.added_tokens_decoder.items()}
    return Answers(ids, reference.bos_token_id, reference.eos_token_id, added)


def recorded(directory: Path, texts: list[str]) -> Answers:
    """What transformers 4.57.6 answered for a directory with the same files."""
    key = _key(directory, texts)
    if RECORDING:
        import transformers

        assert transformers.__version__ == "4.57.6"
        _add(key, ask(directory, texts))
    record = _read()
    assert key in record["cases"], "no answer of transformers 4.57.6 is recorded for these files: see recorded_tokenizers.py"
    row, bos, eos, added = record["since_0_23"][key] if _since_0_23() and key in record["since_0_23"] else record["cases"][key]
    ids = [record["lists"][number] for number in record["rows"][row]]
    return Answers(ids, bos, eos, {token_id: bool(special) for token_id, special in record["added"][added]})


def _since_0_23() -> bool:
    import tokenizers

    return tuple(int(part) for part in tokenizers.__version__.split(".")[:2]) >= (0, 23)


def _key(directory: Path, texts: list[str]) -> str:
    digest = hashlib.sha256(json.dumps(texts).encode())
    for file in sorted(directory.iterdir()):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _read() -> dict[str, Any]:
    empty: dict[str, Any] = {"lists": [], "rows": [], "added": [], "cases": {}, "since_0_23": {}}
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else empty


def _number(table: list[Any], value: Any) -> int:
    if value not in table:
        table.append(value)
    return table.index(value)


def _add(key: str, answers: Answers) -> None:
    record = _read()
    row = _number(record["rows"], [_number(record["lists"], ids) for ids in answers.ids])
    added = _number(record["added"], [[token_id, int(special)] for token_id, special in answers.added.items()])
    case = [row, answers.bos, answers.eos, added]
    if not _since_0_23():
        record["cases"][key] = case
    elif record["cases"][key] != case:
        record["since_0_23"][key] = case
    parts = [f"{json.dumps(name)}: [\n{_lines(record[name])}\n]" for name in ("lists", "rows", "added")]
    for name in ("cases", "since_0_23"):
        entries = [f"{json.dumps(key)}: {json.dumps(record[name][key])}" for key in sorted(record[name])]
        parts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(entries) + "\n}")
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _lines(table: list[Any]) -> str:
    return ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in table)
