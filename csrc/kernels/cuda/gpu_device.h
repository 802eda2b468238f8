// The device over a runtime, which allocates, copies and launches: CUDA's (cuda_device.cu), or the host's emulation
// (emulated_device.cc). All other code is common to both, and runs in tests without a GPU.
#pragma once

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "kernels/cuda/attention_step.h"
#include "kernels/cuda/candidate_kernels.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/draw_kernels.h"
#include "kernels/cuda/expert_kernels.h"
#include "kernels/cuda/kv_kernels.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/linear_launch.h"
#include "kernels/cuda/matrix_probe.h"
#include "kernels/cuda/placed_batch.h"
#include "kernels/cuda/placed_draw.h"
#include "kernels/cuda/placed_states.h"
#include "kernels/cuda/rank_gathers.h"
#include "kernels/cuda/row_launch.h"
#include "kernels/cuda/span_launch.h"
#include "kernels/cuda/state_kernels.h"
#include "kernels/cuda/step_kernels.h"
#include "kernels/cuda/stream_table.h"
#include "kernels/dispatch/device.h"

namespace llmi::cuda {

// Results that the launches of a draw pass on.
struct DrawWork {
  Layout layout;
  int64_t num_chunks;
  size_t lists, chunks, group_peaks, winners, states;

  DrawWork(int64_t num_rows, int64_t vocab_size)
      : num_chunks((vocab_size + kVocabChunk - 1) / kVocabChunk),
        lists(layout.Place<uint64_t>(nullptr, num_rows * vocab_size)),
        chunks(layout.Place<LogitSummary>(nullptr, num_rows * num_chunks)),
        group_peaks(layout.Place<float>(nullptr, num_rows * num_chunks * kDrawGroups)),
        winners(layout.Place<Runner>(nullptr, num_rows * num_chunks)),
        states(layout.Place<DrawState>(nullptr, num_rows)) {}
};

constexpr int kNumMarks = 8;   // of a runtime
constexpr int kNumStages = 4;  // of a runtime: two steps, with an upload before the layers and one behind them

template <typename Runtime>
class GpuDevice final : public Device {
 public:
  explicit GpuDevice(const DeviceOptions& options) : options_(options), runtime_(options.ordinal) {
    if (!options.cublas_lt.empty()) cublas_lt_.emplace(options.cublas_lt);
  }

  std::string name() const override { return runtime_.name(); }
  std::string WhyNoTensorCores() override { return cuda::WhyNoTensorCores(AskMatrixInstruction(runtime_.matrix_instruction())); }
  uint64_t total_bytes() const override { return runtime_.total_bytes(); }
  uint64_t free_bytes() const override { return runtime_.free_bytes(); }
  void ReserveWorkspace(int64_t num_logits_rows, int64_t vocab_size) override {
    partials_.Reserve(static_cast<size_t>(options_.most_partial_bytes), kPartialsName, this);
    draw_work_.Reserve(DrawWork(num_logits_rows, vocab_size).layout.size(), kDrawsName, this);
    draw_counts_.Reserve(static_cast<size_t>(num_logits_rows) * sizeof(uint32_t), kDrawsName, this);
    draw_laws_.Reserve(static_cast<size_t>(std::min(num_logits_rows, kMostDrawLaws) * vocab_size) * sizeof(float), kDrawsName, this);
    for (AlignedBuffer& drawn : drawn_) drawn.Reserve(DrawnBytes(num_logits_rows), kDrawsName, this);
    candidate_chunks_.Reserve(CandidateBytes(num_logits_rows, vocab_size), kDrawsName, this);
  }
  void ReserveInputs(int64_t num_values) override {
    fragments_.Reserve(static_cast<size_t>(num_values) * sizeof(uint16_t));
    if (!cublas_lt_) return;
    rounded_.Reserve(static_cast<size_t>(num_values) * sizeof(uint16_t), kRoundedName, this);
    cublas_workspace_.Reserve(CublasLt::kWorkspaceBytes, kCublasName, this);
  }
  bool takes_half_rows() const override { return cublas_lt_.has_value(); }
  void* Allocate(size_t num_bytes, const char* what) override { return runtime_.Allocate(num_bytes, what); }
  void Free(void* address) noexcept override {
    recordings_.clear();  // they may name it
    warmed_up_.clear();
    runtime_.Free(address);
  }
  void Upload(void* to, const void* from, size_t num_bytes) override { Busy().Upload(to, from, num_bytes); }
  void Download(void* to, const void* from, size_t num_bytes) override {
    Busy().Download(to, from, num_bytes);
    ++counts_.num_waits;
    idle_since_ = Clock::now();
  }
  void Copy(void* to, const void* from, size_t num_bytes) override { Busy().Copy(to, from, num_bytes); }
  void CopyRows(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t row_bytes, int64_t num_rows) override {
    if (row_bytes * num_rows > 0) Busy().CopyRows(to, to_stride, from, from_stride, row_bytes, num_rows);
  }

