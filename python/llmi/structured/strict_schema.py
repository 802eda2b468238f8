"""A JSON schema as the grammar library enforces it whole: keywords completed by equivalent ones, or refused by place and name."""

from __future__ import annotations

import urllib.parse

from llmi.structured.budget import Budget
from llmi.structured.closed_objects import Marking, close_marked
from llmi.structured.schema_rules import RULES
from llmi.structured.schema_walk import Problem, Walk


def strict_schema(schema: dict[str, object], budget: Budget, *, open_objects: bool = True) -> tuple[dict[str, object], list[Problem]]:
    """A schema of the same instances, and what in it cannot be enforced.

    Each rewrite is an equivalence, or narrower where docs/structured-output.md says so; without open_objects, objects that list their
    properties get no others (closed_objects.py). With problems, the schema is the original without their keywords, as `lenient` wants it.
    Raises InvalidParamsError where the budget has no steps left.
    """
    if open_objects:
        walk = Walk(schema, RULES, budget)
        walk.run()
        return walk.root, walk.problems
    marking = Marking(schema, budget)
    walk = Walk(marking.root, RULES, budget)
    walk.run()
    close_marked(walk)
    given = {copy[1:]: urllib.parse.unquote(reference[1:]) for reference, copy in marking.copies.items()}
    return walk.root, [*dict.fromkeys(_as_given(problem, given) for problem in walk.problems)]


def _as_given(problem: Problem, given: dict[str, str]) -> Problem:
    """A problem at the place where the schema has it, not in a copy of that (/$defs/NAME)."""
    copy = "/".join(problem.pointer.split("/", 3)[:3])
    return problem._replace(pointer=given[copy] + problem.pointer[len(copy) :]) if copy in given else problem
