"""Planted bugs of the lab: memories, exact laws, tests of draws, strategies, loops over streams, the arena."""

from __future__ import annotations

from mutant import Mutant

MEMORY = "tests/lab/test_lab_memory.py"
EXACT = "tests/sampling/test_exact_distribution.py"
STRATEGY = "tests/lab/test_strategy.py"
ARENA = "tests/lab/test_arena.py"


def planted(name: str, within: str, anchor: str, old: str, new: str, tests: str) -> Mutant:
    return Mutant("lab", name, f"python/llmi/{within}", anchor, old, new, tests)


LAB = [
    planted("a look moves context.state", "lab", "copy_for_hooks", "return copy.deepcopy(self.hooks)", "return self.hooks", MEMORY),
    planted("a memory follows any token", "lab", "memory", "draw.token_id in (None, int(token_ids[draw.position]))", "True", MEMORY),
    planted("two constraints share a place", "lab", "_allowed", 'if self._places.get("of") != given:', "if False:", MEMORY),
    planted(
        "a seed of the parameters is dropped", "lab", "_drawn", "self.seed if params.seed is None else params.seed", "self.seed", MEMORY
    ),
    planted("a look draws", "lab", "probs", "params.sampler = None", "pass", MEMORY),
    planted("the law has one side of the coin", "testing", "_coins", "if not 0 < heads < 1 or", "if True or", EXACT),
    planted("the memory stays at the beginning of the tree", "testing", "grow", "drawn.after(token, self.llm)", "node.memory", EXACT),
    planted("rows are not computed twice", "testing", "check_rows", "if known !=", "if False and known !=", EXACT),
    planted(
        "draws without power pass",
        "testing",
        "assert_same_distribution",
        "assert table.farthest().tails_below(false_alarm / 3), (",
        "assert True, (",
        EXACT,
    ),
    planted("rare outcomes are not counted", "testing", "tails_below", "if bound < level:", "if False:", EXACT),
    planted(
        "an error of a yield is not thrown",
        "lab",
        "go_on",
        "generator.send(answer) if problem is None else generator.throw(problem)",
        "generator.send(answer)",
        STRATEGY,
    ),
    planted("one prompt's error ends the run", "lab", "_run", "except Exception as error:", "except ZeroDivisionError as error:", STRATEGY),
    planted(
        "what another model appended stays",
        "lab",
        "extend",
        "sequence.rollback(0 if sequence._core.has_tree else len(rows))",
        "pass",
        STRATEGY,
    ),
    planted("a cancelled loop leaves its request", "requests", "__anext__", "self._leave()", "pass", "tests/api/test_endings.py"),
    planted(
        "the arena drafts 16 tokens",
        "speculation",
        "_length",
        "return length if isinstance(length, int) else _MAX_LENGTH",
        "return _MAX_LENGTH",
        ARENA,
    ),
]