  void JoinRanks(std::shared_ptr<RankGroup> group) override {
    recordings_.clear();  // they have the gathers of the group before
    warmed_up_.clear();
    gathers_.emplace(runtime_, std::move(group), options_.nccl);
  }
  void Gather(void* buffer, std::span<const RankGroup::Block> blocks, bool to_first) override {
    Busy();
    gathers_.value().Gather(buffer, blocks, to_first, this);
  }
  void FinishGathers() override { gathers_.value().Finish(); }

  StepPlaces PlaceStep(const StepInputs& inputs) override {
    CheckDrawn(inputs.token_ids);
    const auto num_rows = static_cast<int64_t>(inputs.token_ids.size());
    Layout layout;
    const auto place = [&](std::span<const int32_t> list) { return layout.Place(list.data(), static_cast<int64_t>(list.size())); };
    const size_t token_ids = place(inputs.token_ids);
    const size_t positions = place(inputs.positions);
    const size_t position_ids = place(inputs.position_ids);
    const size_t wanted_rows = place(inputs.wanted_rows);
    has_draw_ = inputs.draw != nullptr;
    if (has_draw_) draw_.Place(*inputs.draw, inputs.num_draw_rows, &layout);
    const bool records_draw = has_draw_ && !gathers_;
    shape_ = {.num_rows = num_rows, .gathers = !inputs.wanted_rows.empty(), .num_draws = records_draw ? inputs.num_draw_rows : 0};
    if (records_draw) shape_.draw = draw_.shape();
    for (const StepBatch& batch : inputs.batches) {
      PlacedBatch& placed = placed_[batch.kv.group];
      placed.Plan(batch.kv, batch.window, batch.segments.data(), static_cast<int64_t>(batch.segments.size()), inputs.positions.data());
      while (shape_.spans < placed.plan().begins.back()) shape_.spans *= 2;
      shape_.shares = shape_.shares || !placed.plan().groups.empty();
      shape_.whole = shape_.whole || !placed.plan().whole_groups.empty();
    }
    for (const StepBatch& batch : inputs.batches) {
      PlacedBatch& placed = placed_[batch.kv.group];
      placed.PlaceArrays(num_rows, inputs.may_replay ? shape_.spans : static_cast<int64_t>(placed.plan().items.size()), &layout);
    }
    states_.Plan(inputs.states);
    if (!inputs.states.empty()) states_.PlaceArrays(inputs.may_replay ? num_rows : static_cast<int64_t>(inputs.states.size()), &layout);
    // The places before these depend on the shape alone.
    for (const StepBatch& batch : inputs.batches) placed_[batch.kv.group].PlaceLists(&layout);
    states_.PlaceLists(&layout);
    if (step_.size() < layout.size()) step_.Reserve(2 * layout.size(), "a step's inputs", this);
    const uint8_t* base = step_.data();
    const auto at = [&](size_t offset) { return reinterpret_cast<const int32_t*>(base + offset); };
    for (const StepBatch& batch : inputs.batches) placed_[batch.kv.group].Settle(base, at(positions));
    if (!inputs.states.empty()) states_.Settle(step_.data());
    Upload(layout, step_);
    return {at(token_ids), at(positions), at(position_ids), at(wanted_rows)};
  }

  const int32_t* PlaceIds(const int32_t* host_ids, int64_t count) override {
    CheckDrawn({host_ids, static_cast<size_t>(count)});
    Layout layout;
    layout.Place(host_ids, count);
    ids_.Reserve(layout.size(), "token ids", this);
    Upload(layout, ids_);
    return ids_.template as<int32_t>();
  }

  void Embedding(const PackedView& weights, const int32_t* ids, int64_t num_rows, float scale, float* out) override {
    Busy().Launch(num_rows, 1, kRowThreads, 0, EmbeddingKernel{weights, ids, Drawn(num_draws_ - 1), scale, out});
  }

  void ReadTable(const float* table, const TableColumn* columns, int64_t width, const int32_t* positions, int64_t num_rows,
                 float* out) override {
    Busy().Launch(num_rows, 1, kRowThreads, 0, ReadTableKernel{table, columns, width, positions, num_rows, out});
  }

  void GatherRows(const float* x, int64_t size, const int32_t* rows, int64_t num_rows, float* out) override {
    Busy().Launch(num_rows, 1, kRowThreads, 0, GatherRowsKernel{x, size, rows, out});
  }

  void QuantizeRows(const float* x, int64_t num_rows, const QuantizedRows& out) override { LaunchQuantize(Busy(), x, num_rows, out); }

