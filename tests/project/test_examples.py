"""The examples in docstrings: each is run, and each exported class and function has one."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM
from llmi.families.registry import cards, forget_family
from test_public_docs import exported

PACKAGE = Path(llmi.__file__).parent
#: They train heads, load the default model, or draw with matplotlib.
SLOW = {"train_heads", "Eagle", "Medusa", "make_app", "threshold_plot"}
CHAT_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "


def is_run(text: str) -> bool:
    """Whether some line of the examples is not skipped."""
    return any(not example.options.get(doctest.SKIP) for example in doctest.DocTestParser().get_examples(text))


def docstrings(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, str, int]]:
    """(qualified name, text, first line) of a module's texts."""
    if isinstance(tree, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(tree)):
        yield prefix, text, tree.body[0].lineno
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from docstrings(child, f"{prefix}.{child.name}".lstrip("."))


def examples() -> Iterator[Any]:
    """A case for each text that has examples to run."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if ">>>" not in source:
            continue
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for name, text, line in docstrings(ast.parse(source)):
            if is_run(text):
                marks = [pytest.mark.slow] if name in SLOW else []
                yield pytest.param(module, text, line, id=f"{module}.{name}".strip("."), marks=marks)


@pytest.fixture(scope="module")
def llm(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    """The `llm` of examples (tools/site.py says what it is)."""
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 24, num_threads=1, chat_template=CHAT_TEMPLATE) as llm:
        yield llm


@pytest.fixture
def no_families_left() -> Iterator[None]:
    yield
    for card in cards():
        if card.is_users:
            forget_family(card.name)


@pytest.mark.parametrize(("module", "text", "line"), [*examples()])
@pytest.mark.usefixtures("no_families_left")
def test_an_example(module: str, text: str, line: int, llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = importlib.import_module(".".join(module.split(".")[:2]))
    public = {name: getattr(owner, name) for owner in (llmi, package) for name in getattr(owner, "__all__", ())}
    names = {**public, **vars(importlib.import_module(module)), "llmi": llmi, "np": np, "llm": llm}
    case = doctest.DocTestParser().get_doctest(text, names, module, module, line - 1)
    said: list[str] = []
    result = doctest.DocTestRunner().run(case, out=said.append)
    assert result.failed == 0, "".join(said)


def test_each_exported_class_and_function_has_one() -> None:
    lacking = [name for name, value in exported().items() if not is_run(inspect.getdoc(value) or "") and not _is_error(value)]
    assert lacking == []


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)
