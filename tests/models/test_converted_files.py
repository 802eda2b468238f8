"""Files that llama.cpp's converter made of tiny folders: llmi computes the same bits from the file as from the folder
(converted_files.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from converted_files import names, read, write_folder
from test_families import own_logits


def test_enough_families_are_here() -> None:
    assert len(names()) >= 12


#: Llama 3's scaling: the file holds divisors in fp32, where the config has the formula, and a frequency may differ in its last bit.
LAST_BITS = {"llama", "apertus"}


@pytest.mark.parametrize("name", names())
def test_the_converted_file_has_the_bits_of_its_folder(name: str, tmp_path: Path) -> None:
    recipe, data = read(name)
    folder, file = write_folder(recipe, tmp_path / "model"), tmp_path / "model.gguf"
    file.write_bytes(data)
    ours, theirs = own_logits(folder), own_logits(file)
    if name in LAST_BITS:
        assert np.abs(ours - theirs).max() < 1e-4
    else:
        assert np.array_equal(ours, theirs)
