"""tokenizer.json, checked before the tokenizers library reads it: ids, expressions, and the kinds whose tokens' bytes are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi.errors import TokenizerError
from llmi.text import regex_guard
from llmi.text.loaded_tokenizer import MAX_ADDED_CHARACTERS, MAX_TOKEN_IDS, MAX_UNUSED_IDS, PairIds, guarded

if TYPE_CHECKING:
    import tokenizers

FILE = "tokenizer.json"
MAX_STEPS = 64
MAX_NESTED = 8
#: The most characters that a normalizer may write for one.
MAX_GROWTH = 64
SPACE = "\u2581"


@dataclasses.dataclass
class CheckedTokenizer:
    """The parts of a tokenizer.json that llmi itself uses: the ids around a text, and the alphabet that stands for bytes."""

    path: Path
    byte_level: bool  # the alphabet of GPT-2, else SentencePiece's
    prefix: list[int]
    suffix: list[int]
    adds_space: bool = False  # the decoder takes a space away from the front of a text
    pair: PairIds | None = dataclasses.field(default_factory=PairIds)
    word_piece: str = ""  # of a WordPiece vocabulary: what a token inside a word begins with

    def fail(self, field: str, problem: str) -> TokenizerError:
        return TokenizerError(f"{self.path}: {field}: {problem}", self.path, field)


def check(data: object, path: Path) -> CheckedTokenizer:
    """Raises TokenizerError for what must not reach the library, or what llmi does not know."""
    checked = CheckedTokenizer(path, True, [], [])
    if not isinstance(data, dict):
        raise checked.fail(FILE, "it is no JSON object")
    model = data.get("model")
    if not isinstance(model, dict):
        raise checked.fail("model", "missing, or no object")
    ids = _model_ids(model, checked)
    _check_ids(ids + _added_ids(data.get("added_tokens"), checked), checked)
    _check_normalizer(data.get("normalizer"), checked)
    for step in _steps(data.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers", checked):
        _check_pattern(step, "pre_tokenizer", checked)
    checked.byte_level = not checked.word_piece and _is_byte_level(data.get("decoder"), checked)
    checked.adds_space |= bool(checked.word_piece)
    checked.prefix, checked.suffix = _wrapping(data.get("post_processor"), checked)
    return checked


def build(text: str, checked: CheckedTokenizer, data: dict[str, Any]) -> tokenizers.Tokenizer:
    """The library's tokenizer, without truncation, padding and dropout: a prompt's tokens are those of its text."""
    import tokenizers

    tokenizer = guarded(tokenizers.Tokenizer.from_str, checked.path, text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None) is not None:
        tokenizer.model.dropout = None
    for entry in data.get("added_tokens") or []:  # the library gives ids of its own choice to those that it does not find
        given = tokenizer.token_to_id(entry["content"])
        if given != entry["id"]:
            raise checked.fail("added_tokens", f"{entry['content']!r} has id {entry['id']}, but the vocabulary leads to {given}")
    return tokenizer


def _model_ids(model: dict[str, Any], checked: CheckedTokenizer) -> list[int]:
    vocab = model.get("vocab")
    kind = model.get("type", "BPE" if "merges" in model else "Unigram" if isinstance(vocab, list) else None)
    if kind == "Unigram" and isinstance(vocab, list):
        return list(range(len(vocab)))
    if kind not in ("BPE", "WordPiece"):
        raise checked.fail("model", f"type {kind!r} is not known (BPE, Unigram and WordPiece are)")
    if not isinstance(vocab, dict) or not vocab:
        raise checked.fail("model.vocab", "missing, empty or no object")
    if kind == "WordPiece":
        mark = model.get("continuing_subword_prefix", "##")
        if not isinstance(mark, str) or not mark:
            raise checked.fail("model.continuing_subword_prefix", f"{mark!r:.40} is no text")
        checked.word_piece = mark
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name) and kind == "BPE":
            raise checked.fail(f"model.{name}", f"{model[name]!r:.40}: tokens with marks of their own are not known")
    ids = list(vocab.values())
    try:
        unique = len(set(ids)) == len(ids)
    except TypeError:  # a list or an object for an id
        unique = True
    if not unique:
        raise checked.fail("model.vocab", "two tokens have one id")
    return ids


def _added_ids(added: object, checked: CheckedTokenizer) -> list[int]:
    ids = []
    characters = 0
    for entry in [] if added is None else added if isinstance(added, list) else [None]:
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not content:
            raise checked.fail("added_tokens", f"{entry!r:.80} is no token: an object with content and id")
        characters += len(content)
        if characters > MAX_ADDED_CHARACTERS:
            raise checked.fail("added_tokens", f"their texts have more than {MAX_ADDED_CHARACTERS:,} characters")
        ids.append(check_id(entry.get("id"), f"added_tokens: {content!r:.60}", checked.path))
    if len(set(ids)) != len(ids):
        raise checked.fail("added_tokens", "two of them have one id")
    return ids


def check_id(value: object, name: str, path: Path, limit: int = MAX_TOKEN_IDS) -> int:
    """`value` as a token id. Raises TokenizerError."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
        raise TokenizerError(f"{path}: {name}: {value!r:.40} is no token id (a whole number in [0, {limit:,}))", path, name)
    return value


