"""From what a body says of its prompt to token ids: texts, ids and chats. What may take long runs off the event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import json
import re
from collections.abc import Mapping
from typing import Any

from llmi.base.kinds import TOKEN_IDS, Flag, Text
from llmi.errors import InvalidParamsError
from llmi.server.errors import ApiError
from llmi.server.fields import Taken
from llmi.server.limits import LIMITS
from llmi.server.parts import Streams, TextStream
from llmi.server.served import Served
from llmi.tools.chat import ToolChat, chat_tools, together

_CLOCK = "strftime_now"
_TAG = re.compile(r"\{[{%#]")
_MOST_PROMPTS = 2048
_FEW_IDS = 4_096  # that are read in less time than a thread takes to begin and to answer


@dataclasses.dataclass(slots=True)
class Prompt:
    """A prompt as the engine takes it.

    Attributes
    ----------
    ids : list of int
    text : str or None
        What `ids` were made of, where it was text.
    ignored : list of str
        What a chat's template does not look at.
    date : str or None
        What the template's clock said (ISO 8601), where it looks at it and the body did not say.
    tools : ToolChat or None
        How answers to a chat are read.
    """

    ids: list[int]
    text: str | None = None
    ignored: list[str] = dataclasses.field(default_factory=list)
    date: str | None = None
    tools: ToolChat | None = None

    def streams(self, seed: int) -> Streams:
        """How each choice of an answer to it is taken apart."""
        tools = self.tools
        if tools is None or tools.format is None:
            return lambda index: TextStream()
        return lambda index: tools.stream(seed, index, self.text)

    @property
    def is_plain(self) -> bool:
        """Whether its answers are text alone."""
        return self.tools is None or self.tools.format is None


async def read_prompts(model: Served, taken: Taken) -> list[Prompt]:
    """As `completion_prompts`; all but a few ids are read on another thread."""
    given = taken.own.get("prompt")
    if isinstance(given, list) and len(given) <= _FEW_IDS and all(type(entry) is int for entry in given):
        return completion_prompts(model, taken)
    return await asyncio.to_thread(completion_prompts, model, taken)


def completion_prompts(model: Served, taken: Taken) -> list[Prompt]:
    """The prompts of /v1/completions and /tokenize: a text, token ids, or a list of these. Raises InvalidParamsError."""
    given = taken.own.get("prompt")
    special = taken.flag("parse_special")
    add = taken.flag("add_special_tokens", True)
    if given is None:
        raise ApiError(
            400, "prompt is missing: give a string, a list of token ids, or a list of these", param="prompt", code="missing_field"
        )
    if isinstance(given, str):
        return [_of_text(model, given, add, special)]
    if not isinstance(given, list) or not given:
        raise InvalidParamsError("prompt must be a string, a list of token ids, or a list of at least one of these", "prompt")
    if all(type(entry) is int for entry in given):
        return [Prompt(TOKEN_IDS.parse("prompt", given))]
    if len(given) > _MOST_PROMPTS:
        raise InvalidParamsError(f"prompt has {len(given):,} entries, at most {_MOST_PROMPTS:,} are taken in one request", "prompt")
    prompts = []
    for index, entry in enumerate(given):
        if isinstance(entry, str):
            prompts.append(_of_text(model, entry, add, special, f"prompt[{index}]"))
        elif isinstance(entry, list):
            prompts.append(Prompt(TOKEN_IDS.parse(f"prompt[{index}]", entry)))
        else:
            raise InvalidParamsError(f"prompt[{index}] must be a string or a list of token ids", "prompt")
    return prompts


def _of_text(model: Served, text: str, add_special_tokens: bool, parse_special: bool, name: str = "prompt") -> Prompt:
    text = Text(empty=True).parse(name, text)
    if add_special_tokens:
        return Prompt(model.tokenizer.encode_prompt(text, parse_special, model.max_model_len), text)
    return Prompt(model.tokenizer.encode(text, add_special_tokens=False, parse_special=parse_special), text)


@dataclasses.dataclass(slots=True, kw_only=True)
class Chat:
    """A chat and how it is rendered: messages in the form that templates take, and the template's further variables."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    variables: dict[str, Any] = dataclasses.field(default_factory=dict)
    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tool_choice: object = None
    parallel_tool_calls: bool = True


def chat_of(taken: Taken) -> Chat:
    """The chat of a body in OpenAI's form. Raises ApiError or InvalidParamsError."""
    variables = dict(taken.mapping("chat_template_kwargs") or {})
    for name in ("documents", "reasoning_effort"):
        if taken.own.get(name) is not None:
            variables.setdefault(name, taken.own[name])
    template = taken.text("chat_template")
    tools = taken.entries("tools") or None
    continued = taken.flag("continue_final_message")
    begins = taken.own.get("add_generation_prompt")
    if continued and begins is True:
        raise ApiError(
            400, "add_generation_prompt and continue_final_message exclude each other", param="continue_final_message", code="contradiction"
        )
    return Chat(
        messages=plain_messages(taken.own.get("messages")), tools=tools, variables=variables, chat_template=template,
        add_generation_prompt=not continued if begins is None else Flag().parse("add_generation_prompt", begins), continue_final_message=continued,
        tool_choice=taken.own.get("tool_choice"), parallel_tool_calls=taken.flag("parallel_tool_calls", True),
    )  # fmt: skip


