"""Planted bugs of heads that are computed in part (csrc/engine/rows/row_heads.cc, csrc/model/head_tiles.cc, LinearRowTiles)."""

from __future__ import annotations

from mutant import Mutant

TESTS = "tests/engine/test_small_heads.py"


def planted(name: str, within: str, anchor: str, old: str, new: str) -> Mutant:
    return Mutant("heads", name, within, anchor, old, new, TESTS)


def missing(reader: str, old: str, new: str = "false") -> Mutant:
    """A reader that the predicate does not name."""
    return planted(f"small heads under {reader}", "csrc/engine/rows", "NeedsWholeRow", old, new)


READERS = [
    missing("deciders of users, judges, beams and contrastive search", "decider != RowDecider::kDraw && decider != RowDecider::kRule"),
    missing("guidance and DoLa", "edits.combined || ", " "),
    missing("processors", " || edits.on_host()", ""),
    missing("criteria", "readers.criteria || ", ""),
    missing("rules of users", " || readers.user_rule", ""),
    missing("what is kept", "keeps != RowKeeps{}"),
]
TILES = [
    planted(
        "the second tile of a word is the first",
        "csrc/model",
        "TileBitsOf",
        "allowed[word] > kTileMask ? 2u : 0u",
        "allowed[word] > kTileMask ? 1u : 0u",
    ),
    planted("a tile is missing", "csrc/model", "TileBitsOf", "(allowed[word] & kTileMask) != 0", "(allowed[word] & kTileMask) > 1"),
    planted("the tile after", "csrc/model", "EntryList", "{tile, tile + 1}", "{tile + 1, tile + 2}"),
    planted("tiles between are skipped", "csrc/model", "EntryList", "if (tile != tile_ + 1) open_.clear();", ""),
    planted("rows share an entry by their first", "csrc/model", "EntryList", " && entries_[i].num_rows == num_rows", ""),
    planted(
        "only the first row of a run", "csrc/model", "TilesOfRows", "entries.Add(begin, row - begin, tile)", "entries.Add(begin, 1, tile)"
    ),
    planted("the layer's first row for all", "csrc/kernels/ops", "WithRows", "x.codes += num_blocks * kBlockSize;", ""),
    planted("low bytes of another row", "csrc/kernels/ops", "WithRows", "if (x.low != nullptr) x.low += num_blocks * kBlockSize;", ""),
    planted("coarse scales for fine rows", "csrc/kernels/ops", "WithRows", "(x.fine ? 2 : 1)", "1"),
    planted("float rows of another row", "csrc/kernels/ops", "WithRows", "args.x += row * args.x_stride;", "args.x += 0 * args.x_stride;"),
    planted(
        "an entry loses its last piece",
        "csrc/kernels/ops",
        "CutIntoTasks",
        "std::min(entry.tiles.end, begin + most)",
        "std::min(entry.tiles.end - 1, begin + most)",
    ),
]
ROWS = [
    planted("logits without scale and cap", "csrc/model", "KeepAllowed", "FinishLogits(context, kept.data(), …);", ""),
    planted("neighbours of allowed tokens stay", "csrc/model", "KeepAllowed", "std::fill_n(logits, …);", ""),
    planted("a lone token's NaN is lost", "csrc/model", "KeepAllowed", "finite ? 0.0f : std::numeric_limits<float>::quiet_NaN()", "0.0f"),
    planted("an empty mask is small", "csrc/engine/rows", "IsSmall", "size.num_tokens == 0 || ", ""),
    planted("masks of all tiles are small", "csrc/engine/rows", "IsSmall", "size.num_tiles > most_tiles", "false"),
    planted("rows stay where they were", "csrc/engine/rows", "Compute", "logits->SetPlaces(std::move(places));", ""),
    planted("hidden rows are not gathered", "csrc/engine/rows", "Compute", "hidden + row * hidden_size", "hidden + place * hidden_size"),
    planted("places of the chunk before", "csrc/engine/rows", "Begin", "logits_.SetPlaces({});", ""),
]
HEADS = [*READERS, *TILES, *ROWS]
