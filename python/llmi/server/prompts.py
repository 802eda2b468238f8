"""From what a body says of its prompt to token ids: texts, ids and chats. What may take long runs off the event loop."""

from __future__ import annotations

import dataclasses
import datetime
import re
import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from llmi.base.kinds import TOKEN_IDS, Flag, Text
from llmi.chat.rules import Rendered
from llmi.errors import ChatTemplateError, InvalidParamsError
from llmi.params.rows import is_message
from llmi.server.errors import ApiError
from llmi.server.fields import Taken
from llmi.server.limits import Limits
from llmi.server.nested import ignore_others, wrong
from llmi.server.parts import Streams, TextStream
from llmi.server.plain_messages import arguments_as_objects, plain_messages
from llmi.server.served import Served
from llmi.server.state import prepare
from llmi.tools.chat import Answer, ToolChat, chat_tools, together

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
    negative_ids : list of int or None
        Those of a chat's negative_prompt, where it is messages.
    template_time_s, tokenizer_time_s : float
        For its metrics.
    """

    ids: list[int]
    text: str | None = None
    ignored: list[str] = dataclasses.field(default_factory=list)
    date: str | None = None
    tools: ToolChat | None = None
    negative_ids: list[int] | None = None
    template_time_s: float = 0.0
    tokenizer_time_s: float = 0.0

    def streams(self, seed: int) -> Streams:
        """How each choice of an answer to it is taken apart."""
        tools = self.tools
        if tools is None or tools.format is None:
            return lambda index: TextStream()
        return lambda index: tools.stream(seed, index, self.text)

    def read(self, text: str, seed: int, index: int) -> Answer:
        """The parts of a whole answer to it, that of choice `index`."""
        return Answer(text, None, []) if self.tools is None or self.is_plain else self.tools.read(text, seed, index, self.text)

    @property
    def is_plain(self) -> bool:
        """Whether its answers are text alone."""
        return self.tools is None or self.tools.format is None


async def read_prompts(request: Request, model: Served, taken: Taken) -> list[Prompt]:
    """As `completion_prompts`; all but a few ids are read on another thread."""
    given = taken.own.get("prompt")
    if isinstance(given, list) and len(given) <= _FEW_IDS and all(type(entry) is int for entry in given):
        return completion_prompts(model, taken)
    return await prepare(request, taken, lambda: completion_prompts(model, taken))


def completion_prompts(model: Served, taken: Taken) -> list[Prompt]:
    """The prompts of /v1/completions and /tokenize: a text, token ids, or a list of these. Raises InvalidParamsError."""
    given = taken.own.get("prompt")
    special = taken.flag("parse_special")
    add = taken.flag("add_special_tokens", True)
    if given is None:
        raise wrong("prompt", "is missing: give a string, a list of token ids, or a list of these", "missing_field")
    if isinstance(given, str):
        return [_of_text(model, given, add, special)]
    if not isinstance(given, list) or not given:
        raise InvalidParamsError("prompt must be a string, a list of token ids, or a list of at least one of these", "prompt")
    if all(type(entry) is int for entry in given):
        return [_of_ids(model, given)]
    if len(given) > _MOST_PROMPTS:
        raise InvalidParamsError(f"prompt has {len(given):,} entries, at most {_MOST_PROMPTS:,} are taken in one request", "prompt")
    prompts = []
    for index, entry in enumerate(given):
        if isinstance(entry, str):
            prompts.append(_of_text(model, entry, add, special, f"prompt[{index}]"))
        elif isinstance(entry, list):
            prompts.append(_of_ids(model, entry, f"prompt[{index}]"))
        else:
            raise InvalidParamsError(f"prompt[{index}] must be a string or a list of token ids", "prompt")
    return prompts


def _of_text(model: Served, text: str, add_special_tokens: bool, parse_special: bool, name: str = "prompt") -> Prompt:
    text = Text(empty=True).parse(name, text)
    begun_s = time.perf_counter()
    if add_special_tokens:
        ids = model.tokenizer.encode_prompt(text, parse_special, model.max_model_len)
    else:
        ids = model.tokenizer.encode(text, add_special_tokens=False, parse_special=parse_special)
    return Prompt(ids, text, tokenizer_time_s=time.perf_counter() - begun_s)


def _of_ids(model: Served, ids: list[Any], name: str = "prompt") -> Prompt:
    ids = TOKEN_IDS.parse(name, ids)
    if (highest := max(ids, default=0)) >= (limit := model.llm.model_info.vocab_size):
        raise InvalidParamsError(f"{name} holds the token id {highest}, outside [0, {limit})", name)
    return Prompt(ids)


@dataclasses.dataclass(slots=True, kw_only=True)
class Chat:
    """A chat and how it is rendered: messages in the form that templates take, and the template's further variables."""

    limits: Limits
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    variables: dict[str, Any] = dataclasses.field(default_factory=dict)
    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tool_choice: object = None
    parallel_tool_calls: bool = True
    add_special_tokens: bool = True
    negative_prompt: object = None