  void Linear(const LinearStep& given) override {
    LinearStep step = given;
    std::vector<LinearPart> parts(given.layers.parts, given.layers.parts + given.layers.num_parts);
    std::erase_if(parts, [](const LinearPart& part) { return part.weights.num_rows == 0; });  // of a rank without such rows
    step.layers.parts = parts.data();
    step.layers.num_parts = static_cast<int64_t>(parts.size());
    if (parts.empty()) return;
    if (std::ranges::none_of(parts, [](const LinearPart& part) { return IsRowsPacked(part.weights.type); })) {
      return LaunchLayers(step);
    }
    if (step.norm != nullptr) Norm(*step.norm, step.input.quantized);
    MultiplyFreely(step.layers);
    LaunchLayers({.layers = step.layers});
    if (step.activation != nullptr) Activate(*step.activation, step.forms.quantized);
  }

  void Route(const RouteArgs& args) override { Busy().Launch(args.num_rows, 1, kWarpLanes, RouteKernel::kSharedBytes, RouteKernel{args}); }
  void SortPairs(const ExpertPairs& pairs) override {
    Busy().Launch(pairs.num_experts + 1, 1, kRowThreads, SortPairsKernel::kSharedBytes, SortPairsKernel{pairs});
  }
  void GatherPairs(const ExpertPairs& pairs, const float* from_x, const QuantizedRows& from, int64_t num_cols, float* to_x,
                   const QuantizedRows& to) override {
    Busy().Launch(pairs.num_pairs(), 1, kRowThreads, 0, GatherPairsKernel{pairs.rows, from_x, from, num_cols, to_x, to});
  }
  void ExpertLinear(const ExpertPairs& pairs, const LinearArgs& args) override {
    for (int64_t p = 0; p < args.num_parts; ++p) {
      const LinearPart& part = args.parts[p];
      LinearOutput output(part.weights, args.num_rows, args.out_stride, false);
      output.Add(part.weights, part.bias, args.out + part.out_column);
      const auto launch = [&](const auto& kernel) {
        Busy().Launch(MostPairGroups(pairs), NumTiles(part.weights.num_rows), kLinearThreads, kernel.kSharedBytes, kernel);
      };
      if (IsQuantizedPacked(part.weights.type)) {
        launch(ExpertLinearKernel<Int8Rows>{output, {args.quantized}, pairs});
      } else {
        launch(ExpertLinearKernel<FloatRows>{output, {args.x, args.x_stride}, pairs});
      }
    }
  }
  void MixPairs(const ExpertPairs& pairs, const float* weights, const float* values, int64_t size, float* out) override {
    Busy().Launch(pairs.num_rows, 1, kRowThreads, 0, MixPairsKernel{pairs, weights, values, size, out});
  }
  void AddGated(const float* x, const float* gates, int64_t num_rows, int64_t size, float* out) override {
    Busy().Launch(num_rows, 1, kRowThreads, 0, AddGatedKernel{x, gates, size, out});
  }

  void Conv(const ConvArgs& conv, const StateRows& rows) override {
    Busy().Launch(states_.num_segments(), ConvKernel::Ranges(conv), kStateThreads, ConvKernel::SharedBytes(conv),
                  ConvKernel{conv, Placed(rows)});
  }
  void Recurrence(const RecurrenceArgs& args, const StateRows& rows) override {
    Busy().Launch(args.num_rows, 1, kStateThreads, 0, RecurrenceFactorsKernel{args});
    Busy().Launch(states_.num_segments(), args.shape.num_heads * RecurrenceKernel::Ranges(args.shape), kStateThreads,
                  RecurrenceKernel::SharedBytes(args.shape), RecurrenceKernel{args, Placed(rows)});
  }
  void FetchStateFaults(std::span<uint8_t> faults) override { Download(faults.data(), states_.faults(), faults.size()); }
  void MultiplyRows(const StridedRows& a, const StridedRows& b, int64_t num_rows, int64_t size, bool silu, float* out,
                    int64_t out_stride) override {
    Busy().Launch(num_rows, 1, kRowThreads, 0, MultiplyRowsKernel{a, b, size, silu, out, out_stride});
  }

  void Norm(const NormArgs& args, const QuantizedRows& forms) override { LaunchNorm(Busy(), args, forms, fragments_); }

  void Rope(const RopeArgs& args) override { Busy().Launch(args.num_rows, 1, kRowThreads, 0, RopeKernel{args}); }

  void Activate(const ActivationArgs& args, const QuantizedRows& forms) override { LaunchActivation(Busy(), args, forms, fragments_); }

