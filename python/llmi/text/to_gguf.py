"""The tokenizer of a Hugging Face folder as the entries of a GGUF file: what llmi.text.gguf_tokenizer reads, written."""

from __future__ import annotations

import base64
import dataclasses
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from llmi.base.gguf_entries import bytes_entry, file_start, flag_entry, floats_entry, number_entry, numbers_entry, text_entry, texts_entry
from llmi.chat.templates import DEFAULT, GGUF_KEY
from llmi.errors import LlmiError, TokenizerError
from llmi.models.files import open_gguf
from llmi.text import gguf_tokenizer, same_tokenizer, tokenizer_directory
from llmi.text.end_markers import END_MARKERS
from llmi.text.gguf_metadata import BYTE, CONTROL, GGML, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from llmi.text.gguf_pre_tokenizers import RULES
from llmi.text.loaded_tokenizer import LoadedTokenizer
from llmi.text.token_bytes import BYTE_TOKENS
from llmi.text.tokenizer_steps import MARK, PREPEND, STRIP, Data, changes_of, ignores_merges, steps_of

#: Names of single tokens in tokenizer_config.json, and GGUF's.
_NAMES = {"pad_token": "padding", "sep_token": "seperator", "mask_token": "mask", "cls_token": "cls"}


def gguf_entries(folder: Path, *, num_rows: int | None = None) -> dict[str, bytes]:
    """The tokenizer of a folder as GGUF's metadata, with its chat templates.

    What is made is read again, as llmi reads a GGUF file, and must be the folder's tokenizer: ids, special tokens, what stands around a
    text, templates, the steps before the vocabulary, merges, and the ids of some texts. Two differences are no fault and are named in a
    UserWarning: tokens that look like <|this|> are control tokens in every GGUF file, and control tokens that end a turn in most models
    end a text. In SentencePiece's byte pairs, of two ways to one token either may come first.

    Parameters
    ----------
    folder : Path
        As Tokenizer takes it.
    num_rows : int, optional
        Rows of the model's embedding: ids from the tokenizer's end up to it are padded, with unused tokens. None: as many as it has ids.

    Returns
    -------
    dict of str to bytes
        Name of the entry: type and value, as a file holds them.

    Raises
    ------
    TokenizerError
        The folder's tokenizer cannot be read; or GGUF cannot say what it does, and the message names what.

    Examples
    --------
    >>> entries = gguf_entries(llmi.testing.tiny_model(vocab_size=257))
    >>> entries["tokenizer.ggml.model"][12:]
    b'gpt2'
    """
    loaded = tokenizer_directory.load(folder, {})
    library = loaded.build()
    size = len(loaded.listed.texts)
    source = _Source(folder, loaded, library.token_to_id, json.loads(library.to_str()), num_rows or size)
    if num_rows is not None and num_rows < size:
        raise source.fail("vocab_size", f"the tokenizer has {size:,} ids, and the model's embedding {num_rows:,} rows")
    same_tokenizer.check_flags(source.data, source.fail)
    refusals = []
    for kind in source.kinds:
        try:
            entries, read = _made(source, kind)
            break
        except TokenizerError as error:
            refusals.append(error)
    else:
        raise refusals[0]
    notes = same_tokenizer.accepted(loaded, read)
    if notes:
        warnings.warn(f"{folder}: {'; '.join(notes)}", UserWarning, stacklevel=2)
    return entries


