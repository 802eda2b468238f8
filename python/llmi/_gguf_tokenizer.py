"""GGUF vocabularies as Hugging Face tokenizers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmi import _core
from llmi._errors import TokenizerError, from_core
from llmi._token_bytes import byte_level_alphabet

# GGUF token types.
CONTROL, USER_DEFINED, BYTE = 3, 4, 6

#: Texts that end a turn or a text. Files list them as user-defined tokens now and then; they are control tokens all the
#: same: user text never becomes one, and they end generation.
END_MARKERS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|endoftext|>", "</s>")

LLAMA3_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
KNOWN_PRE_TOKENIZERS = ("smollm", "gpt-2", "llama-bpe", "qwen2")
TOKENS, MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"


@dataclasses.dataclass
class ListedTokens:
    """A vocabulary as its file lists it: texts by id, and which of them are no text to a reader, or taken whole."""

    texts: list[str]
    special: dict[int, str]
    whole: dict[int, str]
    byte_level: bool


@dataclasses.dataclass
class LoadedTokenizer:
    """A tokenizer's parts, whatever file they came from."""

    build: Callable[[], Any]
    bos_token_id: int | None
    eos_token_ids: list[int]
    prefix: list[int]
    suffix: list[int]
    chat_template: str | None
    listed: ListedTokens | None = None  # of all ids, where the file lists them so
    # A tokenizer that knows only what may come of this text, and encodes it as the whole one does; None: take the whole one.
    build_for: Callable[[str], Any] = lambda text: None

    @property
    def main_eos_token_id(self) -> int | None:
        return self.eos_token_ids[0] if self.eos_token_ids else None

    def with_special(self, ids: list[int]) -> list[int]:
        """`ids` wrapped as the model wants a text."""
        return [*self.prefix, *ids, *self.suffix]


def load(path: Path) -> LoadedTokenizer:
    """Reads the vocabulary of a GGUF file. Raises TokenizerError or ModelFileError."""
    try:
        file = _core.GgufFile(str(path))
        metadata = file.metadata(without={MERGES})
    except _core.CoreError as error:
        raise from_core(error.args, path) from None
    reader = _Metadata(metadata, path)
    model = reader.text("tokenizer.ggml.model")
    tokens = reader.strings(TOKENS)
    if not tokens:
        raise TokenizerError(f"{path}: the vocabulary is empty", path, "tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise TokenizerError(f"{path}: {len(types)} token types for {len(tokens)} tokens", path, "tokenizer.ggml.token_type")
    special = {i: tokens[i] for i, kind in enumerate(types) if kind == CONTROL}
    whole = {i: tokens[i] for i, kind in enumerate(types) if kind == USER_DEFINED}
    for i in [i for i, text in whole.items() if text in END_MARKERS]:
        special[i] = whole.pop(i)
    listed = ListedTokens(tokens, special, whole, byte_level=model == "gpt2")
    kind: _ByteLevel | _SentencePiece
    if model == "gpt2":
        kind = _ByteLevel(reader, file, listed)
    elif model == "llama":
        kind = _SentencePiece(reader, file, listed, types)
    else:
        raise TokenizerError(f"{path}: tokenizer model {model!r} is not known (gpt2 and llama are)", path, "tokenizer.ggml.model")
    add_bos = model == "llama"
    pre = reader.text("tokenizer.ggml.pre", "")
    bos = reader.token_id("tokenizer.ggml.bos_token_id", len(tokens))
    eos = [reader.token_id(f"tokenizer.ggml.{key}_token_id", len(tokens)) for key in ("eos", "eot", "eom")]
    # Chat models whose file lists only one end: the turn's end is an end too.
    eos += [i for i, text in sorted(special.items()) if text in END_MARKERS]
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos or pre == "llama-bpe"))
    add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    eos_ids = list(dict.fromkeys(token_id for token_id in eos if token_id is not None))
    return LoadedTokenizer(
        build=kind.build,
        bos_token_id=bos,
        eos_token_ids=eos_ids,
        prefix=[bos] if add_bos and bos is not None else [],
        suffix=eos_ids[:1] if add_eos else [],
        chat_template=reader.text("tokenizer.chat_template", "") or None,
        listed=listed,
        build_for=kind.build_for,
    )


class _Metadata:
    """Typed access with the key in every error."""

    def __init__(self, metadata: dict[str, Any], path: Path) -> None:
        self.metadata = metadata
        self.path = path

    def _fail(self, key: str, problem: str) -> TokenizerError:
        return TokenizerError(f"{self.path}: {key}: {problem}", self.path, key)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.metadata.get(key, default)
        if isinstance(value, str):
            return value
        raise self._fail(key, "missing, or not a string")

    def strings(self, key: str) -> list[str]:
        value = self.metadata.get(key)
        if not isinstance(value, list) or not isinstance(value[0] if value else "", str):  # a GGUF list has one type
            raise self._fail(key, "missing, or not a list of strings")
        return value

    def token_id(self, key: str, vocab_size: int) -> int | None:
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < vocab_size:
            raise self._fail(key, f"{value!r} is no token id")
        return value


def _assemble(model: Any, normalizer: Any, pre_tokenizer: Any, decoder: Any, listed: ListedTokens) -> Any:
    from tokenizers import AddedToken, Tokenizer

    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for _, text in sorted(listed.special.items())])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for _, text in sorted(listed.whole.items())])
    return tokenizer