  void AddScaled(const float* x, int64_t count, float scale, float* out) override {
    Busy().Launch((count + kRowThreads - 1) / kRowThreads, 1, kRowThreads, 0, AddScaledKernel{x, count, scale, out});
  }
  void Scale(float* x, int64_t count, float scale) override {
    Busy().Launch((count + kRowThreads - 1) / kRowThreads, 1, kRowThreads, 0, ScaleKernel{x, count, scale});
  }
  void ScaleRows(float* x, int64_t x_stride, int64_t num_rows, int64_t size, const float* factors) override {
    Busy().Launch(num_rows, 1, kRowThreads, 0, ScaleRowsKernel{x, x_stride, size, factors});
  }
  void ClipRows(float* x, int64_t x_stride, int64_t num_rows, int64_t size, float limit) override {
    Busy().Launch(num_rows, 1, kRowThreads, 0, ClipRowsKernel{x, x_stride, size, limit});
  }
  void Gate(const GateArgs& args) override { Busy().Launch(args.num_rows, 1, kRowThreads, 0, GateKernel{args}); }
  void CopyHeads(const HeadCopy& copy) override { Busy().Launch(copy.num_rows, copy.num_heads, kRowThreads, 0, CopyHeadsKernel{copy}); }

  void KvWrite(const KvWriteArgs& args) override {
    const PlacedBatch::Kernels& batch = FindBatch(args.kv, 0, args.segments, args.num_segments, nullptr).kernels();
    KvWriteKernel kernel = {args, batch.row_segments};
    kernel.args.segments = batch.segments;
    Busy().Launch(batch.num_rows, args.kv.num_kv_heads, 32, 0, kernel);
  }

  void PagedAttention(const AttentionArgs& args) override {
    const PlacedBatch& placed = FindBatch(args.kv, args.window, args.segments, args.num_segments, args.positions);
    Attend(placed, PlanOf(placed, args));
  }
  void AttendStep(const AttentionStep& step) override {
    const AttentionArgs& args = step.attention;
    const PlacedBatch& placed = FindBatch(args.kv, args.window, args.segments, args.num_segments, args.positions);
    AttentionPlan plan = PlanOf(placed, args);
    HeadSteps heads = step.heads;
    if (WhyNormsApart(heads) != nullptr) {
      const auto launch = [&](NormArgs* norm) {
        if (norm->size > 0) Norm(*norm, {});
        norm->size = 0;
      };
      if (heads.norms_after_rope && heads.rope.rotary_dim > 0) Rope(heads.rope);
      if (heads.norms_after_rope) heads.rope.rotary_dim = 0;
      launch(&heads.query_norm);
      launch(&heads.key_norm);
    }
    plan.rows = ProjectedRows(args, step.written, heads);
    if (WhyHeadsApart(step) != nullptr) {
      Busy().Launch(
          heads.num_rows, args.num_heads + (step.written.k != nullptr ? args.kv.num_kv_heads : 0), HeadsKernel::kThreads,
          HeadsKernel::kSharedBytes,
          HeadsKernel{std::exchange(plan.rows, {}), args.kv, plan.args.segments, plan.row_segments, heads.queries, args.num_heads});
    }
    const bool ends_apart = WhyEndApart(step, !placed.plan().whole_groups.empty()) != nullptr;
    if (!ends_apart) {
      plan.gate = step.gate;
      plan.codes = step.output.quantized;
      const bool is_dense = args.out_stride == args.num_heads * args.kv.head_dim && args.kv.head_dim % kFragmentColumns == 0;
      if (is_dense) plan.halves = fragments_.Make(heads.num_rows, args.out_stride);
    }
    Attend(placed, plan);
    if (plan.halves.fragments != nullptr) fragments_.Hold({args.out, args.out_stride, heads.num_rows, args.out_stride});
    if (!ends_apart) return;
    if (step.gate.x != nullptr) Gate(step.gate);
    if (step.output.wanted()) QuantizeRows(args.out, heads.num_rows, step.output.quantized);
  }

  void SoftCap(float* x, int64_t count, float cap) override {
    Busy().Launch((count + kRowThreads - 1) / kRowThreads, 1, kRowThreads, 0, SoftCapKernel{x, count, cap});
  }

