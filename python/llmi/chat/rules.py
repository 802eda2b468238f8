"""Chats as prompts: what a chat may hold, and the text of one with its markup told apart from its content."""

from __future__ import annotations

import bisect
import dataclasses
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from llmi.base.kinds import show
from llmi.errors import ChatTemplateError

MAX_TEMPLATE_BYTES = 256 << 10
MAX_DEPTH = 100
#: What templates get by name already: variables, special tokens, and functions.
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "additional_special_tokens")
RESERVED = frozenset({
    *SPECIAL_TOKENS, "messages", "add_generation_prompt", "raise_exception", "range", "dict", "namespace", "cycler", "joiner", "lipsum",
    "caller", "loop", "self", "super", "varargs", "kwargs",
})  # fmt: skip
#: Arguments of transformers' apply_chat_template that are about the tokens, not the template.
NOT_HERE = (
    "conversation", "padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
    "tokenizer_kwargs",
)  # fmt: skip
#: A token that a vocabulary lists as text, and that is markup of a template if the template writes it: <tool_call>, [TOOL_CALLS].
MARKUP = re.compile(r"<[^\s<>]{2,}>|\[/?[A-Z_]{3,}\]")
MEDIA = re.compile(r"(input_)?(image|audio|video|file|media|document|pdf)", re.IGNORECASE)
ASSISTANT, FINAL, UNKNOWN = "a", "f", "u"  # see traced.py


@dataclasses.dataclass
class Rendered:
    """A chat's prompt.

    Attributes
    ----------
    text : str
        What the template writes.
    pieces : list of (str, bool)
        The text in pieces, each with whether special tokens in it are meant; those in content are not.
    unused : list of str
        What the template does not look at, in words.
    """

    text: str
    pieces: list[tuple[str, bool]]
    unused: list[str]


