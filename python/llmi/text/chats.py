"""From what LLM.chat() takes to prompts: one chat or several, each rendered by itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from llmi.base.kinds import show
from llmi.chat.rules import check_names, warn_unused
from llmi.errors import ChatTemplateError, InvalidParamsError, LlmiError
from llmi.text.prompts import ChatPrompt
from llmi.text.tokenizer import Tokenizer


def is_chat(value: object) -> bool:
    """Whether a prompt is a chat: a list of dicts with "role"."""
    return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(entry, Mapping) and "role" in entry for entry in value)


def as_chats(messages: object) -> list[Any]:
    """One chat, or several, as a list of chats; a text is one message of the user. Raises ChatTemplateError for what is none of these."""
    if isinstance(messages, str):
        return [[{"role": "user", "content": messages}]]
    if not isinstance(messages, list | tuple):
        raise ChatTemplateError(
            f"messages must be a text, a chat (a list of dicts with 'role' and 'content') or a list of chats, not {type(messages).__name__}"
            f" ({show(messages)})"
        )
    if not messages:
        raise ChatTemplateError("messages is empty: a chat is a list of at least one message")
    nested = [isinstance(entry, list | tuple) for entry in messages]
    if all(nested):
        return list(messages)
    if any(nested):
        first = nested.index(not nested[0])
        kinds = ("a chat", "no chat") if nested[0] else ("a message", "a list")
        raise ChatTemplateError(f"messages mixes chats and messages: messages[0] is {kinds[0]}, messages[{first}] is {kinds[1]}")
    return [messages]


def prompts_of(
    tokenizer: Tokenizer,
    messages: object,
    *,
    chat_template: object = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: object = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    stacklevel: int = 3,
) -> list[ChatPrompt | LlmiError]:
    """A prompt for each chat, or the error that its rendering raised.

    Arguments that no chat's template reads are named in one UserWarning.
    """
    if chat_template_kwargs is not None and not isinstance(chat_template_kwargs, Mapping):
        raise InvalidParamsError(f"chat_template_kwargs must be a dict, not {type(chat_template_kwargs).__name__}", "chat_template_kwargs")
    arguments = dict(chat_template_kwargs or {})
    if tools is not None:
        if arguments.get("tools") is not None:
            raise InvalidParamsError("tools is given twice: as an argument, and in chat_template_kwargs", "tools")
        arguments["tools"] = tools
    chats = as_chats(messages)
    check_names(arguments)
    template = tokenizer.template_for(chat_template, arguments)
    prompts: list[ChatPrompt | LlmiError] = []
    unused: list[list[str]] = []
    for index, chat in enumerate(chats):
        begun_s = time.perf_counter()
        try:
            rendered = tokenizer.render_chat(
                chat,
                template,
                add_generation_prompt and not continue_final_message,
                arguments,
                continue_final_message=continue_final_message,
            )
            rendered_s = time.perf_counter()
            prompt = ChatPrompt(prompt=rendered.text, prompt_token_ids=tokenizer.encode_chat(rendered))
            prompt.template_time_s, prompt.tokenizer_time_s = rendered_s - begun_s, time.perf_counter() - rendered_s
            prompts.append(prompt)
            unused.append(rendered.unused)
        except LlmiError as error:
            if len(chats) > 1:
                error.args = (f"chat {index}: {error}", *error.args[1:])
            prompts.append(error)
    # One chat may use what another ignores: an argument is named if none uses it, a key if one does not.
    dropped = [
        what
        for what in dict.fromkeys(what for names in unused for what in names)
        if "key" in what or all(what in names for names in unused)
    ]
    warn_unused(dropped, stacklevel + 1)
    return prompts


def ids_of(prompts: list[ChatPrompt | LlmiError]) -> list[int]:
    """The token ids of one rendered chat. Raises its error."""
    [prompt] = prompts
    if isinstance(prompt, LlmiError):
        raise prompt
    return list(prompt["prompt_token_ids"])


def ids_of_chat(tokenizer: Tokenizer, messages: object) -> list[int]:
    """The token ids of one chat, by the model's own template."""
    return ids_of(prompts_of(tokenizer, messages))
