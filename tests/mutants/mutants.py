"""Planted bugs: each is one switch in the sources (see mutant.py), and the tests that it names must fail.

    python tests/mutants/mutants.py [--only NAME ..] [--group NAME ..]

Builds a copy of the repository in a temporary directory, for which cmake, ninja and pybind11 must be installed. Exits with 1 if a
bug is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutant import Mutant
from mutants_beams import BEAMS
from mutants_constraints import CONSTRAINTS
from mutants_decoder import DECODER
from mutants_drafters import DRAFTERS
from mutants_eagle import EAGLE
from mutants_ends import ENDS
from mutants_heads import HEADS
from mutants_hidden import HIDDEN
from mutants_lab import LAB
from mutants_medusa import MEDUSA
from mutants_precision import PRECISION
from mutants_rows import ROWS
from mutants_samplers import SAMPLERS
from mutants_smc import SMC
from mutants_spec import SPECS
from mutants_surface import SURFACE
from mutants_training import TRAINING
from mutants_watermark import WATERMARK

ROOT = Path(__file__).parents[2]


CAPTURE = "tests/speculation/test_drafter_capture.py"
SHORTLIST = "tests/speculation/test_shortlist.py"
SPECULATION = "tests/speculation/test_speculation.py"
VERIFICATION = "tests/speculation/test_verification.py"
BLOCK = "tests/speculation/test_block.py"
OPS = "tests/kernels/test_ops.py"
ROW_OPS = "tests/kernels/test_row_ops.py"
BF16_LAYERS = "tests/kernels/test_bf16_layers.py"
SAMPLING = "tests/sampling/test_sampling.py"
SEQUENCES = "tests/lab/test_sequences.py"
MATRIX = "tests/engine/test_matrix.py"
PREFIX = "tests/cache/test_prefix_cache.py"
SCHEDULER = "tests/engine/test_scheduler.py"
CACHE = "tests/cache/test_cache.py"
ATTENTION = "tests/kernels/test_attention.py"
MODEL = "tests/engine/test_scheduler_model.py"
KV_TYPES = "tests/cache/test_kv_types.py"
CUDA = "tests/kernels/test_cuda.py"
DRAWS = "tests/kernels/test_device_draw.py"
TENSOR_CORES = "tests/kernels/test_tensor_cores.py"
TYPES = "tests/kernels/test_gguf_types.py"

MUTANTS = [
    Mutant("kernels", "minima by the scale's byte", "csrc/kernels", "BlockScales", "LoadInt8(bytes + 16))", "LoadInt8(bytes))", OPS),
    Mutant(
        "kernels", "d of the first super-block for all", "csrc/kernels", "QuantizedTile", "super(group);", "super(part.weights.data);", OPS
    ),
    Mutant(
        "kernels",
        "high bits of the first half for both",
        "csrc/kernels",
        "LoadGroup",
        "LoadVector(codes, kLow + i * kHigh / 8)",
        "LoadVector(codes, kLow)",
        OPS,
    ),
    Mutant("kernels", "high bits packed from the first half", "csrc/model", "PackCodes", ": vector * count + i]", ": i]", OPS),
    Mutant(
        "kernels",
        "sums of 6-bit codes in 16 bits",
        "csrc/kernels",
        "SumsPairs",
        "PackedLowBits(type) + PackedHighBits(type) <= 4",
        "PackedLowBits(type) <= 4",
        OPS,
    ),
    Mutant(
        "kernels",
        "a table's levels without their sign",
        "csrc/kernels",
        "CodeLookup",
        "_mm_xor_si128(both, _mm_set1_epi8(-128))",
        "both",
        TYPES,
    ),
    Mutant(
        "kernels",
        "minima of 16 columns before their scale",
        "csrc/kernels",
        "AddHalves",
        "Mul(dot, w.scales[half])), x_scale",
        "dot), Mul(w.scales[half], x_scale)",
        TYPES,
    ),
    Mutant("kernels", "nibbles of a scale and a minimum exchanged", "csrc/model", "ScaleOf", "both & 15", "both >> 4", TYPES),
    Mutant(
        "kernels", "the eighth sign is plus", "csrc/model", "EvenSigns", "static_cast<uint32_t>(__builtin_parity(seven)) << 7", "0u", TYPES
    ),
    Mutant(
        "kernels",
        "a layer's columns lose their table",
        "csrc/kernels",
        "ColumnsOf",
        "own.weights.num_rows = num_columns;",
        "own.weights.num_rows = num_columns; own.weights.table = {};",
        TYPES,
    ),
    Mutant(
        "kernels",
        "half sums where half as many would stand",
        "csrc/kernels",
        "ComputeBlocks",
        "to.half_sums + 2 * begin",
        "to.half_sums + begin",
        "tests/kernels/test_row_ops.py",
    ),
    Mutant(
        "kernels",
        "new rows of a task's first spans alone",
        "csrc/kernels",
        "WriteSpans",
        ".row_end = row_of(spans.end)",
        ".row_end = row_of(spans.first + 1)",
        ATTENTION,
    ),
    Mutant(
        "kernels",
        "tiles of the first segment for all",
        "csrc/kernels",
        "KvWrite",
        "std::max<int64_t>(0, begin - before)",
        "std::max<int64_t>(0, begin)",
        MATRIX,
    ),
    Mutant(
        "kernels",
        "first pair of x for all",
        "csrc/kernels",
        "SumPairs",
        "Set1Pair(x + m * num_cols + k)",
        "Set1Pair(x + m * num_cols)",
        BF16_LAYERS,
    ),
    Mutant("kernels", "a NaN among 16 blocks", "csrc/kernels", "QuantizeBlocks", "!= 0xFFFF) return false", "== 0) return false", ROW_OPS),
    Mutant(
        "kernels",
        "sums of other blocks' codes",
        "csrc/kernels",
        "StoreSumsOfCodes",
        "0, 4, 8, 12, 2, 6, 10, 14",
        "0, 4, 8, 12, 1, 5, 9, 13",
        ROW_OPS,
    ),
    Mutant(
        "kernels",
        "pairs of scales in hadd's order",
        "csrc/kernels",
        "AddPairs",
        "{InOrder(_mm256_hadd_ps(a.lo, a.hi))",
        "{_mm256_hadd_ps(a.lo, a.hi)",
        ROW_OPS,
    ),
    Mutant(
        "kernels",
        "rows converted before the last is written",
        "csrc/kernels",
        "ProduceRows",
        "produce(begin, end);",
        "produce(begin, end - (end - begin > 1));",
        ROW_OPS,
    ),
    Mutant(
        "kernels",
        "streams of weights stored side by side",
        "csrc/kernels",
        "FloatTiles",
        "StoreTiles(args, part, first_tile, stride",
        "StoreTiles(args, part, first_tile, 1",
        OPS,
    ),
    Mutant(
        "kernels",
        "even rows of bf16 weights first",
        "csrc/kernels",
        "FloatTiles",
        "SumsInOrder<T>(accumulators[n][m])",
        "accumulators[n][m]",
        OPS,
    ),
    Mutant(
        "kernels",
        "sums begin with the first block",
        "csrc/kernels",
        "FloatTiles",
        "Add(accumulators[n][m], sums[n][m])",
        "begin == 0 ? sums[n][m] : Add(accumulators[n][m], sums[n][m])",
        OPS,
    ),
    Mutant(
        "kernels",
        "pairs' streams stored side by side",
        "csrc/kernels",
        "Bf16Tiles",
        "StoreTiles(args, part, tile, stride",
        "StoreTiles(args, part, tile, 1",
        BF16_LAYERS,
    ),
    Mutant(
        "kernels",
        "subnormals kept by fma",
        "csrc/kernels",
        "Bf16Tiles",
        "FlushSubnormals<true> flush",
        "FlushSubnormals<false> flush",
        BF16_LAYERS,
    ),
    Mutant("kernels", "the mean of whole lanes alone", "csrc/kernels", "SumOf", "i < size; i += 16", "i + 16 <= size; i += 16", ROW_OPS),
    Mutant(
        "kernels",
        "lanes behind a group count as its values",
        "csrc/kernels",
        "SumOfSquares",
        "kLayer && size - i < 16",
        "kLayer && size - i < 0",
        ROW_OPS,
    ),
    Mutant(
        "kernels", "one head's weights for all", "csrc/kernels", "NormedGroupOf", "args.own_weights ? group * args.size : 0", "0", ROW_OPS
    ),
    Mutant(
        "kernels", "a sink without the factor of the values", "csrc/kernels", "MergeSink", "return merge.keep;", "return 1.0f;", ATTENTION
    ),
    Mutant(
        "kernels",
        "biases of the span's own positions",
        "csrc/kernels",
        "FinishScores",
        "span + tile * kSlotsPerTile",
        "tile * kSlotsPerTile",
        ATTENTION,
    ),
    Mutant("kernels", "the square's lost bits stay lost", "csrc/core", "GeluF32", " + lost)", " + 0.0f * lost)", ROW_OPS),
    Mutant(
        "speculation",
        "ratio upside down",
        "csrc/kernels",
        "ExactAcceptance",
        "1.0 : target / drafted",
        "1.0 : drafted / (target + 1e-9)",
        VERIFICATION,
    ),
    Mutant("speculation", "residual not normalised", "csrc/speculative", "Residual", "value /= divisor;", "value *= 1.0;", VERIFICATION),
    Mutant(
        "speculation",
        "residual is the target",
        "csrc/kernels",
        "ResidualWeight",
        "target > drafted ? target - drafted : 0.0",
        "target",
        VERIFICATION,
    ),
    Mutant(
        "speculation",
        "siblings judged by the whole target",
        "csrc/speculative",
        "VerifyRow",
        "AcceptProbability(token, target, law)",
        "AcceptProbability(token, whole, law)",
        VERIFICATION,
    ),
    Mutant(
        "speculation", "residual drawn from the whole", "csrc/speculative", "VerifyRow", "empty ? whole : target", "whole", VERIFICATION
    ),
    Mutant(
        "speculation",
        "acceptance shares the draft's noise",
        "csrc/engine",
        "AcceptanceUniform",
        "key.purpose = 2;",
        "key.purpose = 1;",
        VERIFICATION,
    ),
    Mutant("speculation", "drafts drawn without chance", "csrc/sampling", "DrawSeveral", "key == nullptr ?", "true ?", VERIFICATION),
    Mutant(
        "speculation",
        "plain rows for siblings",
        "python/llmi",
        "draw",
        "probs[token] = 0.0\n        return drawn",
        "pass\n        return drawn",
        VERIFICATION,
    ),
    Mutant(
        "speculation",
        "rows shifted",
        "csrc/speculative",
        "PickNodes",
        "picked.laws.push_back(draft.laws[i])",
        "picked.laws.push_back(draft.laws[0])",
        VERIFICATION,
    ),
    Mutant(
        "speculation",
        "accepted nodes stay where they were",
        "csrc/engine",
        "WalkOn",
        "cache.MoveSlot(…);",
        "(void)first_slot;",
        SPECULATION,
    ),
    Mutant(
        "speculation",
        "positions by node, not by depth",
        "csrc/engine",
        "AddDraft",
        "for (int32_t depth … + depth);",
        "for (int32_t i = 0; i < draft.size(); ++i) batch_.positions.push_back(static_cast<int32_t>(last_position) + i + 1);",
        SPECULATION,
    ),
    Mutant(
        "speculation",
        "rows off the walk are drawn from",
        "csrc/engine",
        "ProcessRow",
        "row.node != sample.walk.node()",
        "false",
        SPECULATION,
    ),
    Mutant(
        "speculation",
        "the child of any parent",
        "csrc/speculative",
        "Child",
        "if (parent(i) == node && token_ids",
        "if (token_ids",
        SPECULATION,
    ),
    Mutant(
        "speculation",
        "first match instead of latest",
        "csrc/speculative",
        "Update",
        "ends_[i][HashNgram(token_ids, end, n)] = end",
        "ends_[i].try_emplace(HashNgram(token_ids, end, n), end)",
        SPECULATION,
    ),
    Mutant("speculation", "hidden states of the first row", "csrc/engine", "SampleToken", "sample.walk.NoteDraw();", "", CAPTURE),
    Mutant(
        "speculation",
        "one stall ends drafting",
        "csrc/speculative",
        "Learn",
        "std::min(seen, 2 * seconds_)",
        "seen",
        "tests/speculation/test_draft_length.py",
    ),
    Mutant(
        "speculation", "shortlists of one sequence for all", "csrc/engine", "Logits", "needed->Add(*sequence.shortlist);", "", SHORTLIST
    ),
    Mutant(
        "speculation", "ids of the text are not listed", "csrc/engine", "Logits", "sequence.shortlist->Add(sequence.tokens);", "", SHORTLIST
    ),
    Mutant(
        "speculation",
        "parameters' ids are not listed",
        "csrc/bindings",
        "RegisterLab",
        "sequence->shortlist->Add(more_ids);",
        "",
        SHORTLIST,
    ),
    Mutant(
        "speculation",
        "kinds of drafts are not told apart",
        "csrc/speculative",
        "Propose",
        "KindOf(length + i)",
        "NodeKind{1, -1}",
        "tests/speculation/test_draft_length.py",
    ),
    Mutant(
        "speculation",
        "shortest n-gram first",
        "csrc/speculative",
        "Find",
        "for (size_t i = ends_.size(); i-- > 0;)",
        "for (size_t i = 0; i < ends_.size(); ++i)",
        SPECULATION,
    ),
    Mutant(
        "speculation",
        "wrong ids pass",
        "csrc/speculative",
        "Fault",
        "id < 0 || id >= vocab_size",
        "id < -1 || id > vocab_size",
        SPECULATION,
    ),
    Mutant(
        "speculation",
        "merged parents unmapped",
        "csrc/speculative",
        "MergeDrafts",
        "place[static_cast<size_t>(draft.parent(i))];",
        "draft.parent(i);",
        SPECULATION,
    ),
    Mutant(
        "speculation", "a draft is never too dear", "csrc/speculative", "ChooseNodes", "if (value <= best_value) continue;", "", SPECULATION
    ),
    Mutant(
        "speculation",
        "committed tree rows stay where they were",
        "csrc/engine",
        "Commit",
        "cache_.MoveSlot(…);",
        "(void)first_slot;",
        SEQUENCES,
    ),
    Mutant(
        "speculation",
        "rollback keeps the cache",
        "csrc/engine",
        "Truncate",
        "std::max<int64_t>(0, sequence.kv.num_tokens - num_tokens)",
        "0",
        SEQUENCES,
    ),
    Mutant("speculation", "a fork repeats its parent's noise", "python/llmi", "fork", "if not same_noise:", "if same_noise:", SEQUENCES),
    Mutant(
        "speculation",
        "block stops at the first rejection",
        "csrc/speculative",
        "Judge",
        ">= probability) continue;",
        ">= probability) break;",
        BLOCK,
    ),
    Mutant("speculation", "block forgets the joint ratio", "csrc/speculative", "Judge", "bears * target / drawn", "target / drawn", BLOCK),
    Mutant("speculation", "noise of judged drafts without the round", "csrc/engine", "Key", "sample_.drafting.round()", "0", BLOCK),
    Mutant("speculation", "judged laws forget their path", "csrc/engine", "Compute", "for (int32_t step : Path(node)) …;", "", BLOCK),
    Mutant(
        "speculation",
        "trials write into the request's state",
        "python/llmi",
        "copy_state",
        "self.states[to_slot] = copy.deepcopy(self.states.get(from_slot, {}))",
        "self.states[to_slot] = self.states.get(from_slot, {})",
        BLOCK,
    ),
    Mutant(
        "speculation",
        "what is left is drawn with the draft's noise",
        "csrc/engine",
        "KeyAfterRejection",
        "key.purpose = 3;",
        "key.purpose = 1;",
        VERIFICATION,
    ),
    Mutant("sampling", "a race without its margin", "csrc/kernels", "race_candidates", "Set1(1.001f)", "Set1(0.9f)", OPS),
    Mutant("sampling", "top-k keeps one more", "csrc/sampling", "KeepTopK", "TopIds(row, k)", "TopIds(row, k + 1)", SAMPLING),
    Mutant(
        "sampling",
        "top-p rounds down",
        "csrc/kernels",
        "WantedMass",
        "__builtin_ceil(top_p * static_cast<double>(total))",
        "__builtin_floor(0.97 * top_p * static_cast<double>(total))",
        SAMPLING,
    ),
    Mutant("memory", "no copy on write", "csrc/cache", "TryReserve", "if (pool_.references(page) <= 1) continue;", "continue;", CACHE),
    Mutant("memory", "copies not counted", "csrc/cache", "PagesNeeded", "if (pool_.references(…) > 1) ++pages;", "", CACHE),
    Mutant(
        "memory",
        "window one block late",
        "csrc/cache",
        "FirstVisibleBlock",
        "std::max<int64_t>(0, num_tokens + 1 - group.window)",
        "std::max<int64_t>(0, num_tokens + 17 - group.window)",
        CACHE,
    ),
    Mutant(
        "memory",
        "trim leaves a block",
        "csrc/cache",
        "Trim",
        "const int64_t keep = NumBlocks(sequence->num_tokens)",
        "const int64_t keep = NumBlocks(sequence->num_tokens + 1)",
        PREFIX,
    ),
    Mutant("memory", "a shared page counts as cached alone", "csrc/cache", "AddReference", "if (…) --num_cached_;", "", PREFIX),
    Mutant(
        "memory",
        "newest leaf goes first",
        "csrc/cache",
        "EvictOne",
        "Remove(free_leaves_.begin()->second);\n  return true;",
        "Remove(free_leaves_.rbegin()->second);\n  return true;",
        PREFIX,
    ),
    Mutant(
        "memory",
        "letting go is no use",
        "csrc/cache",
        "Unpin",
        "entry.last_used = ++clock_;\n  if (IsFreeLeaf(entry))",
        "if (IsFreeLeaf(entry))",
        PREFIX,
    ),
    Mutant("memory", "hits without the window's blocks", "csrc/cache", "Walk", "< 0) return false;", "< -1) return false;", PREFIX),
    Mutant("memory", "the last token may be a hit", "csrc/cache", "Walk", "token_ids.first(…)))))", "token_ids", PREFIX),
    Mutant("memory", "a known page without a reference", "csrc/cache", "TakeKnownPages", "pool_.AddReference(known);", "", PREFIX),
    Mutant(
        "memory", "rollback stays indexed", "csrc/cache", "TryRollback", "Unindex(sequence, remaining / groups_.block_size());", "", PREFIX
    ),
    Mutant(
        "memory",
        "a token too many of a block known in part",
        "csrc/cache",
        "FindBeginning",
        "common > best.second) best = {child, common}",
        "common > best.second) best = {child, std::min<int64_t>(common + 1, static_cast<int64_t>(tokens.size()))}",
        PREFIX,
    ),
    Mutant("memory", "parts of blocks without pages", "csrc/cache", "Walk", "&& prefix_tree_->HasAllPages(node)", "", PREFIX),
    Mutant("memory", "children are listed for ever", "csrc/cache", "RemoveChild", "link = entry.older;", "", PREFIX),
    Mutant("memory", "forks do not pin", "csrc/cache", "Fork", "if (child->prefix_node != PrefixTree::kNone) …;", "", PREFIX),
    Mutant("memory", "salts are not looked at", "csrc/cache", "AttachPrefix", "prefix_tree_->Root(salt)", 'prefix_tree_->Root("")', PREFIX),
    Mutant(
        "memory",
        "pinned paths give nothing",
        "csrc/cache",
        "EvictInnerPages",
        "if (pool_->num_cached() == 0) return false;",
        "return false;",
        PREFIX,
    ),
    Mutant(
        "memory", "a moved slot leaves its scales behind", "csrc/kernels", "CopyHeadSlot", "KvNumScales(kv.head_dim));", "0);", KV_TYPES
    ),
    Mutant(
        "memory",
        "a path is gathered with another slot's scales",
        "csrc/kernels",
        "GatherPath",
        "= v_scales[slot % kSlotsPerTile * num_scales + b];",
        "= v_scales[b];",
        ATTENTION,
    ),
    Mutant(
        "memory",
        "slots move as if no pairs were",
        "csrc/kernels",
        "CopyHeadSlot",
        "copy(kv.type == KvType::kBF16,",
        "copy(false,",
        KV_TYPES,
    ),
    Mutant("memory", "half a pair is taken whole", "csrc/kernels", "AddValues", "v[n] = KeepEven(v[n]);", "v[n] = v[n];", ATTENTION),
    Mutant("memory", "pairs begin where rows do", "csrc/kernels", "AddValuesTogether", "common_begin += common_begin % 2;", "", ATTENTION),
    Mutant(
        "memory",
        "subnormals are not flushed",
        "csrc/kernels",
        "FlushSubnormals",
        "_mm_setcsr(saved_ | 0x8040u);",
        "_mm_setcsr(saved_);",
        ATTENTION,
    ),
    Mutant(
        "memory",
        "rows of quantised weights past 48 as the first",
        "csrc/kernels",
        "TileByTile",
        "operator()<MR>(tile, first + row)",
        "operator()<MR>(tile, row)",
        OPS,
    ),
    Mutant(
        "memory",
        "both halves of a block by the first scale",
        "csrc/kernels",
        "AddBlock",
        "Set1(x.FineScale(m, 1))",
        "Set1(x.FineScale(m, 0))",
        OPS,
    ),
    Mutant(
        "memory",
        "spans merged from the right",
        "csrc/kernels",
        "attention_merge",
        "partials + span * num_queries * AttentionPartialSize(head_dim)",
        "partials + (num_spans - 1 - span) * num_queries * AttentionPartialSize(head_dim)",
        ATTENTION,
    ),
    Mutant(
        "sampling",
        "a penalised id is penalised again",
        "csrc/sampling",
        "AppendPenalties",
        "std::exchange(seen[static_cast<size_t>(id)], 0)",
        "seen[static_cast<size_t>(id)]",
        SAMPLING,
    ),
    Mutant("memory", "prompt scores from the cache", "csrc/scheduler", "MostCached", "sequence.first_wanted_row, ", "", PREFIX),
    Mutant(
        "cuda",
        "all pages come back as the first",
        "csrc/cache",
        "TryRestore",
        "per_block; ++i, from += page_bytes)",
        "per_block; ++i)",
        CUDA,
    ),
    Mutant(
        "cuda", "what a window returned comes back", "csrc/cache", "TryRestore", "sequence->num_returned = copy.num_returned;", "", CUDA
    ),
    Mutant("cuda", "fragments of W in another order", "csrc/kernels", "LoadWeights", "lane / 4 + 8 * half)", "lane / 4 * 2 + half)", OPS),
    Mutant(
        "cuda",
        "tables of an earlier step",
        "csrc/kernels",
        "Holds",
        "key_ == Key(kv, segments, num_segments)",
        "key_.size() == Key(kv, segments, num_segments).size()",
        ATTENTION,
    ),
    Mutant(
        "cuda",
        "rows that fill up a launch are written",
        "csrc/kernels",
        "Place",
        "static_cast<size_t>(num_rows), -1)",
        "static_cast<size_t>(num_rows), 0)",
        CUDA,
    ),
    Mutant(
        "cuda",
        "a graph keeps the spans of its first step",
        "csrc/kernels",
        "Replay",
        "{owner, num_rows, spans, shares, whole}",
        "{owner, num_rows, 1, shares, whole}",
        CUDA,
    ),
    Mutant(
        "cuda",
        "block tables move",
        "csrc/kernels",
        "Place",
        "Place<AttentionSegment>(nullptr, num_rows)",
        "Place<AttentionSegment>(nullptr, num_segments)",
        CUDA,
    ),
    Mutant("cuda", "a step with taps is played", "csrc/model", "Replays", "!batch.tap_layers.empty() || ", "", CUDA),
    Mutant("cuda", "positions stay on the host", "csrc/kernels", "PagedAttention", "plan.args.positions = batch.positions;", "", ATTENTION),
    Mutant(
        "cuda",
        "segments of the first rows for all",
        "csrc/kernels",
        "operator()",
        "args.segments[plan.row_segments[row]]",
        "args.segments[plan.row_segments[plan.row_begin]]",
        CUDA,
    ),
    Mutant(
        "cuda",
        "exponentials in the phase of the maxima",
        "csrc/kernels",
        "operator()",
        "shared.peaks[head][thread % 16] = peak;\n    });\n    block.ForEachThread([&](int thread) {  // exponentials and their sums\n      const int64_t head = thread / 16;\n      if (head >= num_heads) return;\n      const float peak = Peak(shared.peaks[head]);",
        "shared.peaks[head][thread % 16] = peak;\n      peak = Peak(shared.peaks[head]);",
        ATTENTION,
    ),
    Mutant("cuda", "offset of codes forgotten", "csrc/kernels", "FromDots", "dots[half] -= offset *", "dots[half] -= 0 *", OPS),
    Mutant("cuda", "minima forgotten", "csrc/kernels", "Add", "|| HasMinimumPacked(type)", "", OPS),
    Mutant(
        "cuda",
        "ties at the cut by id upwards",
        "csrc/kernels",
        "RankKey",
        "static_cast<uint32_t>(~static_cast<uint32_t>(id))",
        "(static_cast<uint32_t>(id) ^ 0x40000000u)",
        DRAWS,
    ),
    Mutant("cuda", "zeros that differ by sign", "csrc/core", "OrderedBits", "x + 0.0f", "x", DRAWS),
    Mutant(
        "cuda",
        "groups' maxima as if each were one chunk's",
        "csrc/kernels",
        "operator()",
        "index * kDrawGroups + thread",
        "index * kDrawGroups",
        DRAWS,
    ),
    Mutant(
        "cuda", "edits of one id at once", "csrc/kernels", "operator()", "plan.masks[same].id == id; ++same", "same == i; ++same", DRAWS
    ),
    Mutant("cuda", "a draft's rows without its path", "csrc/engine", "Launch", "AppendPath(…);", "", DRAWS),
    Mutant("cuda", "what the first lot accepted twice", "csrc/engine", "Launch", "tokens.resize(…);", "", DRAWS),
    Mutant("cuda", "any drafted token is accepted", "csrc/kernels", "operator()", "drafted.uniform < accepts", "0.0 < accepts", DRAWS),
    Mutant("cuda", "what a rejection leaves is not normalised", "csrc/kernels", "Probability", "/ LawDivisor(shared.sum)", "", DRAWS),
    Mutant("cuda", "noise of plain decoding after a rejection", "csrc/kernels", "Race", "row.noise_after_rejection", "row.noise", DRAWS),
    Mutant(
        "cuda",
        "the law of the first sibling for all",
        "csrc/kernels",
        "operator()",
        "plan.laws + drafted.law * plan.vocab_size",
        "plan.laws",
        DRAWS,
    ),
    Mutant(
        "cuda",
        "what the cuts took is drafted back",
        "csrc/kernels",
        "operator()",
        "IsKept(row, RankKey(law, id), shared)",
        "id >= 0",
        DRAWS,
    ),
    Mutant(
        "cuda",
        "weights of a pair of positions exchanged",
        "csrc/kernels",
        "StoreWeights",
        "<< (16 * odd)",
        "<< (16 - 16 * odd)",
        TENSOR_CORES,
    ),
    Mutant("cuda", "queries on the host", "csrc/model", "Fetched", "return values->data();", "return there;", CUDA),
    Mutant(
        "scheduling",
        "ends to come are not looked at",
        "csrc/scheduler",
        "OutgrowsPool",
        "if (seats * end.growth > free) return true;",
        "",
        SCHEDULER,
    ),
    Mutant("scheduling", "nothing learnt of answers' lengths", "csrc/scheduler", "Remove", "if (drawn <= 0) return;", "return;", SCHEDULER),
    Mutant(
        "scheduling",
        "admission forgets the budget",
        "csrc/scheduler",
        "AdmitWaiting",
        "*budget -= piece.num_rows();\n    *prompt_budget",
        "*prompt_budget",
        SCHEDULER,
    ),
    Mutant(
        "scheduling",
        "too many seats",
        "csrc/scheduler",
        "AdmitWaiting",
        "> config_.max_num_seqs) break;",
        "> config_.max_num_seqs + 1) break;",
        SCHEDULER,
    ),
    Mutant("scheduling", "preempted requests are lost", "csrc/scheduler", "Preempt", "Add(victim);", "", SCHEDULER),
    Mutant("scheduling", "starvation", "csrc/scheduler", "kMaxOvertaken", "= 64", "= 1 << 30", SCHEDULER),
    Mutant(
        "scheduling",
        "longest remaining first",
        "csrc/scheduler",
        "OrderWaiting",
        "static_cast<double>(Missing(",
        "-static_cast<double>(Missing(",
        SCHEDULER,
    ),
    Mutant(
        "scheduling",
        "blocks that a step reserved are counted again",
        "csrc/scheduler",
        "OutgrowsPool",
        "free -= now - held(part);",
        "free -= now - blocks(part.kv.num_tokens);",
        MODEL,
    ),
    Mutant(
        "scheduling",
        "a victim waits wherever it was put",
        "csrc/scheduler",
        "Preempt",
        "Add(victim);\n  OrderWaiting();",
        "Add(victim);",
        MODEL,
    ),
    Mutant(
        "scheduling",
        "no token set aside for those behind",
        "csrc/scheduler",
        "ScheduleRunning",
        "std::max<int64_t>(*budget - behind, *budget > 0 ? least : 0)",
        "*budget",
        MODEL,
    ),
    Mutant(
        "scheduling", "an admission leaves no room", "csrc/scheduler", "FitsBesideRunning", "num_pages + reserve <=", "num_pages <=", MODEL
    ),
    Mutant(
        "scheduling",
        "shortest prefix first",
        "csrc/scheduler",
        "OrderWaiting",
        "-static_cast<double>(num_cached)",
        "static_cast<double>(num_cached)",
        SCHEDULER,
    ),
    Mutant(
        "scheduling",
        "running prompts ignore the prompt budget",
        "csrc/scheduler",
        "ScheduleRunning",
        "if (is_prompt) num_tokens = …;",
        "",
        SCHEDULER,
    ),
    Mutant(
        "scheduling",
        "priorities upside down",
        "csrc/scheduler",
        "Before",
        "return a->priority < b->priority;",
        "return a->priority > b->priority;",
        SCHEDULER,
    ),
    Mutant("scheduling", "no token set aside for decodes", "csrc/scheduler", "ScheduleRunning", "*budget - behind,", "*budget,", SCHEDULER),
    *DECODER,
    *SPECS,
    *PRECISION,
    *BEAMS,
    *DRAFTERS,
    *EAGLE,
    *ENDS,
    *MEDUSA,
    *CONSTRAINTS,
    *ROWS,
    *HEADS,
    *HIDDEN,
    *LAB,
    *SAMPLERS,
    *SMC,
    *TRAINING,
    *WATERMARK,
    *SURFACE,
]


def run(command: list[str], cwd: Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def build(source: Path, target: Path) -> str:
    """Builds the module into the package; returns what went wrong."""
    result = run(["ninja", "_core"], target)
    if result.returncode != 0:
        return result.stdout[-600:]
    for module in target.glob("_core*.so"):
        shutil.copy(module, source / "python" / "llmi")
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="parts of the names to run")
    parser.add_argument("--group", nargs="+", choices=sorted({mutant.group for mutant in MUTANTS}))
    arguments = parser.parse_args()
    chosen = [
        mutant
        for mutant in MUTANTS
        if (arguments.only is None or any(part in mutant.name for part in arguments.only))
        and (arguments.group is None or mutant.group in arguments.group)
    ]
    missed = []
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        target = source / "build" / "mutants"  # as deep as other builds: a compiler's cache finds their objects
        shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".git", "*.so", "__pycache__", ".venv*", "build"))
        pybind11 = run([sys.executable, "-m", "pybind11", "--cmakedir"], ROOT).stdout.strip()
        configured = run(
            [
                "cmake",
                "-G",
                "Ninja",
                "-B",
                str(target),
                "-DCMAKE_BUILD_TYPE=Release",
                "-DLLMI_CUDA=OFF",
                "-DLLMI_TESTING=ON",
                f"-Dpybind11_DIR={pybind11}",
                f"-DPython_EXECUTABLE={sys.executable}",
                *os.environ.get("CMAKE_ARGS", "").split(),
                str(source),
            ],
            source,
        )
        assert configured.returncode == 0, configured.stderr
        assert not (fault := build(source, target)), fault
        environment = {**os.environ, "PYTHONPATH": str(source / "python")}
        for name in sorted({mutant.tests for mutant in chosen}):  # a test that fails anyway catches nothing
            sound = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *name.split()], source, environment)
            assert sound.returncode == 0, f"{name} fails without any bug:\n{sound.stdout[-2000:]}"
        for mutant in chosen:
            path, original = mutant.apply(source)
            start = time.monotonic()
            fault = build(source, target) if mutant.within.startswith("csrc") else ""
            if fault:
                verdict = f"DOES NOT BUILD: {fault}"
                missed.append(mutant.name)
            else:
                tests = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", "120", *mutant.tests.split()]
                result = run(tests, source, environment)
                # 1: a test failed. A crash ends by a signal: caught too.
                caught = result.returncode == 1 or result.returncode < 0
                verdict = "caught" if caught else f"MISSED (pytest ended with {result.returncode})"
                if not caught:
                    missed.append(mutant.name)
            path.write_text(original)
            print(f"{mutant.group}: {mutant.name}: {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
