"""The requests of a load test: bodies whose prompts, lengths and seeds depend on the seed alone."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from llmi.loadtest.arrivals import arrival_times
from llmi.loadtest.settings import LoadSettings, bad

_WORDS = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state", "family", "student",
    "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system", "question", "work", "number", "night",
    "point", "home", "water", "room", "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job",
    "word", "side", "kind", "head", "house", "service",
]  # fmt: skip
_TRACE_KEYS = {"timestamp", "input_length", "output_length", "hash_ids", "prompt", "n"}
_DATASET_KEYS = {"prompt", "messages", "max_tokens"}
HASH_BLOCK = 512  # tokens that one hash id of a trace stands for


@dataclasses.dataclass(frozen=True)
class LoadRequest:
    """One request: its intended time in seconds after the start, and its JSON body."""

    index: int
    time_s: float
    body: bytes


def _words(source: random.Random, count: int) -> str:
    return " ".join(source.choice(_WORDS) for _ in range(count))


def _random_prompt(settings: LoadSettings, index: int) -> str:
    start = _words(random.Random(f"prefix {settings.seed}"), settings.prefix_len)
    rest = _words(random.Random(f"prompt {settings.seed} {index}"), settings.input_len - settings.prefix_len)
    return f"{start} {rest}".strip()


def _lines(path: Path, flag: str, known: set[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file, each with its line. A field in no list is refused: it would silently change nothing.

    A line ends at \\n alone: texts in JSON may hold U+2028 and others that `splitlines` takes for ends.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise bad(f"{path} cannot be read: {error}", flag) from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise bad(f"{path}:{number} is not JSON: {error}", flag) from None
        if not isinstance(entry, dict) or set(entry) - known:
            raise bad(f"{path}:{number} must be an object with some of {', '.join(sorted(known))}, not {line[:80]}", flag)
        yield number, entry


def _count(entry: dict[str, Any], name: str, where: str, flag: str) -> int:
    value = entry.get(name)
    if type(value) is not int or not 1 <= value <= 1_000_000:
        raise bad(f"{where}: {name} must be a whole number from 1 to 1,000,000, not {value!r}", flag)
    return value


def _text(entry: dict[str, Any], where: str, flag: str) -> str:
    value = entry["prompt"]
    if not isinstance(value, str):
        raise bad(f"{where}: prompt must be a text, not {json.dumps(value)[:80]}", flag)
    return value


def _blocks(entry: dict[str, Any], length: int, where: str) -> list[int]:
    """The hash ids of a prompt of `length` tokens, whose last block may be a part."""
    blocks = entry.get("hash_ids", [])
    if not isinstance(blocks, list) or not all(type(block) is int and abs(block) < 1 << 63 for block in blocks):
        raise bad(f"{where}: hash_ids must be a list of whole numbers of 64 bits, not {json.dumps(blocks)[:80]}", "trace")
    if (len(blocks) - 1) * HASH_BLOCK >= length:
        raise bad(f"{where}: hash_ids has {len(blocks)} blocks of {HASH_BLOCK} tokens, more than input_length = {length:,} needs", "trace")
    return blocks


def _check_shared(blocks: list[int], length: int, where: str, known: dict[int, tuple[object, int, str]]) -> None:
    """Equal ids share what they say: a block is as long as before, and stands behind the same block. known: these, of each id."""
    before = None
    for place, block in enumerate(blocks):
        size = min(HASH_BLOCK, length - HASH_BLOCK * place)
        first = known.setdefault(block, (before, size, where))
        if first[:2] != (before, size):
            now, then = (
                f"{tokens} tokens " + ("at the start" if last is None else f"behind {last}") for last, tokens in ((before, size), first[:2])
            )
            raise bad(
                f"{where}: hash id {block} has {now}, and {then} in {first[2]}: prompts share it only if all before it is equal", "trace"
            )
        before = block


def trace_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a trace's file, and where each stands."""
    for number, entry in _lines(path, "trace", _TRACE_KEYS):
        yield f"{path}:{number}", entry


