"""Texts of control tokens that end a turn, and texts that are control tokens whatever their file says."""

from __future__ import annotations

from collections.abc import Mapping

#: llama.cpp's list: where they are control tokens, they end generation.
END_MARKERS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<end_of_utterance>", "<|end|>",
    "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "<EOT>", "_<EOT>", "[EOT]",
    "[EOS]", "[e~[", "<eos>", "</s>",
)  # fmt: skip
#: Files list markup as user-defined tokens now and then; they count as control tokens: user text never becomes it. Not "</s>", which is an
#: HTML tag, too. What looks like <|this|> is what llama.cpp's converter takes for special.
_UNMISTAKABLE = {*END_MARKERS[:-1], "<start_of_turn>", "<bos>", "<pad>", "<mask>", "[INST]", "[/INST]", "[BOS]"}


def is_markup(text: str) -> bool:
    """Whether a user-defined token of this text is a control token."""
    return text in _UNMISTAKABLE or (text.startswith("<|") and text.endswith("|>")) or (text.startswith("<｜") and text.endswith("｜>"))


def ends(special: Mapping[int, str]) -> list[int]:
    """Ids of the control tokens whose texts end a turn, in order.

    `<|end|>` ends a message and not the turn where the turn has ends of its own: `<|return|>` and `<|call|>` (gpt-oss), `<|flush|>` and
    `<|calls|>` (Solar). `</s>` is an HTML tag in Gemma 4's and PLaMo's vocabularies.
    """
    texts = set(special.values())
    left_out = set()
    if "<|end|>" in texts and ({"<|return|>", "<|call|>"} <= texts or ("<|flush|>" in texts and {"<|call|>", "<|calls|>"} & texts)):
        left_out.add("<|end|>")
    if {"<|tool_response>", "<|plamo:eos|>"} & texts:
        left_out.add("</s>")
    return [token_id for token_id, text in sorted(special.items()) if text in END_MARKERS and text not in left_out]