  DrawTicket Draw(const DrawBatch& batch, float* logits, int64_t vocab_size) override {
    Layout layout;
    draw_.Place(batch, batch.num_rows, &layout);
    has_draw_ = false;  // the step's
    draw_inputs_.Reserve(layout.size(), "parameters of draws", this);
    Upload(layout, draw_inputs_);
    DrawPlan plan = draw_.PlanAt(draw_inputs_.data());
    plan.laws = UploadLaws(batch, vocab_size);
    LaunchDraw(plan, logits, vocab_size);
    return FetchDrawn();
  }
  void LaunchDraw(float* logits, int64_t vocab_size) override {
    CheckInternal(has_draw_, "the step that was placed has no draw");
    LaunchDraw(draw_.PlanAt(step_.data()), logits, vocab_size);
  }
  DrawTicket EndDraw() override {
    CheckInternal(std::exchange(has_draw_, false), "the step that was placed has no draw");
    return FetchDrawn();
  }
  DrawnRows TakeDrawn(DrawTicket ticket) override {
    CheckInternal(ticket < num_draws_ && ticket + 2 >= num_draws_, "a draw whose tokens are gone");
    runtime_.WaitForMark(EndOf(ticket));
    ++counts_.num_waits;
    if (ticket > 0) counts_.idle_s += runtime_.SecondsBetween(EndOf(ticket - 1), EndOf(ticket - 1) + 1);
    const auto* tokens = static_cast<const int32_t*>(runtime_.Fetched(static_cast<int>(ticket % 2)));
    const DrawnCounts& rows = drawn_rows_[ticket % 2];
    const auto num_given = static_cast<size_t>(rows.num_given);
    return {{tokens, num_given}, {tokens + rows.num_launched, num_given}};
  }

  void TopCandidates(const TopCandidatesArgs& args) override {
    CandidatePlan plan = {args, (args.vocab_size + kVocabChunk - 1) / kVocabChunk, nullptr};
    candidate_chunks_.Reserve(CandidateBytes(args.num_rows, args.vocab_size), kDrawsName, this);
    plan.chunks = candidate_chunks_.template as<CandidateChunk>();
    Busy().Launch(plan.num_chunks, args.num_rows, kOpThreads, CandidateChunkKernel::kSharedBytes, CandidateChunkKernel{plan});
    Busy().Launch(args.num_rows, 1, kOpThreads, CandidateKernel::kSharedBytes, CandidateKernel{plan});
  }

  void KvCopySlot(const KvView& kv, const int32_t* host_block_table, int64_t from, int64_t to) override {
    const int64_t num_blocks = std::max(from, to) / kv.block_size + 1;
    const auto num_bytes = static_cast<size_t>(num_blocks * kv.pages_per_block) * sizeof(int32_t);
    slot_table_.Reserve(num_bytes, "a block table", this);
    Upload(slot_table_.data(), host_block_table, num_bytes);
    Busy().Launch(kv.num_kv_heads, 1, kRowThreads, 0, KvCopySlotKernel{kv, slot_table_.template as<int32_t>(), from, to});
  }

  ReplayStage StageOf(const void* owner, int64_t num_wanted) const override {
    if (recordings_.contains({owner, num_wanted, shape_, StepTurn()})) return ReplayStage::kPlays;
    const bool first = !warmed_up_.contains({owner, num_wanted, shape_, 0});
    return first || shape_.spans > most_spans_ ? ReplayStage::kFirst : ReplayStage::kRecords;
  }
  void Replay(const void* owner, int64_t num_wanted, const std::function<void()>& ops, ReplayStage most) override {
    const ReplayStage stage = std::min(StageOf(owner, num_wanted), most);
    warmed_up_.insert({owner, num_wanted, shape_, 0});  // takes what memory it needs, for both turns
    const RecordingKey key = {owner, num_wanted, shape_, StepTurn()};
    if (stage != ReplayStage::kPlays) {
      const Restore restore{&replayed_spans_, &recording_};
      replayed_spans_ = shape_.spans;
      if (stage == ReplayStage::kFirst) return ops();
      recording_ = true;
      fragments_.Forget();  // a replay does not find what is there now
      recordings_.erase(key);
      recordings_.emplace(key, runtime_.Record(ops));
    }
    const auto found = recordings_.find(key);
    Busy().Play(found->second);
    ++counts_.num_replays;
  }
  int turn() const override { return static_cast<int>(num_draws_ % 2); }
  const DeviceCounts& counts() const override { return counts_; }

 private:
  using Clock = std::chrono::steady_clock;

  // Ranks wait for each step's end, so one of two places is enough.
  int StepTurn() const { return gathers_ ? 0 : turn(); }

  static size_t CandidateBytes(int64_t num_rows, int64_t vocab_size) {
    return static_cast<size_t>(num_rows * ((vocab_size + kVocabChunk - 1) / kVocabChunk)) * sizeof(CandidateChunk);
  }

