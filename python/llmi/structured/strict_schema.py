"""A JSON schema as the grammar library enforces it whole: keywords completed by equivalent ones, or refused by place and name."""

from __future__ import annotations

from llmi.structured.budget import Budget
from llmi.structured.schema_rules import RULES
from llmi.structured.schema_walk import Problem, Walk


def strict_schema(schema: dict[str, object], budget: Budget) -> tuple[dict[str, object], list[Problem]]:
    """A schema of the same instances, and what in it cannot be enforced.

    Each rewrite is an equivalence, or narrower where docs/structured-output.md says so. With problems, the schema is the original
    without their keywords, as `lenient` wants it. Raises InvalidParamsError where the budget has no steps left.
    """
    walk = Walk(schema, RULES, budget)
    walk.run()
    return walk.root, walk.problems
