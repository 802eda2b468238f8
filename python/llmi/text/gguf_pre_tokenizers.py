r"""How byte-pair vocabularies of GGUF files cut a text into words: `tokenizer.ggml.pre`, one row of a table for each group of names.

The names and their flags are llama.cpp's (src/llama-vocab.cpp). An expression is the one in the models' own tokenizer.json: llama.cpp
writes `[^a-z]` for `\p{Lu}` and the like, as its engine knows no such classes. It does not compose characters either; Qwen's own tokenizers
do.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers


def _one_of(codes: str) -> str:
    r"""A class of characters, by hexadecimal numbers and ranges of them: editors change letters that have two forms."""
    return "[" + "".join("-".join(rf"\x{{{end}}}" for end in entry.split("-")) for entry in codes.split()) + "]"


_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_HAN = _one_of("4E00-9FA5 3040-309F 30A0-30FF") + "+"
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_SPLIT = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35_SPLIT = QWEN2_SPLIT.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
#: Where a word may change from capitals to small letters, in the two orders.
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_AFTER_WORDS = r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
TEKKEN_SPLIT = "|".join(_CASED) + _AFTER_WORDS
_CASED_WITH_ENDINGS = "|".join(f"{words}{_ENDINGS}?" for words in _CASED)
O200K_SPLIT = _CASED_WITH_ENDINGS + _AFTER_WORDS.replace(r"\p{N}", r"\p{N}{1,3}", 1)
KIMI_SPLIT = (
    r"[\p{Han}]+|" + _CASED_WITH_ENDINGS.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
_YOUTU_SCRIPTS = "|".join(
    _one_of(codes) + "+"
    for codes in (
        "AC00-D7A3 3131-318E",
        "FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F",
        "3105-312F",
        "4E00-9FA5 3040-309F 30A0-30FF",
    )
)
_DEEPSEEK_WORDS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
_DEEPSEEK_LETTERS = (
    r"\s?"
    + _one_of(
        "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5 3F7-481 "
        "48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 "
        "1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC "
        "1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 "
        "2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 "
        "FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
    )
    + "+"
)
_DEEPSEEK_HAN = _one_of("4E00-9FA5 800-4E00 AC00-D7FF") + "+"
_AFMOE_SCRIPTS = (
    _one_of(
        "4E00-9FFF 3400-4DBF F900-FAFF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF E40-E7F E80-EFF 1780-17FF 1000-109F AA60-AA7F A9E0-A9FF "
        "AC00-D7AF 1100-11FF"
    )
    + "+"
)
_BLOOM_SPLIT = r" ?" + _one_of("28 7C 2E 2C 21 3F 2026 3002 FF0C 3001 964 6D4 60C 29").replace("[", r"[^\s") + "+"
_LINES = r"[^\n]+|[\n]+"


@dataclasses.dataclass(frozen=True)
class Rule:
    """How a text is cut into words. Each expression of `splits` cuts what the one before left into its matches and the text between
    them."""

    splits: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token is that token, whatever the merges say
    add_bos: bool = False  # unless the file says otherwise
    compose: bool = False  # characters are composed first (NFC), as the model's own tokenizer does
    byte_level: bool = (
        True  # tokens in GPT-2's alphabet of bytes; else their texts are plain, with ▁ for a space and tokens <0x00> to <0xFF>
    )

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
        if self.byte_level:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)


#: llama.cpp's default, for files that name no rule: punctuation, then words as GPT-2 cuts them, then numbers, three digits at a time.
DEFAULT = Rule((r"[\p{P}\$\+<=>\^~\|]+", GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]"))
_DEEPSEEK3 = Rule((r"\p{N}{1,3}", _HAN, _DEEPSEEK_WORDS + _SPACES))
_PLAIN = Rule((_LINES,), byte_level=False)

#: Each group of names, and the rule of the group.
GROUPS: tuple[tuple[str, Rule], ...] = (
    ("default", DEFAULT),
    (
        (
            "gpt-2 phi-2 mpt olmo jais exaone4 mellum modern-bert a.x-4.0 gigachat trillion granite-docling "
            "jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe"
        ),
        Rule((GPT2_SPLIT,)),
    ),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", Rule((r"\p{N}", GPT2_SPLIT))),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        Rule((LLAMA3_SPLIT,), ignore_merges=True, add_bos=True),
    ),
    ("glm4 glm5", Rule((LLAMA3_SPLIT,), ignore_merges=True)),
    ("dbrx smaug-bpe chatglm-bpe", Rule((LLAMA3_SPLIT,))),
    ("qwen2 deepseek-r1-qwen f2llmv2", Rule((QWEN2_SPLIT,), compose=True)),
    ("qwen35", Rule((QWEN35_SPLIT,), compose=True)),
    ("kormo megrez stablelm2 hunyuan solar-open grok-2", Rule((QWEN2_SPLIT,))),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", Rule((O200K_SPLIT,))),
    ("granite-embed-multi-97m", Rule((O200K_SPLIT,), ignore_merges=True)),
    ("tiny_aya cohere2moe", Rule((r"\d{1,3}(?=(?:\d{3})*\b)", O200K_SPLIT))),
    ("tekken", Rule((TEKKEN_SPLIT,), ignore_merges=True, add_bos=True)),
    ("kimi-k2", Rule((KIMI_SPLIT,))),
    (
        "deepseek-llm",
        Rule(
            (
                r"[\r\n]",
                _DEEPSEEK_LETTERS,
                r"\s?" + _one_of("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002") + "+",
                r"\s+$",
                _DEEPSEEK_HAN,
                r"\p{N}+",
            )
        ),
    ),
    ("deepseek-coder", Rule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_HAN, r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK3),
    ("spark2_5", Rule((r"\p{N}{1,3}", _HAN, _DEEPSEEK_WORDS.replace(r"[\r\n]*|", r"|[\r\n]|") + r"\s+(?!\S)|\s+", r"\p{N}"))),
    ("youtu", Rule((_YOUTU_SCRIPTS, _CASED_WITH_ENDINGS + _AFTER_WORDS), ignore_merges=True)),
    ("falcon", Rule((r"[\p{P}\$\+<=>\^~\|`]+", GPT2_SPLIT, r"[0-9][0-9][0-9]"))),
    ("bloom poro-chat gpt3-finnish", Rule((_BLOOM_SPLIT,))),
    ("viking", Rule((_BLOOM_SPLIT, r"\p{N}"))),
    (
        "chameleon",
        Rule(
            (
                r"<sentinel:[0-9]+>",
                r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2_SPLIT,
            ),
            add_bos=True,
        ),
    ),
    (
        "jais-2",
        Rule(
            (
                LLAMA3_SPLIT.replace(
                    r"\s+(?!\S)|\s+", "|".join([*(rf"\s{{{2**power}}}(?!\S)" for power in range(9, 1, -1)), r"\s{1,2}(?!\S)", r"\s{1}"])
                ),
            )
        ),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        Rule((r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",)),
    ),
    ("seed-coder", Rule((_ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + _SPACES,))),
    ("minicpm5", Rule((r"\p{N}{1,3}", LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}+")), ignore_merges=True)),
    (
        "exaone-moe",
        Rule(
            (_ENDINGS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",)
        ),
    ),
    ("superbpe", Rule((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
    ("afmoe", Rule((r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", _AFMOE_SCRIPTS, _DEEPSEEK_WORDS + _SPACES))),
    ("laguna", Rule((_LINES, QWEN2_SPLIT))),
    ("ufakzeka", Rule((QWEN2_SPLIT.removeprefix(_ENDINGS + "|"),))),
    ("gemma4 granite-embed-multi-311m", dataclasses.replace(_PLAIN, add_bos=True)),
    ("sarvam-moe", _PLAIN),
)

RULES: dict[str, Rule] = {name: rule for names, rule in GROUPS for name in names.split()}
