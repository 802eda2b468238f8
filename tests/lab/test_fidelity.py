"""benchmarks/fidelity.py: its arithmetic, and that the rows it judges are those of the positions that it names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from llmi import LLM, SamplingParams

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import fidelity  # noqa: E402


@pytest.fixture(scope="module")
def exact(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, **fidelity.EXACT) as llm:
        yield llm


@pytest.fixture(scope="module")
def rounded(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, dtype="float32", kv_cache_dtype="fp8") as llm:
        yield llm


def source(llm: LLM) -> fidelity.Source:
    return lambda passage: fidelity.engine_rows(llm, passage)


def divergence(row: Any, other: Any) -> float:
    truth = fidelity.Truth(len(row))
    truth.take(other)
    truth.take(row)  # nothing is left of the law before
    truth.divergence(-other)
    return truth.divergence(other)


def test_divergence_of_known_laws() -> None:
    """Against the definition on laws of few tokens; what all logits share does not matter; small divergences are not lost to rounding."""
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])
    rows = [np.log(law).astype(np.float32) + np.float32(3) for law in (p, q)]
    assert divergence(*rows) == pytest.approx((p * np.log(p / q)).sum(), abs=1e-7)
    whole = np.array([1, 2, 4], np.float32)
    assert divergence(whole, whole + np.float32(8)) == 0
    row = np.random.default_rng(0).normal(0, 3, 50_000).astype(np.float32)
    moved = row.copy()
    moved[7] += np.float32(2**-10)
    law = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
    delta = float(moved[7]) - float(row[7])
    expected = np.log1p(law[7] * np.expm1(delta)) - law[7] * delta  # about 1e-11
    assert divergence(row, moved) == pytest.approx(expected, rel=1e-3)


def test_rows_are_those_of_the_named_positions(exact: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """From `first` on, in chunks of any size: the rows that follow each token of the whole passage."""
    tokens = np.random.default_rng(1).integers(1, 257, 50).tolist()
    with exact.sequence([]) as sequence:
        whole = sequence.extend(tokens).copy()
    for chunk_bytes in (1, 4 * 257 * 7, 1 << 26):
        monkeypatch.setattr(fidelity, "CHUNK_BYTES", chunk_bytes)
        for first in (0, 1, 33, 49):
            chunks = list(fidelity.engine_rows(exact, fidelity.Passage("code", tokens, first)))
            assert_same_bits(np.concatenate(chunks), whole[first:])


def test_answers_and_their_positions(exact: LLM, rounded: LLM) -> None:
    """A mode equal to fp32 has no divergence and its answers; one that rounds has fp32's answer where, asked alone, it gives it."""
    passages = fidelity.answers(exact, ["Why?", "Who was it?", "A long question, is it not?", "When", "Where", "x = 1"])
    params = SamplingParams(temperature=0, max_tokens=fidelity.ANSWER_TOKENS)
    judged = [fidelity.judge(source(exact), {"same": source(exact), "rounded": source(rounded)}, passage) for passage in passages]
    for passage, entry in zip(passages, judged, strict=True):
        prompt = passage.token_ids[: passage.first + 1]
        assert passage.token_ids == [*prompt, *passage.answer[:-1]]
        assert entry["same"].kl == [0.0] * len(passage.answer) and tuple(entry["same"].top) == passage.answer
        assert min(entry["rounded"].kl) >= 0 and max(entry["rounded"].kl) > 0
        alone = tuple(rounded.generate(prompt, params)[0].outputs[0].token_ids)
        assert (tuple(entry["rounded"].top) == passage.answer) == (alone == passage.answer)
    chat = {mode: values["chat"] for mode, values in fidelity.summary([*passages, *OTHER], [*judged, *OTHER_JUDGED]).items()}
    assert chat["same"]["answers_as_fp32"] == len(passages) and chat["same"]["mean_kl"] == 0
    assert chat["rounded"]["first_position"]["mean_kl"] == pytest.approx(np.mean([entry["rounded"].kl[0] for entry in judged]))
    assert chat["rounded"]["positions"] == sum(len(passage.answer) for passage in passages) == sum(chat["rounded"]["answers_that_long"])


def test_modes_of_a_real_model(smollm_path: Path) -> None:
    """The first question by each mode: with 16 bits fp32's answer, at a divergence thousands of times smaller than with 8."""
    options: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 26, "max_model_len": 512, "num_threads": 1}
    with LLM(smollm_path, **options, **fidelity.EXACT) as exact:
        (passage,) = fidelity.answers(exact, ["What is the capital of France?"])
        engines = {name: LLM(smollm_path, **options, **mode) for name, mode in fidelity.MODES.items()}
        judged = fidelity.judge(source(exact), {name: source(llm) for name, llm in engines.items()}, passage)
        assert exact.tokenizer.decode(list(passage.answer)) == "The capital of France is Paris."
    for name, llm in engines.items():
        wide = name.startswith("16")
        assert ("a:i16-" in llm.model_info.numerics_id) == wide and ("kv:f32" in llm.model_info.numerics_id) == name.endswith("fp32 KV")
        assert tuple(judged[name].top) == passage.answer or not wide
        assert np.mean(judged[name].kl) < 5e-6 if wide else np.mean(judged[name].kl) > 1e-4
        llm.close()
    assert np.mean(judged["16 bits, fp32 KV"].kl) < np.mean(judged["16 bits"].kl)


