"""Planted bugs of rules that end an output, of the limit of thinking, of given ids' log-probabilities, and of checks of receipts."""

from __future__ import annotations

from mutant import Mutant

PATTERNS, THINKING, TOKENS = (f"tests/sampling/test_{name}.py" for name in ("stop_regex", "thinking_budget", "repetition_and_ids"))
CHECKS = "tests/lab/test_replay.py"


def planted(name: str, within: str, anchor: str, old: str, new: str, tests: str) -> Mutant:
    """One of these."""
    return Mutant("ends", name, within, anchor, old, new, tests)


MATCHER, LIMIT, EMIT = "csrc/engine/stop_matcher.cc", "csrc/constraint/thinking_budget.cc", "csrc/engine/emit.cc"
CHECK = "python/llmi/outputs/receipt_check.py"
ENDS = [
    planted("a later match wins", MATCHER, "Follow", "if (!matched_) {", "{", PATTERNS),
    planted(
        "a match begins at the text's start alone",
        MATCHER,
        "Read",
        "Follow(0, begin, &ways_);",
        "if (begin == 0) Follow(0, begin, &ways_);",
        PATTERNS,
    ),
    planted("every line is the text's start", MATCHER, "Follow", "if (text_begins_) open_", "if (line_begins_) open_", PATTERNS),
    planted(
        "what may become a match is shown",
        "csrc/engine/detokenizer.cc",
        "HeldBytes",
        "text_.size() - std::min(matcher_.begin_under_way(), text_.size())",
        "0",
        PATTERNS,
    ),
    planted("case is not folded", "python/llmi/text/stop_patterns.py", "_folded", "if not flags & re.IGNORECASE:", "if True:", PATTERNS),
    planted(
        "an expression of the empty text",
        "python/llmi/text/stop_patterns.py",
        "add",
        "if self._matches_nothing(start):",
        "if False:",
        PATTERNS,
    ),
    planted(
        "one token more than the budget",
        "csrc/constraint",
        "is_used_up",
        "num_tokens_ >= limits_.budget",
        "num_tokens_ > limits_.budget",
        THINKING,
    ),
    planted("a second block has what the first left", LIMIT, "Advance", "num_tokens_ = 0;", "", THINKING),
    planted("a fork begins to count anew", LIMIT, "Fork", "fork->num_tokens_ = num_tokens_;", "", THINKING),
    planted("one repetition too many", EMIT, "Repeats", "same >= i * (count - 1)", "same >= i * count", TOKENS),
    planted("patterns that are too short", EMIT, "Repeats", "i >= params.repetition_min_size &&", "", TOKENS),
    planted("ranks from 0", "csrc/sampling/logprobs.cc", "RanksOf", "sum + 1", "sum", TOKENS),
    planted("ids twice", "csrc/sampling/logprobs.cc", "NotListed", "known.insert(place, id);", "", TOKENS),
    planted(
        "a record that is too short", EMIT, "Differs", "tokens.size() > wanted.size() || ", "tokens.size() <= wanted.size() && ", CHECKS
    ),
    planted(
        "the first text's record for all",
        "csrc/speculative/recorded_drafter.cc",
        "Propose",
        "static_cast<size_t>(seat.sequence.sample_index)",
        "0",
        CHECKS,
    ),
    planted("no bits are compared", CHECK, "_first_of", "logprobs = _first(*digests)", "logprobs = None", CHECKS),
    planted("another number of texts", CHECK, "compare", "if len(here) != len(there):", "if False:", CHECKS),
]