def checked_trace(lines: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[tuple[float, dict[str, Any], str]]:
    """Time in seconds, fields and place of each line. Raises InvalidParamsError with the line's place.

    `timestamp` is in ms; each of `hash_ids` is a block of 512 tokens, equal ids give equal text, and stand behind the same blocks.
    """
    last = 0.0
    known: dict[int, tuple[object, int, str]] = {}
    for where, entry in lines:
        stamp = entry.get("timestamp")
        if isinstance(stamp, bool) or not isinstance(stamp, int | float) or not last <= stamp < 1e12:
            raise bad(f"{where}: timestamp must be a number of ms that does not go back (the last one is {last:g}), not {stamp!r}", "trace")
        last = float(stamp)
        if "prompt" in entry:
            if "hash_ids" in entry:
                raise bad(f"{where} must not have both prompt and hash_ids: each says what the text is", "trace")
            _text(entry, where, "trace")
        else:
            length = _count(entry, "input_length", where, "trace")
            _check_shared(_blocks(entry, length, where), length, where, known)
        _count(entry, "output_length", where, "trace")
        if "n" in entry:
            _count(entry, "n", where, "trace")
        yield last / 1e3, entry, where


def _trace(settings: LoadSettings, path: Path) -> Iterator[tuple[float, str, int]]:
    """Time, prompt and most tokens."""
    for number, (time_s, entry, where) in enumerate(checked_trace(trace_lines(path)), 1):
        if entry.get("n", 1) > 1:
            raise bad(f"{where}: n = {entry['n']}: a load test asks for one output a request; `llmi simulate` takes n", "trace")
        prompt = entry["prompt"] if "prompt" in entry else _made_prompt(settings, entry, number)
        yield time_s, prompt, entry["output_length"]


def _made_prompt(settings: LoadSettings, entry: dict[str, Any], number: int) -> str:
    """Words for a line of a trace that has lengths alone: those of its blocks, then those of the line."""
    length = entry["input_length"]
    words: list[str] = []
    for block in entry.get("hash_ids", []):
        words += _words(random.Random(f"block {settings.seed} {block}"), HASH_BLOCK).split()
    source = random.Random(f"trace {settings.seed} {number}")
    words += [source.choice(_WORDS) for _ in range(length - len(words))]
    return " ".join(words[:length])


def _dataset(settings: LoadSettings, path: Path) -> Iterator[tuple[str | list[Any], int]]:
    """Prompt, as a text or a list of messages, and most tokens."""
    for number, entry in _lines(path, "dataset", _DATASET_KEYS):
        where = f"{path}:{number}"
        if ("prompt" in entry) == ("messages" in entry):
            raise bad(f"{where} must have either prompt or messages", "dataset")
        messages = entry.get("messages")
        if "messages" in entry and not (isinstance(messages, list) and messages and all(isinstance(one, dict) for one in messages)):
            raise bad(f"{where}: messages must be a list of objects, not {json.dumps(messages)[:80]}", "dataset")
        max_tokens = _count(entry, "max_tokens", where, "dataset") if "max_tokens" in entry else settings.output_len
        yield _text(entry, where, "dataset") if messages is None else messages, max_tokens


def _body(settings: LoadSettings, model: str, index: int, prompt: object, max_tokens: int) -> bytes:
    """The JSON of a request. A prompt is a text or a list of messages."""
    fields: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "temperature": settings.temperature}
    fields["seed"] = random.Random(f"seed {settings.seed} {index}").randrange(2**31)
    if settings.endpoint == "chat":
        fields["messages"] = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    elif isinstance(prompt, list):
        raise bad("has messages, which --endpoint completions does not take", "dataset")
    else:
        fields["prompt"] = prompt
    if settings.stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    if settings.ignore_eos:
        fields["ignore_eos"] = True
    return json.dumps(fields).encode()


def load_requests(settings: LoadSettings, model: str) -> list[LoadRequest]:
    """All requests of a run, in the order of their times. Raises InvalidParamsError for a file that cannot be used."""
    count = settings.num_prompts
    if settings.trace is not None:
        traced = [entry for entry, _ in zip(_trace(settings, settings.trace), range(count), strict=False)]
        start = traced[0][0] if traced else 0.0
        made = [(time_s - start, prompt, length) for time_s, prompt, length in traced]
    else:
        prompts: list[tuple[Any, int]]
        if settings.dataset is not None:
            prompts = list(_dataset(settings, settings.dataset))[:count]
        else:
            prompts = [(_random_prompt(settings, index), settings.output_len) for index in range(count)]
        times = arrival_times(settings, len(prompts))
        made = [(time_s, prompt, length) for time_s, (prompt, length) in zip(times, prompts, strict=True)]
    if not made:
        raise bad("has no request", "trace" if settings.trace is not None else "dataset")
    return [
        LoadRequest(index, time_s, _body(settings, model, index, prompt, length)) for index, (time_s, prompt, length) in enumerate(made)
    ]
