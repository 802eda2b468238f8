"""thinking_token_budget: the mark that ends thinking is the only token behind it, in any company; 0 ends it at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llmi import LLM, InvalidParamsError, PromptLookup, UnsupportedCombinationError
from llmi.testing import tiny_model
from test_tools_thinking import CHAT, TEMPLATES, with_special

BEGINS, ENDS = 255, 256
MORE: dict[str, dict[str, Any]] = {
    "alone": {},
    "several": {"n": 3},
    "drafts": {"speculative_config": PromptLookup()},
    "rejected": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "verification": "rejection"}},
    "greedy": {"temperature": 0},
    "penalties": {"repetition_penalty": 1.3, "mirostat": 2},
    "beams": {"beam_width": 3},
    "contrast": {"penalty_alpha": 0.5, "top_k": 4},
    "guided": {"guidance_scale": 1.5},
    "hooks": {"logits_processors": [lambda context, logits: logits * 0.5]},
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(with_special(tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("budget"))), kv_cache_memory_bytes=1 << 25) as made:
        made.tokenizer.chat_template = TEMPLATES["open"]
        yield made


def ask(llm: LLM, state: str = "open", **params: Any) -> list[list[int]]:
    seed = {} if {"beam_width", "penalty_alpha"} & {*params} else {"seed": 4}
    output = llm.chat(CHAT, chat_template=TEMPLATES[state], **{"max_tokens": 24, "ignore_eos": True, **seed, **params})[0]
    return [completion.token_ids for completion in output.outputs]


@pytest.mark.parametrize("budget", [0, 1, 7, 23, 24, 1000])
@pytest.mark.parametrize("name", MORE)
def test_the_mark_follows_the_budget(llm: LLM, name: str, budget: int) -> None:
    """Before it the tokens are those of a request without a budget, where nothing looks ahead; no block is longer."""
    without = ask(llm, logit_bias={ENDS: -100.0}, **MORE[name])
    found = ask(llm, logit_bias={ENDS: -100.0}, thinking_token_budget=budget, **MORE[name])
    for plain, ids in zip(without, found, strict=True):
        assert len(ids) == 24
        if budget < 24:
            assert ids[budget] == ENDS and ENDS not in ids[:budget]
        if name != "beams":
            assert ids[:budget] == plain[:budget]
            assert budget < 24 or ids == plain


def test_drafts_change_no_token(llm: LLM) -> None:
    for budget in (0, 3, 9):
        plain = ask(llm, thinking_token_budget=budget, temperature=0.8)
        assert ask(llm, thinking_token_budget=budget, temperature=0.8, speculative_config=PromptLookup()) == plain


def test_a_block_that_begins_in_the_output(llm: LLM) -> None:
    """Each block has the budget; text outside has none."""
    ids = ask(llm, "free", thinking_token_budget=3, logit_bias={BEGINS: 4.0, ENDS: -100.0}, max_tokens=60, temperature=1.0)[0]
    starts = [
        place for place, token in enumerate(ids) if token == BEGINS and (place == 0 or ENDS in ids[:place] or BEGINS not in ids[:place])
    ]
    assert starts, "the model begins to think"
    first = ids.index(BEGINS)
    assert ids[first + 4] == ENDS
    closed = ask(llm, "closed", thinking_token_budget=0, logit_bias={BEGINS: -100.0}, max_tokens=24)
    assert closed == ask(llm, "closed", logit_bias={BEGINS: -100.0}, max_tokens=24), "no block is open"


def test_a_model_that_ends_by_itself(llm: LLM) -> None:
    early = ask(llm, logit_bias={ENDS: 100.0}, thinking_token_budget=5, max_tokens=3)[0]
    assert early[0] == ENDS
    assert ask(llm, thinking_token_budget=-1) == ask(llm) == ask(llm, thinking_token_budget=None)


def test_with_a_grammar_behind_the_thinking(llm: LLM) -> None:
    pytest.importorskip("llguidance")
    asked = {"regex": "[0-9]{3}", "after_thinking": True}
    output = llm.chat(CHAT, seed=1, max_tokens=30, structured_outputs=asked, thinking_token_budget=4, logit_bias={ENDS: -100.0})[0]
    assert output.outputs[0].token_ids[4] == ENDS
    assert output.outputs[0].text[-3:].isdigit(), "the special token is left out of the text"
    assert output.receipt().verify(llm)
    with pytest.raises(UnsupportedCombinationError, match=r"thinking_token_budget: structured_outputs.*after_thinking=True"):
        llm.chat(CHAT, structured_outputs={"regex": "[0-9]{3}"}, thinking_token_budget=4)


def test_what_never_lets_the_mark_follow_is_refused(llm: LLM) -> None:
    for params, name in (
        ({"logit_bias": {ENDS: float("-inf")}}, "logit_bias"),
        ({"allowed_token_ids": [1, 2]}, "allowed_token_ids"),
        ({"bad_words": ["</think>"]}, "bad_words"),
        ({"bad_words": [[ENDS]]}, "bad_words"),
    ):
        with pytest.raises(UnsupportedCombinationError, match=rf"thinking_token_budget: {name} bans '</think>' \(token id 256\)"):
            llm.chat(CHAT, thinking_token_budget=3, **params)
    with (
        llm.sequence("a") as sequence,
        pytest.raises(UnsupportedCombinationError, match="thinking_token_budget counts the tokens of a request"),
    ):
        sequence.probs(llm_params(thinking_token_budget=3))


def llm_params(**params: Any) -> Any:
    from llmi import SamplingParams

    return SamplingParams(**params)


def test_models_without_the_mark(tiny: LLM, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(InvalidParamsError, match="thinking_token_budget = 3: neither the chat template nor the special tokens"):
        tiny.generate([1, 2], thinking_token_budget=3)
    with LLM(tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("letters")), kv_cache_memory_bytes=1 << 24) as letters:
        letters.tokenizer.chat_template = TEMPLATES["open"]
        with pytest.raises(InvalidParamsError, match="'</think>' is no token of this model"):
            letters.chat(CHAT, thinking_token_budget=3)
    for value in (-2, 1.5, True, "3", 2**31):
        with pytest.raises(InvalidParamsError, match="thinking_token_budget"):
            tiny.generate([1, 2], thinking_token_budget=value)
