"""Text to token ids and back: Hugging Face `tokenizers`, also for the vocabularies inside GGUF files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llmi import _chat, _gguf_tokenizer
from llmi._errors import TokenizerError
from llmi._input_file import MAX_VOCABULARY_BYTES, is_there, read_json, read_text
from llmi._token_bytes import ByteTable, byte_table, listed_bytes

Message = dict[str, Any]
MAX_TEXT_BYTES = 64 << 20
#: A vocabulary of 49,152 tokens takes a tenth of a second to build, what a sentence needs of it a few milliseconds.
MAX_SMALL_TEXTS, MAX_SMALL_CHARACTERS = 4, 2000


class Tokenizer:
    """A model's tokenizer.

    Parameters
    ----------
    path : path
        A directory with tokenizer.json, a tokenizer.json, or a GGUF file (a vocabulary is enough).

    Attributes
    ----------
    vocab_size : int
    bos_token_id : int or None
    eos_token_ids : frozenset of int
        All ids that end a text.
    vocab_bytes : list of bytes
        The bytes of each id, b"" for specials.
    chat_template : str or None

    Raises
    ------
    TokenizerError
        The vocabulary is missing, broken, or of a kind that llmi does not know.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.is_dir() or self.path.suffix == ".json":
            loaded = _load_directory(self.path)
        else:
            loaded = _gguf_tokenizer.load(self.path)
        self._loaded = loaded
        self._lock = threading.Lock()  # around what is built when it is needed, and the switch of encode_special_tokens
        self._whole: Any = None
        self._num_small = 0
        self.bos_token_id: int | None = loaded.bos_token_id
        self.eos_token_ids: frozenset[int] = frozenset(loaded.eos_token_ids)
        self.chat_template: str | None = loaded.chat_template
        listed = loaded.listed
        self.vocab_size: int = len(listed.texts) if listed else self._tokenizer_for(None).get_vocab_size(with_added_tokens=True)
        self._table: ByteTable | None = None

    @property
    def _bytes(self) -> ByteTable:
        if self._table is None:
            listed = self._loaded.listed
            self._table = listed_bytes(listed) if listed else byte_table(self._tokenizer_for(None), self.path)
        return self._table

    def _tokenizer_for(self, text: str | None) -> Any:
        """The library's tokenizer, which takes a while to build; for the first short texts one of what may come of them."""
        if self._whole is None:
            if text is not None and len(text) <= MAX_SMALL_CHARACTERS and self._num_small < MAX_SMALL_TEXTS:
                self._num_small += 1
                small = self._loaded.build_for(text)
                if small is not None:
                    return small
            self._whole = self._loaded.build()
        return self._whole

    @property
    def vocab_bytes(self) -> list[bytes]:
        """The bytes of each id, b"" for specials."""
        return self._bytes.vocab_bytes

    @property
    def special_tokens(self) -> dict[int, str]:
        """Text of the special tokens by id."""
        return self._bytes.special

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of `text`.

        Parameters
        ----------
        text : str
        add_special_tokens : bool
            Put the beginning-of-text token in front, if the model wants one.
        parse_special : bool
            Read strings such as "<|im_start|>" as the special tokens they name. Off: they are text.

        Raises
        ------
        TokenizerError
            The text is over 64 MiB, or holds a lone surrogate.
        """
        if len(text) > MAX_TEXT_BYTES:
            raise TokenizerError(f"the text has {len(text):,} characters (at most {MAX_TEXT_BYTES:,})", self.path)
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise TokenizerError("the text holds a lone surrogate, which is no character", self.path) from None
        with self._lock:
            tokenizer = self._tokenizer_for(text)
            tokenizer.encode_special_tokens = not parse_special
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return self._loaded.with_special(ids) if add_special_tokens else ids

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that make no character become U+FFFD."""
        table = self._bytes
        parts = []
        for token_id in token_ids:
            if token_id in table.special:
                parts.append(b"" if skip_special_tokens else table.special[token_id].encode())
            elif 0 <= token_id < len(table.vocab_bytes):
                parts.append(table.vocab_bytes[token_id])
            else:
                raise TokenizerError(f"token id {token_id} is outside [0, {len(table.vocab_bytes)})", self.path)
        return b"".join(parts).decode("utf-8", "replace")

    def apply_chat_template(
        self,
        messages: list[Message],
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        chat_template: str | None = None,
        **kwargs: Any,
    ) -> str | list[int]:
        """A chat as the model's prompt: text, or with `tokenize` its ids.

        Special-token strings inside message contents stay text.

        Raises
        ------
        ChatTemplateError
            There is no template, it is broken, or it exceeds its limits.
        """
        rendered = self.render_chat(messages, chat_template, add_generation_prompt, kwargs)
        return self.encode_chat(rendered) if tokenize else rendered.text

    def render_chat(
        self, messages: list[Message], chat_template: str | None, add_generation_prompt: bool, kwargs: dict[str, Any]
    ) -> _chat.Rendered:
        """The chat's text, with what is markup in it told apart from what is content."""
        template = chat_template or self.chat_template
        specials = _chat.SpecialTokens(bos=self._text_of(self.bos_token_id), eos=self._text_of(self._loaded.main_eos_token_id))
        return _chat.render(template, messages, specials, list(self.special_tokens.values()), add_generation_prompt, kwargs, self.path)

    def encode_chat(self, rendered: _chat.Rendered) -> list[int]:
        """Token ids of a rendered chat."""
        ids: list[int] = []
        for piece, is_markup in rendered.pieces:
            ids += self.encode(piece, add_special_tokens=False, parse_special=is_markup)
        return ids

    def decode_stream(self) -> DecodeStream:
        """An incremental decoder: `.step(token_id)` gives whole characters, `.flush()` what is left."""
        return DecodeStream(self)

    def _text_of(self, token_id: int | None) -> str:
        return "" if token_id is None else self._bytes.special.get(token_id, "")


