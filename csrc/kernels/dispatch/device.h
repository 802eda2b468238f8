// An accelerator with memory of its own: the ops of the forward pass on it, one after the other, asynchronous to the host.
//
// Each op does what its header in kernels/ says, bit for bit what the CPU tables do; a KernelContext that has a device runs
// its ops there. Pointers of an op's arguments are the device's, but for what says so here. Arguments were checked before.
// One thread at a time. A fault of the device throws Error(kDevice) and every call after it does, too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/aligned.h"
#include "kernels/draws/draw.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/gated_activation.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/quantize_rows.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"

namespace llmi {

// What a device did since it was opened.
struct DeviceCounts {
  int64_t num_replays = 0;  // records played
  int64_t num_waits = 0;    // of the host, for something from the device
  double idle_s = 0;        // of the device: after a draw, or after a download, until it had something to do again
};

using DrawTicket = int64_t;

class Device : public MemorySource {
 public:
  virtual std::string name() const = 0;
  virtual uint64_t total_bytes() const = 0;
  virtual uint64_t free_bytes() const = 0;
  // Takes the most that attention and draws need besides what their arguments point at, so that no step allocates.
  virtual void ReserveWorkspace(int64_t num_logits_rows, int64_t vocab_size) = 0;

  // And what layers of so many values of x need besides.
  virtual void ReserveInputs(int64_t num_values) = 0;
  // Whether fp16 and bf16 matrices are to be packed as kF16Rows and kBF16Rows.
  virtual bool takes_half_rows() const = 0;
  // The form that matrices which the host packs as `type` take here.
  PackedType OwnForm(PackedType type) const {
    if (type == PackedType::kF16 && takes_half_rows()) return PackedType::kF16Rows;
    return type == PackedType::kBF16 && takes_half_rows() ? PackedType::kBF16Rows : type;
  }

  // Host to device (the host's memory may be used again at once), device to host (waits for all before), within the device.
  virtual void Upload(void* to, const void* from, size_t num_bytes) = 0;
  virtual void Download(void* to, const void* from, size_t num_bytes) = 0;
  virtual void Copy(void* to, const void* from, size_t num_bytes) = 0;

  // An id below zero is a token that the host does not know yet: ~i, of row i of the draws given last.
  virtual void Embedding(const PackedView& weights, const int32_t* host_ids, int64_t num_rows, float scale, float* out) = 0;
  virtual void QuantizeRows(const float* x, int64_t num_rows, const QuantizedRows& out) = 0;
  virtual void Linear(const LinearArgs& args) = 0;
  virtual void RmsNorm(const RmsNormArgs& args) = 0;
  virtual void Rope(const RopeArgs& args) = 0;
  virtual void GatedActivation(Activation activation, const float* gate_up, int64_t num_rows, int64_t size, float* out) = 0;
  // Brings a step's segments (with their tables and parents) and positions, all the host's, to where ops on this KV group find them.
  // window: of the group's layers (AttentionArgs). num_rows: of the launches, the segments' or more; ops leave the others alone. Ops place
  // what they do not find.
  virtual void PlaceBatch(const KvView& kv, int64_t window, const AttentionSegment* segments, int64_t num_segments,
                          const int32_t* positions, int64_t num_rows) = 0;
  // Carries out `ops` on the placed batches: at the second call of this owner with so many rows and spans in them they are recorded
  // instead, and from then on the record is played. So they may depend on the memory that they name and on the number of rows, on nothing
  // else, and may neither upload nor download.
  virtual void Replay(const void* owner, int64_t num_rows, const std::function<void()>& ops) = 0;
  virtual const DeviceCounts& counts() const = 0;
  // segments, with their tables and parents, and positions are the host's.
  virtual void KvWrite(const KvWriteArgs& args) = 0;
  virtual void PagedAttention(const AttentionArgs& args) = 0;
  virtual void SoftCap(float* x, int64_t count, float cap) = 0;
  // Changes logits [rows of the step, vocab_size] in place and draws a token (both kinds of kernels/draws/draw.h) for each row of the
  // batch, which is the host's. TakeDrawn waits for what these rows gave, for nothing that was given after them; that of the last two draws
  // is there to be taken.
  virtual DrawTicket Draw(const DrawBatch& batch, float* logits, int64_t vocab_size) = 0;
  virtual DrawnRows TakeDrawn(DrawTicket ticket) = 0;
  virtual void KvCopySlot(const KvView& kv, const int32_t* host_block_table, int64_t from, int64_t to) = 0;
};

struct DeviceOptions {
  // Layers with bf16 or fp16 weights round x to that and multiply on tensor cores, in an order of sums of their own
  // (half_linear_kernels.h).
  bool bf16_linear = false;
  bool f16_linear = false;
  // cuBLASLt, a path or a name that the linker finds: layers of fp16 or bf16 weights round x alike and are multiplied by it, in whatever
  // order of sums it chooses (cuda/cublas_lt.h). Empty: in ours.
  std::string cublas_lt;
  // Most memory that partials of attention may take at once; longer work goes in several launches.
  int64_t most_partial_bytes = int64_t{1} << 28;
};

// Empty where this build has a CUDA backend and the machine a GPU for it; else what is missing.
std::string WhyNoCuda();
// Throws Error(kDevice) with WhyNoCuda().
std::unique_ptr<Device> OpenCudaDevice(const DeviceOptions& options);
// The same ops, launches and transfers, carried out by the host: memory that host code touches by mistake faults.
std::unique_ptr<Device> OpenEmulatedDevice(const DeviceOptions& options);

}  // namespace llmi