  // Only the launches that some row needs.
  void LaunchDraw(DrawPlan plan, float* logits, int64_t vocab_size) {
    const int64_t num_rows = draw_.num_rows();
    plan.logits = logits;
    plan.vocab_size = vocab_size;
    const DrawWork work(num_rows, vocab_size);
    plan.num_chunks = work.num_chunks;
    draw_work_.Reserve(work.layout.size(), kDrawsName, this);
    plan.lists = reinterpret_cast<uint64_t*>(draw_work_.data() + work.lists);
    plan.chunks = reinterpret_cast<LogitSummary*>(draw_work_.data() + work.chunks);
    plan.group_peaks = reinterpret_cast<float*>(draw_work_.data() + work.group_peaks);
    plan.winners = reinterpret_cast<Runner*>(draw_work_.data() + work.winners);
    plan.states = reinterpret_cast<DrawState*>(draw_work_.data() + work.states);
    draw_counts_.Reserve(static_cast<size_t>(num_rows) * sizeof(uint32_t), kDrawsName, this);
    plan.counts = draw_counts_.template as<uint32_t>();
    // Not that of the draw before, which this one may read, if it has to grow.
    drawn_[num_draws_ % 2].Reserve(DrawnBytes(num_rows), kDrawsName, this);
    plan.tokens = Drawn(num_draws_);
    plan.accepted = plan.tokens + num_rows;
    plan.tokens_before = Drawn(num_draws_ - 1);
    const auto launch = [&](const auto& kernel, int64_t grid_x, int64_t grid_y) {
      Busy().Launch(grid_x, grid_y, kDrawThreads, kernel.kSharedBytes, kernel);
    };
    launch(DrawScanKernel{plan}, plan.num_chunks, num_rows);
    if (draw_.shape().is_filtered) launch(FilterKernel{plan}, num_rows, 1);
    if (draw_.shape().needs_mass) launch(DrawMassKernel{plan}, plan.num_chunks, num_rows);
    if (draw_.shape().is_gathered) launch(DrawGatherKernel{plan}, plan.num_chunks, num_rows);
    if (draw_.shape().is_judged) launch(VerifyKernel{plan}, num_rows, 1);
  }

  // Starts the copy of the tokens that the latest launches draw.
  DrawTicket FetchDrawn() {
    const DrawTicket ticket = num_draws_++;
    drawn_rows_[ticket % 2] = {draw_.num_batch_rows(), draw_.num_rows()};
    Busy().Fetch(static_cast<int>(ticket % 2), Drawn(ticket), DrawnBytes(draw_.num_rows()));
    runtime_.Mark(EndOf(ticket));
    just_drew_ = true;
    return ticket;
  }

  // Uploads a layout to the beginning of `to`, which has room for it.
  void Upload(const Layout& layout, AlignedBuffer& to) {
    layout.Write(Busy().Stage(layout.size()));
    runtime_.UploadStaged(to.data(), layout.size());
  }

  void CheckDrawn(std::span<const int32_t> ids) const {
    const int64_t num_drawn = drawn_rows_[turn() ^ 1].num_given;
    CheckInternal(std::ranges::all_of(ids, [&](int32_t id) { return ~id < num_drawn; }), "no such draw");
  }

  // Each from its host's memory of its own.
  const float* UploadLaws(const DrawBatch& batch, int64_t vocab_size) {
    if (batch.num_laws == 0) return nullptr;
    CheckInternal(batch.num_laws <= kMostDrawLaws, "too many laws of drafts");
    const auto num_bytes = static_cast<size_t>(vocab_size) * sizeof(float);
    draw_laws_.Reserve(static_cast<size_t>(batch.num_laws) * num_bytes, kDrawsName, this);
    auto* laws = draw_laws_.template as<float>();
    for (int64_t i = 0; i < batch.num_laws; ++i) Upload(laws + i * vocab_size, batch.laws[i], num_bytes);
    return laws;
  }

  // A draw's tokens, then which of the drafted ones they are; as long as they are kept.
  static size_t DrawnBytes(int64_t num_rows) { return static_cast<size_t>(2 * num_rows) * sizeof(int32_t); }
  int32_t* Drawn(DrawTicket ticket) { return drawn_[(ticket + 2) % 2].template as<int32_t>(); }
  // The runtime's mark of a draw's end; the next one marks that the device goes on. Those of four draws are kept.
  static int EndOf(DrawTicket ticket) { return static_cast<int>(ticket % (kNumMarks / 2) * 2); }

  // The runtime, to give it work.
  Runtime& Busy() {
    if (std::exchange(just_drew_, false)) runtime_.Mark(EndOf(num_draws_ - 1) + 1);
    if (idle_since_) counts_.idle_s += std::chrono::duration<double>(Clock::now() - *idle_since_).count();
    idle_since_.reset();
    fragments_.Forget();
    return runtime_;
  }

  static constexpr const char* kPartialsName = "attention's partial sums";
  static constexpr const char* kRoundedName = "activations in 16 bits";
  static constexpr const char* kCublasName = "cuBLASLt's workspace";
  static constexpr const char* kDrawsName = "lists of draws";

  void LaunchLayers(const LinearStep& step) {
    const FragmentRoom::Held held = fragments_.held();
    typename Runtime::Launcher& launcher = Busy();
    if (step.norm == nullptr) fragments_.Hold(held);
    LaunchLinear(launcher, stream_choices_, runtime_.num_multiprocessors(), fragments_, step);
  }

