"""`evaluate` and `llmi eval`: the figures against their definitions in plain Python, and what cannot be judged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmi import LLM, InvalidParamsError
from llmi.cli.commands import main
from llmi.compress import Evaluation, evaluate, evaluate_all
from llmi.testing import tiny_model

TEXT = [[int(token) for token in np.random.default_rng(3).integers(0, 60, 50)], [7, 1, 9] * 6]
STREAMING = {"method": "streaming", "sinks": 1, "window": 3}
SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 24}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where `llmi eval` keeps its bases."""
    monkeypatch.setenv("LLMI_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("judged")
    return tiny_model(path=folder / "base", vocab_size=257, seed=1), tiny_model(path=folder / "other", vocab_size=257, seed=2)


def laws(path: Path, window: list[int], **extra: Any) -> list[list[float]]:
    """Log-probabilities before each token of a window but the first, from the sequence of the lab."""
    with LLM(path, **SMALL, **extra) as llm:
        result = []
        for count in range(1, len(window)):
            logits = [float(value) for value in llm.sequence(window[:count]).logits]
            largest = max(logits)
            total = math.log(math.fsum(math.exp(value - largest) for value in logits)) + largest
            result.append([value - total for value in logits])
        return result


def test_figures_are_their_definitions(paths: tuple[Path, Path]) -> None:
    base = paths[0]
    found = evaluate(base, base=base, texts=TEXT, window=12, skip=5, quantization="q4_0", **SMALL)
    windows = [TEXT[0][start : start + 12] for start in (0, 12, 24, 36)] + [TEXT[1][:12]]
    losses, base_losses, divergences, tops, changes = [], [], [], [], []
    by_window = []
    for window in windows:
        ours, theirs = laws(base, window, quantization="q4_0")[4:], laws(base, window)[4:]
        kls = []
        for p, q, token in zip(theirs, ours, window[5:], strict=True):
            losses.append(-q[token])
            base_losses.append(-p[token])
            kls.append(math.fsum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True)))
            tops.append(p.index(max(p)) == q.index(max(q)))
            changes.append(math.exp(q[token]) - math.exp(p[token]))
        divergences += kls
        by_window.append(sum(kls) / len(kls))
    assert found.num_tokens == len(losses) == 35
    mean = sum(by_window) / 5
    spread = math.sqrt(sum((each - mean) ** 2 for each in by_window) / 4 / 5)
    pairs = {
        "perplexity": math.exp(sum(losses) / 35),
        "base_perplexity": math.exp(sum(base_losses) / 35),
        "kl": sum(divergences) / 35,
        "kl_error": spread,
        "kl_median": sorted(divergences)[17],
        "kl_max": max(divergences),
        "same_top": sum(tops) / 35,
    }
    for name, value in pairs.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-9), name
    assert found.probability_changes[50] == pytest.approx(sorted(changes)[17], rel=1e-9)
    assert (found.kl or 0) > 0.001 and 0 < (found.same_top or 0) < 1  # the two do differ
    assert found.bytes > 0 and found.prompt_tokens_per_s > 0 and found.tokens_per_s > 0


def test_a_model_beside_itself(paths: tuple[Path, Path]) -> None:
    base, model = paths
    same, other, cache = (
        evaluate(model, base=base, texts=TEXT, window=9, answers=6, **SMALL, **extra)
        for model, extra in ((base, {}), (model, {}), (base, {"kv_cache_dtype": "int8"}))
    )
    assert (same.kl, same.kl_max, same.same_top, same.answers_equal, same.base_types) == (0.0, 0.0, 1.0, 6, [])
    assert other.answers_equal == 6 - len(other.differences) < 6
    assert (cache.kl or 0) > 0
    for each in other.differences:
        with LLM(model, **SMALL) as llm:
            [output] = llm.generate(each.question, temperature=0, max_tokens=64)
            assert output.text == each.text != each.base_text
            break


def test_without_a_base(paths: tuple[Path, Path]) -> None:
    found = evaluate(paths[0], texts=TEXT, window=9, **SMALL)
    with LLM(paths[0], **SMALL) as llm:
        scored = [llm._score([text[start : start + 9]], False)[0] for text in TEXT for start in range(0, len(text) - 8, 9)]
    losses = [-float(value) for request in scored for value in request.prompt_token_logprobs]
    assert found.perplexity == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
    assert found.kl is None and found.base is None and "KL" not in str(found)


