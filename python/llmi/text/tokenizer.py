"""Text to token ids and back: Hugging Face `tokenizers`, also for the vocabularies inside GGUF files."""

from __future__ import annotations

import codecs
import os
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from llmi import _core
from llmi.base.kinds import MAX_ENTRIES, Listed, Place, Whole, parse, show
from llmi.chat import rules
from llmi.chat import templates as chat_templates
from llmi.errors import InvalidParamsError, PromptTooLongError, TokenizerError
from llmi.models import layout
from llmi.models.files import open_gguf
from llmi.models.input_file import is_directory, is_there
from llmi.params.options import option
from llmi.text import gguf_tokenizer
from llmi.text.loaded_tokenizer import ListedTokens, LoadedTokenizer, guarded
from llmi.text.token_bytes import ByteTable, byte_table

if TYPE_CHECKING:
    import tokenizers

Message = dict[str, Any]
MAX_TEXT_BYTES = 64 << 20
#: A vocabulary of 49,152 tokens takes a tenth of a second to build, what a sentence needs of it a few milliseconds.
MAX_SMALL_TEXTS, MAX_SMALL_CHARACTERS = 4, 2000
#: From here on the library's way for many texts is taken: it gives the same ids, and lets other threads of Python run meanwhile.
_LONG_CHARACTERS = 2_000
#: Where a prompt is a chat that was rendered already, its markup stands at the beginning.
MARKUP_CHARACTERS = 65_536

#: Parts of a loaded tokenizer that travel as they are.
_PLAIN_PARTS = ("bos_token_id", "eos_token_ids", "main_eos_token_id", "prefix", "suffix", "pair", "chat_templates", "template_tokens")

_ID = Whole(-(2**65536), 2**65536, "a token id, a whole number")  # one beyond the vocabulary is a TokenizerError
_IDS = Listed(_ID, "a list of token ids, which are whole numbers", MAX_ENTRIES)


