"""Receipts are checked in one pass over their text, whatever its tokens depend on, and a difference is told by its position."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, InvalidParamsError, PromptLookup, Receipt, RequestOutput, UnsupportedCombinationError
from llmi.cli.commands import main
from llmi.testing import tiny_model

PROMPT = {"prompt_token_ids": [5, 9, 2, 9, 2, 7]}
LENGTH = 40
#: What tokens depend on, and how few steps a check may take of those that a decode takes.
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 0.9, "logprobs": 2, "prompt_logprobs": 0},
    "filters": {"top_p": 0.9, "min_p": 0.02, "typical_p": 0.95, "xtc_probability": 0.5, "xtc_threshold": 0.01},
    "state": {"mirostat": 2, "logprobs": 0},
    "penalties": {"presence_penalty": 0.5, "repetition_penalty": 1.2, "dry_multiplier": 0.8, "no_repeat_ngram_size": 4},
    "masks": {"logit_bias": {3: 2.0}, "bad_words": [[5, 6]], "allowed_token_ids": list(range(100)), "min_tokens": 8},
    "guidance": {"guidance_scale": 1.5, "negative_prompt": [7, 7]},
    "layers": {"dola_layers": "high"},
    "several": {"n": 3, "logprobs": 1},
    "ids": {"logprob_token_ids": [1, 200]},
    "a pattern": {"stop_regex": "\x01\x02\x03", "repetition_detection": {"max_pattern_size": 9, "min_count": 30}},
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("replay")), kv_cache_memory_bytes=1 << 25) as made:
        yield made


def decode(llm: LLM, **params: Any) -> RequestOutput:
    return llm.generate(PROMPT, **{"max_tokens": LENGTH, "seed": 11, "ignore_eos": True, **params}, speculative_config=None)[0]


def steps_of(llm: LLM, receipt: Receipt) -> int:
    """The steps of a check, which must say that all is identical."""
    before = llm.get_metrics()["num_steps"]
    check = receipt.verify(llm)
    assert check and str(check) == "identical, bit for bit" and check.differences == ()
    return int(llm.get_metrics()["num_steps"] - before)


@pytest.mark.parametrize("name", KINDS)
def test_a_text_is_checked_in_one_pass(llm: LLM, name: str) -> None:
    """The recorded tokens are one draft: with one text, the step of the prompt has it, too."""
    output = decode(llm, **KINDS[name])
    assert all(len(completion.token_ids) == LENGTH for completion in output.outputs)
    alone = name not in ("several", "guidance")
    assert steps_of(llm, output.receipt()) <= (2 if alone else 3)
    assert llmi.replay(output.receipt(), llm)


def test_a_long_text_takes_a_step_for_each_256_tokens(tmp_path: Path) -> None:
    with LLM(tiny_model(vocab_size=257, path=tmp_path, max_position_embeddings=2048), kv_cache_memory_bytes=1 << 25) as llm:
        assert steps_of(llm, decode(llm, max_tokens=600).receipt()) <= 5


def test_a_small_budget_of_rows_cuts_the_draft(tmp_path: Path) -> None:
    with LLM(tiny_model(vocab_size=257, path=tmp_path), kv_cache_memory_bytes=1 << 25, max_num_batched_tokens=8) as llm:
        assert steps_of(llm, decode(llm).receipt()) <= 8


def test_the_engines_own_drafter_is_left_out(tmp_path: Path) -> None:
    with LLM(tiny_model(vocab_size=257, path=tmp_path), kv_cache_memory_bytes=1 << 25, speculative_config=PromptLookup()) as llm:
        assert steps_of(llm, decode(llm).receipt()) <= 2


def test_a_grammar_is_checked_in_one_pass(llm: LLM) -> None:
    pytest.importorskip("llguidance")
    output = llm.generate(PROMPT, max_tokens=LENGTH, seed=3, structured_outputs={"regex": "[a-c]{30}"})[0]
    assert steps_of(llm, output.receipt()) <= 3


def changed(receipt: Receipt, sample: int, place: int, token: int | None = None) -> Receipt:
    """The receipt with one wrong token."""
    fields = copy.deepcopy(receipt.fields)
    ids = fields["outputs"][sample]["token_ids"]
    ids[place] = (ids[place] + 1) % 256 if token is None else token
    return Receipt(fields)


@pytest.mark.parametrize("place", [0, 1, 17, LENGTH - 1])
@pytest.mark.parametrize("name", ["greedy", "drawn", "several", "guidance", "state"])
def test_one_wrong_token_is_told_by_its_place(llm: LLM, name: str, place: int) -> None:
    output = decode(llm, **KINDS[name])
    sample = output.outputs[-1].index
    right = output.outputs[sample].token_ids[place]
    wrong = changed(output.receipt(), sample, place)
    token = wrong.fields["outputs"][sample]["token_ids"][place]
    before = llm.get_metrics()["num_steps"]
    assert wrong.verify(llm).differences == (f"outputs[{sample}].token_ids[{place}] is {right} here, {token} in the receipt",)
    assert llm.get_metrics()["num_steps"] - before <= 3, "it ends where it differs"
    assert not llmi.replay(wrong, llm)


@pytest.mark.parametrize("params", [{"beam_width": 3}, {"penalty_alpha": 0.6, "top_k": 4, "temperature": None}], ids=["beams", "contrast"])
def test_searches_run_again_and_tell_the_place(llm: LLM, params: dict[str, Any]) -> None:
    output = decode(llm, max_tokens=8, **params)
    assert output.receipt().verify(llm)
    right = output.outputs[0].token_ids[5]
    wrong = changed(output.receipt(), 0, 5)
    token = wrong.fields["outputs"][0]["token_ids"][5]
    assert wrong.verify(llm).differences[0] == f"outputs[0].token_ids[5] is {right} here, {token} in the receipt"


def test_one_wrong_bit_of_a_log_probability_is_told_by_its_place(llm: LLM) -> None:
    for part, name in (("outputs", "outputs[1].logprobs[4] has other bits"), ("prompt", "prompt_logprobs[3] has other bits")):
        output = copy.deepcopy(decode(llm, n=2, logprobs=1, prompt_logprobs=1))
        rows: Any = output.outputs[1].logprobs if part == "outputs" else output.prompt_logprobs
        entry = list(rows[4 if part == "outputs" else 3].values())[-1]
        entry.processed_logprob = float(np.nextafter(np.float32(entry.processed_logprob), np.float32(-math.inf)))
        assert output.receipt().verify(llm).differences == (name,)


def test_receipts_without_digests_of_positions_are_read(llm: LLM, tmp_path: Path) -> None:
    fields = decode(llm, logprobs=1).receipt().fields
    del fields["logprob_digests"]
    Receipt(fields).save(tmp_path / "older.json")
    assert Receipt.load(tmp_path / "older.json").verify(llm)
    assert Receipt({**fields, "logprob_digest": "0"}).verify(llm).differences == ("logprob_digest is another one",)
    assert "logprob_digests" not in decode(llm).receipt().fields
    for digests in ([], {"prompt": []}, {"prompt": [], "outputs": ["a"]}, {"prompt": [3], "outputs": []}):
        Receipt({**fields, "logprob_digests": digests}).save(tmp_path / "hostile.json")
        with pytest.raises(InvalidParamsError, match="logprob_digests"):
            Receipt.load(tmp_path / "hostile.json")


def test_records_of_another_length(llm: LLM) -> None:
    output = decode(llm)
    fields = output.receipt().fields
    ids = output.outputs[0].token_ids

    def check(tokens: list[int]) -> tuple[str, ...]:
        return Receipt({**fields, "outputs": [{**fields["outputs"][0], "token_ids": tokens}]}).verify(llm).differences

    assert check(ids[:10]) == (f"outputs[0].token_ids[10] is {ids[10]} here, none in the receipt",)
    assert check([]) == (f"outputs[0].token_ids[0] is {ids[0]} here, none in the receipt",)
    assert check([*ids, 3]) == (f"outputs[0].token_ids[{LENGTH}] is none here, 3 in the receipt",)
    assert check([*ids[:7], 999_999, *ids[8:]]) == (f"outputs[0].token_ids[7] is {ids[7]} here, 999999 in the receipt",)
    assert Receipt({**fields, "outputs": fields["outputs"] * 2}).verify(llm).differences == (
        "outputs: the receipt holds 2, and its parameters make 1",
    )
    other = Receipt({**fields, "outputs": [{**fields["outputs"][0], "finish_reason": "stop"}]})
    assert other.verify(llm).differences == ("outputs[0].finish_reason is 'length' here, 'stop' in the receipt",)


def test_a_prompt_that_is_scored_alone(llm: LLM) -> None:
    assert decode(llm, max_tokens=0, prompt_logprobs=1).receipt().verify(llm)


class Nothing:
    def apply(self, contexts: Any, logits: Any) -> None:
        pass


def test_engines_that_cannot_check(llm: LLM, tmp_path: Path) -> None:
    receipt = decode(llm).receipt()
    with pytest.raises(InvalidParamsError, match="llm must be None or an LLM"):
        receipt.verify("llm")  # type: ignore[arg-type]
    path = tiny_model(vocab_size=257, path=tmp_path)
    own = LLM(path, kv_cache_memory_bytes=1 << 25, batch_processors=[Nothing()])
    with own, pytest.raises(UnsupportedCombinationError, match="batch_processors change every row"):
        receipt.verify(own)


def test_the_command_says_where(llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    output = decode(llm)
    model = str(llm.model_info.path)
    output.receipt().save(tmp_path / "right.json")
    wrong = changed(output.receipt(), 0, 17)
    wrong.save(tmp_path / "wrong.json")
    assert main(["replay", str(tmp_path / "right.json"), "-m", model]) == 0
    assert capsys.readouterr().out == "identical, bit for bit\n"
    assert main(["replay", str(tmp_path / "wrong.json"), "-m", model]) == 1
    token = wrong.fields["outputs"][0]["token_ids"][17]
    assert (
        capsys.readouterr().out
        == f"NOT identical: outputs[0].token_ids[17] is {output.outputs[0].token_ids[17]} here, {token} in the receipt\n"
    )
