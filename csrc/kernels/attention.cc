#include "kernels/attention.h"

#include <vector>

#include "core/errors.h"
#include "kernels/kernel_table.h"
#include "kernels/row_tasks.h"

namespace llmi {
namespace {

void CheckCache(const KvView& kv) {
  CheckArgument(kv.head_dim % 16 == 0 && kv.head_dim <= kMaxHeadDim, "attention: head_dim must be a multiple of 16, at most 512");
  CheckArgument(kv.block_size % kSlotsPerTile == 0, "attention: block_size must be a multiple of 16");
  CheckArgument(kv.element_bytes == 1 || kv.element_bytes == 2 || kv.element_bytes == 4, "attention: the cache holds int8, fp16 or fp32");
}

}  // namespace

void KvWrite(const KernelContext& context, const KvWriteArgs& args) {
  CheckCache(args.kv);
  for (int64_t s = 0; s < args.num_segments; ++s) {
    const AttentionSegment& segment = args.segments[s];
    // Tiles are written by one thread each: ranges are cut at multiples of 16 slots.
    const int64_t first = segment.base_len / kSlotsPerTile;
    const int64_t last = (segment.base_len + segment.num_rows - 1) / kSlotsPerTile;
    ParallelRows(context, last - first + 1, 4, [&](int64_t begin, int64_t end) {
      const int64_t row_begin = std::max<int64_t>(0, (first + begin) * kSlotsPerTile - segment.base_len);
      const int64_t row_end = std::min(segment.num_rows, (first + end) * kSlotsPerTile - segment.base_len);
      context.table->kv_write(args, segment, row_begin, row_end);
    });
  }
}

void PagedAttention(const KernelContext& context, const AttentionArgs& args) {
  CheckCache(args.kv);
  CheckArgument(args.num_heads % args.kv.num_kv_heads == 0, "attention: KV heads must divide query heads");
  const int64_t group = args.num_heads / args.kv.num_kv_heads;
  const int64_t heads_per_task = std::min(group, kMaxTaskQueries);
  std::vector<AttentionTask> tasks;
  for (int64_t s = 0; s < args.num_segments; ++s) {
    const AttentionSegment& segment = args.segments[s];
    // Rows of a chain share each K and V load; a tree's rows each have a path of their own.
    const int64_t rows_per_task = segment.parents != nullptr ? 1 : std::max<int64_t>(1, kMaxTaskQueries / heads_per_task);
    for (int64_t row = 0; row < segment.num_rows; row += rows_per_task) {
      const int64_t num_rows = std::min(rows_per_task, segment.num_rows - row);
      for (int64_t kv_head = 0; kv_head < args.kv.num_kv_heads; ++kv_head) {
        for (int64_t head = 0; head < group; head += heads_per_task) {
          tasks.push_back({static_cast<int32_t>(s), static_cast<int32_t>(row), static_cast<int32_t>(num_rows),
                           static_cast<int32_t>(kv_head * group + head), static_cast<int32_t>(std::min(heads_per_task, group - head))});
        }
      }
    }
  }
  context.pool->ParallelFor(static_cast<int64_t>(tasks.size()), context.num_threads,
                            [&](int64_t task) { context.table->attention(args, tasks[static_cast<size_t>(task)]); });
}

}  // namespace llmi