def _check_ids(ids: list[int], checked: CheckedTokenizer) -> None:
    """All ids are numbers in range; a vocabulary gives each to one token, and leaves few out."""
    if not all(type(value) is int and 0 <= value < MAX_TOKEN_IDS for value in ids):
        for value in ids:
            check_id(value, "model.vocab", checked.path)
    used = len(set(ids))
    largest = max(ids, default=-1)
    if largest + 1 > 2 * used + MAX_UNUSED_IDS:
        raise checked.fail("model.vocab", f"the largest id is {largest:,}, but only {used:,} ids have a token")


def _steps(value: object, field: str, children: str, checked: CheckedTokenizer, depth: int = 0) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer, decoder or post-processor, in order."""
    if value is None:
        return
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise checked.fail(field, f"{value!r:.60} is no object with a type")
    if value["type"] != "Sequence":
        yield value
        return
    steps = value.get(children)
    if not isinstance(steps, list) or len(steps) > MAX_STEPS or depth > MAX_NESTED:
        raise checked.fail(field, f"a Sequence holds a list of at most {MAX_STEPS} steps, nested at most {MAX_NESTED} deep")
    for step in steps:
        yield from _steps(step, field, children, checked, depth + 1)


def _check_pattern(step: dict[str, Any], field: str, checked: CheckedTokenizer) -> str | None:
    """The step's expression or text; None if it has none."""
    pattern = step.get("pattern")
    if not isinstance(pattern, dict):
        return None
    regex, text = pattern.get("Regex"), pattern.get("String")
    if isinstance(regex, str):
        problem = regex_guard.fault(regex)
        if problem:
            raise checked.fail(field, f"the expression {regex[:60]!r} is refused: {problem}")
        return None
    if not isinstance(text, str) or not text:
        raise checked.fail(field, f"the pattern {pattern!r:.60} is empty, or neither Regex nor String")
    return text