class Tokenizer:
    """A model's tokenizer. It can be pickled and copied; the copy needs no file.

    Parameters
    ----------
    path : path
        A directory with tokenizer.json or one GGUF file, a tokenizer.json, or a GGUF file (a vocabulary is enough). Where there is no
        tokenizer.json: SentencePiece's tokenizer.model, tekken.json, vocab.json with merges.txt, or a tiktoken file. Next to any but a GGUF
        file, tokenizer_config.json, special_tokens_map.json, added_tokens.json, config.json and generation_config.json are read,
        by the rules of transformers 4.57. Settings that llmi does not apply are named in one UserWarning.

    Attributes
    ----------
    vocab_size : int
        One more than the largest id.
    bos_token_id : int or None
    eos_token_ids : frozenset of int
        All ids that end a text.
    vocab_bytes : list of bytes
        The bytes of each id, b"" for specials.
    chat_template : str or None
        The template named "default". Set it to have another one taken for every chat.

    Raises
    ------
    TokenizerError
        The vocabulary is missing, broken, or of a kind that llmi does not know.

    Examples
    --------
    >>> tokenizer = Tokenizer(llmi.testing.tiny_model(vocab_size=257))
    >>> tokenizer.encode("The sea")
    [85, 105, 102, 33, 116, 102, 98]
    >>> tokenizer.decode(tokenizer.encode("The sea"))
    'The sea'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._read(path, {})

    @classmethod
    def of_model(cls, path: str | os.PathLike[str], overrides: Mapping[str, Any], gguf: _core.GgufFile | None = None) -> Tokenizer:
        """The tokenizer of a model whose config.json is read with these values over its own; None takes a key away.

        gguf: the file at `path` where it is open already.
        """
        tokenizer = cls.__new__(cls)
        tokenizer._read(path, overrides, gguf)
        return tokenizer

    def _read(self, path: str | os.PathLike[str], overrides: Mapping[str, Any], gguf: _core.GgufFile | None = None) -> None:
        self.path = Path(parse(Place(), "path", path))
        if is_directory(self.path) and not is_there(self.path / "tokenizer.json"):
            self.path = layout.gguf_of(self.path) or self.path
        if is_directory(self.path) or self.path.suffix in (".json", ".model", ".tiktoken"):
            from llmi.text import tokenizer_directory  # noqa: PLC0415 (not before a first token of a GGUF)

            self._take(tokenizer_directory.load(self.path, overrides))
        else:
            self._take(gguf_tokenizer.load(self.path, gguf if gguf is not None else open_gguf(self.path)))

    def _take(self, loaded: LoadedTokenizer) -> None:
        self._loaded = loaded
        self._lock = threading.Lock()  # around what is built when it is needed, and the switch of encode_special_tokens
        self._whole: tokenizers.Tokenizer | None = None
        self._num_small = 0
        self._table: ByteTable | None = None
        self._markup: tuple[set[str], list[int], set[str]] | None = None  # texts of special tokens, their lengths, their first characters
        self.bos_token_id: int | None = loaded.bos_token_id
        self.eos_token_ids: frozenset[int] = frozenset(loaded.eos_token_ids)
        self._special_pattern: re.Pattern[str] | None = None
        self.chat_template: str | None = loaded.chat_templates.get(chat_templates.DEFAULT)
        self.vocab_size: int = len(loaded.listed.texts)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            library = self._tokenizer_for(None).to_str()
        return {
            "path": str(self.path),
            "library": library,
            "listed": vars(self._loaded.listed),
            "keeps_bytes": self._loaded.keeps_bytes(),
            "parts": {name: getattr(self._loaded, name) for name in _PLAIN_PARTS},
            "chat_template": self.chat_template,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path = path = Path(state["path"])
        library = state["library"]

        def build() -> tokenizers.Tokenizer:
            import tokenizers

            return guarded(tokenizers.Tokenizer.from_str, path, library)

        listed, keeps_bytes = ListedTokens(**state["listed"]), bool(state["keeps_bytes"])
        self._take(LoadedTokenizer(build=build, listed=listed, keeps_bytes=lambda: keeps_bytes, **state["parts"]))
        self.chat_template = state["chat_template"]

    @property
    def _bytes(self) -> ByteTable:
        if self._table is None:
            self._table = byte_table(self._loaded.listed)
        return self._table

    def _tokenizer_for(self, text: str | None) -> tokenizers.Tokenizer:
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

    @property
    def special_pattern(self) -> re.Pattern[str] | None:
        """Matches the text of any special token, the longest first; None if there is none."""
        if self._special_pattern is None:
            self._special_pattern = rules.special_pattern(self.special_tokens.values())
        return self._special_pattern

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of `text`.

        Parameters
        ----------
        text : str
        add_special_tokens : bool
            Put the beginning-of-text token in front, if the model wants one, and what else it wraps a text in.
        parse_special : bool
            Read strings such as "<|im_start|>" as the special tokens they name. Off: they are text.

        Raises
        ------
        InvalidParamsError
            `text` is no string.
        TokenizerError
            The text is over 64 MiB, or holds a lone surrogate.

        Examples
        --------
        >>> tokenizer.encode("<|im_start|>", add_special_tokens=False, parse_special=True)  # doctest: +SKIP
        [1]
        """
        add_special_tokens, parse_special = option("add_special_tokens", add_special_tokens), option("parse_special", parse_special)
        if not isinstance(text, str):
            raise InvalidParamsError(f"a text is a string, not {show(text)}", "text")
        if len(text) > MAX_TEXT_BYTES:
            raise TokenizerError(f"the text has {len(text):,} characters (at most {MAX_TEXT_BYTES:,})", self.path, fault="request")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise TokenizerError("the text holds a lone surrogate, which is no character", self.path, fault="request") from None
        with self._lock:
            tokenizer = self._tokenizer_for(text)
            tokenizer.encode_special_tokens = not parse_special
            if len(text) > _LONG_CHARACTERS:
                ids: list[int] = guarded(tokenizer.encode_batch_fast, self.path, [text], add_special_tokens=False)[0].ids
            else:
                ids = guarded(tokenizer.encode, self.path, text, add_special_tokens=False).ids
        return self._loaded.with_special(ids) if add_special_tokens else ids

    def encode_prompt(self, text: str, parse_special: bool | None = None, max_model_len: int | None = None) -> list[int]:
        """Token ids of a prompt's text; where its own markup begins as the model wraps a text, it is not wrapped twice.

        Raises PromptTooLongError before anything is encoded if the text cannot fit: if it has more bytes than that number of longest
        tokens.
        """
        if max_model_len is not None and len(text) > max_model_len and self._loaded.keeps_bytes():
            longest = max(max(map(len, self.vocab_bytes)), *(len(name.encode()) for name in self.special_tokens.values()), 1)
            at_least = -(-len(text) // longest)  # a character has a byte or more
            if at_least > max_model_len:
                raise PromptTooLongError(at_least, max_model_len, at_least=True)
        ids = self.encode(text, parse_special=bool(parse_special))
        return self._begun(ids) if parse_special else ids

    def markup_in(self, text: str) -> str | None:
        """The first string in `text` that names a special token, as the beginning of a chat that was rendered already does; None if there
        is none.

        Only the first 65,536 characters are checked.
        """
        if self._markup is None:
            texts = {text for text in self.special_tokens.values() if text.strip()}
            self._markup = texts, sorted({len(text) for text in texts}), {text[0] for text in texts}
        texts, lengths, beginnings = self._markup
        head = text[:MARKUP_CHARACTERS]
        if beginnings.isdisjoint(head):
            return None
        for place, character in enumerate(head):
            if character in beginnings:
                for length in lengths:
                    if head[place : place + length] in texts:
                        return head[place : place + length]
        return None

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids: the bytes of the tokens, one after the other, and nothing else.

        SentencePiece's vocabularies encode a text with a space in front; the first space of the ids' text is that one, and is left out, as
        in transformers. What makes no character becomes U+FFFD. `clean_up_tokenization_spaces` of a model's files is not applied.

        Parameters
        ----------
        token_ids : iterable of int
            NumPy's integers and arrays too.
        skip_special_tokens : bool
            False: special tokens stand in the text.

        Raises
        ------
        InvalidParamsError
            `token_ids` is no iterable of whole numbers.
        TokenizerError
            An id is negative, or not below vocab_size.
        """
        text = self.decode_part(token_ids, skip_special_tokens=skip_special_tokens)
        return text[1:] if self._loaded.listed.adds_space and text.startswith(" ") else text

    def decode_part(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """As decode, of ids that stand behind others: a space in front is the text's own."""
        table = self._bytes
        skip_special_tokens = option("skip_special_tokens", skip_special_tokens)
        parts = []
        for token_id in parse(_IDS, "token_ids", token_ids):
            if token_id in table.special:
                parts.append(b"" if skip_special_tokens else table.special[token_id].encode())
            else:
                parts.append(self._bytes_of(token_id))
        return b"".join(parts).decode("utf-8", "replace")

    def _bytes_of(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            raise TokenizerError(f"token id {show(token_id)} is outside [0, {self.vocab_size})", self.path, fault="request")
        return self._bytes.vocab_bytes[token_id]

    @overload
    def apply_chat_template(
        self,
        messages: list[Message],
        *,
        tokenize: Literal[True] = True,
        add_generation_prompt: bool = ...,
        continue_final_message: bool = ...,
        chat_template: str | os.PathLike[str] | None = ...,
        **kwargs: object,
    ) -> list[int]: ...
    @overload
    def apply_chat_template(
        self,
        messages: list[Message],
        *,
        tokenize: bool,
        add_generation_prompt: bool = ...,
        continue_final_message: bool = ...,
        chat_template: str | os.PathLike[str] | None = ...,
        **kwargs: object,
    ) -> str | list[int]: ...
    def apply_chat_template(
        self,
        messages: list[Message],
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        chat_template: str | os.PathLike[str] | None = None,
        **kwargs: object,
    ) -> str | list[int]:
        """A chat as the model's prompt: text, or with `tokenize` its ids.

        Special-token strings inside messages, tools and documents stay text. What the template does not look at is named in a UserWarning.

        Parameters
        ----------
        messages : list of dict
            Each with "role" (a string), "content" (a string, a list of {"type": "text", "text": ...}, or None) and what else
            the template knows.
        tokenize : bool
            False: the text.
        add_generation_prompt : bool
            End with the beginning of an answer.
        continue_final_message : bool
            End inside the last message, which the answer continues.
        chat_template : str or path, optional
            A template, the path of a file with one, or the name of one of the model's. None: the model's "tool_use" where there are
            `tools`, its "rag" where there are `documents`, else its "default".
        **kwargs
            Variables of the template: `tools` and `documents` (lists of dicts), `enable_thinking` and others, all JSON data.
            `strftime_now="2026-01-31"` sets the clock of templates that write the date.

        Raises
        ------
        ChatTemplateError
            There is no template, it is broken, it exceeds its limits (2 s of processor time, 512 MB, 8 Mi characters), or the messages
            or arguments are malformed.
        """
        template = self.template_for(chat_template, kwargs)
        rendered = self.render_chat(messages, template, add_generation_prompt, kwargs, continue_final_message=continue_final_message)
        rules.warn_of(rendered)
        return self.encode_chat(rendered) if tokenize else rendered.text

    def use_chat_template(self, chat_template: str | os.PathLike[str]) -> None:
        """Takes a template (a text, a path or a name) for every chat. Raises ChatTemplateError."""
        self.chat_template = chat_templates.given_template(chat_template, self._loaded.chat_templates)

    def template_for(self, chat_template: object, kwargs: Mapping[str, Any]) -> str:
        """The template that a call takes: the one given, the one set, or the model's for these arguments. Raises ChatTemplateError."""
        templates = self._loaded.chat_templates
        if chat_template is not None:
            return chat_templates.given_template(chat_template, templates)
        if self.chat_template is not None and self.chat_template != templates.get(chat_templates.DEFAULT):
            return self.chat_template
        return chat_templates.choose(templates, kwargs, self.path)

    def render_chat(
        self,
        messages: object,
        template: str,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
        *,
        continue_final_message: bool = False,
    ) -> rules.Rendered:
        """The chat's text, with what is markup in it told apart from what is content."""
        tokens = self._loaded.template_tokens or {
            "bos_token": self._text_of(self.bos_token_id),
            "eos_token": self._text_of(self._loaded.main_eos_token_id),
        }
        kwargs = chat_templates.with_tools_named(template, kwargs)
        # Tokens that the template writes are its markup, special or not.
        marks = {text for text in self._loaded.listed.whole.values() if text in template and rules.MARKUP.fullmatch(text)}
        pattern = rules.special_pattern([*self.special_tokens.values(), *marks]) if marks else self.special_pattern
        return rules.render(
            template,
            messages,
            {name: text for name, text in tokens.items() if text},
            pattern,
            self.path,
            marks=marks,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            kwargs=kwargs,
            is_own=template == self.chat_template or template in self._loaded.chat_templates.values(),
            turn_ends={self._text_of(token_id) for token_id in {*self.eos_token_ids, *self._loaded.prefix, self.bos_token_id}} - {""},
        )

    def encode_chat(self, rendered: rules.Rendered, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a rendered chat. Where the model wants a text to begin with certain tokens, they stand there once, whatever the
        template writes.

        Without `add_special_tokens` what the template writes is all.
        """
        ids: list[int] = []
        for piece, is_markup in rendered.pieces:
            ids += self.encode(piece, add_special_tokens=False, parse_special=True) if is_markup else self._as_letters(piece)
        return self._begun(ids) if option("add_special_tokens", add_special_tokens) else ids

    def _as_letters(self, text: str) -> list[int]:
        """Token ids of a text that names a token, which it does not become."""
        ids = self.encode(text, add_special_tokens=False)
        if self._loaded.listed.whole.keys().isdisjoint(ids) or len(text) < 2:
            return ids
        return self.encode(text[:1], add_special_tokens=False) + self.encode(text[1:], add_special_tokens=False)

    def _begun(self, ids: list[int]) -> list[int]:
        """`ids` with the tokens that the model wants in front of a text, once."""
        prefix = self._loaded.prefix
        if not prefix or ids[: len(prefix)] != prefix:
            return [*prefix, *ids]
        while ids[len(prefix) : 2 * len(prefix)] == prefix:
            ids = ids[len(prefix) :]
        return ids

    def decode_stream(self) -> DecodeStream:
        """An incremental decoder: `.step(token_id)` gives whole characters, `.flush()` the rest."""
        return DecodeStream(self)

    def _text_of(self, token_id: int | None) -> str:
        return "" if token_id is None else self._bytes.special.get(token_id, "")


class DecodeStream:
    """Tokens to text one at a time; half a character is held until it is whole. A space in front is the text's own, as behind a prompt."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def step(self, token_id: int) -> str:
        """Text that `token_id` completes; "" for special tokens.

        Raises TokenizerError for an id that is negative or not below vocab_size.
        """
        return self._decoder.decode(self._tokenizer._bytes_of(parse(_ID, "token_id", token_id)))

    def flush(self) -> str:
        """The rest: U+FFFD for an unfinished character."""
        return self._decoder.decode(b"", final=True)
