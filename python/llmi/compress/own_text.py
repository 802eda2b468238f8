"""Text that a model writes itself, to calibrate it by: a function of the model and a seed."""

from __future__ import annotations

from llmi.llm import LLM
from llmi.params.sampling import SamplingParams
from llmi.training.text import OwnTurns

_MOST_TURNS = 64  # at once
_TURN = 256  # about its tokens
_RAW = 256  # tokens of a text without a question


def own_text(llm: LLM, seed: int, tokens: int) -> list[list[int]]:
    """At least `tokens` tokens: answers to llmi's own questions, in order, then the same number of tokens without a question."""
    end = llm.tokenizer._loaded.main_eos_token_id
    writer, turns = OwnTurns(llm, seed), min(_MOST_TURNS, 1 + tokens // (2 * _TURN))
    chats: list[int] = []
    first = 0
    while 2 * len(chats) < tokens:
        text = writer(first, first + turns)
        for index in range(len(text)):
            chats += text.sequence(index).tolist()
            if end is not None and chats[-1] != end:
                chats.append(end)
        first += turns
    chats = chats[: tokens // 2]
    return [chats, _raw(llm, seed, tokens - len(chats))]


def _raw(llm: LLM, seed: int, tokens: int) -> list[int]:
    """What the model writes of itself at temperature 1, behind the token that begins texts."""
    tokenizer = llm.tokenizer
    begins = [*tokenizer._loaded.prefix, tokenizer.bos_token_id, *sorted(tokenizer.eos_token_ids), 0]
    begin = next(token for token in begins if token is not None)
    raw: list[int] = []
    number, count = 0, min(_MOST_TURNS, 1 + tokens // _RAW)
    while len(raw) < tokens:
        params = [
            SamplingParams(temperature=1.0, seed=(seed << 32) + number + index, min_tokens=8, max_tokens=_RAW) for index in range(count)
        ]
        for output in llm.generate([[begin]] * count, params, use_tqdm=False):
            raw += output.token_ids
        number += count
    return raw[:tokens]
