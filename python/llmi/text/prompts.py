"""What a user may give as prompts: which of it is one prompt, and the token ids of each."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from llmi import _core
from llmi.base.kinds import TOKEN_ID_LIMIT, Text, Whole, dimensions, entries_of, iterable, parse, plain, show
from llmi.errors import InvalidParamsError, LlmiError, UnsupportedCombinationError
from llmi.params.options import option
from llmi.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.session import Session

Prompt = Any  # str, list of ints, int array, a dict with prompt or prompt_token_ids, or a TokenSequence
_RULE = "a prompt is a string, a list of token ids, a dict or a TokenSequence"
_TEXT = Text(empty=True)
_ID = Whole(0, TOKEN_ID_LIMIT - 1, "a token id, an integer in [0, 2^31)")
_KEYS = ("prompt", "prompt_token_ids", "cache_salt", "parse_special")
#: Keys of other engines' prompts: refused unless None or empty.
_REFUSED_KEYS = {
    "multi_modal_data": "models take text alone",
    "multi_modal_uuids": "models take text alone",
    "mm_processor_kwargs": "models take text alone",
    "prompt_embeds": "a prompt is text or token ids",
    "token_type_ids": "models take text alone",
    "encoder_prompt": "models have no encoder",
    "decoder_prompt": "models have no encoder",
    "negative_prompt": "it is a parameter: give negative_prompt= to the call, or in the prompt's own SamplingParams",
}
_KEY_HINTS = {
    "input_ids": "prompt_token_ids",
    "token_ids": "prompt_token_ids",
    "ids": "prompt_token_ids",
    "text": "prompt",
    "content": "prompt",
}


class ChatPrompt(dict[str, Any]):
    """A rendered chat: its ids were made from its text piece by piece, so the two are not compared. Knows what its making took."""

    template_time_s = 0.0
    tokenizer_time_s = 0.0


class HeldPrompt:
    """A prompt whose tokens an engine holds: the base of TokenSequence, whose own module loads NumPy."""

    __slots__ = ()
    llm: Session

    @property
    def _steering(self) -> Mapping[int, Any] | None:
        """{layer: vector} of the model that made it."""
        raise NotImplementedError

    @property
    def _sparse_attention(self) -> Mapping[str, Any] | None:
        """What its rows see; None: all."""
        raise NotImplementedError

    @property
    def _is_constrained(self) -> bool:
        """Whether what it draws next keeps to a constraint of its own."""
        raise NotImplementedError

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """Its tokens, int32 [len]."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """Their text."""
        raise NotImplementedError

    @property
    def _held(self) -> _core.LabSequence:
        """The core's sequence."""
        raise NotImplementedError


def check_unsteered(prompt: object, what: str) -> None:
    """Raises UnsupportedCombinationError for a sequence that is steered or sees a part alone: `what` runs the plain model."""
    if is_sequence(prompt) and prompt._sparse_attention is not None:
        raise UnsupportedCombinationError(
            f"{what} runs the model with full attention, and the TokenSequence has sparse_attention: give its token_ids if they alone are"
            " meant",
            "sparse_attention",
            what,
        )
    if is_sequence(prompt) and prompt._steering is not None:
        raise UnsupportedCombinationError(
            f"{what} runs the model without steering, and the TokenSequence is steered: give its token_ids if they alone are meant",
            "steering",
            what,
        )


def check_unconstrained(prompt: object, what: str, argument: str) -> None:
    """Raises UnsupportedCombinationError for a sequence with a constraint of its own: `what` reads tokens alone, and has its own
    `argument`."""
    if is_sequence(prompt) and prompt._is_constrained:
        raise UnsupportedCombinationError(
            f"the TokenSequence keeps to a constraint of its own, and {what} would not: give {argument}=, and end the sequence's own with "
            "constrain(None)",
            "constrain",
            what,
        )


def is_sequence(prompt: object) -> TypeGuard[HeldPrompt]:
    """Whether `prompt` is a TokenSequence."""
    return isinstance(prompt, HeldPrompt)


def _is_number(entry: object) -> bool:
    """Whether it is a number or an array without axes: an entry of a prompt, not a prompt."""
    if isinstance(entry, int | float):
        return True
    return dimensions(entry) == 0 and not isinstance(entry, str | bytes)


def is_single(prompts: object) -> bool:
    """Whether `prompts` is one prompt (or something that is none): all but lists of prompts."""
    if isinstance(prompts, str | bytes | bytearray | memoryview | Mapping | LlmiError) or is_sequence(prompts):
        return True
    if not iterable(prompts):
        return True
    kind = getattr(getattr(prompts, "dtype", None), "kind", "")
    if dimensions(prompts) == 1 and kind and kind in "iufb":
        return True
    entries = plain(prompts)
    return isinstance(entries, list | tuple | range) and len(entries) > 0 and all(_is_number(entry) for entry in entries)


class PromptList(list[Any]):
    """Prompts that were told apart: a list of numbers in it is not one prompt."""


def as_list(prompts: object) -> PromptList:
    """`prompts` as a list of prompts."""
    if isinstance(prompts, PromptList):
        return prompts
    if type(prompts).__name__ == "DataFrame":
        raise InvalidParamsError("prompts is a table: give one column of it, such as frame['prompt']", "prompts")
    if isinstance(prompts, set | frozenset):
        raise InvalidParamsError("prompts is a set, which has no order: give a list", "prompts")
    if is_single(prompts):
        return PromptList([prompts])
    try:
        # The rows of an array stay arrays, so that floats are seen as floats.
        entries = list(prompts) if isinstance(prompts, Iterable) and (dimensions(prompts) or 0) > 1 else entries_of("prompts", prompts)
    except Exception as error:
        raise InvalidParamsError(f"prompts cannot be read: {type(error).__name__}: {error}", "prompts") from error
    if entries is None or (entries and all(_is_number(entry) for entry in entries)):
        return PromptList([prompts if entries is None else entries])
    return PromptList(entries)


