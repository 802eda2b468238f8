"""Planted bugs of drafts by an EAGLE layer, and of its K and V in the cache's blocks."""

from __future__ import annotations

from mutant import Mutant

DRAFTS = "tests/speculation/test_eagle.py"
CACHE = "tests/speculation/test_eagle_cache.py"
AUTO = "tests/speculation/test_auto_heads.py"
PACKED = "tests/speculation/test_eagle_packed.py"
LAYOUTS = "tests/speculation/test_eagle3_layouts.py"


def planted(name: str, anchor: str, old: str, new: str, tests: str = DRAFTS, within: str = "csrc/engine/drafting") -> Mutant:
    return Mutant("eagle", name, within, anchor, old, new, tests)


EAGLE = [
    planted("a head off by one position", "EagleRunner::AddSlots", "static_cast<int32_t>(slot) - 1", "static_cast<int32_t>(slot)"),
    planted("rows of a rejected branch are kept", "EagleRunner::RunRoots", "scheduled.kv, end)", "scheduled.kv, end + 1)"),
    planted(
        "hidden rows of nodes that were not accepted", "AcceptedNodes", "walk.drawn_at()", "static_cast<int32_t>(walk.draft().size()) - 1"
    ),
    planted("slot 0 is seen", "EagleDecoder::Attend", ".window = query.positions.back()", ".window = 0", DRAFTS, "csrc/model"),
    planted(
        "a node's rows count for the block that comes after it",
        "PrefixTree::NewNode",
        "nodes_[static_cast<size_t>(node)] = Node{};",
        "{\n    const bool drafted = nodes_[static_cast<size_t>(node)].is_drafted;\n    nodes_[static_cast<size_t>(node)] = Node{};\n"
        "    nodes_[static_cast<size_t>(node)].is_drafted = drafted;\n  }",
        CACHE,
        "csrc/cache",
    ),
    planted(
        "a hit without what the drafter keeps", "KvCache::WalkForDraft", "!prefix_tree_->is_drafted(node)", "node < 0", CACHE, "csrc/cache"
    ),
    planted(
        "a known block without what the drafter stored",
        "KvCache::TakeKnownPages",
        "CopyDraft(*sequence, block, node);",
        "{}",
        CACHE,
        "csrc/cache",
    ),
    planted("heads of another model", "shipped_heads", "target_digest(config) == digest()", "True", AUTO, "python/llmi/speculation"),
    planted(
        "unlikely tokens of judged heads are left out", "NodeLengths::Cut", "draft->laws.empty() ? ChooseNodes", "true ? ChooseNodes", AUTO
    ),
    planted("what other requests learnt of heads", "NodeLengths::Begin", "known.head[greedy]", "histories_.Of(sample).head[greedy]", AUTO),
    planted("the time of heads is measured where drafts are judged", "HeadWorth::StepOf", "head_->Share()}", "share_}", AUTO),
    planted("a NaN in a scale", "PackedQ4", "if ((row[block + 1] & 0x7C) == 0x7C)", "if (false)", PACKED, "csrc/model"),
    planted("halves of columns", "Columns", "from + bytes_of(dtype, begin)", "from + bytes_of(dtype, 0)", DRAFTS, "csrc/model"),
    planted(
        "packed rows are rounded again",
        "FormatOf",
        "is_packed && format != WeightFormat::kF32",
        "false",
        PACKED,
        "csrc/model/eagle_loader.cc",
    ),
    planted(
        "SpecForge's layers are counted as speculators' are",
        "_taps",
        "if own else None, 1)",
        "if own else None, 0)",
        LAYOUTS,
        "python/llmi/speculation",
    ),
    planted(
        "the embedding's columns keep their pairs",
        "Heads",
        "slot.binding = binding;",
        "slot.binding.name = binding.name;",
        LAYOUTS,
        "csrc/model",
    ),
    planted(
        "the next row reads what is not normed",
        "EagleDecoder::RunQueries",
        "if (weights_.form.norm_output)",
        "if (false)",
        LAYOUTS,
        "csrc/model",
    ),
]
