// The device over a runtime, which allocates, copies and launches: CUDA's (cuda_device.cu), or the host's emulation
// (emulated_device.cc). All else is common, and runs in tests without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/bf16_linear_kernels.h"
#include "kernels/cuda/draw_kernels.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/matrix_linear_kernel.h"
#include "kernels/cuda/row_kernels.h"
#include "kernels/device.h"

namespace llmi::cuda {

// Most memory that partials of attention may take at once; longer work goes in several launches.
constexpr int64_t kMostPartialBytes = int64_t{1} << 28;

// What draws leave from one launch to the next.
struct DrawWork {
  Layout layout;
  int64_t num_chunks;
  size_t lists, chunks, group_peaks, tokens;

  DrawWork(int64_t num_rows, int64_t vocab_size)
      : num_chunks((vocab_size + kVocabChunk - 1) / kVocabChunk),
        lists(layout.Place<uint64_t>(nullptr, num_rows * vocab_size)),
        chunks(layout.Place<DrawChunk>(nullptr, num_rows * num_chunks)),
        group_peaks(layout.Place<float>(nullptr, num_rows * num_chunks * kDrawGroups)),
        tokens(layout.Place<int32_t>(nullptr, num_rows)) {}
};

template <typename Runtime>
class GpuDevice final : public Device {
 public:
  explicit GpuDevice(const DeviceOptions& options) : options_(options) {}

  std::string name() const override { return runtime_.name(); }
  uint64_t total_bytes() const override { return runtime_.total_bytes(); }
  uint64_t free_bytes() const override { return runtime_.free_bytes(); }
  void ReserveWorkspace(int64_t num_logits_rows, int64_t vocab_size) override {
    partials_.Reserve(kMostPartialBytes, kPartialsName, this);
    draw_work_.Reserve(DrawWork(num_logits_rows, vocab_size).layout.size(), kDrawsName, this);
  }
  void* Allocate(size_t num_bytes, const char* what) override { return runtime_.Allocate(num_bytes, what); }
  void Free(void* address) noexcept override {
    recordings_.clear();  // they may name it
    warmed_up_.clear();
    runtime_.Free(address);
  }
  void Upload(void* to, const void* from, size_t num_bytes) override { runtime_.Upload(to, from, num_bytes); }
  void Download(void* to, const void* from, size_t num_bytes) override { runtime_.Download(to, from, num_bytes); }
  void Copy(void* to, const void* from, size_t num_bytes) override { runtime_.Copy(to, from, num_bytes); }

  void Embedding(const PackedView& weights, const int32_t* host_ids, int64_t num_rows, float scale, float* out) override {
    const auto num_bytes = static_cast<size_t>(num_rows) * sizeof(int32_t);
    ids_.Reserve(num_bytes, "token ids", this);
    Upload(ids_.data(), host_ids, num_bytes);
    runtime_.Launch(num_rows, 1, kRowThreads, 0, EmbeddingKernel{weights, ids_.template as<int32_t>(), scale, out});
  }

  void QuantizeRows(const float* x, int64_t num_rows, const QuantizedRows& out) override {
    const int64_t num_blocks = num_rows * (out.num_cols / kBlockSize);
    runtime_.Launch((num_blocks + kRowThreads - 1) / kRowThreads, 1, kRowThreads, 0, QuantizeRowsKernel{x, num_blocks, out});
  }

  void Linear(const LinearArgs& args) override {
    for (int64_t p = 0; p < args.num_parts; ++p) {
      const LinearPart& part = args.parts[p];
      const LinearOutput output = {part.weights, part.bias, args.num_rows, args.out + part.out_column, args.out_stride, args.accumulate};
      const int64_t num_tiles = (part.weights.num_rows + kTileRows - 1) / kTileRows;
      const int64_t num_groups = (args.num_rows + kLinearRows - 1) / kLinearRows;
      const auto launch = [&](const auto& kernel) { runtime_.Launch(num_groups, num_tiles, kLinearThreads, kernel.kSharedBytes, kernel); };
      if (IsQuantizedPacked(part.weights.type) && args.num_rows > kLinearRows) {
        runtime_.Launch((args.num_rows + kMatrixRows - 1) / kMatrixRows, (num_tiles + kMatrixWarps - 1) / kMatrixWarps,
                        kMatrixWarps * kWarpLanes, 0, MatrixLinearKernel{output, {args.quantized}});
      } else if (IsQuantizedPacked(part.weights.type)) {
        launch(LinearKernel<Int8Rows>{output, {args.quantized}});
      } else if (options_.bf16_linear && part.weights.type == PackedType::kBF16) {
        LaunchBf16Linear({output, {args.x, args.x_stride}}, num_tiles);
      } else {
        launch(LinearKernel<FloatRows>{output, {args.x, args.x_stride}});
      }
    }
  }

