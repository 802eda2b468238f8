"""Planted bugs of constraints (csrc/constraint, csrc/engine/constraints) and of forced drafts."""

from __future__ import annotations

from mutant import Mutant

CORE = "tests/structured/test_core_constraints.py"
GRAMMARS = "tests/structured/test_structured.py"


def planted(name: str, anchor: str, old: str, new: str, tests: str = CORE, within: str = "csrc/engine/constraints") -> Mutant:
    return Mutant("constraints", name, within, anchor, old, new, tests)


CONSTRAINTS = [
    planted(
        "mask of the previous token",
        "Read",
        "place_->Advance(output[num_read_]);",
        "if (num_read_ > 0) place_->Advance(output[num_read_ - 1]);",
    ),
    planted("a place that stays where it is", "FillRoot", "Read(output);", ""),
    planted(
        "mask not applied again after a processor",
        "MaskAgain",
        "KeepBits(history.allowed, logits, vocab_size);",
        "",
        within="csrc/sampling/law.cc",
    ),
    planted(
        "mask not applied at first", "PenaliseLogits", "KeepBits(history.allowed, logits, vocab_size);", "", within="csrc/sampling/law.cc"
    ),
    planted(
        "judged rows have the root's mask",
        "Compute",
        "sample_.constraint->Allowed(node)",
        "sample_.constraint->Allowed(-1)",
        within="csrc/engine/rows/judge.cc",
    ),
    planted("tokens of an accepted draft are read twice", "TakeTrial", "num_read_ = at;", ""),
    planted("nodes have their parent's mask", "FillNode", "trials_[node]->Advance(draft_.token_ids[node]);", ""),
    planted("siblings of a draft share one place", "FillNode", "const bool is_last = …;", "const bool is_last = true;"),
    planted(
        "beams keep the place of another",
        "Fork",
        "if (parent.constraint != nullptr) child.constraint = parent.constraint->Fork();",
        "",
        within="csrc/engine/beams/steps.cc",
    ),
    planted(
        "state shared between forks",
        "Copy",
        "vocabulary_->functions().clone_matcher(matcher_)",
        "matcher_",
        within="csrc/constraint/grammar_constraint.cc",
    ),
    planted(
        "forced token injected",
        "Propose",
        "if (seat.text.forced.empty() || keeps_own || seat.error) continue;",
        "if (seat.text.forced.empty() || keeps_own || seat.error) continue;\n    seat.text.forced[0] += 1;",
        within="csrc/speculative/forced_drafter.cc",
    ),
    planted(
        "ends inside a text",
        "FillMask",
        "for (const uint32_t end : vocabulary_->ends()) SetBit(words, end, false);",
        "",
        GRAMMARS,
        "csrc/constraint/grammar_constraint.cc",
    ),
    planted(
        "no end where the text may end",
        "FillMask",
        "for (const int32_t end : ends_) SetBit(words, end, final);",
        "",
        GRAMMARS,
        "csrc/constraint/grammar_constraint.cc",
    ),
    planted(
        "a failure of the tokenizer is lost", "TokenizeForLibrary", "failure = std::current_exception();", "", within="csrc/constraint"
    ),
    planted(
        "a library with other answers is used",
        "core_library",
        '_check_answers(library, vocabulary, lambda grammar: _core.GrammarMatcher(core, grammar, "grammar"))',
        "pass",
        within="python/llmi/structured/library.py",
    ),
    planted(
        "typical acceptance gets forced drafts",
        "_drafts_forced",
        '("coupled", "rejection", "block")',
        '("coupled", "rejection", "block", "typical")',
        within="python/llmi/requests/build.py",
    ),
    planted(
        "one rule alone is blamed",
        "CheckConstraint",
        "if (history.allowed.empty() || std::any_of(row.begin(), row.end(), [](float logit) { return logit != kMinusInfinity; })) return;",
        "return;",
        within="csrc/sampling/law.cc",
    ),
]