def test_an_answer_that_fp32_does_not_give_is_refused(exact: LLM) -> None:
    passage = fidelity.answers(exact, ["Why?"])[0]
    wrong = fidelity.Passage("chat", passage.token_ids, passage.first, (passage.answer[0] ^ 1, *passage.answer[1:]), 0)
    with pytest.raises(RuntimeError, match="question 1"):
        fidelity.judge(source(exact), {}, wrong)


OTHER = [fidelity.Passage("other language, German", [1, 2, 3])]
OTHER_JUDGED = [{mode: fidelity.Judged([0.25, 0.5, 0.75], [1, 1, 1], [True, False, True]) for mode in ("same", "rounded")}]


FAKE_LLAMA = """
import numpy
__version__ = "0"
def llama_print_system_info(): return b"fake"
class Llama:
    def __init__(self, path, n_ctx, n_threads, n_threads_batch, logits_all, verbose): self.size, self.room = 5, n_ctx
    def n_vocab(self): return self.size
    def reset(self): self.batch, self.held, self.scores = 0, 0, numpy.zeros((self.room, self.size), numpy.float32)
    def eval(self, tokens):
        for token in tokens:
            self.scores[self.held, :3] = token, self.held, self.batch
            self.held += 1
        self.batch += 1
"""


def test_rows_of_the_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What crosses the pipe: a text in one batch, an answer's tokens one by one after their prompt, in chunks."""
    (tmp_path / "llama_cpp.py").write_text(FAKE_LLAMA)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(fidelity, "CHUNK_BYTES", 2 * 4 * 5)
    peer = fidelity.Llama(sys.executable, tmp_path / "model.gguf", 5, 10, 1)
    for passage, batches in (
        (fidelity.Passage("code", [3, 1, 4, 1, 5]), [0, 0, 0, 0, 0]),
        (fidelity.Passage("position 1,000", [3, 1, 4, 1, 5], 2), [0, 0, 0]),
        (fidelity.Passage("chat", [3, 1, 4, 1, 5], 1, (4, 1, 5, 2), 0), [0, 1, 2, 3]),
    ):
        rows = np.concatenate(list(peer.rows(passage)))
        assert rows[:, 0].tolist() == passage.token_ids[passage.first :] and rows[:, 1].tolist() == list(range(passage.first, 5))
        assert rows[:, 2].tolist() == batches
    peer.close()
    with pytest.raises(RuntimeError, match="5 tokens where llmi has 6"):
        fidelity.Llama(sys.executable, tmp_path / "model.gguf", 6, 10, 1)


def test_summary_of_texts() -> None:
    """Means over all positions of a kind, in buckets of 64 by position, whatever the passages' lengths."""
    passages = [fidelity.Passage("code", [0] * 70), fidelity.Passage("code", [0] * 3), *OTHER]
    entries: list[Any] = [{"m": fidelity.Judged([value] * count, [0] * count, [True] * count)} for value, count in ((1.0, 70), (3.0, 3))]
    entries.append({"m": OTHER_JUDGED[0]["same"]})
    result = fidelity.summary(passages, entries)["m"]
    assert result["code"]["mean_kl"] == pytest.approx(79 / 73) and result["code"]["positions"] == 73
    assert result["code"]["by_position, 64 each"] == pytest.approx([73 / 67, 1.0])
    assert result["other languages"]["mean_kl"] == result["other language, German"]["mean_kl"] == 0.5
    assert result["other languages"]["same_top"] == pytest.approx(2 / 3)


def test_the_table_has_both_results(exact: LLM) -> None:
    """A row for each mode, with the speeds that a second result has of it."""
    passages = [*fidelity.answers(exact, ["Why?"]), *OTHER, *(fidelity.Passage(kind, [1, 2]) for kind in fidelity.WINDOWS)]
    judged = [
        {
            mode: fidelity.Judged([0.5] * len(p.token_ids), [0] * len(p.token_ids), [True] * len(p.token_ids))
            for mode in ("8 bits", "16 bits")
        }
        for p in passages
    ]
    result: dict[str, Any] = {"models": {"tiny.Q4_1.gguf": {"modes": fidelity.summary(passages, judged)}}}
    assert fidelity.table(result).splitlines()[2].startswith("| tiny | 8 bits | 5.0e-01 | 5.0e-01 | 0 of 1 (0 of 1) | 5.0e-01 |")
    result["speeds"] = {"tiny.Q4_1.gguf": {"results": {"16 bits: decode 1": {"median": 1234.5}}}}
    head, _, narrow, wide = fidelity.table(result).splitlines()
    assert head.count("|") == narrow.count("|") == wide.count("|") and "1,234" in wide and "1,234" not in narrow


def test_committed_passages(smollm: LLM) -> None:
    """200 questions, none twice; position 1,000 lies in the last rows of its windows; texts are begun as the model begins them."""
    questions = (ROOT / "benchmarks" / "questions.txt").read_text(encoding="utf-8").splitlines()
    assert len(questions) == len(set(questions)) == 200 and all(question.strip() == question != "" for question in questions)
    passages = fidelity.texts(smollm.tokenizer)
    far = [passage for passage in passages if passage.kind == "position 1,000"]
    assert len(far) == 8 and all((passage.first, len(passage.token_ids)) == (992, 1025) for passage in far)
    counts = {kind: sum(len(p.token_ids) - p.first for p in passages if p.kind == kind) for kind in {p.kind for p in passages}}
    assert counts["running text"] == 8192 and counts["code"] == 2048 and counts["position 1,000"] == 264
    assert counts["other language, German"] >= 1200 and counts["other language, Chinese"] >= 1000