  void RmsNorm(const RmsNormArgs& args) override {
    runtime_.Launch(args.num_rows, args.num_groups, kRowThreads, RmsNormKernel::kSharedBytes, RmsNormKernel{args});
  }

  void Rope(const RopeArgs& args) override { runtime_.Launch(args.num_rows, 1, kRowThreads, 0, RopeKernel{args}); }

  void GatedActivation(Activation activation, const float* gate_up, int64_t num_rows, int64_t size, float* out) override {
    runtime_.Launch(num_rows, 1, kRowThreads, 0, GatedActivationKernel{activation, gate_up, size, out});
  }

  void KvWrite(const KvWriteArgs& args) override {
    const Batch batch = FindBatch(args.kv, args.segments, args.num_segments, nullptr);
    KvWriteKernel kernel = {args, batch.row_segments};
    kernel.args.segments = batch.segments;
    runtime_.Launch(batch.num_rows, args.kv.num_kv_heads, 32, 0, kernel);
  }

  void PagedAttention(const AttentionArgs& args) override {
    const Batch batch = FindBatch(args.kv, args.segments, args.num_segments, args.positions);
    AttentionPlan plan = {args, batch.row_segments, 0, recorded_spans_, nullptr};
    if (recorded_spans_ == 0) {
      // The host's positions tell how many spans the longest row has.
      plan.max_spans = 1;
      for (int64_t row = 0; row < NumRows(args.segments, args.num_segments); ++row) {
        plan.max_spans = std::max(plan.max_spans, plan.EndSpan(row) - plan.FirstSpan(row));
      }
    }
    plan.args.segments = batch.segments;
    plan.args.positions = batch.positions;
    const auto partial_bytes = static_cast<int64_t>(sizeof(float)) * AttentionPartialSize(args.kv.head_dim);
    const int64_t row_bytes = args.num_heads * plan.max_spans * partial_bytes;
    const int64_t rows_at_once = std::clamp<int64_t>(kMostPartialBytes / row_bytes, 1, batch.num_rows);
    partials_.Reserve(static_cast<size_t>(rows_at_once * row_bytes), kPartialsName, this);
    plan.partials = partials_.template as<float>();
    const int64_t group = args.num_heads / args.kv.num_kv_heads;
    const int64_t chunks = (group + kSpanHeads - 1) / kSpanHeads;
    for (; plan.row_begin < batch.num_rows; plan.row_begin += rows_at_once) {
      const int64_t num_rows = std::min(rows_at_once, batch.num_rows - plan.row_begin);
      runtime_.Launch(num_rows * args.kv.num_kv_heads * chunks, plan.max_spans, kAttentionThreads, AttentionSpanKernel::kSharedBytes,
                      AttentionSpanKernel{plan, chunks});
      runtime_.Launch(num_rows, args.num_heads, kAttentionThreads, 0, AttentionMergeKernel{plan});
    }
  }

  void SoftCap(float* x, int64_t count, float cap) override {
    runtime_.Launch((count + kRowThreads - 1) / kRowThreads, 1, kRowThreads, 0, SoftCapKernel{x, count, cap});
  }

  void Draw(const DrawBatch& batch, float* logits, int64_t vocab_size, int32_t* tokens) override {
    Layout inputs;
    const size_t rows = inputs.Place(batch.rows, batch.num_rows);
    const size_t masks = inputs.Place(batch.masks, batch.num_masks);
    const size_t penalties = inputs.Place(batch.penalties, batch.num_penalties);
    const size_t allowed = inputs.Place(batch.allowed, batch.num_allowed);
    const uint8_t* placed = UploadLayout(inputs, draw_inputs_, "parameters of draws");
    DrawPlan plan = {};
    plan.rows = reinterpret_cast<const DrawRow*>(placed + rows);
    plan.masks = reinterpret_cast<const MaskEdit*>(placed + masks);
    plan.penalties = reinterpret_cast<const PenaltyEdit*>(placed + penalties);
    plan.allowed = reinterpret_cast<const uint32_t*>(placed + allowed);
    plan.logits = logits;
    plan.vocab_size = vocab_size;
    const DrawWork work(batch.num_rows, vocab_size);
    plan.num_chunks = work.num_chunks;
    draw_work_.Reserve(work.layout.size(), kDrawsName, this);
    plan.lists = reinterpret_cast<uint64_t*>(draw_work_.data() + work.lists);
    plan.chunks = reinterpret_cast<DrawChunk*>(draw_work_.data() + work.chunks);
    plan.group_peaks = reinterpret_cast<float*>(draw_work_.data() + work.group_peaks);
    plan.tokens = reinterpret_cast<int32_t*>(draw_work_.data() + work.tokens);
    runtime_.Launch(plan.num_chunks, batch.num_rows, kDrawScanThreads, DrawScanKernel::kSharedBytes, DrawScanKernel{plan});
    runtime_.Launch(batch.num_rows, 1, kDrawThreads, DrawKernel::kSharedBytes, DrawKernel{plan});
    Download(tokens, plan.tokens, static_cast<size_t>(batch.num_rows) * sizeof(int32_t));
  }

