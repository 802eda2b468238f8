"""Models that think: reasoning told apart, and constraints that start behind it, in drafts, too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM, InvalidParamsError, PromptLookup, StructuredOutputsParams
from llmi.chat.rules import special_pattern
from llmi.structured.thinking import Thinking, state_behind, thinking_of
from llmi.testing import tiny_model
from llmi.tools.chat import FORMATS
from tool_answers import TOOLS

THINKS = Thinking("<think>", "</think>")
SPECIAL = special_pattern(["<|im_start|>", "<|im_end|>"])
OPENED = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if tools %}{{ tools | length }}{% endif %}<tool_call>{# </think> #}"
TEMPLATES = {"open": OPENED + "<think>\n", "free": OPENED, "closed": OPENED + "<think>\n\n</think>\n\n"}
CHAT: list[dict[str, Any]] = [{"role": "user", "content": "x"}]


def with_special(path: Path) -> Path:
    """The tiny model, whose tokens 255 and 256 are the special tokens <think> and </think>."""
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    vocab = {token: index for token, index in tokenizer["model"]["vocab"].items() if index < 255}
    tokenizer["model"]["vocab"] = vocab | {"<think>": 255, "</think>": 256}
    for index, text in ((255, "<think>"), (256, "</think>")):
        tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": index, "content": text})
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


@pytest.fixture(scope="module", params=["letters", "special"])
def thinker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A tiny model whose markers are letters, and one where they are special tokens."""
    path = tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("thinker"))
    with LLM(with_special(path) if request.param == "special" else path, kv_cache_memory_bytes=1 << 25) as llm:
        llm.tokenizer.chat_template = TEMPLATES["open"]
        yield llm


def driven(llm: LLM) -> dict[str, Any]:
    """Arguments that drive the model towards the end of its thinking: a bias, or a processor that spells it."""
    special = {text: token for token, text in llm.tokenizer.special_tokens.items()}
    if "</think>" in special:
        return {"logit_bias": {special["</think>"]: 4.0}}
    ids = {word: token for token, word in enumerate(llm.tokenizer.vocab_bytes)}

    def spell(context: Any, logits: Any) -> None:
        text = context.output_text
        if "</think>" not in text and len(text) > 4 + context.index:
            size = next(size for size in range(7, -1, -1) if text.endswith("</think>"[:size]))
            logits[ids["</think>"[size].encode()]] += 1000

    return {"logits_processors": [spell]}


@pytest.mark.parametrize("state", TEMPLATES)
def test_a_constraint_starts_behind_the_thinking(thinker: LLM, state: str) -> None:
    """Each answer is thinking and then fits; drafts change nothing, also where the end of thinking is inside one."""
    asked = StructuredOutputsParams(regex="[0-9]{3}", after_thinking=True)
    args: dict[str, Any] = {
        "n": 16, "seed": 3, "max_tokens": 120, "structured_outputs": asked, "skip_special_tokens": False, "chat_template": TEMPLATES[state],
        **driven(thinker),
    }  # fmt: skip
    plain = thinker.chat(CHAT, **args)[0]
    assert thinker.chat(CHAT, **args, speculative_config=PromptLookup())[0] == plain
    ended = [completion for completion in plain.outputs if completion.finish_reason == "stop"]
    assert len(ended) >= (4 if state != "closed" else 16)
    for completion in ended:
        assert completion.complete and completion.content is not None and re.fullmatch("[0-9]{3}", completion.content)
        thought = (completion.reasoning or "") if state == "open" else completion.reasoning
        begins = "" if state == "open" or completion.reasoning is None else "<think>"
        if state == "closed":
            assert completion.reasoning is None and completion.text == completion.content
        elif thought is not None:
            assert completion.text.startswith(begins) and "</think>" in completion.text


@pytest.mark.parametrize("name", [form.name for form in FORMATS])
def test_tools_behind_the_thinking(thinker: LLM, name: str) -> None:
    out = thinker.chat(
        CHAT,
        n=8,
        seed=1,
        max_tokens=300,
        tools=TOOLS[:2],
        tool_choice="required",
        tool_format=name,
        **driven(thinker),
        parallel_tool_calls=False,
        chat_template=TEMPLATES["open"] if name != "generic" else "<think>{# </think> #}" + "{{ messages }}<think>",
    )[0]
    read = [completion for completion in out.outputs if completion.tool_calls]
    assert len(read) >= 2
    for completion in read:
        assert completion.content == "" and completion.tool_calls[0].name in ("weather", "stop-all")
    for completion in out.outputs:
        if not completion.complete:
            assert completion.finish_reason == "length"


def test_a_receipt_of_a_constraint_behind_thinking(thinker: LLM) -> None:
    import llmi

    asked = {"regex": "[0-9]{3}", "after_thinking": True}
    out = thinker.chat(CHAT, seed=3, max_tokens=30, structured_outputs=asked)[0]
    assert out.receipt().fields["sampling_params"]["structured_outputs"] == asked
    assert llmi.replay(out.receipt(), thinker)


def test_sequences_of_the_lab_start_behind_thinking(thinker: LLM) -> None:
    with thinker.sequence("a") as sequence:
        sequence.constrain({"regex": "7", "after_thinking": True})
        assert (sequence.probs() > 0).sum() >= 1


@pytest.mark.parametrize(
    "prompt, state",
    [
        ("<|im_start|>assistant\n", "free"),
        ("<|im_start|>assistant\n<think>\n", "open"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "closed"),
        ("<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n", "free"),
        ("<|im_start|>user\n</think><|im_end|>\n<|im_start|>assistant\n<think>\n", "open"),
        ("<|im_start|>assistant\n<think>half a tho", "open"),
        ("<|im_start|>assistant\n<think>x</think>half an ans", "closed"),
        ("no markers <think> at all", "free"),
        ("", "free"),
    ],
)
def test_where_a_prompt_leaves_off(prompt: str, state: str) -> None:
    assert state_behind(prompt, THINKS, SPECIAL) == state


def test_which_models_think(tiny: LLM) -> None:
    assert thinking_of("a [/THINK]") == Thinking("[THINK]", "[/THINK]") and thinking_of("x") is None and thinking_of(None) is None
    with pytest.raises(InvalidParamsError, match="after_thinking: neither the chat template"):
        tiny.generate([1], structured_outputs={"regex": "a", "after_thinking": True})
    with pytest.raises(InvalidParamsError, match=r"after_thinking must be True or False"):
        StructuredOutputsParams(regex="a", after_thinking="yes")  # type: ignore[arg-type]
