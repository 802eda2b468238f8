"""Thinking: the texts between which a model thinks before it answers, and a grammar that begins behind them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from typing import Literal

from llmi.errors import InvalidParamsError
from llmi.text.tokenizer import Tokenizer

State = Literal["open", "free", "closed"]


@dataclasses.dataclass(frozen=True)
class Thinking:
    """The texts that begin and end a block of thinking. They may be special tokens of the vocabulary, or not. label: what stands behind
    the first one, and is no thought."""

    begins: str
    ends: str
    label: str = ""


#: By model family: Qwen, DeepSeek, SmolLM and others; Mistral; Seed; Gemma 4.
MARKERS = (
    Thinking("<think>", "</think>"),
    Thinking("[THINK]", "[/THINK]"),
    Thinking("<seed:think>", "</seed:think>"),
    Thinking("<|channel>", "<channel|>", "thought"),
)


def written(tokenizer: Tokenizer, token_ids: Iterable[int]) -> str:
    """The text of a prompt, special tokens included; ids beyond the vocabulary are left out."""
    return tokenizer.decode([token for token in token_ids if token < tokenizer.vocab_size], skip_special_tokens=False)


def thinking_of(template: str | None) -> Thinking | None:
    """What a chat template calls thinking: the markers whose end it names. None if it names none."""
    return next((thinking for thinking in MARKERS if template and thinking.ends in template), None)


def thinking_of_model(tokenizer: Tokenizer) -> Thinking | None:
    """By the model's own template, else by a special token of the vocabulary that ends thinking."""
    special = set(tokenizer.special_tokens.values())
    named = next((thinking for thinking in MARKERS if thinking.ends in special), None)
    return thinking_of(tokenizer.chat_template) or named


def state_behind(prompt: str, thinking: Thinking, special: re.Pattern[str] | None) -> State:
    """Where a prompt leaves off: in an open block of thinking, behind a closed one, or with no block in the turn that it begins.

    A block belongs to that turn if it stands at the prompt's end, or if no other special token stands behind it: messages end with one.
    """
    end = prompt.rstrip()
    for marker, state in ((thinking.begins, "open"), (thinking.ends, "closed")):
        if end.endswith(marker):
            return "open" if state == "open" else "closed"
    begun, ended = prompt.rfind(thinking.begins), prompt.rfind(thinking.ends)
    at = max(begun, ended)
    if at < 0 or special is None or special.search(prompt, 0, at) is None:
        return "free"
    own = {thinking.begins, thinking.ends}
    if any(match.group() not in own for match in special.finditer(prompt, at)):
        return "free"
    return "open" if begun > ended else "closed"


def prelude_of(tokenizer: Tokenizer, prompt: str | None) -> str:
    """The rules of what comes before the answer, for a prompt; "" if its block of thinking is closed. Raises InvalidParamsError."""
    thinking = thinking_of_model(tokenizer)
    if thinking is None:
        raise InvalidParamsError(
            "structured_outputs.after_thinking: neither the chat template nor the special tokens of this model name thinking "
            f"({', '.join(thinking.ends for thinking in MARKERS)}): leave it out",
            "structured_outputs",
        )
    state = state_behind(prompt or "", thinking, tokenizer.special_pattern)
    if state == "closed":
        return ""
    block = _block(thinking, {text: token for token, text in tokenizer.special_tokens.items()}, state == "open")
    return f"start: {'thinking' if state == 'open' else 'thinking?'} @answer\n{block}\nTHOUGHT: /(?s:.*)/\nGAP: /\\n{{0,2}}/\n"


def _block(thinking: Thinking, special: dict[str, int], is_open: bool) -> str:
    """The rule of one block: any text, its end, and up to two line breaks."""
    begins, ends = (f"<[{special[text]}]>" if text in special else json.dumps(text) for text in (thinking.begins, thinking.ends))
    if thinking.ends in special:
        return f"thinking: {'' if is_open else begins} THOUGHT {ends} GAP"
    if is_open or thinking.begins not in special:
        return f"thinking: thought GAP\nthought[lazy]: {'' if is_open else begins} THOUGHT {ends}"
    return f"thinking: {begins} thought GAP\nthought[lazy]: THOUGHT {ends}"


def behind(prelude: str, grammar: str) -> str:
    """A grammar of the library whose language begins behind the prelude's."""
    if not prelude:
        return grammar
    inner = json.loads(grammar)["grammars"] if grammar.startswith("{") else [{"lark_grammar": grammar}]
    return json.dumps({"grammars": [{"name": "thinking", "lark_grammar": prelude}, {**inner[0], "name": "answer"}, *inner[1:]]})
