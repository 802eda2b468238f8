#include "kernels/ops/attention.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/row_tasks.h"
#include "kernels/ops/attention_tasks.h"

namespace llmi {
namespace {

void CheckCache(const KvView& kv) {
  CheckArgument(kv.head_dim % 16 == 0 && kv.head_dim <= kMaxHeadDim, "attention: head_dim must be a multiple of 16, at most 576");
  CheckArgument(kv.block_size % kSlotsPerTile == 0, "attention: block_size must be a multiple of 16");
}

// One work item: some spans of a task, or the whole task if partials is null.
struct Piece {
  size_t task;
  SpanRange spans;
  float* partials;
};

// Most query heads of one KV head that a task takes.
int64_t HeadsPerTask(const AttentionArgs& args) { return std::min(args.num_heads / args.kv.num_kv_heads, kMaxTaskQueries); }

// Rows of a chain share each K and V load; a tree's rows each have a path of their own.
int64_t RowsPerTask(const AttentionArgs& args, const AttentionSegment& segment) {
  return segment.parents != nullptr ? 1 : std::max<int64_t>(1, kMaxTaskQueries / HeadsPerTask(args));
}

// Whether one task has all of a segment's queries of a KV head, so that no other task reads the K and V which it stores. A span of sinks
// may read what another thread stores unless these are cached.
bool WritesItsOwn(const AttentionArgs& args, const AttentionSegment& segment) {
  return segment.view.sinks <= segment.base_len && HeadsPerTask(args) == args.num_heads / args.kv.num_kv_heads &&
         segment.num_rows <= RowsPerTask(args, segment);
}

// Stores K and V of the segment's new rows whose slots are in these spans, for the task's KV head.
void WriteSpans(const KernelContext& context, const KvWriteArgs& written, const AttentionArgs& args, const AttentionTask& task,
                const SpanRange& spans) {
  const AttentionSegment& segment = args.segments[task.segment];
  const int64_t kv_head = AttentionKvHead(args, task);
  const auto row_of = [&](int64_t span) { return std::clamp<int64_t>(span * kAttentionSpan - segment.base_len, 0, segment.num_rows); };
  context.table->kv_write(written, segment,
                          {.row_begin = row_of(spans.first), .row_end = row_of(spans.end), .head_begin = kv_head, .head_end = kv_head + 1});
}

// One thread runs a whole task, unless the task has more than 1 / (4 threads) of all spans: then several threads run its spans, and
// these are merged afterwards. written: new K and V, which the task stores itself if WritesItsOwn(); null: all are stored.
void RunTasks(const KernelContext& context, const AttentionArgs& args, const std::vector<AttentionTask>& tasks,
              const KvWriteArgs* written) {
  std::vector<SpanRange> ranges;
  int64_t total = 0;
  for (const AttentionTask& task : tasks) {
    ranges.push_back(AttentionSpans(args, task));
    total += ranges.back().end - ranges.back().first;
  }
  const int64_t most = context.num_threads == 1 ? total : std::max<int64_t>(1, total / (4 * context.num_threads));
  const auto span_size = [&](const AttentionTask& task) { return task.num_rows * task.num_heads * AttentionPartialSize(args.kv.head_dim); };
  int64_t scratch_size = 0;
  for (size_t t = 0; t < tasks.size(); ++t) {
    const int64_t num_spans = ranges[t].end - ranges[t].first;
    if (num_spans > most) scratch_size += num_spans * span_size(tasks[t]);
  }
  const auto scratch = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(scratch_size));
  float* next = scratch.get();
  std::vector<Piece> pieces;
  std::vector<std::pair<size_t, const float*>> shared;
  for (size_t t = 0; t < tasks.size(); ++t) {
    const int64_t num_spans = ranges[t].end - ranges[t].first;
    if (num_spans <= most) {
      pieces.push_back({t, ranges[t], nullptr});
      continue;
    }
    shared.emplace_back(t, next);
    for (int64_t span = ranges[t].first; span < ranges[t].end; span += most) {
      const int64_t end = std::min(span + most, ranges[t].end);
      pieces.push_back({t, {span, end}, next});
      next += (end - span) * span_size(tasks[t]);
    }
  }
  context.pool->ParallelFor(static_cast<int64_t>(pieces.size()), context.num_threads, [&](int64_t index) {
    const Piece& piece = pieces[static_cast<size_t>(index)];
    const AttentionTask& task = tasks[piece.task];
    if (written != nullptr && WritesItsOwn(args, args.segments[task.segment])) WriteSpans(context, *written, args, task, piece.spans);
    if (piece.partials == nullptr) return context.table->attention(args, task);
    for (int64_t span = piece.spans.first; span < piece.spans.end; ++span) {
      context.table->attention_span(args, task, span, piece.partials + (span - piece.spans.first) * span_size(task));
    }
  });
  for (const auto& [t, partials] : shared) context.table->attention_merge(args, tasks[t], ranges[t].end - ranges[t].first, partials);
}

// A device knows windows alone: each run of rows for which one window says what they see is a call of its own. Rows at the end of a text
// that is longer than the window have one each.
void AttendByRuns(Device& device, const AttentionArgs& args) {
  for (int64_t s = 0; s < args.num_segments; ++s) {
    const AttentionSegment& whole = args.segments[s];
    const int64_t end = whole.row_begin + whole.num_rows;
    for (int64_t begin = whole.row_begin, run_end = begin; begin < end; begin = run_end) {
      int64_t window = 0, least = 0;  // a row that sees the first position allows windows of `least` or more, another one its own alone
      for (; run_end < end; ++run_end) {
        const int64_t seen = int64_t{args.positions[run_end]} - args.firsts[run_end] + 1;
        const int64_t needed = args.firsts[run_end] == 0 ? std::max(least, seen) : least;
        const int64_t wanted = args.firsts[run_end] == 0 ? window : seen;
        if ((window != 0 && wanted != window) || (wanted != 0 && wanted < needed)) break;
        window = wanted;
        least = needed;
      }
      AttentionSegment segment = whole;
      segment.row_begin = 0;
      segment.num_rows = run_end - begin;
      segment.base_len = whole.base_len + whole.num_rows - segment.num_rows;  // the table goes to the text's end
      AttentionArgs run = args;
      run.segments = &segment;
      run.num_segments = 1;
      run.positions += begin;
      run.firsts = nullptr;
      run.window = window;
      run.q += begin * args.q_stride;
      run.out += begin * args.out_stride;
      device.PagedAttention(run);
    }
  }
}

void AttendThere(Device& device, const AttentionArgs& args) {
  return args.firsts == nullptr ? device.PagedAttention(args) : AttendByRuns(device, args);
}

int64_t NumTilesWritten(const AttentionSegment& segment) {
  return (segment.base_len + segment.num_rows - 1) / kSlotsPerTile - segment.base_len / kSlotsPerTile + 1;
}

}  // namespace