@dataclasses.dataclass
class _Source:
    folder: Path
    loaded: LoadedTokenizer
    id_of: Callable[[str], int | None]
    data: Data  # its tokenizer.json, as the library writes it
    num_rows: int

    @property
    def texts(self) -> list[str]:
        """Of all rows; those that no token has are named."""
        known = self.loaded.listed.texts
        return [text or f"[PAD{token_id}]" for token_id, text in enumerate(known + [""] * (self.num_rows - len(known)))]

    @property
    def kinds(self) -> tuple[str, ...]:
        """GGUF's names of the vocabulary's kind; the first that can say all of it is taken."""
        if self.loaded.listed.byte_level:
            return ("gpt2",)
        return {"Unigram": ("t5",), "WordPiece": ("bert",)}.get(self.data["model"]["type"], ("llama", "gemma4"))

    def fail(self, field: str, problem: str) -> TokenizerError:
        return TokenizerError(f"{self.folder}: {field}: {problem}: GGUF cannot say it", self.folder, field)

    @property
    def unknown_id(self) -> int | None:
        model = self.data["model"]
        unknown = model.get("unk_token") or self.loaded.template_tokens.get("unk_token")
        return model["unk_id"] if model.get("unk_id") is not None else self.id_of(unknown) if unknown else None


def _made(source: _Source, kind: str) -> tuple[dict[str, bytes], LoadedTokenizer]:
    """The entries of this kind, and what they are when they are read. Raises TokenizerError: it is not the folder's tokenizer."""
    entries = _tokens(source, kind) | _KINDS[kind](source) | _ids(source, kind) | _templates(source.loaded.chat_templates)
    read = _read(entries, source)
    for field, problem in same_tokenizer.differences(source.loaded, source.data, read):
        raise source.fail(field, problem)
    return entries, read


def _byte_pairs(source: _Source) -> dict[str, bytes]:
    data = source.data
    steps, ignores = steps_of(data), data["model"]["ignore_merges"]
    matters: bool | None = None  # whether merges are ignored; it takes a second to find out
    for name, rule in RULES.items():
        cut = {"normalizer": {"type": "NFC"} if rule.compose else None, "pre_tokenizer": json.loads(rule.pre_tokenizer().__getstate__())}
        if name == "default" or not rule.byte_level or steps_of(data | cut) != steps:
            continue
        if rule.ignore_merges != ignores and matters is None:
            matters = ignores_merges(data | {"model": data["model"] | {"ignore_merges": True}})
        if rule.ignore_merges == ignores or not matters:
            return _merges(source, name)
    shown = f"{json.dumps(steps, ensure_ascii=False):.2000}, with ignore_merges {ignores}"
    raise source.fail("pre_tokenizer", f"no name of tokenizer.ggml.pre cuts words as {shown}")


def _merges(source: _Source, name: str = "gemma4") -> dict[str, bytes]:
    return {GGML + "pre": text_entry(name), GGML + "merges": texts_entry([" ".join(pair) for pair in source.data["model"]["merges"]])}


def _sentencepiece(source: _Source) -> dict[str, bytes]:
    """Scores are the merges' places: the first whole scores highest."""
    steps = steps_of(source.data)
    if steps not in ([MARK], [PREPEND, MARK]):
        raise source.fail("normalizer", f"{json.dumps(steps, ensure_ascii=False):.2000} marks spaces in another way")
    places: dict[str, int] = {}
    for left, right in source.data["model"]["merges"]:
        places.setdefault(left + right, len(places))
    scores = [-float(places.get(text, len(places))) for text in source.texts]
    return {GGML + "scores": floats_entry(scores), GGML + "add_space_prefix": flag_entry(steps != [MARK])}


def _unigrams(source: _Source) -> dict[str, bytes]:
    model, steps = source.data["model"], steps_of(source.data)
    pieces = {text for text, _ in model["vocab"]} - {token["content"] for token in source.data["added_tokens"]}
    alone = sorted(set("".join(pieces)) - pieces)
    if alone:  # the score of the unknown token, which is not the same, then counts
        raise source.fail("model.vocab", f"{alone[0]!r} is in tokens, but no token by itself")
    entries = {
        GGML + "scores": floats_entry([score for _, score in model["vocab"]] + [0.0] * (source.num_rows - len(model["vocab"]))),
        GGML + "add_space_prefix": flag_entry(PREPEND in steps),
        GGML + "remove_extra_whitespaces": flag_entry(STRIP in steps),
    }
    if steps and steps[0]["type"] == "Precompiled":
        entries[GGML + "precompiled_charsmap"] = bytes_entry(base64.b64decode(steps[0]["precompiled_charsmap"]))
    return entries


