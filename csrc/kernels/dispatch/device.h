// An accelerator with memory of its own: the ops of the forward pass on it, one after the other, asynchronous to the host.
// Each op computes what its header in kernels/ops says, with the same bits as the CPU tables; a KernelContext that has a device runs its
// ops on it. Pointers in an op's arguments point into the device's memory unless a comment here says that they are the host's. The op's
// own .cc has checked the arguments. One thread at a time may call. A fault of the device throws Error(kDevice), and so does every later
// call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/aligned.h"
#include "core/rank_group.h"
#include "kernels/draws/draw.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/attention_step.h"
#include "kernels/ops/conv.h"
#include "kernels/ops/experts.h"
#include "kernels/ops/linear_step.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/quantize_rows.h"
#include "kernels/ops/recurrence.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/route.h"
#include "kernels/ops/row_ops.h"
#include "kernels/ops/state.h"
#include "kernels/ops/top_candidates.h"

namespace llmi {

// Counters of a device since it was opened.
struct DeviceCounts {
  int64_t num_replays = 0;  // recorded launches that were replayed
  int64_t num_waits = 0;    // how often the host waited for the device
  double idle_s = 0;        // time in which the device had no work, after a draw or a download, until the next launch
};

using DrawTicket = int64_t;

// A step's rows in one KV group; all pointers are the host's.
struct StepBatch {
  KvView kv;       // of one of the group's layers
  int64_t window;  // of its layers (AttentionArgs)
  std::span<const AttentionSegment> segments;
};

// What the ops of a step read from the host. Rows behind those of the segments fill up a launch, and so do rows behind those of the draw:
// the ops compute them like others, nothing reads what they give.
struct StepInputs {
  std::span<const int32_t> token_ids;     // [num_rows]; an id below zero, ~i, is the token of row i of the latest draw
  std::span<const int32_t> positions;     // [num_rows]
  std::span<const int32_t> position_ids;  // [num_rows]: rows of an embedding of positions; empty: there is none
  std::span<const int32_t> wanted_rows;   // to be gathered; empty: none are
  std::span<const StepBatch> batches;     // one for each KV group
  std::span<const StateSegment> states;   // of all sequences, if layers have states
  const DrawBatch* draw = nullptr;        // without laws; null: the step does not draw
  int64_t num_draw_rows = 0;              // of its launches
  bool may_replay = false;
};

// Where they are on the device.
struct StepPlaces {
  const int32_t* token_ids;
  const int32_t* positions;
  const int32_t* position_ids;
  const int32_t* wanted_rows;
};

// A column of a table by position (Device::ReadTable): of a part with `size` columns, of which the first is `begin`.
struct TableColumn {
  int32_t begin;
  int32_t size;
};

// How far a device is with the recording of a step of some shape.
enum class ReplayStage : uint8_t { kFirst, kRecords, kPlays };

class Device : public MemorySource {
 public:
  virtual std::string name() const = 0;
  // Asks the device's matrix instruction what the promise needs of it (kernels/cuda/matrix_probe.h). Empty, or what it does wrong.
  virtual std::string WhyNoTensorCores() = 0;
  virtual uint64_t total_bytes() const = 0;
  virtual uint64_t free_bytes() const = 0;
  // Allocates the most workspace that attention and draws may need, so that no step allocates.
  virtual void ReserveWorkspace(int64_t num_logits_rows, int64_t vocab_size) = 0;

  // Allocates the workspace of linear layers whose x has up to num_values values.
  virtual void ReserveInputs(int64_t num_values) = 0;
  // Whether fp16 and bf16 matrices are to be packed as kF16Rows and kBF16Rows.
  virtual bool takes_half_rows() const = 0;
  // The type in which this device stores a matrix that the CPU would store as `type`.
  PackedType OwnForm(PackedType type) const {
    if (type == PackedType::kF16 && takes_half_rows()) return PackedType::kF16Rows;
    return type == PackedType::kBF16 && takes_half_rows() ? PackedType::kBF16Rows : type;
  }

