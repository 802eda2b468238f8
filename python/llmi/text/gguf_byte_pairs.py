"""Byte-pair vocabularies of GGUF files: merges of texts, in GPT-2's alphabet of bytes or of the characters themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmi import _core
from llmi.text.assembly import assemble
from llmi.text.gguf_metadata import BYTE, GGML, MERGES, TOKENS, Metadata
from llmi.text.gguf_pre_tokenizers import RULES, Rule
from llmi.text.loaded_tokenizer import ListedTokens, guarded
from llmi.text.token_bytes import BYTE_TOKENS, byte_level_alphabet

if TYPE_CHECKING:
    import tokenizers


def rule_of(reader: Metadata, model: str) -> Rule:
    """How the file cuts a text into words. Raises TokenizerError for a name that is not known, with those that are."""
    pre = "gemma4" if model == "gemma4" else reader.text(GGML + "pre", "") or "default"
    if pre not in RULES:
        raise reader.fail(GGML + "pre", f"pre-tokenizer {pre!r} is not known ({', '.join(sorted(RULES))} are)")
    return RULES[pre]


class BytePairs:
    """A merge's whole is a token of the vocabulary, and a token that comes of a text occurs in it: so tokens and merges that do not occur
    there may be left out."""

    def __init__(
        self, reader: Metadata, file: _core.GgufFile, listed: ListedTokens, types: list[int], rule: Rule, unknown: int | None
    ) -> None:
        self.reader, self.file, self.listed, self.rule = reader, file, listed, rule
        self.unknown = None if rule.byte_level or unknown is None else listed.texts[unknown] or None
        self.single_bytes = {} if rule.byte_level else {i: listed.texts[i] for i, kind in enumerate(types) if kind == BYTE or i == unknown}

    def build(self) -> tokenizers.Tokenizer:
        """The whole tokenizer."""
        merges: list[str] = self.file.strings(MERGES)
        return self._tokenizer({text: token_id for token_id, text in enumerate(self.listed.texts) if text}, merges)

    def keeps_bytes(self) -> bool:
        """Whether each byte of a text is in its tokens."""
        if not self.rule.byte_level:
            return set(self.single_bytes.values()) >= BYTE_TOKENS.keys()
        return not self.rule.compose and byte_level_alphabet().keys() <= set(self.listed.texts)

    def build_for(self, text: str) -> tokenizers.Tokenizer | None:
        """A tokenizer of what may come of this text; None where only the whole one will do."""
        if self.rule.compose:
            return None
        if self.rule.byte_level:
            alphabet = {byte: character for character, byte in byte_level_alphabet().items()}
            written = "".join([alphabet[byte] for byte in text.encode()])
        else:
            written = text.replace(" ", "▁")
        vocab = {text: token_id for token_id, text in self.file.occurring(TOKENS, written).items() if text}
        vocab |= {text: token_id for token_id, text in (self.listed.special | self.listed.whole | self.single_bytes).items()}
        return self._tokenizer(vocab, list(self.file.occurring(MERGES, written, joined=True).values()))

    def _tokenizer(self, vocab: dict[str, int], merges: list[str]) -> tokenizers.Tokenizer:
        from tokenizers import decoders, models, normalizers

        pairs: object = [tuple(merge.split(" ", 1)) for merge in merges]
        model = guarded(
            models.BPE,
            self.reader.path,
            vocab=vocab,
            merges=pairs,
            ignore_merges=self.rule.ignore_merges,
            byte_fallback=not self.rule.byte_level,
            unk_token=self.unknown,
            fuse_unk=not self.rule.byte_level,
        )
        normalizer: object = normalizers.NFC() if self.rule.compose else None
        decoder: object = decoders.ByteLevel()
        if not self.rule.byte_level:
            normalizer = normalizers.Replace(" ", "▁")
            decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        return assemble(model, normalizer, self.rule.pre_tokenizer(), decoder, self.listed, self.reader.path)
