"""A function fits on a screen, and takes what it needs and no more: its lines and its parameters are bounded, in C++ and in Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpp_source import functions, without_comments

ROOT = Path(__file__).parent.parent
MOST_LINES = 50  # a docstring does not count
MOST_PARAMETERS = 7  # `self` does not count
pytestmark = pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="the sources are not beside the tests")

# Users write these arguments by name.
PUBLIC = {"LLM.__init__", "LLM.generate", "LLM.chat", "train_heads"}
# What is over a bound today. Take out what has been split; put nothing in.
LONG_TODAY = {"ComputeStep"}
WIDE_TODAY = {"prompts_of", "render"}

# (where, name, lines, parameters)
Measured = tuple[str, str, int, int]


def cpp_functions() -> Iterator[Measured]:
    for path in sorted(path for suffix in ("h", "cc", "cpp") for path in (ROOT / "csrc").rglob(f"*.{suffix}")):
        if path.is_relative_to(ROOT / "csrc/kernels/cuda"):
            continue
        for function in functions(without_comments(path.read_text())):
            where = f"{path.relative_to(ROOT)}:{function.line}"
            yield where, function.name, function.num_lines, function.num_parameters


def python_functions(text: str, path: str) -> Iterator[Measured]:
    def visit(node: ast.AST, around: str) -> Iterator[Measured]:
        name = around
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{around}.{node.name}" if around else node.name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            arguments = node.args
            named = [argument.arg for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
            count = len(named) - (named[:1] in (["self"], ["cls"])) + (arguments.vararg is not None) + (arguments.kwarg is not None)
            first = node.body[0]
            has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
            docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if has_docstring else 0
            yield f"{path}:{node.lineno}", name, node.end_lineno - node.lineno + 1 - docstring, count
        for child in ast.iter_child_nodes(node):
            yield from visit(child, name)

    return visit(ast.parse(text), "")


@pytest.fixture(scope="module")
def measured() -> list[Measured]:
    found = list(cpp_functions())
    assert len(found) > 1500
    for path in sorted((ROOT / "python").rglob("*.py")):
        found += python_functions(path.read_text(), str(path.relative_to(ROOT)))
    return found


def test_the_count_itself() -> None:
    text = without_comments("""
    #define TWICE(x) \\
      { x; x
    namespace a {
    Outer::Outer(int a, std::map<int, int> b)  // one (two, three) {
        : a_{a}, list_(b, "}{"), Base<int, int>(a) {
      if (a > 0) {
        Call([&](int x, const std::function<void(int, int)>& y) -> int {
          return x;
        });
      }
    }
    bool operator<(const Outer& other) const noexcept { return a_ < other.a_; }
    int Declared(int a, int b);
    template <typename T>
    auto Values(T x = {1, 2}, int y = Max(1, 2)) const -> std::vector<T> {
      for (int value : values(x)) {
        /* {
        */
        Use({.x = value}, [] { return 'x'; });
      }
    }
    }""")
    assert [(found.name, found.num_lines, found.num_parameters) for found in functions(text)] == [
        ("Outer", 8, 2),
        ("Outer.lambda", 3, 2),
        ("operator<", 1, 1),
        ("Values", 7, 2),
        ("Values.lambda", 1, 0),
    ]
    text = 'class A:\n    def f(self, a, *b, c=1, **d):\n        """One.\n\n        Two."""\n        def g():\n            pass\n        return g\n'
    assert list(python_functions(text, "x.py")) == [("x.py:2", "A.f", 4, 4), ("x.py:6", "A.f.g", 2, 0)]


def test_length(measured: list[Measured]) -> None:
    over = {name: f"{where} {name}: {lines} lines" for where, name, lines, _ in measured if lines > MOST_LINES}
    assert {name: over[name] for name in over.keys() - PUBLIC - LONG_TODAY} == {}
    assert LONG_TODAY - over.keys() == set(), "no longer over the bound: take it off the list"


def test_number_of_parameters(measured: list[Measured]) -> None:
    over = {name: f"{where} {name}: {count} parameters" for where, name, _, count in measured if count > MOST_PARAMETERS}
    assert {name: over[name] for name in over.keys() - PUBLIC - WIDE_TODAY} == {}
    assert (PUBLIC | WIDE_TODAY) - over.keys() == set(), "no longer over the bound: take it off the list"
