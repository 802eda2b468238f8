#include "kernels/ops/picked_attention.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/errors.h"
#include "core/ordered_bits.h"
#include "core/thread_pool.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/layout/kv_elements.h"

namespace llmi {
namespace {

// Of a sequence's view, in tiles.
int64_t NumSinks(const SparseView& view) { return view.sinks / kSlotsPerTile; }
int64_t NumRecent(const SparseView& view) { return view.recent / kSlotsPerTile; }

// The first of the last tiles that a row at `position` sees, or 0 if it sees all.
int64_t FirstTail(const SparseView& view, int64_t position) {
  const int64_t first = position / kSlotsPerTile + 1 - NumRecent(view);
  return first > NumSinks(view) + view.num_best ? first : 0;
}

void FindBounds(const KvView& kv, const uint8_t* tile, float* bounds) {
  for (int64_t d = 0; d < kv.head_dim; ++d) {
    float smallest = KvKey(kv, tile, 0, d), largest = smallest;
    for (int64_t slot = 1; slot < kSlotsPerTile; ++slot) {
      const float key = KvKey(kv, tile, slot, d);
      smallest = std::min(smallest, key);
      largest = std::max(largest, key);
    }
    bounds[d] = smallest;
    bounds[kv.head_dim + d] = largest;
  }
}

}  // namespace

PickedRows::PickedRows(const KernelContext& context, const AttentionArgs& args, const KeyBoundsView& bounds) : args_(args) {
  std::vector<Row> rows;
  int64_t num_rows = 0;
  for (int64_t s = 0; s < args.num_segments; ++s) num_rows += args.segments[s].num_rows;
  positions_.assign(args.positions, args.positions + num_rows);
  for (int64_t s = 0; s < args.num_segments; ++s) {
    const AttentionSegment& segment = args.segments[s];
    const int64_t end = segment.row_begin + segment.num_rows;
    CheckInternal(!segment.view.picks() || segment.parents == nullptr, "a tree whose rows pick blocks");
    if (!segment.view.picks()) {
      segments_.push_back(segment);
      continue;
    }
    const int64_t num_picked = NumSinks(segment.view) + segment.view.num_best;
    int64_t row = segment.row_begin;
    while (row < end && FirstTail(segment.view, args.positions[row]) == 0) ++row;
    AttentionSegment own = segment;
    own.view = {};
    own.num_rows = row - segment.row_begin;
    if (own.num_rows > 0) segments_.push_back(own);
    for (; row < end; ++row) {
      const int64_t shift = FirstTail(segment.view, args.positions[row]) - num_picked;
      rows.push_back({s, row, static_cast<int64_t>(tiles_.size()), static_cast<int64_t>(segments_.size())});
      tiles_.resize(tiles_.size() + static_cast<size_t>(args.kv.num_kv_heads * num_picked));
      positions_[static_cast<size_t>(row)] -= static_cast<int32_t>(shift * kSlotsPerTile);
      own.row_begin = row;
      own.num_rows = 1;
      own.base_len = positions_[static_cast<size_t>(row)];
      own.num_picked = num_picked;
      own.shift = shift;
      segments_.push_back(own);
    }
  }
  for (const Row& row : rows) segments_[static_cast<size_t>(row.place)].picked = tiles_.data() + row.begin;
  LearnBounds(context, args, bounds);
  const int64_t num_heads = args.kv.num_kv_heads;
  context.pool->ParallelFor(static_cast<int64_t>(rows.size()) * num_heads, context.num_threads, [&](int64_t index) {
    Pick(context, args, bounds, rows[static_cast<size_t>(index / num_heads)], index % num_heads);
  });
  args_.segments = segments_.data();
  args_.num_segments = static_cast<int64_t>(segments_.size());
  args_.positions = positions_.data();
}

// Of the tiles that the last row of each segment may pick: those of the rows before are among them.
void PickedRows::LearnBounds(const KernelContext& context, const AttentionArgs& args, const KeyBoundsView& bounds) {
  struct Unknown {
    const uint8_t* tile;
    TileBounds bounds;
  };
  std::vector<Unknown> unknown;
  for (int64_t s = 0; s < args.num_segments; ++s) {
    const AttentionSegment& segment = args.segments[s];
    if (!segment.view.picks()) continue;
    const int64_t end = FirstTail(segment.view, args.positions[segment.row_begin + segment.num_rows - 1]);
    for (int64_t kv_head = 0; kv_head < args.kv.num_kv_heads; ++kv_head) {
      for (int64_t tile = NumSinks(segment.view); tile < end; ++tile) {
        const TileBounds found = BoundsOf(bounds, args.kv, segment.block_table, kv_head, tile);
        if (*found.known != 0) continue;
        *found.known = 1;
        unknown.push_back({KvTile(args.kv, segment.block_table, kv_head, tile * kSlotsPerTile), found});
      }
    }
  }
  context.pool->ParallelFor(static_cast<int64_t>(unknown.size()), context.num_threads, [&](int64_t index) {
    const Unknown& each = unknown[static_cast<size_t>(index)];
    FindBounds(args.kv, each.tile, each.bounds.bounds);
  });
}

void PickedRows::Pick(const KernelContext& context, const AttentionArgs& args, const KeyBoundsView& bounds, const Row& row,
                      int64_t kv_head) {
  const AttentionSegment& segment = args.segments[row.segment];
  const int64_t num_sinks = NumSinks(segment.view);
  const int64_t num_picked = num_sinks + segment.view.num_best;
  const int64_t end = FirstTail(segment.view, args.positions[row.row]);
  const int64_t group = args.num_heads / args.kv.num_kv_heads;
  std::vector<const float*> tiles;
  for (int64_t tile = num_sinks; tile < end; ++tile) {
    tiles.push_back(BoundsOf(bounds, args.kv, segment.block_table, kv_head, tile).bounds);
  }
  std::vector<float> scores(tiles.size());
  context.table->bound_scores({.q = args.q + row.row * args.q_stride + kv_head * group * args.kv.head_dim,
                               .num_heads = group,
                               .head_dim = args.kv.head_dim,
                               .bounds = tiles.data(),
                               .num_tiles = static_cast<int64_t>(tiles.size()),
                               .scores = scores.data()});
  // The score, then the lower tile; no two are equal, so that the set is one.
  std::vector<uint64_t> order(tiles.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = uint64_t{OrderedBits(scores[i])} << 32 | (UINT32_MAX - static_cast<uint32_t>(i));
  std::nth_element(order.begin(), order.begin() + segment.view.num_best - 1, order.end(), std::greater<>());
  int32_t* picked = tiles_.data() + row.begin + kv_head * num_picked;
  std::iota(picked, picked + num_sinks, 0);
  for (int64_t i = 0; i < segment.view.num_best; ++i) {
    picked[num_sinks + i] = static_cast<int32_t>(num_sinks + (UINT32_MAX - static_cast<uint32_t>(order[static_cast<size_t>(i)])));
  }
  std::sort(picked + num_sinks, picked + num_picked);
}

}  // namespace llmi