class _ByteLevel:
    """GPT-2's kind: merges of texts in an alphabet of one character a byte. A merge's whole is a token of the vocabulary, and a token
    that comes of a text occurs in it: so tokens and merges that do not occur there may be left out."""

    def __init__(self, reader: _Metadata, file: _core.GgufFile, listed: ListedTokens) -> None:
        self.reader, self.file, self.listed = reader, file, listed
        self.pre = reader.text("tokenizer.ggml.pre", "gpt-2")
        if self.pre not in KNOWN_PRE_TOKENIZERS:
            known = ", ".join(KNOWN_PRE_TOKENIZERS)
            raise TokenizerError(f"{reader.path}: pre-tokenizer {self.pre!r} is not known ({known} are)", reader.path, "tokenizer.ggml.pre")
        try:
            fault = file.merge_fault()
        except _core.CoreError as error:
            raise from_core(error.args, reader.path) from None
        if fault:
            raise TokenizerError(f"{reader.path}: {fault}", reader.path, MERGES)

    def build(self) -> Any:
        merges: list[str] = self.file.strings(MERGES)
        return self._tokenizer({text: token_id for token_id, text in enumerate(self.listed.texts)}, merges)

    def build_for(self, text: str) -> Any:
        if self.pre == "qwen2":  # composes characters first
            return None
        alphabet = {byte: character for character, byte in byte_level_alphabet().items()}
        written = "".join([alphabet[byte] for byte in text.encode()])
        vocab = {text: token_id for token_id, text in self.file.occurring(TOKENS, written)}
        vocab |= {text: token_id for token_id, text in (self.listed.special | self.listed.whole).items()}
        return self._tokenizer(vocab, [merge for _, merge in self.file.occurring(MERGES, written, joined=True)])

    def _tokenizer(self, vocab: dict[str, int], merges: list[str]) -> Any:
        from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

        pairs: Any = [tuple(merge.split(" ", 1)) for merge in merges]
        try:
            model = models.BPE(vocab=vocab, merges=pairs, ignore_merges=self.pre == "llama-bpe")
        except Exception as error:
            raise TokenizerError(f"{self.reader.path}: {error}", self.reader.path, MERGES) from None
        steps: list[Any]
        if self.pre == "smollm":
            steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        elif self.pre == "gpt-2":
            steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        else:
            split = Regex(LLAMA3_SPLIT if self.pre == "llama-bpe" else QWEN2_SPLIT)
            steps = [pre_tokenizers.Split(split, behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        normalizer = normalizers.NFC() if self.pre == "qwen2" else None
        return _assemble(model, normalizer, pre_tokenizers.Sequence(steps), decoders.ByteLevel(), self.listed)


def _merges_from_scores(tokens: dict[int, str], scores: list[float]) -> list[tuple[str, str]]:
    """BPE merges that repeat SentencePiece's rule: of all adjacent pairs, join the one whose whole scores highest."""
    usable = {text: token_id for token_id, text in tokens.items()}
    ranked = []
    for text, token_id in usable.items():
        for cut in range(1, len(text)):
            left, right = usable.get(text[:cut]), usable.get(text[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[token_id], token_id, left, right))
    ranked.sort()
    return [(tokens[left], tokens[right]) for _, _, left, right in ranked]


class _SentencePiece:
    """SentencePiece's kind: a score for each text, ▁ for a space, bytes for what is no text."""

    def __init__(self, reader: _Metadata, file: _core.GgufFile, listed: ListedTokens, types: list[int]) -> None:
        self.reader, self.file, self.listed, self.types = reader, file, listed, types
        scores = reader.metadata.get("tokenizer.ggml.scores")
        if not isinstance(scores, list) or len(scores) != len(types):
            raise TokenizerError(
                f"{reader.path}: tokenizer.ggml.scores: missing, or not one for each token", reader.path, "tokenizer.ggml.scores"
            )
        self.scores: list[float] = scores
        self.unknown = reader.token_id("tokenizer.ggml.unknown_token_id", len(types))
        self.prefix_space = bool(reader.metadata.get("tokenizer.ggml.add_space_prefix", True))

    def build(self) -> Any:
        return self._tokenizer(dict(enumerate(self.listed.texts)))

    def build_for(self, text: str) -> Any:
        if any(part in text for part in (self.listed.special | self.listed.whole).values()):
            return None  # what is behind such a part may begin with a space of its own
        written = ("▁" if self.prefix_space else "") + text.replace(" ", "▁")
        tokens = dict(self.file.occurring(TOKENS, written)) | self.listed.special | self.listed.whole
        tokens |= {i: self.listed.texts[i] for i, kind in enumerate(self.types) if kind == BYTE or i == self.unknown}
        return self._tokenizer(dict(sorted(tokens.items())))

    def _tokenizer(self, tokens: dict[int, str]) -> Any:
        from tokenizers import decoders, models, normalizers

        merges = _merges_from_scores(
            {i: text for i, text in tokens.items() if i not in self.listed.special and self.types[i] != BYTE}, self.scores
        )
        try:
            model = models.BPE(
                vocab={text: token_id for token_id, text in tokens.items()}, merges=merges, byte_fallback=True, fuse_unk=True,
                unk_token=None if self.unknown is None else self.listed.texts[self.unknown],
            )  # fmt: skip
        except Exception as error:
            raise TokenizerError(f"{self.reader.path}: {error}", self.reader.path, TOKENS) from None
        spaces: list[Any] = [normalizers.Prepend("▁")] if self.prefix_space else []
        normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
        decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        return _assemble(model, normalizer, None, decoder, self.listed)
