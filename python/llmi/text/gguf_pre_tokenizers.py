"""How byte-level vocabularies of GGUF files cut a text into words: `tokenizer.ggml.pre`, by the names and rules of llama.cpp (src/llama-vocab.cpp)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
#: llama.cpp's default, for files that name no rule: punctuation, then words as GPT-2 cuts them, then numbers, three digits at a time.
DEFAULT_SPLITS = (r"[\p{P}\$\+<=>\^~\|]+", GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclasses.dataclass(frozen=True)
class Rule:
    """How a text is cut into words. Each expression of `splits` cuts what the one before left into its matches and the text between them."""

    splits: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token is that token, whatever the merges say
    add_bos: bool = False  # unless the file says otherwise
    compose: bool = False  # characters are composed first (NFC), as the model's own tokenizer does

    def pre_tokenizer(self) -> tokenizers.pre_tokenizers.PreTokenizer:
        """The library's form of it."""
        from tokenizers import Regex, pre_tokenizers

        if self.splits == (GPT2_SPLIT,):
            return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        if self.splits == (r"\p{N}", GPT2_SPLIT):
            steps: list[Any] = [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
            return pre_tokenizers.Sequence(steps)
        steps = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in self.splits]
        return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2 = Rule((GPT2_SPLIT,))
_DIGITS = Rule((r"\p{N}", GPT2_SPLIT))
_LLAMA3 = Rule((LLAMA3_SPLIT,), ignore_merges=True, add_bos=True)
_QWEN2 = Rule((QWEN2_SPLIT,))
DEFAULT = Rule(DEFAULT_SPLITS)

RULES: dict[str, Rule] = {
    "default": DEFAULT,
    **dict.fromkeys(
        ("gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code", "roberta-bpe", "gigachat", "a.x-4.0", "mellum",
         "modern-bert", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), Rule((LLAMA3_SPLIT,))),
    "qwen2": dataclasses.replace(_QWEN2, compose=True),
    **dict.fromkeys(("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"), _QWEN2),
}  # fmt: skip