  // Upload: host to device; `from` may be reused at once. Download: device to host; waits for all earlier work. Copy: within the device.
  virtual void Upload(void* to, const void* from, size_t num_bytes) = 0;
  virtual void Download(void* to, const void* from, size_t num_bytes) = 0;
  virtual void Copy(void* to, const void* from, size_t num_bytes) = 0;
  // num_rows rows of row_bytes bytes, so far apart, within the device.
  virtual void CopyRows(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t row_bytes, int64_t num_rows) = 0;

  // This device becomes one of several ranks'. All of them call it, once they have loaded; and again with a new group.
  virtual void JoinRanks(std::shared_ptr<RankGroup> group) = 0;
  // RankGroup::Gather of a buffer on the device, among its other ops. FinishGathers waits for these, and throws what has ended one.
  virtual void Gather(void* buffer, std::span<const RankGroup::Block> blocks, bool to_first) = 0;
  virtual void FinishGathers() = 0;

  // Uploads all that a step reads from the host, in one copy. The places are valid until the next call.
  virtual StepPlaces PlaceStep(const StepInputs& inputs) = 0;
  // Carries out the step's ops, up to its draw; num_wanted: the rows that its last ops have. The second call with the same
  // owner and shape records them, and later calls play the record. The shape is the numbers of rows (of the step, wanted and drawn), the
  // number of spans and the capacity of the draw's lists, both rounded up to powers of two, which kernels the draw needs, and `turn`. So
  // `ops` may depend on these alone, and on the device's memory: they may neither upload nor download, and read of the host's arrays only
  // what PlaceStep has placed. Of several ranks the draw is no part of it, and the call does what the least advanced one can: none goes
  // further than `most`.
  virtual void Replay(const void* owner, int64_t num_wanted, const std::function<void()>& ops, ReplayStage most = ReplayStage::kPlays) = 0;
  // How far this device could go in that call.
  virtual ReplayStage StageOf(const void* owner, int64_t num_wanted) const = 0;
  // 0 and 1 in turn, from one draw to the next: which of two places is written while results of the draw before may still be read.
  virtual int turn() const = 0;

