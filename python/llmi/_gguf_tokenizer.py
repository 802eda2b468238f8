"""GGUF vocabularies as Hugging Face tokenizers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmi import _core
from llmi._errors import TokenizerError, from_core

# GGUF token types.
CONTROL, USER_DEFINED, BYTE = 3, 4, 6

#: Texts that end a turn or a text. Files list them as user-defined tokens now and then; they are control tokens all the
#: same: user text never becomes one, and they end generation.
END_MARKERS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|endoftext|>", "</s>")

LLAMA3_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
KNOWN_PRE_TOKENIZERS = ("smollm", "gpt-2", "llama-bpe", "qwen2")


@dataclasses.dataclass
class LoadedTokenizer:
    """A tokenizer's parts, whatever file they came from."""

    build: Callable[[], Any]
    bos_token_id: int | None
    eos_token_ids: list[int]
    prefix: list[int]
    suffix: list[int]
    chat_template: str | None
    texts: list[str] | None = None  # of all ids, where the file lists them so

    @property
    def main_eos_token_id(self) -> int | None:
        return self.eos_token_ids[0] if self.eos_token_ids else None

    def with_special(self, ids: list[int]) -> list[int]:
        """`ids` wrapped as the model wants a text."""
        return [*self.prefix, *ids, *self.suffix]


def load(path: Path) -> LoadedTokenizer:
    """Reads the vocabulary of a GGUF file. Raises TokenizerError or ModelFileError."""
    try:
        metadata: dict[str, Any] = _core.GgufFile(str(path)).metadata()
    except _core.CoreError as error:
        raise from_core(error.args, path) from None
    reader = _Metadata(metadata, path)
    model = reader.text("tokenizer.ggml.model")
    tokens = reader.strings("tokenizer.ggml.tokens")
    if not tokens:
        raise TokenizerError(f"{path}: the vocabulary is empty", path, "tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise TokenizerError(f"{path}: {len(types)} token types for {len(tokens)} tokens", path, "tokenizer.ggml.token_type")
    types = [CONTROL if kind == USER_DEFINED and text in END_MARKERS else kind for text, kind in zip(tokens, types, strict=True)]
    if model == "gpt2":
        build = _byte_level_builder(reader, tokens, types)
        add_bos = False
    elif model == "llama":
        build = _sentencepiece_builder(reader, tokens, types)
        add_bos = True
    else:
        raise TokenizerError(f"{path}: tokenizer model {model!r} is not known (gpt2 and llama are)", path, "tokenizer.ggml.model")
    pre = reader.text("tokenizer.ggml.pre", "")
    bos = reader.token_id("tokenizer.ggml.bos_token_id", len(tokens))
    eos = [reader.token_id(f"tokenizer.ggml.{key}_token_id", len(tokens)) for key in ("eos", "eot", "eom")]
    # Chat models whose file lists only one end: the turn's end is an end too.
    eos += [i for i, text in enumerate(tokens) if types[i] == CONTROL and text in END_MARKERS]
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos or pre == "llama-bpe"))
    add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    eos_ids = list(dict.fromkeys(token_id for token_id in eos if token_id is not None))
    return LoadedTokenizer(
        build=build,
        bos_token_id=bos,
        eos_token_ids=eos_ids,
        prefix=[bos] if add_bos and bos is not None else [],
        suffix=eos_ids[:1] if add_eos else [],
        chat_template=reader.text("tokenizer.chat_template", "") or None,
        texts=tokens,
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


def _added_tokens(tokens: list[str], types: list[int]) -> tuple[list[Any], list[Any]]:
    from tokenizers import AddedToken

    special = [AddedToken(text, special=True, normalized=False) for text, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    plain = [AddedToken(text, special=False, normalized=False) for text, kind in zip(tokens, types, strict=True) if kind == USER_DEFINED]
    return special, plain


def _byte_level_builder(reader: _Metadata, tokens: list[str], types: list[int]) -> Callable[[], Any]:
    merges = [tuple(merge.split(" ", 1)) for merge in reader.strings("tokenizer.ggml.merges")]
    if any(len(merge) != 2 for merge in merges):
        raise TokenizerError(f"{reader.path}: a merge is not two tokens", reader.path, "tokenizer.ggml.merges")
    pre = reader.text("tokenizer.ggml.pre", "gpt-2")
    if pre not in KNOWN_PRE_TOKENIZERS:
        known = ", ".join(KNOWN_PRE_TOKENIZERS)
        raise TokenizerError(f"{reader.path}: pre-tokenizer {pre!r} is not known ({known} are)", reader.path, "tokenizer.ggml.pre")
    vocab = {text: token_id for token_id, text in enumerate(tokens)}

    def build() -> Any:
        from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

        try:
            tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
        except Exception as error:
            raise TokenizerError(f"{reader.path}: {error}", reader.path, "tokenizer.ggml.merges") from None
        if pre == "smollm":
            steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        elif pre == "gpt-2":
            steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        else:
            split = Regex(LLAMA3_SPLIT if pre == "llama-bpe" else QWEN2_SPLIT)
            steps = [pre_tokenizers.Split(split, behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        if pre == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        tokenizer.decoder = decoders.ByteLevel()
        special, plain = _added_tokens(tokens, types)
        tokenizer.add_special_tokens(special)
        tokenizer.add_tokens(plain)
        return tokenizer

    return build


def _merges_from_scores(tokens: list[str], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """BPE merges that repeat SentencePiece's rule: of all adjacent pairs, join the one whose whole scores highest."""
    usable = {text: token_id for token_id, text in enumerate(tokens) if types[token_id] not in (CONTROL, BYTE)}
    ranked = []
    for text, token_id in usable.items():
        for cut in range(1, len(text)):
            left, right = usable.get(text[:cut]), usable.get(text[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[token_id], token_id, left, right))
    ranked.sort()
    return [(tokens[left], tokens[right]) for _, _, left, right in ranked]


def _sentencepiece_builder(reader: _Metadata, tokens: list[str], types: list[int]) -> Callable[[], Any]:
    scores = reader.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise TokenizerError(
            f"{reader.path}: tokenizer.ggml.scores: missing, or not one for each token", reader.path, "tokenizer.ggml.scores"
        )
    unknown = reader.token_id("tokenizer.ggml.unknown_token_id", len(tokens))
    prefix_space = bool(reader.metadata.get("tokenizer.ggml.add_space_prefix", True))
    vocab = {text: token_id for token_id, text in enumerate(tokens)}
    merges = _merges_from_scores(tokens, scores, types)

    def build() -> Any:
        from tokenizers import Tokenizer, decoders, models, normalizers

        try:
            model = models.BPE(
                vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token=None if unknown is None else tokens[unknown]
            )
        except Exception as error:
            raise TokenizerError(f"{reader.path}: {error}", reader.path, "tokenizer.ggml.tokens") from None
        tokenizer = Tokenizer(model)
        spaces: list[Any] = [normalizers.Prepend("▁")] if prefix_space else []
        tokenizer.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        special, plain = _added_tokens(tokens, types)
        tokenizer.add_special_tokens(special)
        tokenizer.add_tokens(plain)
        return tokenizer

    return build
