"""GGUF vocabularies as Hugging Face tokenizers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.chat import templates
from llmi.errors import TokenizerError, from_core
from llmi.text.gguf_pre_tokenizers import RULES
from llmi.text.loaded_tokenizer import MAX_ADDED_CHARACTERS, MAX_TOKEN_IDS, ListedTokens, LoadedTokenizer, guarded, listed_some
from llmi.text.token_bytes import BYTE_TOKENS, byte_level_alphabet

if TYPE_CHECKING:
    import tokenizers

# GGUF token types; 0 is undefined.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

#: Texts that end a turn or a text, by llama.cpp's list: where they are control tokens, they end generation.
END_MARKERS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<EOT>",
    "</s>",
)
#: Files list markup as user-defined tokens now and then; they count as control tokens: user text never becomes it. Not "</s>", which is an HTML tag,
#: too. What looks like <|this|> is what llama.cpp's converter takes for special.
UNMISTAKABLE = {*END_MARKERS[:-1], "<start_of_turn>", "<bos>", "<eos>", "<pad>", "<mask>", "[INST]", "[/INST]", "[BOS]", "[EOS]"}

#: Characters read while merges are found, and merges: Gemma's 262,144 tokens take 11 million and 600,000.
MAX_MERGE_WORK, MAX_MERGES = 1 << 28, 1 << 22

GGML = "tokenizer.ggml."
TOKENS, MERGES = GGML + "tokens", GGML + "merges"
USED = {
    GGML + name
    for name in (
        "model",
        "pre",
        "tokens",
        "token_type",
        "merges",
        "scores",
        "add_bos_token",
        "add_eos_token",
        "add_space_prefix",
        "eos_token_ids",
    )
}
#: Ids that are checked; of them only BOS, the three ends and the unknown token change anything.
ID_KEYS = ("bos", "eos", "eot", "eom", "unknown", "seperator", "separator", "padding", "mask", "cls", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep",
           "fim_sep", "prefix", "suffix", "middle")  # fmt: skip
#: Keys that change no token of these two kinds of vocabulary, and why.
INERT = {
    "token_type_count": "segments of encoders",
    "add_sep_token": "stands between the texts of a pair",
    "huggingface.json": "the same vocabulary once more",
    "rwkv.world": "another kind of vocabulary",
    "chat_template": "read elsewhere",
    "chat_templates": "read elsewhere",
}
#: Keys that change texts in kinds that llmi does not read: named in a warning where they are set.
ASKING = ("remove_extra_whitespaces", "normalizer.lowercase", "normalizer.strip_accents")


def load(path: Path, file: _core.GgufFile) -> LoadedTokenizer:
    """Reads the vocabulary of a GGUF file. Raises TokenizerError or ModelFileError."""
    try:
        metadata = file.metadata(without={MERGES})
    except _core.CoreError as error:
        raise from_core(error, path) from None
    reader = _Metadata(metadata, path)
    model = reader.text(GGML + "model")
    if model not in ("gpt2", "llama"):
        raise reader.fail(GGML + "model", f"tokenizer model {model!r} is not known (gpt2 and llama are)")
    listed, types = _listed(reader, file, model)
    tokens = listed.texts
    kind: _ByteLevel | _SentencePiece
    ids = {name: reader.token_id(f"{GGML}{name}_token_id", len(tokens)) for name in ID_KEYS}
    if model == "llama":  # llama.cpp's defaults
        for name, default_id, types_of in (("bos", 1, (CONTROL,)), ("eos", 2, (CONTROL,)), ("unknown", 0, (UNKNOWN, CONTROL))):
            if ids[name] is None and default_id < len(tokens) and types[default_id] in types_of:
                ids[name] = default_id
        kind = _SentencePiece(reader, file, listed, types, ids["unknown"])
        add_bos = True
    else:
        kind = _ByteLevel(reader, file, listed)
        add_bos = kind.rule.add_bos
    eos_ids = _ends(reader, ids, listed)
    prefix, suffix = _side(reader, "bos", ids["bos"], add_bos), _side(reader, "eos", ids["eos"], False)
    notes = _notes(reader, model)
    if notes:
        warnings.warn(f"{path}: {'; '.join(notes)}", UserWarning, stacklevel=4)
    return LoadedTokenizer(
        build=kind.build,
        bos_token_id=ids["bos"],
        eos_token_ids=eos_ids,
        main_eos_token_id=eos_ids[0] if eos_ids else None,
        prefix=prefix,
        suffix=suffix,
        chat_templates=templates.of_gguf(metadata, path),
        template_tokens={},
        listed=listed,
        keeps_bytes=kind.keeps_bytes,
        build_for=kind.build_for,
    )


def _ends(reader: _Metadata, ids: Mapping[str, int | None], listed: ListedTokens) -> list[int]:
    """The ids that end a text, the main one first; they become special tokens of `listed`."""
    named = [ids["eos"], ids["eot"], ids["eom"], *reader.token_ids(GGML + "eos_token_ids", len(listed.texts))]
    ends = [token_id for token_id in named if token_id is not None]
    for token_id in ends:
        if token_id in listed.whole:
            listed.special[token_id] = listed.whole.pop(token_id)
    # Chat models whose file lists only one end: the turn's end is an end too.
    ends += [token_id for token_id, text in sorted(listed.special.items()) if text in END_MARKERS]
    return list(dict.fromkeys(ends))


def _side(reader: _Metadata, name: str, token_id: int | None, default: bool) -> list[int]:
    """The ids that stand at one side of a text: bos before it, eos behind it. default: for files that do not say."""
    wanted = reader.flag(f"{GGML}add_{name}_token")
    if wanted and token_id is None:
        raise reader.fail(f"{GGML}add_{name}_token", f"it is true, but the file names no {name}_token_id")
    return [token_id] if token_id is not None and (default if wanted is None else wanted) else []


def _listed(reader: _Metadata, file: _core.GgufFile, model: str) -> tuple[ListedTokens, list[int]]:
    """The tokens and their types."""
    tokens = reader.strings(TOKENS)
    if not tokens:
        raise reader.fail(TOKENS, "the vocabulary is empty")
    if len(tokens) > MAX_TOKEN_IDS:
        raise reader.fail(TOKENS, f"{len(tokens):,} tokens (at most {MAX_TOKEN_IDS:,})")
    try:
        fault = file.vocabulary_fault(with_merges=model == "gpt2")
    except _core.CoreError as error:
        raise from_core(error, reader.path) from None
    if fault is not None:
        raise reader.fail(fault.key, fault.problem)
    types = reader.numbers(GGML + "token_type", int)
    if types is None:
        types = [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise reader.fail(GGML + "token_type", f"{len(types):,} token types for {len(tokens):,} tokens")
    unknown = set(types) - set(range(7))
    if unknown:
        raise reader.fail(GGML + "token_type", f"type {min(unknown)} is not known (0 to 6 are)")
    special = {i: tokens[i] for i, kind in enumerate(types) if kind == CONTROL and tokens[i]}
    whole = {i: tokens[i] for i, kind in enumerate(types) if kind == USER_DEFINED and tokens[i]}
    for i in [i for i, text in whole.items() if _is_markup(text)]:
        special[i] = whole.pop(i)
    if sum(map(len, special.values())) + sum(map(len, whole.values())) > MAX_ADDED_CHARACTERS:
        raise reader.fail(GGML + "token_type", f"control and user-defined tokens have more than {MAX_ADDED_CHARACTERS:,} characters")
    return ListedTokens(tokens, special, whole, byte_level=model == "gpt2"), types


def _is_markup(text: str) -> bool:
    return text in UNMISTAKABLE or (text.startswith("<|") and text.endswith("|>")) or (text.startswith("<｜") and text.endswith("｜>"))


def _notes(reader: _Metadata, model: str) -> list[str]:
    """The warnings for a user: keys that llmi does not apply, and a missing rule."""
    known = (
        USED | {f"{GGML}{name}_token_id" for name in ID_KEYS} | {f"tokenizer.{name}" for name in INERT} | {GGML + name for name in INERT}
    )
    for name in ("add_space_prefix", "add_sep_token"):  # without effect in one of the two kinds, but not of another type
        reader.flag(GGML + name)
    unused = [GGML + name for name in ASKING if reader.flag(GGML + name)]
    if model == "llama" and reader.metadata.get(GGML + "precompiled_charsmap"):
        unused.append(GGML + "precompiled_charsmap")
    known |= {GGML + name for name in (*ASKING, "precompiled_charsmap")}
    unused += [
        key
        for key in reader.metadata
        if key.startswith("tokenizer.") and key not in known and not key.startswith("tokenizer.chat_template.")
    ]
    notes = [f"settings of the tokenizer that llmi does not use: {listed_some(unused)}"] if unused else []
    if model == "gpt2" and not reader.text(GGML + "pre", ""):
        notes.append(
            f"{GGML}pre is missing: texts are cut by llama.cpp's default rule, which may not be the model's; convert the model again to name it"
        )
    return notes


class _Metadata:
    """Typed access with the key in every error."""

    def __init__(self, metadata: dict[str, Any], path: Path) -> None:
        self.metadata = metadata
        self.path = path

    def fail(self, key: str, problem: str) -> TokenizerError:
        return TokenizerError(f"{self.path}: {key}: {problem}", self.path, key)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.metadata.get(key, default)
        if isinstance(value, str):
            return value
        raise self.fail(key, "missing, or not a string")

    def flag(self, key: str) -> bool | None:
        value = self.metadata.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self.fail(key, f"{value!r:.40} is neither true nor false")

    def strings(self, key: str) -> list[str]:
        value = self.metadata.get(key)
        if not isinstance(value, list) or not isinstance(value[0] if value else "", str):  # a GGUF list has one type
            raise self.fail(key, "missing, or not a list of strings")
        return value

    def numbers(self, key: str, *types: type) -> list[Any] | None:
        """A list of numbers of one of these types; None if it is missing."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or (value and type(value[0]) not in types):
            raise self.fail(key, f"not a list of numbers ({' or '.join(kind.__name__ for kind in types)})")
        return value

    def token_id(self, key: str, vocab_size: int) -> int | None:
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
            raise self.fail(key, f"{value!r:.40} is no token id (a whole number in [0, {vocab_size:,}))")
        return value

    def token_ids(self, key: str, vocab_size: int) -> list[int]:
        ids: list[int] = self.numbers(key, int) or []
        for value in ids:
            if not 0 <= value < vocab_size:
                raise self.fail(key, f"{value!r} is no token id (a whole number in [0, {vocab_size:,}))")
        return ids