  void RoundRows(HalfFormat format, const LinearArgs& args, int64_t num_cols) {
    ReserveInputs(args.num_rows * num_cols);
    Busy().Launch(args.num_rows, 1, kRowThreads, 0,
                  RoundRowsKernel{format, args.x, args.x_stride, num_cols, rounded_.template as<uint16_t>()});
  }

  // Multiplies the rows that were rounded last.
  void MultiplyPart(HalfFormat format, const LinearArgs& args, const LinearPart& part) {
    float* out = args.out + part.out_column;
    Busy().Multiply(*cublas_lt_,
                    {format, reinterpret_cast<const uint16_t*>(part.weights.data), rounded_.template as<uint16_t>(), out, args.num_rows,
                     part.weights.num_rows, part.weights.num_cols, args.out_stride, args.accumulate, cublas_workspace_.data()});
    if (part.bias != nullptr) {
      Busy().Launch(args.num_rows, 1, kRowThreads, 0, AddBiasKernel{part.bias, part.weights.num_rows, out, args.out_stride});
    }
  }
  // The parts that are cuBLASLt's.
  void MultiplyFreely(const LinearArgs& args) {
    std::optional<HalfFormat> rounded;  // x, for all parts of that format
    for (int64_t p = 0; p < args.num_parts; ++p) {
      const LinearPart& part = args.parts[p];
      if (!IsRowsPacked(part.weights.type)) continue;
      const HalfFormat format = part.weights.type == PackedType::kBF16Rows ? HalfFormat::kBF16 : HalfFormat::kF16;
      if (std::exchange(rounded, format) != format) RoundRows(format, args, part.weights.num_cols);
      MultiplyPart(format, args, part);
    }
  }

  // The rows with the segments of the step that was placed.
  StateRows Placed(StateRows rows) const {
    CheckInternal(states_.num_segments() >= rows.num_segments, "states of a step that was not placed");
    rows.segments = states_.segments();
    rows.num_segments = states_.num_segments();
    rows.faults = states_.faults();
    return rows;
  }

  static AttentionPlan PlanOf(const PlacedBatch& placed, const AttentionArgs& args) {
    const PlacedBatch::Kernels& batch = placed.kernels();
    AttentionPlan plan = {args, batch.row_segments, batch.groups, batch.begins, batch.items, batch.num_items};
    plan.args.segments = batch.segments;
    plan.args.positions = batch.positions;
    return plan;
  }

  void Attend(const PlacedBatch& placed, AttentionPlan plan) {
    const PlacedBatch::Kernels& batch = placed.kernels();
    const auto num_whole = static_cast<int64_t>(placed.plan().whole_groups.size());
    // A recording serves any groups of this number of rows.
    if (num_whole > 0) {
      const int64_t num_groups = recording_ ? PlacedBatch::MostWholeGroups(batch.num_rows) : num_whole;
      LaunchWholeGroups<typename Runtime::Launcher>(Busy(), plan, batch.whole_groups, num_groups);
    }
    const std::vector<RowGroup>& groups = placed.plan().groups;
    if (groups.empty()) return;
    const int64_t span_bytes = plan.SpanStride() * static_cast<int64_t>(sizeof(float));
    const int64_t most_spans = std::max<int64_t>(options_.most_partial_bytes / span_bytes, 1);
    most_spans_ = std::min(most_spans_, most_spans);
    // A recording may not allocate, so the unrecorded calls before it allocate the memory that it needs.
    const int64_t spans_to_come = std::min(replayed_spans_, most_spans);
    partials_.Reserve(static_cast<size_t>(spans_to_come * span_bytes), kPartialsName, this);
    span_counts_.Reserve(static_cast<size_t>(batch.num_rows * plan.args.num_heads) * sizeof(uint32_t), kPartialsName, this);
    plan.counts = span_counts_.template as<uint32_t>();
    if (recording_) return LaunchSpans(plan, span_bytes, replayed_spans_, replayed_spans_);
    for (size_t begin = 0; begin < groups.size();) {
      size_t end = begin + 1;
      while (end < groups.size() && placed.plan().NumRowSpans(groups[begin].row_begin, placed.plan().RowEnd(end)) <= most_spans) ++end;
      const int32_t row_begin = groups[begin].row_begin;
      const int64_t row_end = placed.plan().RowEnd(end - 1);
      plan.partial_begin = placed.plan().begins[static_cast<size_t>(row_begin)];
      plan.item_begin = placed.plan().group_items[begin];
      LaunchSpans(plan, span_bytes, placed.plan().group_items[end] - plan.item_begin, placed.plan().NumRowSpans(row_begin, row_end));
      begin = end;
    }
  }