def _word_pieces(source: _Source) -> dict[str, bytes]:
    step = next((step for step in changes_of(source.data) if step["type"] == "BertNormalizer"), {})
    names = ("lowercase", "strip_accents")
    return {f"{GGML}normalizer.{name}": flag_entry(step[name]) for name in names if step}


def _tokens(source: _Source, kind: str) -> dict[str, bytes]:
    listed = source.loaded.listed
    has_bytes = not listed.byte_level and source.data["model"].get("byte_fallback")
    unknown = source.unknown_id
    types = []
    for token_id, text in enumerate(listed.texts):
        if not text:
            token_type = UNUSED
        elif token_id in listed.special:
            token_type = CONTROL
        elif token_id in listed.whole:
            token_type = USER_DEFINED
        elif token_id == unknown:
            token_type = UNKNOWN
        else:
            token_type = BYTE if has_bytes and text in BYTE_TOKENS else NORMAL
        types.append(token_type)
    return {
        GGML + "model": text_entry(kind),
        GGML + "tokens": texts_entry(source.texts),
        GGML + "token_type": numbers_entry(types + [UNUSED] * (source.num_rows - len(types))),
    }


def _ids(source: _Source, kind: str) -> dict[str, bytes]:
    loaded = source.loaded
    ids = {name: source.id_of(loaded.template_tokens[key]) for key, name in _NAMES.items() if key in loaded.template_tokens}
    ids |= {"bos": loaded.bos_token_id, "eos": loaded.main_eos_token_id, "unknown": source.unknown_id}
    texts = dict(enumerate(source.texts))
    further = [i for i in loaded.eos_token_ids if i != loaded.main_eos_token_id and texts.get(i) not in END_MARKERS]
    ids["eot"] = further[0] if further else None  # llama.cpp finds the others by their texts
    entries = {}
    add_eos = bool(loaded.suffix)
    if kind == "bert":
        ids["seperator"] = loaded.suffix[-1] if loaded.suffix else ids.get("seperator")
        entries[GGML + "add_sep_token"] = flag_entry(bool(loaded.suffix))
        add_eos = False
    entries |= {GGML + "add_bos_token": flag_entry(bool(loaded.prefix)), GGML + "add_eos_token": flag_entry(add_eos)}
    entries |= {f"{GGML}{name}_token_id": number_entry(token_id) for name, token_id in ids.items() if token_id is not None}
    if len(loaded.eos_token_ids) > 1:
        entries[GGML + "eos_token_ids"] = numbers_entry(loaded.eos_token_ids)
    return entries


def _templates(templates: dict[str, str]) -> dict[str, bytes]:
    entries = {GGUF_KEY if name == DEFAULT else f"{GGUF_KEY}.{name}": text_entry(text) for name, text in templates.items() if text}
    names = [name for name, text in templates.items() if text and name != DEFAULT]
    return entries | ({"tokenizer.chat_templates": texts_entry(names)} if names else {})


def _read(entries: dict[str, bytes], source: _Source) -> LoadedTokenizer:
    """What llmi makes of them."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        file = Path(folder) / "vocabulary.gguf"
        file.write_bytes(file_start(0, entries))
        try:
            loaded = gguf_tokenizer.load(file, open_gguf(file))
            library = loaded.build()
        except LlmiError as error:
            raise source.fail("tokenizer", str(error).removeprefix(f"{file}: ")) from None
    return dataclasses.replace(loaded, build=lambda: library)


_KINDS: dict[str, Callable[[_Source], dict[str, bytes]]] = {
    "gpt2": _byte_pairs,
    "llama": _sentencepiece,
    "gemma4": _merges,
    "t5": _unigrams,
    "bert": _word_pieces,
}