  // Uploads ids for an op outside a step; valid until the next call.
  virtual const int32_t* PlaceIds(const int32_t* host_ids, int64_t count) = 0;
  // ids: as StepInputs::token_ids, on the device.
  virtual void Embedding(const PackedView& weights, const int32_t* ids, int64_t num_rows, float scale, float* out) = 0;
  // For each row the table's values at its position. table [positions, width], columns [width]; out: part after part [num_rows, size].
  virtual void ReadTable(const float* table, const TableColumn* columns, int64_t width, const int32_t* positions, int64_t num_rows,
                         float* out) = 0;
  // out[i] = x[rows[i]], of `size` values.
  virtual void GatherRows(const float* x, int64_t size, const int32_t* rows, int64_t num_rows, float* out) = 0;
  virtual void QuantizeRows(const float* x, int64_t num_rows, const QuantizedRows& out) = 0;
  virtual void Linear(const LinearStep& step) = 0;
  // The steps of experts. x and to_x null: no fp32 rows; codes null: no quantised ones.
  virtual void Route(const RouteArgs& args) = 0;
  virtual void SortPairs(const ExpertPairs& pairs) = 0;
  virtual void GatherPairs(const ExpertPairs& pairs, const float* from_x, const QuantizedRows& from, int64_t num_cols, float* to_x,
                           const QuantizedRows& to) = 0;
  virtual void ExpertLinear(const ExpertPairs& pairs, const LinearArgs& args) = 0;
  virtual void MixPairs(const ExpertPairs& pairs, const float* weights, const float* values, int64_t size, float* out) = 0;
  virtual void AddGated(const float* x, const float* gates, int64_t num_rows, int64_t size, float* out) = 0;
  // Ops that advance states. The segments are the host's, those of the step that was placed.
  virtual void Conv(const ConvArgs& conv, const StateRows& rows) = 0;
  virtual void Recurrence(const RecurrenceArgs& args, const StateRows& rows) = 0;
  // Waits for the step and fetches which of its segments have a state that is not finite.
  virtual void FetchStateFaults(std::span<uint8_t> faults) = 0;
  // out = a * b, or silu(a) * b.
  virtual void MultiplyRows(const StridedRows& a, const StridedRows& b, int64_t num_rows, int64_t size, bool silu, float* out,
                            int64_t out_stride) = 0;
  // forms: of out; codes null: not wanted. So in Activate.
  virtual void Norm(const NormArgs& args, const QuantizedRows& forms) = 0;
  virtual void Rope(const RopeArgs& args) = 0;
  virtual void Activate(const ActivationArgs& args, const QuantizedRows& forms) = 0;
  virtual void AddScaled(const float* x, int64_t count, float scale, float* out) = 0;
  virtual void Scale(float* x, int64_t count, float scale) = 0;
  virtual void ScaleRows(float* x, int64_t x_stride, int64_t num_rows, int64_t size, const float* factors) = 0;
  virtual void ClipRows(float* x, int64_t x_stride, int64_t num_rows, int64_t size, float limit) = 0;
  virtual void Gate(const GateArgs& args) = 0;
  virtual void CopyHeads(const HeadCopy& copy) = 0;
  virtual const DeviceCounts& counts() const = 0;
  // The segments, with their tables and parents, and the positions are the host's: those of the step that was placed, or others, which the
  // op uploads.
  virtual void KvWrite(const KvWriteArgs& args) = 0;
  virtual void PagedAttention(const AttentionArgs& args) = 0;
  virtual void AttendStep(const AttentionStep& step) = 0;
  virtual void SoftCap(float* x, int64_t count, float cap) = 0;
  // Draws a token for each row of the batch, which is the host's, and changes logits [rows of the step, vocab_size] in place
  // (kernels/draws/draw.h). TakeDrawn waits for these tokens, but not for later work; the results of the last two draws are kept.
  virtual DrawTicket Draw(const DrawBatch& batch, float* logits, int64_t vocab_size) = 0;
  // The same for the step's own draw (StepInputs::draw), in two parts: its launches, which may be recorded, and the copy of its tokens.
  virtual void LaunchDraw(float* logits, int64_t vocab_size) = 0;
  virtual DrawTicket EndDraw() = 0;
  virtual DrawnRows TakeDrawn(DrawTicket ticket) = 0;
  virtual void TopCandidates(const TopCandidatesArgs& args) = 0;
  virtual void KvCopySlot(const KvView& kv, const int32_t* host_block_table, int64_t from, int64_t to) = 0;
};

struct DeviceOptions {
  // Layers of bf16 (or fp16) weights round x to bf16 (or fp16) and multiply on tensor cores, in their own order of sums
  // (stream_half_kernel.h).
  bool bf16_linear = false;
  bool f16_linear = false;
  // Path of cuBLASLt, or a name that the linker finds: layers of fp16 or bf16 weights round x likewise, and cuBLASLt multiplies, in an
  // order of sums that it chooses (cuda/cublas_lt.h). Empty: our own kernels.
  std::string cublas_lt;
  // Path of NCCL, or a name that the linker finds: several ranks' devices gather by it. Empty: by the host.
  std::string nccl;
  int ordinal = 0;  // of the GPU, among those that are visible
  // Most memory for partials of attention at once; longer work is split into several launches.
  int64_t most_partial_bytes = int64_t{1} << 28;
};

// Empty if this build has a CUDA backend and the machine a GPU for it; else what is missing.
std::string WhyNoCuda();
// Throws Error(kDevice) with WhyNoCuda().
std::unique_ptr<Device> OpenCudaDevice(const DeviceOptions& options);
// The same ops, launches and transfers, emulated on the host. Host code that touches the device's memory by mistake faults.
std::unique_ptr<Device> OpenEmulatedDevice(const DeviceOptions& options);

}  // namespace llmi