def _assemble(
    model: object, normalizer: object, pre_tokenizer: object, decoder: object, listed: ListedTokens, path: Path
) -> tokenizers.Tokenizer:
    from tokenizers import AddedToken, Tokenizer

    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    guarded(
        tokenizer.add_special_tokens, path, [AddedToken(text, special=True, normalized=False) for _, text in sorted(listed.special.items())]
    )
    guarded(tokenizer.add_tokens, path, [AddedToken(text, special=False, normalized=False) for _, text in sorted(listed.whole.items())])
    return tokenizer


class _ByteLevel:
    """GPT-2's kind: merges of texts in an alphabet of one character a byte. A merge's whole is a token of the vocabulary, and a token
    that comes of a text occurs in it: so tokens and merges that do not occur there may be left out."""

    def __init__(self, reader: _Metadata, file: _core.GgufFile, listed: ListedTokens) -> None:
        self.reader, self.file, self.listed = reader, file, listed
        pre = reader.text(GGML + "pre", "") or "default"
        if pre not in RULES:
            raise reader.fail(GGML + "pre", f"pre-tokenizer {pre!r} is not known ({', '.join(sorted(RULES))} are)")
        self.rule = RULES[pre]

    def build(self) -> tokenizers.Tokenizer:
        merges: list[str] = self.file.strings(MERGES)
        return self._tokenizer({text: token_id for token_id, text in enumerate(self.listed.texts) if text}, merges)

    def keeps_bytes(self) -> bool:
        return not self.rule.compose and byte_level_alphabet().keys() <= set(self.listed.texts)

    def build_for(self, text: str) -> tokenizers.Tokenizer | None:
        if self.rule.compose:
            return None
        alphabet = {byte: character for character, byte in byte_level_alphabet().items()}
        written = "".join([alphabet[byte] for byte in text.encode()])
        vocab = {text: token_id for token_id, text in self.file.occurring(TOKENS, written).items() if text}
        vocab |= {text: token_id for token_id, text in (self.listed.special | self.listed.whole).items()}
        return self._tokenizer(vocab, list(self.file.occurring(MERGES, written, joined=True).values()))

    def _tokenizer(self, vocab: dict[str, int], merges: list[str]) -> tokenizers.Tokenizer:
        from tokenizers import decoders, models, normalizers

        pairs: object = [tuple(merge.split(" ", 1)) for merge in merges]
        model = guarded(models.BPE, self.reader.path, vocab=vocab, merges=pairs, ignore_merges=self.rule.ignore_merges)
        normalizer = normalizers.NFC() if self.rule.compose else None
        return _assemble(model, normalizer, self.rule.pre_tokenizer(), decoders.ByteLevel(), self.listed, self.reader.path)


