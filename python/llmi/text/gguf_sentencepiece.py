"""SentencePiece's byte-pair vocabularies in GGUF files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.text.assembly import assemble
from llmi.text.gguf_metadata import BYTE, GGML, TOKENS, Metadata
from llmi.text.loaded_tokenizer import ListedTokens, guarded
from llmi.text.score_merges import merges_from_scores
from llmi.text.token_bytes import BYTE_TOKENS

if TYPE_CHECKING:
    import tokenizers


class SentencePiece:
    """SentencePiece's kind: a score for each text, ▁ for a space, bytes for what is no text."""

    def __init__(self, reader: Metadata, file: _core.GgufFile, listed: ListedTokens, types: list[int], unknown: int | None) -> None:
        self.reader, self.file, self.listed, self.types, self.unknown = reader, file, listed, types, unknown
        self.scores = reader.scores(len(types))
        prefix = reader.flag(GGML + "add_space_prefix")
        self.prefix_space = prefix is None or prefix

    def build(self) -> tokenizers.Tokenizer:
        """The whole tokenizer."""
        return self._tokenizer({i: text for i, text in enumerate(self.listed.texts) if text})

    def keeps_bytes(self) -> bool:
        """Whether each byte of a text is in its tokens."""
        return {text for text, kind in zip(self.listed.texts, self.types, strict=True) if kind == BYTE} >= BYTE_TOKENS.keys()

    def build_for(self, text: str) -> tokenizers.Tokenizer | None:
        """A tokenizer of what may come of this text; None where only the whole one will do."""
        if any(part in text for part in (self.listed.special | self.listed.whole).values()):
            return None  # what is behind such a part may begin with a space of its own
        written = ("▁" if self.prefix_space else "") + text.replace(" ", "▁")
        tokens = {i: text for i, text in self.file.occurring(TOKENS, written).items() if text} | self.listed.special | self.listed.whole
        tokens |= {i: self.listed.texts[i] for i, kind in enumerate(self.types) if kind == BYTE or i == self.unknown}
        return self._tokenizer(dict(sorted(tokens.items())))

    def _tokenizer(self, tokens: dict[int, str]) -> tokenizers.Tokenizer:
        from tokenizers import decoders, models, normalizers

        merges = merges_from_scores(
            {i: text for i, text in tokens.items() if i not in self.listed.special and self.types[i] != BYTE},
            self.scores,
            lambda problem: self.reader.fail(TOKENS, problem),
        )
        model = guarded(
            models.BPE,
            self.reader.path,
            vocab={text: token_id for token_id, text in tokens.items()},
            merges=merges,
            byte_fallback=True,
            fuse_unk=True,
            unk_token=None if self.unknown is None else self.listed.texts[self.unknown] or None,
        )
        spaces: list[Any] = [normalizers.Prepend("▁")] if self.prefix_space else []
        normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
        decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        return assemble(model, normalizer, None, decoder, self.listed, self.reader.path)
