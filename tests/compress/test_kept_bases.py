"""What `llmi eval` keeps of a base: equal figures, nothing computed twice, damage, the list and its removal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmi import LLM
from llmi.cli.commands import main
from llmi.compress import evaluate_all
from llmi.compress.evaluation import Judged
from llmi.compress.kept_bases import kept_bases
from llmi.testing import tiny_model

TEXTS = [np.random.default_rng(3).integers(1, 200, 100).tolist()]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLMI_AUDIT", "0")  # caches of half the memory are long to audit
    monkeypatch.setenv("LLMI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def figures(base: Path, model: Path, **settings: Any) -> dict[str, Any]:
    [result] = evaluate_all([model], base=base, texts=TEXTS, window=32, answers=3, **settings)
    found = result.to_dict()
    return {name: value for name, value in found.items() if not name.endswith("tokens_per_s")}


def test_a_base_computes_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, model = tiny_model(seed=1), tiny_model(seed=2)
    want = figures(base, model)
    assert not cache.exists()
    assert figures(base, model, keep_base=True) == want
    [(name, folder, size)] = kept_bases()
    with LLM(base, kv_cache_memory_bytes=1 << 24) as llm:
        assert name.startswith(llm._files.digest()()[:32]) and size > 3 * 31 * 4 * llm.model_info.hidden_size
        files, made, own = sorted(folder.iterdir()), Judged._made, str(base)
    assert [file.suffix for file in files].count(".rows") == 3 and len(files) == 4

    def never(judged: Judged, window: list[int]) -> Any:
        assert str(judged.llm.model_info.path) != own, "the base computed again"
        return made(judged, window)

    monkeypatch.setattr(Judged, "_made", never)
    assert figures(base, model, keep_base=True) == want
    monkeypatch.setattr(Judged, "_made", made)
    for file in files:
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    assert figures(base, model, keep_base=True) == want  # damage is computed again
    files[0].write_bytes(b"")
    assert figures(base, model, keep_base=True) == want


def test_another_window_is_another_file(cache: Path) -> None:
    base = tiny_model(seed=1)
    for skip in (1, 8):
        [result] = evaluate_all([base], base=base, texts=TEXTS, window=32, skip=skip, keep_base=True)
        assert result.kl == 0 and result.num_tokens == 3 * (32 - skip)
    [(_, folder, _)] = kept_bases()
    assert len(list(folder.iterdir())) == 6


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.write_text("a file")
    base = tiny_model(seed=1)
    assert evaluate_all([base], base=base, texts=TEXTS, window=32, keep_base=True)[0].kl == 0


def test_the_command_lists_and_removes(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("the end of the text is here, and it goes on and on. " * 20)
    model = str(tiny_model(seed=1))
    assert main(["eval", model, "--base", model, "--text", str(tmp_path / "text"), "--window", "32"]) == 0
    [(name, folder, _)] = kept_bases()
    assert main(["cache", "list"]) == 0
    assert name in capsys.readouterr().out
    assert main(["cache", "rm", name]) == 0
    assert not folder.exists() and not list(kept_bases())
    assert main(["cache", "rm", name]) != 0
