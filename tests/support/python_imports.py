"""Imports inside llmi, read from its sources: in functions and behind lazy names, too. (import-linter sees neither lazy names nor which names are protocols.)"""

from __future__ import annotations

import ast
import dataclasses
import functools
import graphlib
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "python" / "llmi"


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported name: in a line, `module` imports `name` of `target` ("" for the module itself)."""

    module: str
    target: str
    name: str
    line: int
    for_types: bool  # under TYPE_CHECKING: only type checkers read it
    at_top: bool  # not in a function

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}{self.name and '.'}{self.name}"


def _module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def _homes() -> dict[str, str]:
    """The module of each public name, which llmi/__init__.py loads when it is first used."""
    tree = ast.parse(MODULES["llmi"].read_text())
    table = next(node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_MODULES")
    return {name: f"llmi.{module}" for module, names in ast.literal_eval(table).items() for name in names}


def imports_of(module: str, source: str) -> Iterator[Import]:
    """What a module imports of llmi. Using a public name as an attribute of llmi counts: it loads the name's module."""
    homes = _homes()

    def named(child: ast.AST) -> Iterator[tuple[str, str]]:
        if isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{module}:{child.lineno}: an import names the whole path"
            for alias in child.names:
                if f"{child.module}.{alias.name}" in MODULES:
                    yield f"{child.module}.{alias.name}", ""
                elif child.module == "llmi" and alias.name in homes:
                    yield homes[alias.name], alias.name
                elif child.module in MODULES:
                    yield str(child.module), alias.name
        elif isinstance(child, ast.Import):
            yield from ((alias.name, "") for alias in child.names if alias.name in MODULES)
        elif isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name) and child.value.id == "llmi" and child.attr in homes:
            yield homes[child.attr], child.attr

    def walk(node: ast.AST, for_types: bool, at_top: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                yield from walk(ast.Module(child.body, []), True, at_top)
                yield from walk(ast.Module(child.orelse, []), for_types, at_top)
                continue
            yield from (Import(module, target, name, child.lineno, for_types, at_top) for target, name in named(child))
            yield from walk(child, for_types, at_top and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    yield from walk(ast.parse(source), False, True)


@functools.cache
def all_imports() -> list[Import]:
    """All but those of llmi/__init__.py, which come when a name is used, and those of llmi itself, which is loaded before its modules."""
    found = [entry for module, path in MODULES.items() if module != "llmi" for entry in imports_of(module, path.read_text())]
    return [entry for entry in found if entry.target not in ("llmi", entry.module)]


@functools.cache
def is_protocol(target: str, name: str) -> bool:
    """Whether a module defines this name as a protocol."""
    classes = [node for node in ast.parse(MODULES[target].read_text()).body if isinstance(node, ast.ClassDef) and node.name == name]
    return any(ast.unparse(base).split("[")[0] == "Protocol" for node in classes for base in node.bases)


def package_of(module: str) -> str:
    """llmi.text of llmi.text.prompts; a module at the top is a package of its own."""
    return ".".join(module.split(".")[:2])


def graph_of(entries: Iterable[Import], of_packages: bool = False) -> dict[str, set[str]]:
    """What each module, or each package, imports."""
    graph: dict[str, set[str]] = {}
    for entry in entries:
        source, target = (package_of(entry.module), package_of(entry.target)) if of_packages else (entry.module, entry.target)
        if source != target:
            graph.setdefault(source, set()).add(target)
    return graph


def circle_of(graph: dict[str, set[str]]) -> list[str]:
    """The nodes of one circle, the first one again at its end; [] if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


def reached_from(graph: dict[str, set[str]], start: str) -> set[str]:
    """The nodes that a start leads to, itself included."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += graph.get(node, ())
    return reached
