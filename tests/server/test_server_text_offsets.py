"""`text_offset` of /v1/completions: the place of each token's first character in the text that a choice shows."""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmi.server.text_offsets import TextOffsets, prompt_offsets
from server_client import Client, tiny_llm

COMPLETIONS = "/v1/completions"
PIECES = [
    b"<s>",
    b"a",
    b"\xc3",
    b"\xa9",
    b"\xe2",
    b"\x82",
    b"\xac",
    b"\xff",
    b"\xf0\x9f",
    b"\x98\x80",
    b"\xe2\x82",
    b"bc\xc3",
    b"",
    b" ",
    b" a",
]
SPECIAL = {0: "<s>"}
#: A vocabulary of parts of characters, with one special token.
TOKENIZER: Any = types.SimpleNamespace(vocab_bytes=[b"", *PIECES[1:]], special_tokens=SPECIAL, vocab_size=len(PIECES))


@pytest.fixture(scope="module")
def client(tiny_path: Callable[..., Path]) -> Iterator[Client]:
    with tiny_llm(tiny_path) as llm:
        yield Client(llm)


def spans(data: bytes) -> list[tuple[int, int]]:
    """The bytes of each character of a decoded text, as Python's decoder takes them together."""
    result: list[tuple[int, int]] = []
    while data:
        begin = result[-1][1] if result else 0
        try:
            length = len(data.decode()[0].encode())
        except UnicodeDecodeError as error:
            length = len(data[: error.start].decode()[:1].encode()) if error.start else error.end
        result.append((begin, begin + length))
        data = data[length:]
    return result


def place_of(data: bytes, byte: int) -> int:
    return next((index for index, (begin, end) in enumerate(spans(data)) if begin <= byte < end), len(spans(data)))


def test_places_are_those_of_the_decoded_text() -> None:
    rng = random.Random(5)
    for skip in (True, False):
        for _ in range(400):
            ids = [rng.randrange(len(PIECES)) for _ in range(rng.randrange(1, 9))]
            pieces = [b"" if token == 0 and skip else PIECES[token] for token in ids]
            data = b"".join(pieces)
            assert len(spans(data)) == len(data.decode("utf-8", "replace"))
            told = TextOffsets(TOKENIZER, 7, skip).of(ids)
            for index, piece in enumerate(pieces):
                if piece:
                    assert told[index] == 7 + place_of(data, len(b"".join(pieces[:index]))), (ids, index)
            assert told == sorted(told)


@pytest.mark.parametrize(
    ("ids", "text", "expected"),
    [
        ([1, 2, 3, 1], "aéa", [0, 1, 1, 2]),
        ([0, 1, 1], "aa", [0, 0, 1]),
        ([0, 1, 0], "<s>a<s>", [0, 3, 4]),
        ([0, 1, 0, 1], "a<s>a", [0, 0, 1, 4]),
        ([14, 1], "aa", [0, 1]),
        ([13, 14, 1], " aa", [0, 0, 2]),
        ([0, 14, 2, 3], "aé", [0, 0, 1, 1]),
        ([1, 1], "AA", [None, None]),
        ([1, 0, 2, 3], None, [0, 1, 1, 1]),
        ([14, 1], None, [0, 2]),
    ],
)
def test_places_in_prompts(ids: list[int], text: str | None, expected: list[int | None]) -> None:
    """In the text as it was given, whatever the vocabulary puts in front of it; None where the tokens spell another text."""
    assert prompt_offsets(TOKENIZER, ids, text) == expected


@pytest.mark.parametrize(
    ("prompt", "places"),
    [([98, 0, 99], [0, 1, 1]), ("ab", [0, 1]), ("é", [0, 0]), ([196], [0])],
    ids=["a special one", "text", "two bytes", "half"],
)
def test_places_over_http(client: Client, prompt: Any, places: list[int]) -> None:
    """For characters of several tokens and special tokens, with and without echo, whole and streamed."""
    body = {"prompt": prompt, "logprobs": 1, "structured_outputs": {"choice": ["é€a"]}, "max_tokens": 20}
    for echo in (False, True):
        whole = client.ok(COMPLETIONS, {**body, "echo": echo})["choices"][0]
        begin = len(whole["text"]) - 3
        expected = [*(places if echo else ()), *(begin + place for place in (0, 0, 1, 1, 1, 2, 3))]
        assert whole["logprobs"]["text_offset"] == expected
        chunks = client.events(COMPLETIONS, {**body, "echo": echo})
        assert [place for chunk in chunks for place in (chunk["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]] == expected