def chat_of(taken: Taken) -> Chat:
    """The chat of a body in OpenAI's form. Raises ApiError or InvalidParamsError."""
    variables = template_variables(taken, {"documents": taken.entries("documents"), "reasoning_effort": taken.text("reasoning_effort")})
    template = taken.text("chat_template")
    continued = taken.flag("continue_final_message")
    begins = taken.own.get("add_generation_prompt")
    if continued and begins is True:
        raise ApiError(
            400, "add_generation_prompt and continue_final_message exclude each other", param="continue_final_message", code="contradiction"
        )
    return Chat(
        limits=taken.admission.limits,
        messages=plain_messages(taken.own.get("messages"), taken.ignored, taken.admission.limits),
        tools=_tools(taken),
        variables=variables,
        chat_template=template,
        add_generation_prompt=not continued if begins is None else Flag().parse("add_generation_prompt", begins),
        continue_final_message=continued,
        tool_choice=_choice(taken),
        parallel_tool_calls=taken.flag("parallel_tool_calls", True),
        add_special_tokens=taken.flag("add_special_tokens", True),
        negative_prompt=taken.params.get("negative_prompt"),
    )


def template_variables(taken: Taken, others: Mapping[str, Any]) -> dict[str, Any]:
    """The template's variables: those of chat_template_kwargs, and `others`, which fields of the body's own say (None: they do not).

    Raises ApiError for a variable that has a field of its own, or that is given twice with two values.
    """
    variables = dict(taken.mapping("chat_template_kwargs") or {})
    if "tools" in variables:
        raise wrong("chat_template_kwargs.tools", "is not taken: give tools", "unsupported")
    for name, value in others.items():
        if value is None:
            continue
        if variables.get(name) not in (None, value):
            raise wrong(f"chat_template_kwargs.{name}", "contradicts the field of the body that says the same", "contradiction")
        variables[name] = value
    return variables


def _tools(taken: Taken) -> list[dict[str, Any]] | None:
    """Tools in OpenAI's form. What else an entry has is named as ignored; what is wrong with it is said later."""
    tools = taken.entries("tools") or []
    for index, tool in enumerate(tools):
        if isinstance(tool, dict):
            ignore_others(taken.ignored, f"tools[{index}]", tool, "type", "function")
    return tools or None


def _choice(taken: Taken) -> object:
    choice = taken.own.get("tool_choice")
    if isinstance(choice, dict):
        ignore_others(taken.ignored, "tool_choice", choice, "type", "function")
        if isinstance(choice.get("function"), dict):
            ignore_others(taken.ignored, "tool_choice.function", choice["function"], "name")
    return choice


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
        what = "must be a template's text, or the name of one of the model's: no file is read for a request"
        raise wrong("chat_template", what, "invalid_value")
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

    def written(messages: list[dict[str, Any]]) -> Rendered:
        return tokenizer.render_chat(
            tools.messages(messages), template, chat.add_generation_prompt, variables, continue_final_message=chat.continue_final_message
        )

    begun_s = time.perf_counter()
    try:
        rendered = written(messages)
    except ChatTemplateError:  # of a template that goes over the arguments of calls, maybe
        if (objects := arguments_as_objects(messages)) == messages:
            raise
        rendered = written(objects)
    ignored = [*rendered.unused, *(["tools"] if tools.hides_tools else [])]
    rendered_s = time.perf_counter()
    prompt = Prompt(tokenizer.encode_chat(rendered, chat.add_special_tokens), rendered.text, ignored, date, tools)
    prompt.template_time_s, prompt.tokenizer_time_s = rendered_s - begun_s, time.perf_counter() - rendered_s
    if isinstance(chat.negative_prompt, list) and chat.negative_prompt and is_message(chat.negative_prompt[0]):
        _render_negative(model, chat, prompt)
    return prompt


def _render_negative(model: Served, chat: Chat, prompt: Prompt) -> None:
    """Renders the messages of negative_prompt as the chat itself, at the same time of its clock."""
    ignored: list[str] = []
    messages = plain_messages(chat.negative_prompt, ignored, chat.limits, "negative_prompt")
    clock = {} if prompt.date is None else {_CLOCK: prompt.date}
    negative = render(model, dataclasses.replace(chat, messages=messages, variables={**chat.variables, **clock}, negative_prompt=None))
    prompt.negative_ids = negative.ids
    prompt.ignored += [*ignored, *negative.ignored]


def with_tools(prompt: Prompt, params: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters with those that a chat sets: its tools' and its negative prompt's ids. Raises UnsupportedCombinationError for two
    constraints of one answer."""
    fields = {} if prompt.tools is None else prompt.tools.fields
    if "structured_outputs" in fields and params.get("structured_outputs") is not None:
        raise together()
    negative = {} if prompt.negative_ids is None else {"negative_prompt": prompt.negative_ids}
    return params | fields | negative