def test_a_base_that_is_quantised_is_said_so(smollm_path: Path) -> None:
    found = evaluate(smollm_path, base=smollm_path, texts=TEXT, window=9, **SMALL)
    assert found.base_types and "the base is quantised itself" in str(found)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"texts": [[1, 2, 3]], "window": 4}, r"texts\[0\] has 3 tokens, fewer than a window of 4"),
        ({"texts": [], "window": 4}, "is empty"),
        ({"texts": [[1, -2]], "window": 2}, "token id"),
        ({"texts": 5}, "texts must be"),
        ({"window": 1}, "window"),
        ({"window": 4, "skip": 4}, r"\[1, window - 1\]"),
        ({"window": 4, "skip": 0}, "skip"),
        ({"texts": TEXT, "window": 4, "answers": -1}, "answers"),
        ({"texts": TEXT, "window": 1 << 20}, "context"),
    ],
)
def test_what_cannot_be_judged(paths: tuple[Path, Path], arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidParamsError, match=says):
        evaluate(paths[0], base=paths[1], **arguments, **SMALL)


def test_a_base_of_another_vocabulary(paths: tuple[Path, Path], tmp_path: Path) -> None:
    other = tiny_model(path=tmp_path / "wide", vocab_size=300)
    with pytest.raises(InvalidParamsError, match="another vocabulary"):
        evaluate(paths[0], base=other, texts=TEXT, window=4, **SMALL)


def test_the_command(paths: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, model = map(str, paths)
    text, output = tmp_path / "text.txt", tmp_path / "figures.json"
    text.write_text("the sea and the land " * 30, encoding="utf-8")
    words = ["eval", base, model, "--base", base, "--text", str(text), "--window", "16", "--answers", "3", "--output", str(output)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "model" and "KL" in lines[0] and len(lines) > 5
    figures = json.loads(output.read_text(encoding="utf-8"))
    assert [figure["kl"] == 0 for figure in figures] == [True, False]
    found = evaluate_all([base, model], base=base, texts=text.read_text(encoding="utf-8"), window=16)
    assert [each.kl for each in found] == [figure["kl"] for figure in figures]
    assert isinstance(found[0], Evaluation)
    assert main(["eval", base, "--text", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_the_text_that_llmi_brings(smollm_path: Path) -> None:
    found = evaluate(smollm_path, window=128, **SMALL)
    assert found.num_tokens == 8 * 127 and 5 < found.perplexity < 60


@pytest.mark.slow
def test_a_plot(paths: tuple[Path, Path]) -> None:
    pytest.importorskip("matplotlib").use("agg")
    from llmi.compress.results import plot

    results = evaluate_all(paths, base=paths[0], texts=TEXT, window=9)
    axes = plot(results).axes[0]
    assert [tuple(point) for point in axes.collections[0].get_offsets().tolist()] == [(each.bytes / 1e6, each.kl) for each in results]
    with pytest.raises(InvalidParamsError, match="needs a base"):
        plot([evaluate(paths[0], texts=TEXT, window=9)])


def test_a_window_begins_as_texts_do(tiny_path: Callable[..., Path]) -> None:
    """Where the tokenizer begins texts with a token, each window does."""
    with LLM(tiny_path(), **SMALL) as llm:
        prefix = llm.tokenizer._loaded.prefix
    from llmi.compress.evaluation import _windows

    with LLM(tiny_path(), **SMALL) as llm:
        windows = list(_windows(llm, ["abcdefghijklmnop" * 4], 8))
        assert windows and all(window[: len(prefix)] == prefix and len(window) == 8 for window in windows)


def test_what_sparse_attention_costs(paths: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Of the model alone: nothing where all is seen, and the divergence of its rows from those of full attention where it is not."""
    base = paths[0]

    def judged(window: int) -> Evaluation:
        sees = {"method": "streaming", "sinks": 1, "window": window}
        return evaluate(base, base=base, texts=TEXT, window=12, answers=2, sparse_attention=sees, **SMALL)

    assert judged(11).kl == 0.0
    found = judged(3)
    assert found.model == f"{base.name} (streaming, sinks 1, window 3)"
    with LLM(base, **SMALL) as llm:
        window = TEXT[0][:12]
        full, part = (llm.sequence(window, sparse_attention=sees).logits.astype(float) for sees in (None, STREAMING))
    assert found.kl is not None and found.kl > 0 and not np.array_equal(full, part)
    flag = "--sparse-attention"
    assert main(["eval", str(base), flag, "{"]) == 2 and main(["eval", str(base), flag, '{"method": "h2o"}']) == 2
    assert "is no JSON" in (error := capsys.readouterr().err) and "give 'streaming'" in error
