"""The same tiny model as a directory and as a GGUF file in llama.cpp's conventions: the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import family_gguf
from decoders import logits_of
from tiny_families import TOKENS, make

pytest.importorskip("gguf", reason="the extra `test` brings gguf")
pytestmark = pytest.mark.parity


def logits(path: Path) -> bytes:
    """Of the first tokens, more than a window and an original length."""
    rows = logits_of(path, TOKENS[:80])
    assert np.isfinite(rows).all()
    return bytes(rows.tobytes())


ALL = family_gguf.FAMILIES | family_gguf.EXPERTS


@pytest.mark.parametrize("name", ALL)
def test_a_gguf_has_the_bits_of_its_directory(name: str, tmp_path: Path, families: Path) -> None:
    directory = make(name, families, **ALL[name][1]).path
    assert logits(family_gguf.write(name, directory, tmp_path / "model.gguf")) == logits(directory)
