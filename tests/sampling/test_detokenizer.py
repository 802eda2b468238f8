"""Whole characters only; stop strings across token edges; nothing emitted that a stop string withdraws."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmi import _core

T = _core.testing
BYTES = [bytes([i]) for i in range(256)]


def run(pieces: list[bytes], stop: list[str], include: bool = False) -> tuple[str, list[str], Any]:
    detokenizer = T.Detokenizer(pieces, stop, include)
    shown = []
    for index in range(len(pieces)):
        detokenizer.push(index)
        shown.append(detokenizer.take())
        if detokenizer.stopped_by is not None:
            break
    detokenizer.finish()
    shown.append(detokenizer.take())
    return detokenizer.text, shown, detokenizer.stopped_by


@settings(max_examples=400, deadline=None)
@given(st.lists(st.binary(max_size=5), max_size=20))
def test_any_bytes_decode_as_python_does(pieces: list[bytes]) -> None:
    text, shown, _ = run(pieces, [])
    whole = b"".join(pieces).decode("utf-8", "replace")
    assert text == whole and "".join(shown) == whole


@settings(max_examples=400, deadline=None)
@given(
    st.text(alphabet="ab\u00e9\u4e2d\U0001f600", max_size=30),
    st.lists(st.text(alphabet="ab\u00e9\u4e2d", min_size=1, max_size=4), max_size=3),
    st.data(),
)
def test_stop_strings(text: str, stops: list[str], data: st.DataObject) -> None:
    raw = text.encode()
    pieces = []
    while raw:
        cut = data.draw(st.integers(1, min(4, len(raw))))
        pieces.append(raw[:cut])
        raw = raw[cut:]
    got, shown, stopped = run(pieces, stops)
    assert "".join(shown) == got, "what was shown is what remains: nothing was taken back"
    assert got == text or (stopped is not None and text.startswith(got + stopped))
    if stopped is None:
        assert not any(stop in text for stop in stops)
    else:
        assert not any(stop in got for stop in stops)


def test_the_earliest_stop_wins_and_may_be_included() -> None:
    assert run([b"one tw", b"o three"], ["three", "two"])[0] == "one "
    assert run([b"one tw", b"o three"], ["three", "two"], include=True)[0] == "one two"


def test_half_characters_wait() -> None:
    euro = "\u20ac".encode()
    detokenizer = T.Detokenizer([euro[:1], euro[1:2], euro[2:]], [])
    shown = []
    for index in range(3):
        detokenizer.push(index)
        shown.append(detokenizer.take())
    assert shown == ["", "", "\u20ac"]


@pytest.mark.parametrize("bad", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"])
def test_malformed_utf8(bad: bytes) -> None:
    assert run([b"a", bad, b"b"], [])[0] == (b"a" + bad + b"b").decode("utf-8", "replace")
