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
#include "kernels/draws/draw.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/quantize_rows.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/row_ops.h"
#include "kernels/ops/top_candidates.h"

namespace llmi {

// Counters of a device since it was opened.
struct DeviceCounts {
  int64_t num_replays = 0;  // recorded launches that were replayed
  int64_t num_waits = 0;    // how often the host waited for the device
  double idle_s = 0;        // time in which the device had no work, after a draw or a download, until the next launch
};

using DrawTicket = int64_t;

class Device : public MemorySource {
 public:
  virtual std::string name() const = 0;
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

  // An id below zero, ~i, is the token drawn for row i of the latest Draw, which the host does not know yet.
  virtual void Embedding(const PackedView& weights, const int32_t* host_ids, int64_t num_rows, float scale, float* out) = 0;
  virtual void QuantizeRows(const float* x, int64_t num_rows, const QuantizedRows& out) = 0;
  virtual void Linear(const LinearArgs& args) = 0;
  virtual void Norm(const NormArgs& args) = 0;
  virtual void Rope(const RopeArgs& args) = 0;
  virtual void Activate(const ActivationArgs& args) = 0;
  virtual void AddScaled(const float* x, int64_t count, float scale, float* out) = 0;
  virtual void Scale(float* x, int64_t count, float scale) = 0;
  virtual void ScaleRows(float* x, int64_t x_stride, int64_t num_rows, int64_t size, const float* factors) = 0;
  virtual void ClipRows(float* x, int64_t x_stride, int64_t num_rows, int64_t size, float limit) = 0;
  virtual void Gate(const GateArgs& args) = 0;
  // num_heads: of all rows.
  virtual void PackHeads(const float* x, int64_t num_heads, int64_t from_dim, int64_t to_dim, float* out) = 0;
  // Uploads a step's segments (with their tables and parents) and positions, which are the host's, for the ops on this KV group.
  // window: that of the group's layers (AttentionArgs). num_rows: rows of the launch, padded for graph replay; padding rows are ignored.
  // An op called without PlaceBatch places its own batch.
  virtual void PlaceBatch(const KvView& kv, int64_t window, const AttentionSegment* segments, int64_t num_segments,
                          const int32_t* positions, int64_t num_rows) = 0;
  // Runs `ops` on the placed batches. The second call with the same owner, number of rows and number of spans records them; later calls
  // replay the record. So `ops` may depend only on the memory that they name and on the number of rows, and may neither upload nor
  // download.
  virtual void Replay(const void* owner, int64_t num_rows, const std::function<void()>& ops) = 0;
  virtual const DeviceCounts& counts() const = 0;
  // The segments, with their tables and parents, and the positions are the host's.
  virtual void KvWrite(const KvWriteArgs& args) = 0;
  virtual void PagedAttention(const AttentionArgs& args) = 0;
  virtual void SoftCap(float* x, int64_t count, float cap) = 0;
  // Draws a token for each row of the batch, which is the host's, and changes logits [rows of the step, vocab_size] in place
  // (kernels/draws/draw.h). TakeDrawn waits for these tokens, but not for later work; the results of the last two draws are kept.
  virtual DrawTicket Draw(const DrawBatch& batch, float* logits, int64_t vocab_size) = 0;
  virtual DrawnRows TakeDrawn(DrawTicket ticket) = 0;
  virtual void TopCandidates(const TopCandidatesArgs& args) = 0;
  virtual void KvCopySlot(const KvView& kv, const int32_t* host_block_table, int64_t from, int64_t to) = 0;
};

struct DeviceOptions {
  // Layers of bf16 (or fp16) weights round x to bf16 (or fp16) and multiply on tensor cores, in their own order of sums
  // (half_linear_kernels.h).
  bool bf16_linear = false;
  bool f16_linear = false;
  // Path of cuBLASLt, or a name that the linker finds: layers of fp16 or bf16 weights round x likewise, and cuBLASLt multiplies, in an
  // order of sums that it chooses (cuda/cublas_lt.h). Empty: our own kernels.
  std::string cublas_lt;
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
