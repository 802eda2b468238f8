"""Planted bugs in saved prefixes and in the simulator."""

from __future__ import annotations

from mutant import Mutant

_SAVED = "cache/test_saved_prefixes.py"
_HANDED = "cache/test_prefills.py"
_SIMULATED = "engine/test_simulation.py"

BUGS = [
    Mutant("a salt is left out", "csrc/cache", "RootKey", "hash.Add(salt.data(), salt.size());", "", _SAVED),
    Mutant("the model is left out", "csrc/cache", "RootKey", "hash.Add(identity.data(), identity.size());", "", _SAVED),
    Mutant(
        "the same tokens at another position are taken",
        "csrc/cache",
        "IsOfSameBlock",
        "root == other.root && parent == other.parent && index == other.index &&",
        "",
        _SAVED,
    ),
    Mutant(
        "a block that a window has passed is taken as there",
        "csrc/cache",
        "AppendSaved",
        "if (has_group[g] == 0) GiveBackGroup(sequence, g, index + 1);",
        "",
        _SAVED,
    ),
    Mutant("a block of the neighbouring layers", "csrc/cache", "AppendSaved", "from += range.num_bytes;", "", _SAVED),
    Mutant(
        "a checksum is not looked at",
        "csrc/cache",
        "ParseBlock",
        "start.checksum != Checksum(",
        "false && start.checksum != Checksum(",
        _SAVED,
    ),
    Mutant("others may write the folder", "csrc/cache", "CheckOwner", "(S_IWGRP | S_IWOTH)", "0", _SAVED),
    Mutant("the newest blocks go first", "csrc/cache", "MakeRoom", "a.used.tv_nsec) < std::pair", "a.used.tv_nsec) > std::pair", _SAVED),
    Mutant("a file that is about to be read is evicted", "csrc/cache", "MakeRoom", "IsPinned(entry.name) ||", "", _HANDED),
    Mutant(
        "a nested answer ends the thread that asked",
        "python/llmi/handover",
        "_answer_of",
        "(OSError, ValueError, RecursionError, LlmiError)",
        "(OSError, ValueError, LlmiError)",
        _HANDED,
    ),
    Mutant(
        "NIXL is told any address",
        "python/llmi/handover",
        "_checked",
        "if not 0 < address <= (1 << 64) - 1 - sum(sizes):",
        "if False:",
        "cache/test_nixl.py",
    ),
    Mutant(
        "an engine of another identity counts as one of ours",
        "python/llmi/handover",
        "_judged",
        'other == self.identity and told.get("engine") != self._engine_id',
        "True",
        _HANDED,
    ),
    Mutant(
        "a producer of another identity computes all the same",
        "python/llmi/handover",
        "answer",
        'body.get("identity") != self.identity or',
        "",
        _HANDED,
    ),
    Mutant("a question goes without its salt", "python/llmi/handover", "_answer_of", '"cache_salt": salt', '"cache_salt": ""', _HANDED),
    Mutant("a producer that failed does not rest", "python/llmi/handover", "note", "self._num_failures + 1", "0", _HANDED),
    Mutant(
        "two engines ask each other for one prompt",
        "python/llmi/handover",
        "_answer_of",
        "computed[: len(token_ids)] == token_ids and own == salt",
        "False",
        _HANDED,
    ),
    Mutant("who asked a dead producer is not told", "python/llmi/replicas", "has_gone", "question.asker is not replica", "False", _HANDED),
    Mutant(
        "requests go to the producer", "python/llmi/replicas", "_place", "if not replica.is_producer", "if replica.is_producer", _HANDED
    ),
    Mutant("the last engine leaves its files", "python/llmi/handover", "close", "Path(entry).unlink()", "pass", _HANDED),
    Mutant("a step is charged twice", "csrc/engine", "Step", "now_s_ += step.seconds;", "now_s_ += 2 * step.seconds;", _SIMULATED),
    Mutant(
        "the clock runs on while nothing is there",
        "csrc/engine",
        "RunToEnd",
        "now_s_ = std::max(now_s_, requests_[num_taken_].arrival_s);",
        "now_s_ = std::max(now_s_, requests_[num_taken_].arrival_s) + 0.01;",
        _SIMULATED,
    ),
    Mutant(
        "a transfer costs nothing",
        "python/llmi/simulation",
        "_transfer",
        "way.handed_s = free_s = max(free_s, end_s) + seconds",
        "way.handed_s = free_s = max(free_s, end_s)",
        "engine/test_simulated_policies.py",
    ),
    Mutant(
        "drafts take no rows",
        "csrc/engine",
        "Step",
        "const int64_t num_rows = piece.num_rows() + drafted;",
        "const int64_t num_rows = piece.num_rows();",
        _SIMULATED,
    ),
    Mutant(
        "gathers cost nothing",
        "python/llmi/simulation",
        "exchange_s",
        "return link.exchange_s(num_ranks, count + CALLS, num_bytes)",
        "return 0.0",
        _SIMULATED,
    ),
    Mutant(
        "hash ids share less than they say", "python/llmi/loadtest", "_check_shared", "first[:2] != (before, size)", "False", _SIMULATED
    ),
    Mutant(
        "a recording leaves out the tokens that drafts brought",
        "csrc/engine",
        "OnCommit",
        "if (!token_ids.empty()) SyncTokens(WrittenOf(kv), token_ids);",
        "",
        "engine/test_recording.py",
    ),
]