def plain_messages(messages: object) -> list[dict[str, Any]]:
    """Messages of OpenAI's form as templates take them.

    A missing or null content is an empty text; the arguments of tool calls, which are JSON in a string, become the object. The rest stays as it is, and
    what the template does not read is named in the answer.
    """
    if not isinstance(messages, list):
        raise ApiError(400, "messages must be a list of messages", param="messages", code="invalid_type")
    if not messages:
        raise ApiError(400, "messages is empty: a chat has at least one message", param="messages", code="missing_field")
    if len(messages) > (most := LIMITS.get().num_messages):
        raise ApiError(400, f"messages has {len(messages):,} entries, more than {most:,}", param="messages", code="invalid_value")
    return [_plain_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _plain_message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise ApiError(400, f"{where} must be an object with role and content", param=where, code="invalid_type")
    for name in ("audio", "function_call"):
        if message.get(name) is not None:
            raise ApiError(400, f"{where}.{name} is not offered: {'answers are text alone' if name == 'audio' else 'give tool_calls'}", param=f"{where}.{name}", code="unsupported")  # fmt: skip
    result = {name: value for name, value in message.items() if value is not None}
    content = result.get("content", "")
    if isinstance(content, list):
        content = [_plain_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    result["content"] = content
    calls = result.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise ApiError(400, f"{where}.tool_calls must be a list", param=f"{where}.tool_calls", code="invalid_type")
        result["tool_calls"] = [_plain_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
        if not calls:
            del result["tool_calls"]
    return result


def _plain_part(part: object, where: str) -> object:
    """A part of a content: parts that are text under another name (a refusal, the input_text of /v1/responses) become text.

    Others are refused here: a template that goes over the parts would leave out what it does not know.
    """
    if not isinstance(part, Mapping):
        return part
    kind = part.get("type")
    if kind in ("input_text", "output_text", "summary_text", "reasoning_text"):
        return {"type": "text", "text": part.get("text")}
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    if kind != "text":
        raise ApiError(
            400, f"{where}.type must be 'text', not {str(kind)[:80]!r}: models here read text alone", param=where, code="unsupported"
        )
    return {"type": "text", "text": part.get("text")}


def _plain_call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ApiError(400, f"{where} must be an object with id, type and function: {{name, arguments}}", param=where, code="invalid_type")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ApiError(
                400, f"{where}.function.arguments is no JSON: {error}", param=f"{where}.function.arguments", code="invalid_json"
            ) from None
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def render(model: Served, chat: Chat) -> Prompt:
    """A chat's prompt. Raises ChatTemplateError, InvalidParamsError."""
    tokenizer = model.tokenizer
    variables = dict(chat.variables)
    if chat.tools:
        variables["tools"] = chat.tools
    if (
        chat.chat_template is not None
        and not _TAG.search(chat.chat_template)
        and chat.chat_template not in tokenizer._loaded.chat_templates
    ):
        raise ApiError(400, "chat_template must be a template's text, or the name of one of the model's: no file is read for a request", param="chat_template", code="invalid_value")  # fmt: skip
    template = tokenizer.template_for(chat.chat_template, variables)
    choice = None if chat.tool_choice == "auto" and not chat.tools else chat.tool_choice  # clients say "auto" without tools, too
    tools = chat_tools(tokenizer, None, chat.tools, choice, chat.parallel_tool_calls, None, template)
    variables.pop("tools", None)
    if tools.template_tools is not None:
        variables["tools"] = tools.template_tools
    date = None
    if _CLOCK in template and _CLOCK not in variables:
        date = variables[_CLOCK] = datetime.datetime.now().replace(microsecond=0).isoformat()
    messages = chat.messages
    if "developer" not in template:  # OpenAI's newer name of a system message
        messages = [{**message, "role": "system"} if message.get("role") == "developer" else message for message in messages]
    rendered = tokenizer.render_chat(
        tools.messages(messages), template, chat.add_generation_prompt, variables, continue_final_message=chat.continue_final_message
    )
    return Prompt(tokenizer.encode_chat(rendered), rendered.text, rendered.unused, date, tools)


def with_tools(prompt: Prompt, params: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters with those that a chat's tools set. Raises UnsupportedCombinationError for two constraints of one answer."""
    fields = {} if prompt.tools is None else prompt.tools.fields
    if "structured_outputs" in fields and params.get("structured_outputs") is not None:
        raise together()
    return params | fields