def special_pattern(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Matches any of the special tokens, the longest that there is at a place.

    It branches by characters, as a tree: one after the other, thousands of tokens with the same beginning would be tried at each place that
    has it.
    """
    tree: dict[str, Any] = {}
    texts = [*texts]
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        if text:
            node[""] = {}
    try:
        return re.compile(_tree_pattern(tree)) if tree else None
    except RecursionError:  # hundreds of tokens, each the beginning of the next
        return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True) if text))


def _tree_pattern(tree: dict[str, Any]) -> str:
    """The pattern of what follows the beginning that a tree stands for; the tree is taken apart."""
    run = ""
    while len(tree) == 1 and "" not in tree:
        [(character, tree)] = tree.items()
        run += re.escape(character)
    ends = tree.pop("", None) is not None
    branches = [re.escape(character) + _tree_pattern(rest) for character, rest in tree.items()]
    return run + (f"(?:{'|'.join(branches)}){'?' if ends else ''}" if branches else "")


#: A place in a chat: its name, or (the place around it, how it goes on), so that a name is written out for errors alone.
Where: TypeAlias = "str | tuple[Where, str]"


def _written(where: Where) -> str:
    parts: list[str] = []
    while not isinstance(where, str):
        where, part = where
        parts.append(part)
    return "".join([where, *reversed(parts)])


def plain(value: object, where: Where, depth: int = 0) -> Any:
    """`value` as JSON data: tuples become lists, numpy's scalars numbers. Raises ChatTemplateError for anything else."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = str.__str__(value)
        if not text.isascii() and re.search("[\ud800-\udfff]", text):
            raise ChatTemplateError(f"{_written(where)} holds a lone surrogate, which is no character")
        return text
    if isinstance(value, int):
        if value.bit_length() > 10_000:
            raise ChatTemplateError(f"{_written(where)} is an integer of {value.bit_length():,} bits (at most 10,000)")
        return int(value)
    if isinstance(value, float):
        return float(value)
    if depth > MAX_DEPTH:
        raise ChatTemplateError(f"{_written(where)} is nested more than {MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise ChatTemplateError(
                f"{_written(where)} has the key {show(wrong[0])}, of type {type(wrong[0]).__name__}: keys of JSON are strings"
            )
        return {plain(key, where): plain(entry, (where, f".{key}" if depth else f"[{key!r}]"), depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, (where, f"[{index}]"), depth + 1) for index, entry in enumerate(value)]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return plain(value.item(), where, depth + 1)
    advice = ": give its JSON schema as a dict" if callable(value) else ""
    raise ChatTemplateError(
        f"{_written(where)} must be JSON data (str, number, bool, None, list, dict), not {type(value).__name__}{advice}"
    )


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """A chat's messages as JSON data. Raises ChatTemplateError that names the message."""
    if not isinstance(messages, list | tuple):
        raise ChatTemplateError(
            f"a chat is a list of messages, each a dict with 'role' and 'content', not {type(messages).__name__} ({show(messages)})"
        )
    if not messages:
        raise ChatTemplateError("a chat is a list of at least one message")
    result = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise ChatTemplateError(f"{where} must be a dict with 'role' and 'content', not {type(message).__name__} ({show(message)})")
        if not isinstance(message.get("role"), str):
            what = (
                f"its role is {show(message['role'])}, of type {type(message['role']).__name__}" if "role" in message else "it has no role"
            )
            raise ChatTemplateError(f"{where}: {what}; a message is a dict with 'role' (a string) and 'content'")
        content = message.get("content")
        if not isinstance(content, str | list | tuple | None):
            raise ChatTemplateError(
                f"{where}: its content is of type {type(content).__name__}; content is a string, a list of parts, or None"
            )
        result.append(plain(message, where))
        for number, part in enumerate(content if isinstance(content, list | tuple) else []):
            _check_part(part, f"{where}.content[{number}]")
    return result


def _check_part(part: object, where: str) -> None:
    if isinstance(part, str):
        return
    if not isinstance(part, Mapping):
        raise ChatTemplateError(f"{where} must be a dict with 'type', or a string, not {type(part).__name__}")
    kind = part.get("type", "text")
    if not isinstance(kind, str):
        raise ChatTemplateError(f"{where}: its type is {show(kind)}, but the type of a part of content is a string such as 'text'")
    media = kind if MEDIA.match(kind) else None
    if "type" not in part:
        media = next((key for key in part if isinstance(key, str) and MEDIA.match(key)), None)
    if media is not None:
        raise ChatTemplateError(
            f"{where} is of type {media!r}, but the content of a message can be text alone: llmi's models read no images, sounds or files"
        )
    if kind == "text" and not isinstance(part.get("text"), str):
        raise ChatTemplateError(f"{where}: a part of content of type 'text' has its string under 'text'")


def check_names(kwargs: Mapping[str, Any]) -> None:
    """Raises ChatTemplateError if a template cannot be given a variable of one of these names."""
    for name in kwargs:
        if not isinstance(name, str) or not name.isidentifier():
            raise ChatTemplateError(f"chat_template_kwargs: {show(name)} is no name that a template can use")
        if name in RESERVED:
            raise ChatTemplateError(
                f"chat_template_kwargs: {name!r} is set by llmi itself, from the messages, the vocabulary and the call's arguments"
            )
        if name in NOT_HERE:
            raise ChatTemplateError(
                f"{name!r} is not supported here: it is about tensors of tokens, and a chat becomes a list of token ids"
            )


def checked_arguments(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The values that a template gets in addition to the messages, as JSON data, and the time on its clock (ISO 8601)."""
    check_names(kwargs)
    arguments = {"tools": None, "documents": None} | {name: plain(value, name) for name, value in kwargs.items()}
    for name in ("tools", "documents"):
        value = arguments[name]
        if value is not None and not (isinstance(value, list) and all(isinstance(entry, dict) for entry in value)):
            raise ChatTemplateError(f"{name} must be a list of dicts, not {show(kwargs[name])}")
    return arguments, _clock(arguments)


def _clock(arguments: dict[str, Any]) -> str:
    import datetime  # noqa: PLC0415 (a template that asks for the time needs it)

    if "strftime_now" not in arguments:
        return datetime.datetime.now().isoformat()
    given = arguments.pop("strftime_now")
    try:
        return datetime.datetime.fromisoformat(given).isoformat()
    except (TypeError, ValueError):
        raise ChatTemplateError(
            f"strftime_now is what the template's clock says, such as '2026-01-31' or '2026-01-31T12:00', not {show(given)}"
        ) from None


def render(  # noqa: PLR0913 (what a template is given, by name)
    template: str,
    messages: object,
    special_tokens: Mapping[str, Any],
    pattern: re.Pattern[str] | None,
    path: Path,
    *,
    add_generation_prompt: bool = False,
    continue_final_message: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    turn_ends: Collection[str] = (),
    marks: Collection[str] = (),
    is_own: bool = True,
) -> Rendered:
    """Renders a chat.

    The name of a special token in a message, a tool or a document is text. In an assistant's message it is the token, as the model wrote it
    there, unless it begins or ends a turn: no message forges another.

    Parameters
    ----------
    template : str
        At most 256 KiB.
    messages : list of dict
    special_tokens : dict
        What the template may refer to: bos_token and so on.
    pattern : re.Pattern or None
        Matches the vocabulary's special tokens.
    path : Path
        Of the model, for errors.
    kwargs : dict, optional
        Further variables of the template, JSON data.
    turn_ends : collection of str
        Special tokens that end a turn, and that of the beginning of a text.
    marks : collection of str
        Texts that `pattern` matches, too, and that are tokens although no special ones: content that names them becomes letters where it is
        known to be content.
    is_own : bool
        The template is the model's, or one that was set for all chats. Others are rendered by a process of their own.

    Raises
    ------
    ChatTemplateError
        The messages or arguments are malformed, the template refuses them or is broken, or it exceeds its limits.
    """
    if len(template) > MAX_TEMPLATE_BYTES or len(template.encode("utf-8", "surrogatepass")) > MAX_TEMPLATE_BYTES:
        raise ChatTemplateError(f"{path}: the chat template has more than {MAX_TEMPLATE_BYTES:,} bytes", path)
    chat = checked_messages(messages)
    arguments, clock = checked_arguments(kwargs or {})
    if continue_final_message and not _text_to_continue(chat[-1].get("content")):
        raise ChatTemplateError("continue_final_message needs a last message with text")
    asked = [name for name, value in arguments.items() if value is not None and value != [] and value != {}]
    asked += ["strftime_now"] if "strftime_now" in (kwargs or {}) else []
    request = {
        "template": template,
        "messages": chat,
        "kwargs": arguments,
        "clock": clock,
        "asked": asked,
        "continue_final_message": continue_final_message,
        "variables": {**special_tokens, "add_generation_prompt": add_generation_prompt},
    }
    answer = _ask(request, path, is_own)
    text, spans = answer["text"], answer["spans"]
    if spans is None and pattern is not None:
        spans = _spans_by_text(text, pattern, chat, arguments)
    trusted = {ASSISTANT} | ({FINAL} if chat[-1]["role"] == "assistant" else set())
    unused = [f"the argument {name!r}" for name in answer["unused"]]
    unused += [f"the key {key!r} of messages" for key in answer["unread"] if key != "role"]
    return Rendered(text, _pieces(text, spans or [], pattern, path, trusted, turn_ends, marks), unused)


def _text_to_continue(content: object) -> bool:
    if isinstance(content, list):
        return any(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content)
    return isinstance(content, str)


def _ask(request: dict[str, Any], path: Path, is_own: bool) -> dict[str, Any]:
    from llmi.chat.process import Ended, ask, why  # noqa: PLC0415 (generate() does without)

    try:
        answer = ask(request, is_own)
    except TimeoutError:
        raise ChatTemplateError(f"{path}: the chat template was ended: it did not answer in time", path) from None
    except Ended as ended:
        raise ChatTemplateError(f"{path}: the chat template was ended: {why(ended)}", path) from None
    match answer.get("error"):
        case None:
            return answer
        case "memory":
            raise ChatTemplateError(f"{path}: the chat template was ended: it takes more than 512 MB of memory", path)
        case "refused":
            raise ChatTemplateError(f"{path}: the chat template refuses these messages: {answer['message']}", path)
    raise ChatTemplateError(f"{path}: the chat template failed: {answer['message']}", path)


def _strings(value: object) -> Iterable[str]:
    waiting = [value]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            yield from entry
            waiting += entry.values()
        elif isinstance(entry, list):
            waiting += entry


def _spans_by_text(text: str, pattern: re.Pattern[str], chat: object, arguments: object) -> list[list[Any]]:
    """Special tokens of a text of which it is not known which characters are content: those that some content names."""
    named = {match.group() for string in _strings([chat, arguments]) for match in pattern.finditer(string)}
    return [[match.start(), match.end(), UNKNOWN] for match in pattern.finditer(text) if match.group() in named]


def _pieces(
    text: str,
    spans: list[list[Any]],
    pattern: re.Pattern[str] | None,
    path: Path,
    trusted: set[str],
    turn_ends: Collection[str],
    marks: Collection[str] = (),
) -> list[tuple[str, bool]]:
    """The text cut around each special token that is content, or half content: that becomes text. trusted: letters of the assistant's
    messages."""
    if pattern is None or not spans:
        return [(text, True)] if text else []
    starts = [span[0] for span in spans]

    def letters(start: int, end: int) -> set[str]:
        first = max(bisect.bisect_right(starts, start) - 1, 0)
        last = bisect.bisect_left(starts, end)
        return {letter for begin, stop, letter in spans[first:last] if begin < end and start < stop}

    of_turns = set(turn_ends) | _turn_beginnings(text, pattern, letters, turn_ends) if trusted & {span[2] for span in spans} else set()
    pieces: list[tuple[str, bool]] = []
    begin = position = 0
    while match := pattern.search(text, position):
        start, end = match.span()
        position = end
        found = letters(start, end)
        if not found:
            continue
        if found <= trusted and match.group() not in of_turns:
            continue
        if UNKNOWN in found and match.group() in marks:
            continue
        if UNKNOWN in found:
            raise ChatTemplateError(
                f"{path}: the chat template changes a text that holds {match.group()!r} in a way that cannot be followed: it could become a"
                " special token",
                path,
            )
        # A token of the template's that begins inside this one stays a token.
        inner = next((other for at in range(start + 1, end) if (other := pattern.match(text, at)) and not letters(*other.span())), None)
        end = position = inner.start() if inner else end
        pieces += [(text[begin:start], True), (text[start:end], False)]
        if inner:
            pieces.append((inner.group(), True))
            end = position = inner.end()
        begin = end
    pieces.append((text[begin:], True))
    return [piece for piece in pieces if piece[0]]


def _turn_beginnings(text: str, pattern: re.Pattern[str], letters: Callable[[int, int], set[str]], turn_ends: Collection[str]) -> set[str]:
    """The special tokens of the template that stand first, or first behind the end of a turn."""
    found = set()
    is_first = True
    for match in pattern.finditer(text):
        if not letters(*match.span()):
            if is_first:
                found.add(match.group())
            is_first = match.group() in turn_ends
    return found


def warn_unused(unused: list[str], stacklevel: int) -> None:
    """Says what a template did not look at."""
    if unused:
        warnings.warn(
            f"the chat template does not use {', '.join(unused)}: the prompt does not depend on it", UserWarning, stacklevel=stacklevel
        )


def warn_of(rendered: Rendered, stacklevel: int = 3) -> None:
    """Warns of the parts of the input that one rendering did not use."""
    warn_unused(rendered.unused, stacklevel + 1)
