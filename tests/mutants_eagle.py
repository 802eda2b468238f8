"""Planted bugs of drafts by an EAGLE layer, and of its K and V in the cache's blocks."""

from __future__ import annotations

from mutant import Mutant

DRAFTS = "tests/test_eagle.py"
CACHE = "tests/test_eagle_cache.py"


def planted(name: str, anchor: str, old: str, new: str, tests: str = DRAFTS, within: str = "csrc/engine/drafting") -> Mutant:
    return Mutant("eagle", name, within, anchor, old, new, tests)


EAGLE = [
    planted("a head off by one position", "EagleRunner::AddSlots", "static_cast<int32_t>(slot) - 1", "static_cast<int32_t>(slot)"),
    planted("rows of a rejected branch are kept", "EagleRunner::RunRoots", "scheduled.kv, end)", "scheduled.kv, end + 1)"),
    planted("hidden rows of nodes that were not accepted", "AcceptedNodes", "walk.drawn_at()", "static_cast<int32_t>(walk.draft().size()) - 1"),
    planted("slot 0 is seen", "EagleDecoder::Attend", ".window = query.positions.back()", ".window = 0", DRAFTS, "csrc/model"),
    planted("a node's rows count for the block that comes after it", "PrefixTree::NewNode", "nodes_[static_cast<size_t>(node)] = Node{};",
            "{\n    const bool drafted = nodes_[static_cast<size_t>(node)].is_drafted;\n    nodes_[static_cast<size_t>(node)] = Node{};\n"
            "    nodes_[static_cast<size_t>(node)].is_drafted = drafted;\n  }", CACHE, "csrc/cache"),
    planted("a hit without what the drafter keeps", "KvCache::WalkForDraft", "!prefix_tree_->is_drafted(node)", "node < 0", CACHE, "csrc/cache"),
    planted("a known block without what the drafter stored", "KvCache::TakeKnownPages", "CopyDraft(*sequence, block, node);", "{}", CACHE,
            "csrc/cache"),
]  # fmt: skip