class DecodeStream:
    """Tokens to text one at a time; half a character is held until it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        import codecs

        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def step(self, token_id: int) -> str:
        """Text that `token_id` completes."""
        return self._decoder.decode(self._tokenizer.vocab_bytes[token_id])

    def flush(self) -> str:
        """The rest: U+FFFD for an unfinished character."""
        return self._decoder.decode(b"", final=True)


def _load_directory(path: Path) -> _gguf_tokenizer.LoadedTokenizer:
    directory = path if path.is_dir() else path.parent
    file = path / "tokenizer.json" if path.is_dir() else path
    if not is_there(file):
        raise TokenizerError(f"{directory}: tokenizer.json is missing", path)
    settings, config, generation = (
        read_json(directory / name, error=TokenizerError) if is_there(directory / name) else {}
        for name in ("tokenizer_config.json", "config.json", "generation_config.json")
    )
    text = read_text(file, MAX_VOCABULARY_BYTES, TokenizerError)

    def build() -> Any:
        import tokenizers

        try:
            return tokenizers.Tokenizer.from_str(text)
        except Exception as error:
            raise TokenizerError(f"{file}: {error}", file) from None

    tokenizer = build()  # which takes what is asked of it below

    def id_of(entry: Any) -> int | None:
        content = entry.get("content") if isinstance(entry, dict) else entry
        return tokenizer.token_to_id(content) if isinstance(content, str) else None

    eos_ids: list[int] = []
    for source in (generation.get("eos_token_id"), config.get("eos_token_id"), id_of(settings.get("eos_token"))):
        for token_id in source if isinstance(source, list) else [source]:
            if isinstance(token_id, int) and token_id not in eos_ids:
                eos_ids.append(token_id)
    bos_id = id_of(settings.get("bos_token"))
    if bos_id is None and isinstance(config.get("bos_token_id"), int):
        bos_id = config["bos_token_id"]
    # The post-processor is the truth about which tokens a text is wrapped in.
    wrapped: list[int] = tokenizer.encode("", add_special_tokens=True).ids
    prefix = wrapped[:1] if wrapped and wrapped[0] == bos_id else []
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    template_file = directory / "chat_template.jinja"
    if is_there(template_file):
        template = read_text(template_file, error=TokenizerError)
    return _gguf_tokenizer.LoadedTokenizer(
        build=lambda: tokenizer,
        bos_token_id=bos_id,
        eos_token_ids=eos_ids,
        prefix=prefix,
        suffix=wrapped[len(prefix) :],
        chat_template=template,
    )