def tokenize(
    prompt: Prompt, tokenizer: Tokenizer, name: str = "prompts", parse_special: bool | None = None, max_model_len: int | None = None
) -> tuple[str | None, list[int]]:
    """(text or None, token ids). Raises InvalidParamsError for what is no prompt. parse_special: names of special tokens in texts are these
    tokens."""
    if isinstance(prompt, str):
        text = parse(_TEXT, name, prompt)
        return text, tokenizer.encode_prompt(text, parse_special, max_model_len)
    if isinstance(prompt, LlmiError):
        raise prompt
    if is_sequence(prompt):
        return prompt.text, prompt.token_ids.tolist()
    if isinstance(prompt, Mapping):
        return _of_mapping(prompt, tokenizer, name, parse_special, max_model_len)
    return None, token_list(prompt, name)


def cache_salt(prompt: Prompt) -> str:
    """The salt of a prompt dict; "" without one."""
    salt = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
    return "" if salt is None else str(parse(Text(4096, empty=True), "cache_salt", salt))


def _of_mapping(
    prompt: Mapping[Any, Any], tokenizer: Tokenizer, name: str, parse_special: bool | None, max_model_len: int | None
) -> tuple[str | None, list[int]]:
    unknown = []
    for key, value in prompt.items():
        if key in _REFUSED_KEYS:
            if value is not None and not (isinstance(value, Mapping | list) and len(value) == 0):
                raise UnsupportedCombinationError(f"a prompt dict with {key!r}: {_REFUSED_KEYS[key]}", str(key), name)
        elif key not in _KEYS:
            unknown.append(show(key) + (f" (it is {_KEY_HINTS[key]!r} here)" if key in _KEY_HINTS else ""))
    if "role" in prompt:
        raise InvalidParamsError(
            f"a prompt dict with 'role' is a message of a chat: give the chat, a list of messages, to chat(), not {show(prompt)}", name
        )
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if unknown or (text is None and ids is None):
        given = f"unknown {', '.join(unknown)}" if unknown else f"not {show(list(prompt))}"
        raise InvalidParamsError(
            f"a prompt dict holds 'prompt' or 'prompt_token_ids', and may hold 'cache_salt' and 'parse_special': {given}", name
        )
    cache_salt(prompt)
    own = _own_parse_special(prompt)
    if text is not None:
        text = parse(_TEXT, "the 'prompt' of a prompt dict", text)
    if ids is None:
        return text, tokenizer.encode_prompt(str(text), parse_special if own is None else own, max_model_len)
    ids = token_list(ids, "prompt_token_ids")
    if text is not None and not isinstance(prompt, ChatPrompt) and not _agree(text, ids, tokenizer):
        raise InvalidParamsError(
            f"a prompt dict's 'prompt' {show(text)} and 'prompt_token_ids' {show(ids)} contradict each other: give one of them", name
        )
    return text, ids


def _own_parse_special(prompt: object) -> bool | None:
    """What a prompt dict says itself; None: what the call says."""
    value = prompt.get("parse_special") if isinstance(prompt, Mapping) else None
    return None if value is None else bool(option("parse_special", value))


def warn_of_markup(prompts: Iterable[Prompt], tokenizer: Tokenizer, stacklevel: int = 5) -> None:
    """One warning if texts hold names of special tokens and nobody said what they mean: such a text is often a chat that was rendered
    already."""
    for prompt in prompts:
        is_text = isinstance(prompt, Mapping) and prompt.get("prompt_token_ids") is None and prompt.get("parse_special") is None
        text = prompt.get("prompt") if is_text else prompt
        found = tokenizer.markup_in(text) if isinstance(text, str) else None
        if found is not None:
            warnings.warn(
                f"the prompt holds {found!r}, which names a special token, and is read as plain text, letter by letter. Give the messages"
                " to chat(), or say parse_special=True (in the call or in a prompt dict) if the token is meant; parse_special=False if the"
                " text is, which ends this warning",
                UserWarning,
                stacklevel=stacklevel,
            )
            return


def _agree(text: str, ids: list[int], tokenizer: Tokenizer) -> bool:
    """Whether the ids are the text's, with or without special tokens in it or around it."""
    for special in (False, True):
        for around in (True, False):
            if tokenizer.encode(text, add_special_tokens=around, parse_special=special) == ids:
                return True
    known = [token for token in ids if token < len(tokenizer.vocab_bytes)]
    return text in (tokenizer.decode(known, skip_special_tokens=False), tokenizer.decode(known))


def token_list(ids: object, name: str = "prompts") -> list[int]:
    """Token ids as a list of ints."""
    entries = entries_of(name, ids)
    if entries is None:
        where = f"{name}: " if name == "prompts" else ""
        raise InvalidParamsError(
            f"{where}{_RULE}, not {show(ids)}" if name == "prompts" else f"{name} must be a list of token ids, not {show(ids)}", name
        )
    if all(type(entry) is int for entry in entries) and (not entries or (min(entries) >= 0 and max(entries) < TOKEN_ID_LIMIT)):
        return entries
    what = "a prompt's token ids" if name == "prompts" else name
    try:
        return [parse(_ID, f"{what}[{index}]", entry) for index, entry in enumerate(entries)]
    except InvalidParamsError as error:
        error.parameter = name
        raise
