"""WordPiece vocabularies in GGUF files: the longest token that a word begins with, then the longest that its rest does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmi.text.assembly import assemble
from llmi.text.gguf_metadata import GGML, TOKENS, Metadata
from llmi.text.loaded_tokenizer import ListedTokens, guarded

#: A word with more characters is unknown, as in BERT's own code.
MAX_WORD_CHARACTERS = 100

if TYPE_CHECKING:
    import tokenizers


class WordPiece:
    """BERT's kind. A text that begins a word begins with ▁ in the file, and one inside a word is as it is; the library writes ## there."""

    def __init__(self, reader: Metadata, listed: ListedTokens, unknown: int | None) -> None:
        self.reader, self.listed = reader, listed
        if unknown is None or not listed.texts[unknown]:
            raise reader.fail(GGML + "unknown_token_id", "missing: a word that no tokens make is the unknown one")
        self.unknown = listed.texts[unknown]
        lowercase = reader.flag(GGML + "normalizer.lowercase")
        self.lowercase = lowercase is None or lowercase
        self.strip_accents = reader.flag(GGML + "normalizer.strip_accents")
        self.vocab: dict[str, int] = {}
        for token_id, text in enumerate(listed.texts):
            known = token_id in listed.special or token_id in listed.whole or token_id == unknown
            key = text if known else text[1:] if text.startswith("▁") else f"##{text}"
            if key and self.vocab.setdefault(key, token_id) != token_id:
                raise reader.fail(TOKENS, f"tokens {self.vocab[key]} and {token_id} are one text to the library, {key!r:.60}")

    def build(self) -> tokenizers.Tokenizer:
        """The whole tokenizer."""
        from tokenizers import decoders, models, normalizers, pre_tokenizers

        model = guarded(
            models.WordPiece, self.reader.path, vocab=self.vocab, unk_token=self.unknown, max_input_chars_per_word=MAX_WORD_CHARACTERS
        )
        accents = self.lowercase if self.strip_accents is None else self.strip_accents
        normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=accents, lowercase=self.lowercase)
        return assemble(model, normalizer, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(), self.listed, self.reader.path)

    def keeps_bytes(self) -> bool:
        """Whether each byte of a text is in its tokens: no, spaces and capitals are not."""
        return False

    def build_for(self, text: str) -> tokenizers.Tokenizer | None:
        """The whole tokenizer, always."""
        return None
