"""Chats as calls: their templates, tools and sampling parameters, for LLM.chat and all that answers chats."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmi.errors import InvalidParamsError, LlmiError
from llmi.params.options import option
from llmi.requests.call import Call
from llmi.requests.prepare import CallOptions, prepare, resolve
from llmi.requests.resolve import take_options
from llmi.text.chats import as_chats, ids_of, prompts_of
from llmi.text.prompts import ChatPrompt
from llmi.tools.chat import ToolChat, chat_tools, together, with_fields
from llmi.tools.functions import functions_of

if TYPE_CHECKING:
    from llmi.session import Session


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How chats become prompts: arguments of `LLM.chat`, as they were given."""

    chat_template: str | os.PathLike[str] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: object = None
    tool_choice: object = None
    parallel_tool_calls: object = True
    tool_format: object = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    cache_salt: str | None = None


def chat_call(
    llm: Session,
    messages: object,
    sampling_params: object,
    generate_args: dict[str, Any],
    chat: ChatOptions,
    kind: CallOptions | None = None,
) -> Call:
    """The requests of one chat or several, which `llm._submit` hands to the engine.

    generate_args: options of generate(), and sampling parameters by name. kind: what else the call is; None: a call
    that waits for all its answers.
    Raises InvalidParamsError for arguments that hold for all chats.
    """
    options = take_options(generate_args, "priority", "speculative_config", "trace", "on_error")
    tools = _tools(llm, sampling_params, chat)

    def render(chats: object) -> list[ChatPrompt | LlmiError]:
        return prompts_of(
            llm.tokenizer,
            [tools.messages(entry) for entry in as_chats(chats)],
            chat_template=chat.chat_template,
            add_generation_prompt=option("add_generation_prompt", chat.add_generation_prompt),
            continue_final_message=option("continue_final_message", chat.continue_final_message),
            tools=tools.template_tools,
            chat_template_kwargs=chat.chat_template_kwargs,
            stacklevel=5,
        )

    prompts = render(messages)
    for prompt in prompts:
        if chat.cache_salt is not None and not isinstance(prompt, LlmiError):
            prompt["cache_salt"] = chat.cache_salt
    call_options = dataclasses.replace(
        kind or CallOptions(), to_the_end=True, render=lambda entry: ids_of(render(entry)), tools=tools, **options
    )
    params, given = _with_tools(tools, sampling_params, generate_args)
    return prepare(llm, resolve(llm, prompts, params, given, call_options))


def _tools(llm: Session, sampling_params: object, chat: ChatOptions) -> ToolChat:
    kwargs = chat.chat_template_kwargs
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InvalidParamsError(f"chat_template_kwargs must be a dict, not {type(kwargs).__name__}", "chat_template_kwargs")
    if chat.tools is not None and (kwargs or {}).get("tools") is not None:
        raise InvalidParamsError("tools is given twice: as an argument, and in chat_template_kwargs", "tools")
    tools = [function.given for function in functions_of(chat.tools)]  # an iterator is read once
    variables = {**(kwargs or {}), **({"tools": tools} if tools else {})}
    has_template = chat.chat_template is not None or llm.tokenizer.chat_template is not None
    template = llm.tokenizer.template_for(chat.chat_template, variables) if has_template else None
    return chat_tools(llm.tokenizer, sampling_params, tools, chat.tool_choice, chat.parallel_tool_calls, chat.tool_format, template)


def _with_tools(tools: ToolChat, sampling_params: object, generate_args: dict[str, Any]) -> tuple[object, dict[str, Any]]:
    """The sampling parameters and those by name, with the tools' own."""
    if sampling_params is None:
        if tools.fields and generate_args.get("structured_outputs") is not None:
            raise together()
        return None, {**generate_args, **tools.fields}
    if isinstance(sampling_params, list | tuple):
        return [with_fields(entry, tools.fields) for entry in sampling_params], generate_args
    return tools.params, generate_args
