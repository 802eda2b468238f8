"""A chat with tools: what its template and its sampling parameters are, and how its answers are read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from llmi.base.ending import ENDING
from llmi.base.kinds import Flag, parse, show
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.params.beams import BeamSearchParams
from llmi.params.sampling import SamplingParams
from llmi.params.structured import StructuredOutputsParams
from llmi.structured import DEADLINE_S
from llmi.structured.budget import Budget
from llmi.structured.compiling import Deadline
from llmi.structured.constraint import grammar_constraint
from llmi.structured.thinking import Thinking, state_behind, thinking_of
from llmi.text.tokenizer import Tokenizer
from llmi.tools.calls import ToolCall
from llmi.tools.form import ToolFormat
from llmi.tools.functiongemma import FUNCTIONGEMMA, GEMMA4
from llmi.tools.functions import Choice, Function, choice_of, functions_of
from llmi.tools.generic import GENERIC, calls_in_words, in_words
from llmi.tools.grammar import answer_grammar, plain_reason
from llmi.tools.hermes import HERMES
from llmi.tools.llama import LLAMA
from llmi.tools.pythonic import PYTHONIC
from llmi.tools.stream import AnswerFormat, ToolStream

#: In the order in which they are compared with a template.
FORMATS = (FUNCTIONGEMMA, GEMMA4, HERMES, LLAMA, PYTHONIC, GENERIC)
_MAX_CHECKED = 1024  # functions whose parameters are known to be enforceable, for each tokenizer
_checked: weakref.WeakKeyDictionary[Tokenizer, OrderedDict[bytes, None]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Answer:
    """The parts of one answer. content: the text without reasoning and calls; reasoning: None if there was none."""

    content: str
    reasoning: str | None
    tool_calls: list[ToolCall]


@dataclasses.dataclass(frozen=True)
class ToolChat:
    """What a chat with tools needs.

    Attributes
    ----------
    params : SamplingParams, BeamSearchParams or None
        Those given, with `fields` set.
    fields : dict
        Sampling parameters that the tools set: the grammar, and whether special tokens stand in the text.
    template_tools : list of dict or None
        For the template's variable `tools`.
    format : AnswerFormat or None
        None: an answer is text alone.

    Examples
    --------
    >>> add = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    >>> chat = chat_tools(llm.tokenizer, tools=[add], tool_format="hermes")
    >>> isinstance(chat, ToolChat), chat.read("No call.", seed=1, index=0).content
    (True, 'No call.')
    """

    params: object
    fields: dict[str, Any]
    template_tools: list[dict[str, Any]] | None
    format: AnswerFormat | None
    _instructions: str | None = None  # None: the template knows tools itself
    _writes_calls: bool = True  # the template writes the calls of messages
    _tokenizer: Tokenizer | None = None

    @property
    def hides_tools(self) -> bool:
        """Whether the prompt does not tell of the tools: they are not to be called, and the template does not know them."""
        return self._instructions == ""

    def messages(self, chat: object) -> object:
        """A chat for the template: arguments of calls as dicts and, where the template knows no tools, calls, results and tools in
        words."""
        if not isinstance(chat, list | tuple):
            return chat
        plain = [_with_dicts(message) for message in chat]
        if self._instructions is not None:
            return in_words(plain, self._instructions)
        return plain if self._writes_calls else [calls_in_words(message) for message in plain]

    def format_behind(self, prompt: str | None) -> AnswerFormat | None:
        """How an answer to this prompt (a text with its special tokens) is read."""
        if self.format is None or self.format.thinking is None or self._tokenizer is None:
            return self.format
        state = state_behind(prompt or "", self.format.thinking, self._tokenizer.special_pattern)
        thinking = None if state == "closed" else self.format.thinking
        return dataclasses.replace(self.format, thinking=thinking, is_open=state == "open")

    def stream(self, seed: int, index: int, prompt: str | None = None) -> ToolStream:
        """A parser for the text of sample `index`. seed: the request's; prompt: its text, of which ids are made, and which may have begun
        the reasoning."""
        return ToolStream(self.format_behind(prompt) or AnswerFormat(None), seed, index, prompt or "")

    def read(self, text: str, seed: int, index: int, prompt: str | None = None) -> Answer:
        """The parts of a whole answer."""
        stream = self.stream(seed, index, prompt)
        events = stream.feed(text) + stream.finish()
        parts = {kind: [event.text for event in events if event.kind == kind] for kind in ("text", "reasoning")}
        return Answer("".join(parts["text"]), "".join(parts["reasoning"]) if parts["reasoning"] else None, stream.calls)


def chat_tools(
    tokenizer: Tokenizer,
    params: object = None,
    tools: object = None,
    tool_choice: object = None,
    parallel_tool_calls: object = True,
    tool_format: object = None,
    template: str | None = None,
) -> ToolChat:
    """Prepares a chat with tools, or without: reasoning is told apart in any case.

    Parameters
    ----------
    tokenizer : Tokenizer
    params : SamplingParams, BeamSearchParams or None
    tools : list of dict or None
        In OpenAI's form. Arguments keep to the function's `parameters`, a JSON schema; with `strict: False` they are any object.
    tool_choice : {"none", "auto", "required"} or {"type": "function", "function": {"name": ...}}, optional
        None: "auto" with tools.
    parallel_tool_calls : bool
        Whether an answer may hold several calls, where the format knows that.
    tool_format : str, optional
        "hermes", "llama3_json", "pythonic", "functiongemma", "gemma4" or "generic". None: the one that the template writes.
    template : str, optional
        The chat's template. None: the model's for these tools.

    Returns
    -------
    ToolChat
        What the engine needs for this chat, and what reads its answer.

    Raises
    ------
    InvalidParamsError
        Tools or choice are malformed, parameters cannot be enforced, or the template's format is unknown.
    GrammarTimeoutError
        The schemas take longer than requests that arrive online wait (DEADLINE_S); one that waits for its end has no limit of time.
    UnsupportedCombinationError
        `params` has structured_outputs, too.

    Examples
    --------
    >>> add = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    >>> chat = chat_tools(llm.tokenizer, tools=[add], tool_format="hermes")
    >>> answer = chat.read('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', seed=1, index=0)
    >>> answer.tool_calls[0].name, answer.tool_calls[0].arguments
    ('add', {'a': 1})
    """
    functions = functions_of(tools)
    choice = choice_of(tool_choice, functions)
    several = parse(Flag(), "parallel_tool_calls", parallel_tool_calls)
    given = [function.given for function in functions] or None
    if template is None and (tokenizer.chat_template is not None or functions):
        template = tokenizer.template_for(None, {"tools": given})
    thinking = thinking_of(template)
    if tool_format is not None and not functions:
        raise InvalidParamsError(f"tool_format = {show(tool_format)} needs tools: none were given", "tool_format")
    form = _form(tool_format, template or "", choice) if functions else None
    special = {text: token for token, text in tokenizer.special_tokens.items()}
    fields: dict[str, Any] = {}
    if form is not None and choice.kind != "none":
        marks = {text: special[text] for text in (*form.marks, *(_marks(thinking))) if text in special}
        budget = Budget("the parameters of the functions", "tools")
        _check(tokenizer, form, functions, marks, budget)
        grammar = answer_grammar(form, functions, choice, several, marks, budget, thinking.begins if thinking else "")
        fields["structured_outputs"] = _constraint(grammar, thinking)
        if marks:
            fields["skip_special_tokens"] = False
    names = frozenset(function.name for function in functions)
    is_read = form is not None and choice.kind != "none"
    format = AnswerFormat(form, names, thinking) if is_read else None if thinking is None else AnswerFormat(None, frozenset(), thinking)
    instructions = None
    if form is not None and form.instructions is not None:
        instructions = form.instructions(functions) if choice.kind != "none" else ""
    shown = given if instructions is None else None
    writes_calls = form is None or form.opens != HERMES.opens or "tool_calls" in (template or "")
    return ToolChat(with_fields(params, fields), fields, shown, format, instructions, writes_calls, tokenizer)


def _marks(thinking: Thinking | None) -> tuple[str, ...]:
    return () if thinking is None else (thinking.begins, thinking.ends)


def _form(name: object, template: str, choice: Choice) -> ToolFormat | None:
    """The format of this name, or the one that a template writes. Raises InvalidParamsError."""
    names = [form.name for form in FORMATS]
    if name is not None:
        if name not in names:
            raise InvalidParamsError(f"tool_format must be one of {', '.join(names)}, not {show(name)}", "tool_format")
        return FORMATS[names.index(str(name))]
    found = next((form for form in FORMATS if form.knows(template)), None)
    if found is not None or "tools" not in template:
        return found or GENERIC
    if choice.kind == "none":
        return None
    raise InvalidParamsError(
        f"tools: the chat template writes calls in a format that is not among {', '.join(names)}: give tool_format='generic', which tells"
        " of the tools in the system message, or tool_choice='none', which hands them to the template and takes answers as text",
        "tools",
    )


def _constraint(grammar: str, thinking: Thinking | None) -> StructuredOutputsParams:
    try:
        return StructuredOutputsParams(grammar=grammar, after_thinking=thinking is not None)
    except InvalidParamsError as error:
        raise InvalidParamsError(f"tools: together they are too much: {error}", "tools") from None


def _check(tokenizer: Tokenizer, form: ToolFormat, functions: list[Function], marks: Mapping[str, int], budget: Budget) -> None:
    """Compiles the grammar of each function by itself, once: what cannot be enforced is named. Raises InvalidParamsError."""
    deadline = None if ENDING.get() is None else Deadline(DEADLINE_S, time.monotonic())
    with _lock:
        known = _checked.setdefault(tokenizer, OrderedDict())
    for function in functions:
        key = hashlib.sha256(json.dumps([form.name, function.name, function.parameters]).encode()).digest()
        if key in known:
            continue
        grammar = answer_grammar(form, [function], Choice("named", function.name), False, marks, budget)
        try:
            if function.parameters is not None and form.writes_json:  # by itself, for the JSON pointers in its errors
                grammar_constraint(
                    StructuredOutputsParams(json=function.parameters, whitespace="one"), tokenizer, deadline=deadline, budget=budget
                )
            grammar_constraint(_constraint(grammar, None), tokenizer, deadline=deadline, budget=budget)
        except InvalidParamsError as error:
            raise InvalidParamsError(f"{function.where}: {plain_reason(error)}", "tools") from None
        with _lock:
            known[key] = None
            if len(known) > _MAX_CHECKED:
                known.popitem(last=False)


def with_fields(params: object, fields: Mapping[str, Any]) -> object:
    """Sampling parameters with these fields. Raises UnsupportedCombinationError if they have a constraint of their own."""
    if not isinstance(params, SamplingParams | BeamSearchParams) or not fields:
        return params
    if fields.get("structured_outputs") is not None and params.structured_outputs is not None:
        raise together()
    return params.replace(**fields)


def together() -> UnsupportedCombinationError:
    """The error for two constraints of one answer."""
    return UnsupportedCombinationError(
        "structured_outputs and tools: both say what the answer must be: give one, or tool_choice='none'", "structured_outputs", "tools"
    )


def _with_dicts(message: object) -> object:
    """A message whose calls have their arguments as dicts, as templates want them; OpenAI's have JSON text."""
    if not isinstance(message, Mapping) or not isinstance(calls := message.get("tool_calls"), list | tuple):
        return message
    return {**message, "tool_calls": [_with_dict(call) for call in calls]}


def _with_dict(call: object) -> object:
    if isinstance(call, ToolCall):
        return call.as_dict()
    if not isinstance(call, Mapping) or not isinstance(function := call.get("function"), Mapping):
        return call
    if not isinstance(text := function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