  // Up to num_items items of these rows, which have num_row_spans spans.
  void LaunchSpans(AttentionPlan plan, int64_t span_bytes, int64_t num_items, int64_t num_row_spans) {
    partials_.Reserve(static_cast<size_t>(num_row_spans * span_bytes), kPartialsName, this);
    plan.partials = partials_.template as<float>();
    plan.launch_items = num_items;
    LaunchSpanKernels<typename Runtime::Launcher>(Busy(), runtime_.num_multiprocessors(), plan);
  }

  // Resets both members when Replay returns or throws.
  struct Restore {
    int64_t* replayed_spans;
    bool* recording;
    ~Restore() {
      *replayed_spans = 0;
      *recording = false;
    }
  };
  // Of the step that was placed, as far as launches depend on it.
  struct StepShape {
    int64_t num_rows = 0;
    bool gathers = false;  // wanted rows
    int64_t num_draws = 0;
    PlacedDraw::Shape draw = {};
    int64_t spans = 1;    // that are split over blocks, rounded up to a power of two
    bool shares = false;  // some groups' spans are split
    bool whole = false;   // some groups are not
    auto operator<=>(const StepShape&) const = default;
  };
  struct RecordingKey {
    const void* owner;
    int64_t num_wanted;
    StepShape shape;
    int turn;
    auto operator<=>(const RecordingKey&) const = default;
  };
  struct DrawnCounts {
    int64_t num_given;     // rows of the batch
    int64_t num_launched;  // with those that fill up the launches
  };

  // positions null: any, and any window.
  const PlacedBatch& FindBatch(const KvView& kv, int64_t window, const AttentionSegment* segments, int64_t num_segments,
                               const int32_t* positions) {
    if (const PlacedBatch& placed = placed_[kv.group]; placed.Holds(kv, window, segments, num_segments, positions)) return placed;
    return PlaceAlone(kv, window, segments, num_segments, positions);
  }
  const PlacedBatch& PlaceAlone(const KvView& kv, int64_t window, const AttentionSegment* segments, int64_t num_segments,
                                const int32_t* positions) {
    PlacedBatch& placed = placed_[kv.group];
    placed.Plan(kv, window, segments, num_segments, positions);
    const int64_t num_rows = PlacedBatch::NumRows(segments, num_segments);
    Layout layout;
    const size_t positions_at = layout.Place(positions, num_rows);
    placed.PlaceArrays(num_rows, static_cast<int64_t>(placed.plan().items.size()), &layout);
    placed.PlaceLists(&layout);
    AlignedBuffer& alone = alone_[kv.group];
    if (alone.size() < layout.size()) alone.Reserve(2 * layout.size(), "block tables", this);
    placed.Settle(alone.data(), reinterpret_cast<const int32_t*>(alone.data() + positions_at));
    Upload(layout, alone);
    return placed;
  }

  const DeviceOptions options_;
  std::optional<CublasLt> cublas_lt_;  // outlives the stream that it uses
  Runtime runtime_;
  StreamChoices stream_choices_{kStreamTable, runtime_.architecture(), forced_stream_variant};
  // They outlive the buffers, which forget them when they are freed.
  std::map<RecordingKey, typename Runtime::Recording> recordings_;
  std::set<RecordingKey> warmed_up_;
  std::optional<RankGathers<Runtime>> gathers_;  // of several ranks
  int64_t replayed_spans_ = 0;                   // while Replay carries out or records ops: those that a recording serves
  bool recording_ = false;
  int64_t most_spans_ = std::numeric_limits<int64_t>::max();  // whose partials one launch has room for
  DeviceCounts counts_;
  std::optional<Clock::time_point> idle_since_;
  DrawTicket num_draws_ = 0;
  DrawnCounts drawn_rows_[2] = {};  // of the last two draws
  AlignedBuffer drawn_[2];          // the results of these draws
  bool just_drew_ = false;
  AlignedBuffer ids_;
  AlignedBuffer partials_;
  AlignedBuffer span_counts_;  // zero between launches
  AlignedBuffer rounded_;
  FragmentRoom fragments_{options_, this};
  AlignedBuffer cublas_workspace_;
  AlignedBuffer draw_inputs_;
  AlignedBuffer draw_work_;
  AlignedBuffer draw_counts_;  // zero between launches
  AlignedBuffer draw_laws_;
  AlignedBuffer slot_table_;
  AlignedBuffer candidate_chunks_;
  AlignedBuffer step_;  // the inputs of the step that was placed last
  StepShape shape_;
  PlacedDraw draw_;                         // of that step, or of a later draw of its own
  bool has_draw_ = false;                   // it is the step's
  PlacedStates states_;                     // of the step that was placed
  std::map<int32_t, PlacedBatch> placed_;   // by KV group
  std::map<int32_t, AlignedBuffer> alone_;  // inputs of batches that were not a step's
};

}  // namespace llmi::cuda
