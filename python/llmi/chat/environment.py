"""The environment that chat templates are compiled for: jinja2's immutable sandbox with what transformers adds. The one place that knows
jinja2.

It is loaded in the process that renders templates, see worker.py.
"""

from __future__ import annotations

import functools
import html  # noqa: F401  this, textwrap and jinja2.debug are imported when they are needed, and then no file can be opened any more
import json
import textwrap  # noqa: F401
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import jinja2.debug  # noqa: F401
from jinja2 import Template, TemplateError, ext, meta, nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from markupsafe import Markup

from llmi.chat import traced as tracing
from llmi.chat.traced import TEMPLATE, Traced

if TYPE_CHECKING:
    from jinja2.compiler import Frame
    from jinja2.parser import Parser
    from jinja2.runtime import Context

__all__ = ["Cache", "Environment", "Refused", "SecurityError", "Template", "TemplateError", "environment"]

MAX_CACHED_CHARS = 1 << 20  # of templates whose code is kept


class Refused(TemplateError):
    """The error that raise_exception raises."""


# --- the environment


class _GenerationTag(ext.Extension):
    """{% generation %} marks what a model wrote, for training. Here its body is rendered, in a scope of its own."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Code(CodeGenerator):
    """Compiles `~` so that it keeps the origin of characters."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super().visit_Concat(node, frame)
            return
        self.write("environment.concatenate((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Formatter(SandboxedFormatter):
    """str.format in the sandbox, with the origin of characters."""

    def vformat(self, template: str, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        text = super().vformat(template, args, kwargs)
        if not (isinstance(template, Traced) or tracing.letters_in([list(args), kwargs])):
            return text
        letters = set(tracing.origin_of(template)) or {TEMPLATE}
        if len(letters) > 1:
            return Traced(text)
        letter, number = letters.pop(), 0
        parts: list[str] = []
        for literal, name, spec, conversion in self.parse(template):
            parts.append(Traced(literal, letter * len(literal)))
            if name is None:
                continue
            if not name:
                name, number = str(number), number + 1
            if spec or conversion:
                return Traced(text)
            parts.append(tracing.as_text(self.get_field(name, args, kwargs)[0]))
        return tracing.agreed(text, tracing.join(parts))


class Environment(ImmutableSandboxedEnvironment):
    """Renders as transformers does; given traced strings, it also says where each character came from."""

    intercepted_binops = frozenset({"%"})
    code_generator_class = _Code
    concat = staticmethod(tracing.join)
    tracing = False  # whether traced strings are about
    untracked = False  # content went through something that forgets its origin

    def concatenate(self, parts: Iterable[object]) -> str:
        return tracing.join([str(tracing.as_text(part)) for part in parts])

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if isinstance(left, str) and not isinstance(left, Markup):
            return tracing.percent(left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        template = getattr(value, "__self__", None)
        if wrapped is None or not isinstance(template, str) or isinstance(template, Markup):
            return wrapped
        if getattr(value, "__name__", "") == "format_map":
            return lambda values: _Formatter(self).vformat(template, (), values)
        return lambda *args, **kwargs: _Formatter(self).vformat(template, args, kwargs)

    def call(__self, __context: Context, __obj: object, *args: object, **kwargs: object) -> object:
        call = super().call
        if not __self.tracing or isinstance(__obj, Macro):
            return call(__context, __obj, *args, **kwargs)
        text = getattr(__obj, "__self__", None)
        if isinstance(text, bytes):
            __self.untracked = True
        if type(text) is str and tracing.letters_in([list(args), kwargs]):  # a method of the template's text, given content
            __obj = getattr(tracing.traced(text), getattr(__obj, "__name__", ""))
        return __self.kept(call(__context, __obj, *args, **kwargs), [list(args), kwargs])

    def kept(self, result: object, given: list[object]) -> object:
        """A result of something that does not keep origins, with the origin of its input."""
        if not isinstance(result, str) or isinstance(result, Traced) or tracing.holds(given, result):
            return result
        if not tracing.letters_in(given):
            return result
        if isinstance(result, Markup):
            self.untracked = True
            return result
        return Traced(result, tracing.mixed(given) * len(result))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: object) -> None:
    raise Refused(str(message))


def _random(*args: object, **kwargs: object) -> None:
    raise SecurityError("random and lipsum are refused: a prompt is a function of its messages")


def _join(value: Iterable[object], d: str = "", attribute: str | int | None = None, *, environment: Environment) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return tracing.join_with(str(d), [str(tracing.as_text(entry)) for entry in value])


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """jinja2's filter `indent`, by operations that keep the origins of characters."""
    indentation = width if isinstance(width, str) else " " * width
    lines = (text + "\n").splitlines()
    rest = [indentation + line if line or blank else line for line in lines[1:]]
    result = tracing.join_with("\n", [lines[0], *rest])
    return indentation + result if first else result


def _format(value: object, *args: object, **kwargs: object) -> str:
    if args and kwargs:
        raise TypeError("can't handle positional and keyword arguments at the same time")
    return tracing.percent(tracing.as_text(value), kwargs or args)


def _replace(text: object, old: object, new: object, count: int | None = None) -> str:
    text, new = str(tracing.as_text(text)), str(tracing.as_text(new))
    if isinstance(new, Traced):
        text = tracing.traced(text)
    return text.replace(str(old), new, -1 if count is None else count)


@functools.cache
def environment() -> Environment:
    made = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, ext.loopcontrols], finalize=tracing.as_text)

    def keeping(function: Callable[..., object]) -> Callable[..., object]:
        marked = hasattr(function, "jinja_pass_arg")  # its first argument is jinja2's

        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            result = function(*args, **kwargs)
            return made.kept(result, [list(args[1:] if marked else args), kwargs]) if made.tracing else result

        return call

    made.filters = {name: keeping(function) for name, function in made.filters.items()}
    made.filters |= {
        "tojson": keeping(_tojson),
        "join": functools.partial(_join, environment=made),
        "indent": _indent,
        "format": _format,
        "replace": _replace,
        "random": _random,
        "safe": lambda text: text if made.tracing else Markup(text),  # where nothing is escaped, the same text
    }
    made.globals |= {"raise_exception": _refuse, "lipsum": _random}
    return made


class Cache:
    """The code of templates, and the names that each looks up."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Template, set[str]]] = {}

    def __getitem__(self, template: str) -> tuple[Template, set[str]]:
        entry = self._entries.pop(template, None)
        if entry is None:
            here = environment()
            tree = here.parse(template)
            names = meta.find_undeclared_variables(tree)
            code = here.compile(tree, None, None)
            compiled = here.template_class.from_code(here, code, here.make_globals(None), None)
            entry = (compiled, names)
        self._entries[template] = entry  # the last used one is the last
        while len(self._entries) > 1 and sum(map(len, self._entries)) > MAX_CACHED_CHARS:
            del self._entries[next(iter(self._entries))]
        return entry
