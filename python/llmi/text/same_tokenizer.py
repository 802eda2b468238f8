"""How a tokenizer and what a GGUF file made of it differ."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from struct import pack
from typing import Any

from llmi.text.end_markers import ends, is_markup
from llmi.text.loaded_tokenizer import LoadedTokenizer, listed_some
from llmi.text.tokenizer_json import SPACE
from llmi.text.tokenizer_settings import NAMED
from llmi.text.tokenizer_steps import Data, changes_of, ignores_merges, steps_of, unknown_of

#: They are encoded by both, with special tokens read and not, and so is the text of each added token.
_TEXTS = (
    "",
    " ",
    "Hello, world! It's 12345 o'clock;  two   spaces\n\n\tand a tab. ",
    " né café e\u0301 ÄÖÜ ß ﬁ ① ½ 中文 日本語 ไทย हिन्दी العربية 한국어 🙂👍🏽 \u00a0\u200b\u2581 ",
    "def f(x):\n    return x**2  # aaaaaaaa ======== ________\r\n",
    "HELLO hello HeLLo 3.14159 1,000,000 <tag> [x] {y} a@b.c https://x.y/z?q=1",
    "\x00\x7f\x80 \ufffd",
)


def check_flags(data: Data, fail: Callable[[str, str], Exception]) -> None:
    """Refuses added tokens that take spaces with them, stand alone, or are found in a text that was changed."""
    names = ("single_word", "lstrip", "rstrip", *(["normalized"] if changes_of(data) else []))
    for token in data["added_tokens"]:
        flags = [name for name in names if token[name]]
        if flags:
            raise fail("added_tokens", f"{token['content']!r:.60} has {', '.join(flags)}")


def differences(here: LoadedTokenizer, data: Data, there: LoadedTokenizer) -> Iterator[tuple[str, str]]:
    """(field, what differs) of each part that a folder's tokenizer (here, with its tokenizer.json) and a GGUF file's (there) do not
    share."""
    ours, theirs = _parts(here, data, here), _parts(there, json.loads(there.build().to_str()), here)
    for field, part in ours.items():
        if part != theirs[field]:
            yield field, _first_difference(part, theirs[field])
    missing = {*here.eos_token_ids} - {*there.eos_token_ids}
    further = {*there.eos_token_ids} - {*here.eos_token_ids} - {*ends(there.listed.special)}
    if missing or further:
        yield "eos_token_id", f"{sorted(missing or further)} {'does not end' if missing else 'ends'} a text of the file"
    added = [*here.listed.special.values(), *here.listed.whole.values(), f"[PAD{len(here.listed.texts)}]"]
    texts = [*_TEXTS, *(f"{text} a{text}b  {text}" for text in added)]
    controls = _controls(here).keys()
    for special in (True, False):
        for text, one, other in zip(texts, _ids(here, texts, special), _ids(there, texts, special), strict=True):
            if one != other and (special or controls.isdisjoint(one)):
                yield "tokenizer", f"{text!r:.80} has other ids in the file"


def accepted(here: LoadedTokenizer, there: LoadedTokenizer) -> list[str]:
    """What differs by llmi's own rules for every GGUF file, in words."""
    controls = _controls(here)
    texts = [*controls.values()]
    both = zip(controls, texts, _ids(here, texts, False), _ids(there, texts, False), strict=True)
    read = [text for token_id, text, one, other in both if token_id in one and one != other]
    further = [there.listed.texts[token_id] for token_id in there.eos_token_ids if token_id not in here.eos_token_ids]
    notes = [f"readers of GGUF files take {listed_some(read)} for control tokens, which a user's text never becomes"] if read else []
    return notes + ([f"readers of GGUF files also end a text at {listed_some(further)}"] if further else [])


def _controls(loaded: LoadedTokenizer) -> dict[int, str]:
    """The tokens that are control tokens in a GGUF file."""
    return dict(sorted((loaded.listed.special | {i: text for i, text in loaded.listed.whole.items() if is_markup(text)}).items()))


def _ids(loaded: LoadedTokenizer, texts: list[str], special: bool) -> list[list[int]]:
    library = loaded.build()
    library.encode_special_tokens = not special
    return [encoding.ids for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]


def _parts(loaded: LoadedTokenizer, data: Data, here: LoadedTokenizer) -> dict[str, Any]:
    """What must be the same, by field; ids that the folder has no token for are left out."""
    listed = loaded.listed
    vocabulary = {token_id: listed.texts[token_id] for token_id, text in enumerate(here.listed.texts) if text}
    special = _controls(loaded)
    templates = {name: text for name, text in loaded.chat_templates.items() if text}
    named = loaded.template_tokens or {
        f"{name}_token": special.get(-1 if token_id is None else token_id, "")
        for name, token_id in (("bos", loaded.bos_token_id), ("eos", loaded.main_eos_token_id))
    }
    return {
        "normalizer and pre_tokenizer": steps_of(data),
        "vocabulary": vocabulary,
        "special tokens": special,
        "added_tokens": dict(sorted((token_id, text) for token_id, text in listed.whole.items() if token_id not in special)),
        "decoder": (listed.byte_level, listed.adds_space),
        "bos_token_id": loaded.bos_token_id,
        "eos_token": None if here.main_eos_token_id is None else loaded.main_eos_token_id,
        "post_processor": (loaded.prefix, loaded.suffix),
        "chat_template": templates,
        "special tokens of the chat template": {name: named.get(name, "") for name in NAMED if name in "".join(templates.values())},
        "model": _model(data, vocabulary, listed.byte_level),
    }


def _model(data: Data, vocabulary: dict[int, str], byte_level: bool) -> Any:
    model, added = data["model"], {token["content"] for token in data["added_tokens"]}
    if model["type"] == "WordPiece":
        return model["unk_token"], model["max_input_chars_per_word"]
    if model["type"] == "Unigram":
        texts = {*vocabulary.values()} - added
        scores = [(text, pack("<f", score)) for text, score in model["vocab"] if text in texts]  # the library reads them with an error
        return model["unk_id"], model["byte_fallback"], scores
    data = data | {"model": model | {"vocab": {text: token_id for token_id, text in vocabulary.items()}}}
    if byte_level:
        return ignores_merges(data), unknown_of(data, byte_level), model["merges"]
    # A text that is an added token is found before any merge could make it.
    by_whole = itertools.groupby((pair for pair in model["merges"] if "".join(pair) not in added or SPACE in "".join(pair)), "".join)
    return unknown_of(data, byte_level), [(whole, sorted(pairs)) for whole, pairs in by_whole]


def _first_difference(one: object, other: object) -> str:
    """Both values, of parts with many the first that differs."""
    if isinstance(one, dict) and isinstance(other, dict):
        key = next(key for key in [*one, *other] if one.get(key) != other.get(key))
        one, other = ({key: part.get(key)} for part in (one, other))
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return next(_first_difference(*pair) for pair in itertools.zip_longest(one, other) if pair[0] != pair[1])
    return f"{one!r:.300} is {other!r:.300} in the file"
