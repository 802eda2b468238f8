"""Planted bugs of drafters without training, and of "auto"."""

from __future__ import annotations

from mutant import Mutant

CORPUS = "tests/speculation/test_corpus.py"
UNTRAINED = "tests/speculation/test_untrained_drafters.py"
AUTO = "tests/speculation/test_auto_speculation.py"


def planted(name: str, anchor: str, old: str, new: str, tests: str, within: str = "csrc/speculative") -> Mutant:
    return Mutant("drafters", name, within, anchor, old, new, tests)


DRAFTERS = [
    planted("n-grams cross from text to text", "Counter", "begin = end;", "", CORPUS),
    planted(
        "short contexts first",
        "CorpusTable::Next",
        "for (int64_t order = std::min(max_order_, static_cast<int64_t>(text.size())); order > 0; --order)",
        "for (int64_t order = 1; order <= std::min(max_order_, static_cast<int64_t>(text.size())); ++order)",
        CORPUS,
    ),
    planted("the best of a context by id", "AddContext", "count > best_count ||", "best < 0 ||", CORPUS),
    planted(
        "tokens of a file are not checked",
        "CorpusTable::CorpusTable",
        "if (TokenAt(slot) >= vocab_size)",
        "if (TokenAt(slot) > vocab_size)",
        CORPUS,
    ),
    planted("high bits are lost", "TokenAt", "(high << 16) |", "(high & 0) |", CORPUS),
    planted("bytes behind the tensors", "_arrays", "if end != len(data):", "if end > len(data):", CORPUS, "python/llmi/speculation"),
    planted(
        "another tokenizer is taken in silence",
        "_attach",
        "if ours != theirs and theirs not in self._warned:",
        "if False:",
        CORPUS,
        "python/llmi/speculation",
    ),
    planted(
        "rejection learns from other requests", "TokenRecycling::Learn", "(shares ? shared_ :", "(shares || true ? shared_ :", UNTRAINED
    ),
    planted("rejection drafts from what all have learnt", "LearnRow", "!sample.judges_drafts()", "true", UNTRAINED, "csrc/engine"),
    planted(
        "a union that looks at batch mates",
        "NodeLengths::QuestionOf",
        ".num_rows = 1",
        ".num_rows = plan.num_rows + 1",
        UNTRAINED,
        "csrc/engine",
    ),
    planted(
        "rates of other requests under rejection",
        "NodeLengths::Begin",
        "known.rates[greedy]",
        "histories_.Of(sample).rates[greedy]",
        UNTRAINED,
        "csrc/engine",
    ),
    planted(
        "one budget for all under rejection",
        "BudgetOf",
        "if (sample.judges_drafts()) return",
        "if (false) return",
        UNTRAINED,
        "csrc/engine",
    ),
    planted("trees where chains are wanted", "TokenRecycling::Propose", "seat.wants.chain", "false", UNTRAINED),
    planted("guesses are never corrected", "Lookahead::Learn", "= row.likeliest.front();", "= -1;", UNTRAINED),
    planted("no budget", "Cut", "!budget.Allows(choice.cost, choice.risk)", "false", AUTO, "csrc/engine"),
    planted("rates are not learnt", "NodeRates::AddTo", "(accepted ? 1.0f : 0.0f)", "expected_[i]", AUTO),
    planted("nodes without their parents", "PathRates", "if (parent > 0) own[i] *= own[parent - 1];", "", AUTO),
    planted("rows are free", "ChooseNodes", "question.num_rows + static_cast<int64_t>(count)", "question.num_rows", AUTO),
    planted("drafters that agree count once", "NodeRates::Rate", "1 - (1 - rate) * (1 - RateOf(kind.second))", "rate", AUTO),
    planted("a run of bad luck ends what pays", "Allows", "|| recent_ > 0", "", AUTO),
]