void CheckAttention(const AttentionArgs& args) {
  CheckCache(args.kv);
  CheckArgument(args.num_heads % args.kv.num_kv_heads == 0, "attention: KV heads must divide query heads");
}

void KvWrite(const KernelContext& context, const KvWriteArgs& args) {
  CheckCache(args.kv);
  if (context.device != nullptr) return context.device->KvWrite(args);
  // One thread writes a whole tile, so work is split by tiles (16 slots) over all segments.
  const std::span segments(args.segments, static_cast<size_t>(args.num_segments));
  int64_t num_tiles = 0;
  for (const AttentionSegment& segment : segments) num_tiles += NumTilesWritten(segment);
  ParallelRows(context, num_tiles, 4, [&](int64_t begin, int64_t end) {
    int64_t before = 0;  // tiles of earlier segments
    for (const AttentionSegment& segment : segments) {
      const int64_t num_own = NumTilesWritten(segment);
      const int64_t from = std::max<int64_t>(0, begin - before);
      const int64_t to = std::min(num_own, end - before);
      if (from < to) {
        const int64_t offset = segment.base_len % kSlotsPerTile;  // of the first row in its tile
        const int64_t row_begin = std::max<int64_t>(0, from * kSlotsPerTile - offset);
        const int64_t row_end = std::min(segment.num_rows, to * kSlotsPerTile - offset);
        context.table->kv_write(args, segment,
                                {.row_begin = row_begin, .row_end = row_end, .head_begin = 0, .head_end = args.kv.num_kv_heads});
      }
      before += num_own;
    }
  });
}

std::vector<AttentionTask> AttentionTasks(const AttentionArgs& args) {
  const int64_t group = args.num_heads / args.kv.num_kv_heads;
  const int64_t heads_per_task = HeadsPerTask(args);
  std::vector<AttentionTask> tasks;
  for (int64_t s = 0; s < args.num_segments; ++s) {
    const AttentionSegment& segment = args.segments[s];
    const int64_t rows_per_task = RowsPerTask(args, segment);
    for (int64_t row = 0; row < segment.num_rows; row += rows_per_task) {
      const int64_t num_rows = std::min(rows_per_task, segment.num_rows - row);
      for (int64_t kv_head = 0; kv_head < args.kv.num_kv_heads; ++kv_head) {
        for (int64_t head = 0; head < group; head += heads_per_task) {
          tasks.push_back({.segment = static_cast<int32_t>(s),
                           .row_begin = static_cast<int32_t>(row),
                           .num_rows = static_cast<int32_t>(num_rows),
                           .head_begin = static_cast<int32_t>(kv_head * group + head),
                           .num_heads = static_cast<int32_t>(std::min(heads_per_task, group - head))});
        }
      }
    }
  }
  // With 8 tasks or fewer no task prefetches for the next one: it would be done before the data arrives.
  constexpr size_t kFewTasks = 8;
  for (size_t t = 1; tasks.size() > kFewTasks && t < tasks.size(); ++t) tasks[t - 1].next = &tasks[t];
  return tasks;
}

void PagedAttention(const KernelContext& context, const AttentionArgs& args) {
  CheckAttention(args);
  if (context.device != nullptr) return AttendThere(*context.device, args);
  RunTasks(context, args, AttentionTasks(args), nullptr);
}

void WriteAndAttend(const KernelContext& context, const KvWriteArgs& written, const AttentionArgs& args) {
  CheckAttention(args);
  if (context.device != nullptr) {
    context.device->KvWrite(written);
    return AttendThere(*context.device, args);
  }
  // A segment of few rows is written by the tasks that read it: its tile is loaded once, by one core, and all threads share the writing.
  std::vector<AttentionSegment> others;
  std::copy_if(args.segments, args.segments + args.num_segments, std::back_inserter(others),
               [&](const AttentionSegment& segment) { return !WritesItsOwn(args, segment); });
  if (!others.empty()) {
    KvWriteArgs first = written;
    first.segments = others.data();
    first.num_segments = static_cast<int64_t>(others.size());
    KvWrite(context, first);
  }
  RunTasks(context, args, AttentionTasks(args), &written);
}

}  // namespace llmi