  void KvCopySlot(const KvView& kv, const int32_t* host_block_table, int64_t from, int64_t to) override {
    const int64_t num_blocks = std::max(from, to) / kv.block_size + 1;
    const auto num_bytes = static_cast<size_t>(num_blocks * kv.pages_per_block) * sizeof(int32_t);
    slot_table_.Reserve(num_bytes, "a block table", this);
    Upload(slot_table_.data(), host_block_table, num_bytes);
    runtime_.Launch(kv.num_kv_heads, 1, kRowThreads, 0, KvCopySlotKernel{kv, slot_table_.template as<int32_t>(), from, to});
  }

  void PlaceBatch(const KvView& kv, const AttentionSegment* segments, int64_t num_segments, const int32_t* positions,
                  int64_t num_rows) override {
    Place(kv, segments, num_segments, positions, num_rows);
  }

  void Replay(const void* owner, int64_t num_rows, const std::function<void()>& ops) override {
    int64_t spans = 1;
    for (const auto& [group, placed] : placed_) {
      for (const int32_t position : placed.positions) {
        while (spans * kAttentionSpan <= position) spans *= 2;
      }
    }
    const RecordingKey key = {owner, num_rows, spans};
    if (warmed_up_.insert(key).second) return ops();  // takes what memory it needs
    auto found = recordings_.find(key);
    if (found == recordings_.end()) {
      recorded_spans_ = spans;
      try {
        found = recordings_.emplace(key, runtime_.Record(ops)).first;
      } catch (...) {
        recorded_spans_ = 0;
        throw;
      }
      recorded_spans_ = 0;
    }
    runtime_.Play(found->second);
    ++num_replays_;
  }
  int64_t num_replays() const override { return num_replays_; }

 private:
  static constexpr const char* kPartialsName = "attention's partial sums";
  static constexpr const char* kDrawsName = "lists of draws";

  // Few rows: the warps of a block share a tile's columns; many: a tile each. The same sums.
  void LaunchBf16Linear(const Bf16Linear& linear, int64_t num_tiles) {
    constexpr int kThreads = kBf16Warps * kWarpLanes;
    const int64_t num_rows = linear.output.num_rows;
    if (num_rows <= Bf16SplitKernel::kRows) {
      runtime_.Launch(1, num_tiles, kThreads, Bf16SplitKernel::kSharedBytes, Bf16SplitKernel{linear});
    } else {
      runtime_.Launch((num_rows + Bf16TileKernel::kRows - 1) / Bf16TileKernel::kRows, (num_tiles + kBf16Warps - 1) / kBf16Warps, kThreads,
                      Bf16TileKernel::kSharedBytes, Bf16TileKernel{linear});
    }
  }

  // In one copy.
  const uint8_t* UploadLayout(const Layout& layout, AlignedBuffer& to, const char* what) {
    to.Reserve(layout.size(), what, this);
    staging_.resize(layout.size());
    layout.Write(staging_.data());
    Upload(to.data(), staging_.data(), staging_.size());
    return to.data();
  }

  using RecordingKey = std::tuple<const void*, int64_t, int64_t>;  // owner, rows, spans

  // The batch as kernels see it.
  struct Batch {
    int64_t num_rows;
    const AttentionSegment* segments;
    const int32_t* row_segments;
    const int32_t* positions;
  };
  // What was placed last for a KV group. A batch of as many rows lies where the last one did.
  struct Placed {
    std::vector<int32_t> key;
    std::vector<int32_t> positions;  // of the segments' rows; empty: not known
    AlignedBuffer buffer;
    Batch batch;
  };

  static int64_t NumRows(const AttentionSegment* segments, int64_t num_segments) {
    int64_t num_rows = 0;
    for (int64_t s = 0; s < num_segments; ++s) num_rows += segments[s].num_rows;
    return num_rows;
  }