def _check_normalizer(value: object, checked: CheckedTokenizer) -> None:
    growth = 1
    for step in _steps(value, "normalizer", "normalizers", checked):
        text = _check_pattern(step, "normalizer", checked)
        if step["type"] in ("Replace", "Prepend"):
            content = step.get("content", step.get("prepend"))
            if not isinstance(content, str):
                raise checked.fail("normalizer", f"{step!r:.60} has no text")
            growth *= max(1, -(-len(content) // (len(text) if text else 1)) + (step["type"] == "Prepend"))
        if growth > MAX_GROWTH:
            raise checked.fail("normalizer", f"it may write more than {MAX_GROWTH} characters for one")


def _is_byte_level(value: object, checked: CheckedTokenizer) -> bool:
    """Which of the two kinds of vocabulary the decoder is for; others have no bytes for a token by itself."""
    steps = list(_steps(value, "decoder", "decoders", checked))
    kinds = {step["type"] for step in steps}
    spaces = False
    for step in steps:
        match step["type"]:
            case "Metaspace":
                known = step.get("replacement") == SPACE
                spaces |= known
            case "Replace":
                known = step.get("pattern") == {"String": SPACE} and step.get("content") == " "
                spaces |= known
            case "Strip":
                known = step.get("content") == " "
            case "ByteFallback" | "Fuse" | "ByteLevel":
                known = True
            case _:
                known = False
        if not known:
            raise checked.fail("decoder", f"{step!r:.120} is not known (ByteLevel, and the steps of SentencePiece vocabularies, are)")
    if "ByteLevel" in kinds:  # transformers writes SentencePiece's steps in front of it, which then find nothing to do
        return True
    checked.adds_space = any(
        step.get("start", 0) > 0 if step["type"] == "Strip" else step.get("prepend_scheme", "always") != "never"
        for step in steps
        if step["type"] in ("Strip", "Metaspace")
    )
    if not spaces:
        shown = sorted(kinds) or "none"
        raise checked.fail("decoder", f"{shown}: a token's bytes are not known (they are for ByteLevel, and for SentencePiece's {SPACE})")
    return False


def _wrapping(value: object, checked: CheckedTokenizer) -> tuple[list[int], list[int]]:
    """Token ids in front of a text and behind it."""
    prefix: list[int] = []
    suffix: list[int] = []
    for step in _steps(value, "post_processor", "processors", checked):
        match step["type"]:
            case "ByteLevel":
                continue
            case "BertProcessing" | "RobertaProcessing":
                before, after = ([_pair_id(step.get(name), name, checked)] for name in ("cls", "sep"))
                is_bert = step["type"] == "BertProcessing"
                checked.pair = PairIds((*before,), (*after,) if is_bert else (*after, *after), (*after,), is_bert)
            case "TemplateProcessing":
                before, after = _template(step, checked)
                checked.pair = _pair_template(step, checked)
            case _:
                raise checked.fail("post_processor", f"type {step['type']!r} is not known")
        prefix, suffix = before + prefix, suffix + after
    return prefix, suffix


def _pair_id(value: object, name: str, checked: CheckedTokenizer) -> int:
    if not isinstance(value, list) or len(value) != 2:
        raise checked.fail("post_processor", f"{name} is no pair of a text and an id")
    return check_id(value[1], f"post_processor.{name}", checked.path)


def _template(step: dict[str, Any], checked: CheckedTokenizer) -> tuple[list[int], list[int]]:
    parts, _ = _template_parts(step.get("single"), step.get("special_tokens"), "A", checked)
    return parts[0], parts[1]


def _pair_template(step: dict[str, Any], checked: CheckedTokenizer) -> PairIds | None:
    """How a template wraps two texts; without one they follow each other. None: it is no template of two texts, which scores alone need."""
    if not step.get("pair"):
        return PairIds()
    try:
        parts, types = _template_parts(step["pair"], step.get("special_tokens"), "AB", checked)
    except TokenizerError:
        return None
    before, between, behind = map(tuple, parts)
    return PairIds(before, between, behind, types[0] != types[1])


def _template_parts(template: object, special: object, texts: str, checked: CheckedTokenizer) -> tuple[list[list[int]], list[object]]:
    """The ids around the texts, each once and in this order, and the texts' types."""
    if not isinstance(template, list) or not isinstance(special, dict) or len(template) > MAX_STEPS:
        raise checked.fail("post_processor", f"a template is a list of at most {MAX_STEPS} parts, with special_tokens")
    parts: list[list[int]] = [[]]
    types: list[object] = []
    for part in template:
        text = part.get("Sequence") if isinstance(part, dict) else None
        if isinstance(text, dict) and text.get("id") in ("A", "B"):
            if len(parts) > len(texts) or text["id"] != texts[len(parts) - 1]:
                raise checked.fail("post_processor", f"the template does not hold the texts {', '.join(texts)} once, in this order")
            parts.append([])
            types.append(text.get("type_id", 0))
            continue
        name = part["SpecialToken"].get("id") if isinstance(part, dict) and isinstance(part.get("SpecialToken"), dict) else None
        entry = special.get(name) if isinstance(name, str) else None
        ids = entry.get("ids") if isinstance(entry, dict) else None
        if not isinstance(ids, list) or len(ids) > MAX_STEPS:
            raise checked.fail("post_processor", f"the part {part!r:.80} is neither the text nor a token of special_tokens")
        parts[-1] += [check_id(value, "post_processor", checked.path) for value in ids]
    if len(parts) != len(texts) + 1:
        raise checked.fail("post_processor", f"the template holds {len(parts) - 1} texts, and not {', '.join(texts)}")
    return parts, types