def _merges_from_scores(tokens: dict[int, str], scores: list[float], reader: _Metadata) -> list[tuple[str, str]]:
    """BPE merges that repeat SentencePiece's rule: of all adjacent pairs, join the one whose whole scores highest.

    The work is what the tokens' lengths explain: a cut is tried where both parts may be tokens by their lengths alone, and a vocabulary
    in which that is far more than in any published one is refused.
    """
    usable = {text: token_id for token_id, text in tokens.items()}
    lengths = sorted({len(text) for text in usable})
    known_lengths = set(lengths)
    ranked = []
    work = 0
    for text, token_id in usable.items():
        size = len(text)
        for cut in lengths:
            if cut >= size:
                break
            if size - cut not in known_lengths:
                continue
            work += size
            left = usable.get(text[:cut])
            if left is not None:
                right = usable.get(text[cut:])
                if right is not None:
                    ranked.append((-scores[token_id], token_id, left, right))
        if work > MAX_MERGE_WORK or len(ranked) > MAX_MERGES:
            raise reader.fail(
                TOKENS, f"token {token_id} and those before it are too long, and made of too many others, for their merges to be found"
            )
    ranked.sort()
    return [(tokens[left], tokens[right]) for _, _, left, right in ranked]


class _SentencePiece:
    """SentencePiece's kind: a score for each text, ▁ for a space, bytes for what is no text."""

    def __init__(self, reader: _Metadata, file: _core.GgufFile, listed: ListedTokens, types: list[int], unknown: int | None) -> None:
        self.reader, self.file, self.listed, self.types, self.unknown = reader, file, listed, types, unknown
        scores = reader.numbers(GGML + "scores", float, int)
        if scores is None or len(scores) != len(types):
            raise reader.fail(GGML + "scores", "missing, or not one for each token")
        if any(map(math.isnan, scores)):
            raise reader.fail(GGML + "scores", "a score is no number (NaN)")
        self.scores: list[float] = scores
        prefix = reader.flag(GGML + "add_space_prefix")
        self.prefix_space = prefix is None or prefix

    def build(self) -> tokenizers.Tokenizer:
        return self._tokenizer({i: text for i, text in enumerate(self.listed.texts) if text})

    def keeps_bytes(self) -> bool:
        return {text for text, kind in zip(self.listed.texts, self.types, strict=True) if kind == BYTE} >= BYTE_TOKENS.keys()

    def build_for(self, text: str) -> tokenizers.Tokenizer | None:
        if any(part in text for part in (self.listed.special | self.listed.whole).values()):
            return None  # what is behind such a part may begin with a space of its own
        written = ("▁" if self.prefix_space else "") + text.replace(" ", "▁")
        tokens = {i: text for i, text in self.file.occurring(TOKENS, written).items() if text} | self.listed.special | self.listed.whole
        tokens |= {i: self.listed.texts[i] for i, kind in enumerate(self.types) if kind == BYTE or i == self.unknown}
        return self._tokenizer(dict(sorted(tokens.items())))

    def _tokenizer(self, tokens: dict[int, str]) -> tokenizers.Tokenizer:
        from tokenizers import decoders, models, normalizers

        merges = _merges_from_scores(
            {i: text for i, text in tokens.items() if i not in self.listed.special and self.types[i] != BYTE}, self.scores, self.reader
        )
        model = guarded(
            models.BPE, self.reader.path, vocab={text: token_id for token_id, text in tokens.items()}, merges=merges, byte_fallback=True,
            fuse_unk=True, unk_token=None if self.unknown is None else self.listed.texts[self.unknown] or None,
        )  # fmt: skip
        spaces: list[Any] = [normalizers.Prepend("▁")] if self.prefix_space else []
        normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
        decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        return _assemble(model, normalizer, None, decoder, self.listed, self.reader.path)