  // Segments as integers: their numbers, then tables and parents.
  static std::vector<int32_t> Key(const KvView& kv, const AttentionSegment* segments, int64_t num_segments) {
    std::vector<int32_t> key;
    for (int64_t s = 0; s < num_segments; ++s) {
      const AttentionSegment& segment = segments[s];
      key.insert(key.end(), {static_cast<int32_t>(segment.num_rows), static_cast<int32_t>(segment.base_len), segment.parents != nullptr});
      key.insert(key.end(), segment.block_table, segment.block_table + TableSize(kv, segment));
      if (segment.parents != nullptr) key.insert(key.end(), segment.parents, segment.parents + segment.num_rows);
    }
    return key;
  }
  static int64_t TableSize(const KvView& kv, const AttentionSegment& segment) {
    return (segment.base_len + segment.num_rows + kv.block_size - 1) / kv.block_size * kv.pages_per_block;
  }

  Batch FindBatch(const KvView& kv, const AttentionSegment* segments, int64_t num_segments, const int32_t* positions) {
    const Placed& placed = placed_[kv.group];
    const bool positions_match =
        positions == nullptr || (!placed.positions.empty() && std::equal(placed.positions.begin(), placed.positions.end(), positions));
    if (positions_match && !placed.key.empty() && placed.key == Key(kv, segments, num_segments)) return placed.batch;
    return Place(kv, segments, num_segments, positions, NumRows(segments, num_segments));
  }

  Batch Place(const KvView& kv, const AttentionSegment* segments, int64_t num_segments, const int32_t* positions, int64_t num_rows) {
    Placed& placed = placed_[kv.group];
    placed.key.clear();  // nothing matches while this is under way
    const int64_t own_rows = NumRows(segments, num_segments);
    std::vector<AttentionSegment> there(segments, segments + num_segments);
    std::vector<int32_t> row_segments;
    std::vector<int32_t> lists;  // tables and parents
    for (int64_t s = 0; s < num_segments; ++s) {
      const AttentionSegment& segment = segments[s];
      row_segments.insert(row_segments.end(), static_cast<size_t>(segment.num_rows), static_cast<int32_t>(s));
      lists.insert(lists.end(), segment.block_table, segment.block_table + TableSize(kv, segment));
      if (segment.parents != nullptr) lists.insert(lists.end(), segment.parents, segment.parents + segment.num_rows);
    }
    row_segments.resize(static_cast<size_t>(num_rows), -1);
    std::vector<int32_t> padded_positions(static_cast<size_t>(num_rows));
    if (positions != nullptr) std::copy_n(positions, own_rows, padded_positions.begin());
    Layout layout;
    // Places depend on the number of rows alone: a segment has a row at least.
    const size_t segments_at = layout.Place<AttentionSegment>(nullptr, num_rows);
    const size_t row_segments_at = layout.Place(row_segments.data(), num_rows);
    const size_t positions_at = layout.Place(padded_positions.data(), num_rows);
    const size_t lists_at = layout.Place(lists.data(), static_cast<int64_t>(lists.size()));
    layout.Fill(segments_at, there.data(), num_segments);
    if (placed.buffer.size() < layout.size()) placed.buffer.Reserve(2 * layout.size(), "block tables", this);
    const uint8_t* base = placed.buffer.data();
    const auto* next = reinterpret_cast<const int32_t*>(base + lists_at);
    for (AttentionSegment& segment : there) {
      segment.block_table = next;
      next += TableSize(kv, segment);
      if (segment.parents == nullptr) continue;
      segment.parents = next;
      next += segment.num_rows;
    }
    UploadLayout(layout, placed.buffer, "block tables");
    placed.batch = {num_rows, reinterpret_cast<const AttentionSegment*>(base + segments_at),
                    reinterpret_cast<const int32_t*>(base + row_segments_at), reinterpret_cast<const int32_t*>(base + positions_at)};
    placed.positions.clear();
    if (positions != nullptr) placed.positions.assign(positions, positions + own_rows);
    placed.key = Key(kv, segments, num_segments);
    return placed.batch;
  }

  const DeviceOptions options_;
  Runtime runtime_;
  // They outlive the buffers, which forget them when they are freed.
  std::map<RecordingKey, typename Runtime::Recording> recordings_;
  std::set<RecordingKey> warmed_up_;
  int64_t recorded_spans_ = 0;  // while a recording is made: those of its launches
  int64_t num_replays_ = 0;
  AlignedBuffer ids_;
  AlignedBuffer partials_;
  AlignedBuffer draw_inputs_;
  AlignedBuffer draw_work_;
  AlignedBuffer slot_table_;
  std::map<int32_t, Placed> placed_;  // by KV group
  std::vector<uint8_t> staging_;
};

}  // namespace llmi::cuda
