"""SentencePiece unigram vocabularies in GGUF files (model t5): of all ways to cut a text, the one whose scores add up to the most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmi.text.assembly import assemble
from llmi.text.gguf_metadata import GGML, UNUSED, USER_DEFINED, Metadata
from llmi.text.loaded_tokenizer import ListedTokens, guarded

if TYPE_CHECKING:
    import tokenizers

_NEVER = -1e4  # the score of what no text becomes


class Unigram:
    """T5's and XLM-R's kind: a score for each text, \u2581 for a space, and the rules of a table (precompiled_charsmap) for characters."""

    def __init__(self, reader: Metadata, listed: ListedTokens, types: list[int], unknown: int | None) -> None:
        self.reader, self.listed, self.types = reader, listed, types
        if unknown is None:
            raise reader.fail(GGML + "unknown_token_id", "missing: what no tokens make is the unknown one")
        self.unknown = unknown
        self.scores = reader.scores(len(types))
        self.prefix_space = reader.flag(GGML + "add_space_prefix") is not False
        self.joins_spaces = reader.flag(GGML + "remove_extra_whitespaces") is True
        charsmap = reader.numbers(GGML + "precompiled_charsmap", int)
        if charsmap is not None and not all(-128 <= value < 256 for value in charsmap):
            raise reader.fail(GGML + "precompiled_charsmap", "it is no list of bytes")
        self.charsmap = bytes(value & 255 for value in charsmap or ())

    def _score(self, token_id: int) -> float:
        if token_id in self.listed.special or self.types[token_id] == UNUSED:
            return _NEVER
        return 0.0 if self.types[token_id] == USER_DEFINED else self.scores[token_id]

    def build(self) -> tokenizers.Tokenizer:
        """The whole tokenizer."""
        from tokenizers import Regex, decoders, models, normalizers

        vocab = [(text or f"\0{token_id}", self._score(token_id)) for token_id, text in enumerate(self.listed.texts)]
        model = guarded(models.Unigram, self.reader.path, vocab, self.unknown, False)
        steps: list[Any] = [guarded(normalizers.Precompiled, self.reader.path, self.charsmap)] if self.charsmap else []
        if self.joins_spaces:
            steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
        steps += [normalizers.Prepend("\u2581")] if self.prefix_space else []
        normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
        decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse()])
        return assemble(model, normalizer, None, decoder, self.listed, self.reader.path)

    def keeps_bytes(self) -> bool:
        """Whether each byte of a text is in its tokens: no, the table may change characters."""
        return False

    def build_for(self, text: str) -> tokenizers.Tokenizer | None:
        """The whole tokenizer, always."""
        return None
