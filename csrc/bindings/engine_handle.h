// The engine with what it was built from, as the bindings hold it.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/sizing.h"
#include "io/model_files.h"
#include "kernels/dispatch/device.h"

namespace llmi {

// Throws Error(kInvalidArgument) for an unknown name.
SchedulingPolicy ParsePolicy(const std::string& name);

// "cuda" or "emulated", with "+bf16" after it where bf16 layers run on tensor cores, then "+tight" where attention's partials get little
// memory, for tests. Null for "cpu", and "cpu+bf16" where bf16 layers take pairs of bf16; throws Error(kDevice) where there is none such.
std::unique_ptr<Device> OpenDevice(const std::string& name);

// Whether activations of quantised layers have two bytes: 16 bits, not 8. Throws Error(kInvalidArgument) for other numbers.
bool HasTwoBytes(int activation_bits);

class EngineHandle {
 public:
  // device: as for OpenDevice. dropped: another thread sets it when nobody wants the model any more; loading then ends between two
  // matrices.
  EngineHandle(const ModelFiles& files, const std::string& device, const std::string& dtype, const std::string& kv_dtype,
               int activation_bits, const std::string& isa, int num_threads, const std::string& policy, int64_t max_num_seqs,
               int64_t max_num_batched_tokens, bool chunked_prefill, int64_t block_size, int64_t kv_cache_memory_bytes,
               int64_t max_model_len, double gpu_memory_utilization, bool prefix_caching, double waiting_served_ratio, bool audit_each_step,
               const std::shared_ptr<PolicyHook>& policy_hook, const std::shared_ptr<BatchHook>& batch_hook,
               const std::vector<int64_t>& layers, const std::string& overrides, const std::atomic<bool>& dropped);
  // The tokenizer's bytes are known: the engine thread starts.
  void Start(const std::vector<pybind11::bytes>& bytes, const std::map<int64_t, std::string>& special);
  Engine& engine() {
    if (!engine_) throw Error(ErrorKind::kClosed, "the engine is closed");
    return *engine_;
  }
  // Ends the engine, with the GIL held: waits for its thread, and after half a second raises KeyboardInterrupt in a hook that still runs.
  // Throws what a signal handler raises meanwhile; the engine then ends by itself. patience_s: how long to wait at most, for the end of
  // the program; an engine whose hook does not return is left alone then.
  void Close(double patience_s);
  // Raises KeyboardInterrupt in the hook of these requests that is running, if one is. Call with the GIL held.
  bool InterruptHook(const std::vector<uint64_t>& request_ids);
  // Deletes `handle`, with or without the GIL; on the engine's own thread, which may drop the last reference with a hook, another thread
  // does it. The child of a fork leaves it as it is: the locks in it may be held for ever.
  static void Delete(EngineHandle* handle);
  pybind11::dict Info() const;
  int64_t vocab_size() const { return model_.vocab_size; }
  int64_t num_heads() const { return model_.num_heads; }

 private:
  std::unique_ptr<Device> device_;  // outlives all that lies in its memory
  KernelContext context_;
  EngineConfig config_;
  ModelConfig model_;
  uint64_t weight_bytes_ = 0;
  uint64_t step_weight_bytes_ = 0;  // that one step reads
  std::string weight_types_;
  bool has_quantized_layers_ = false;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Engine> engine_;
  bool abandoned_ = false;  // its thread was still in a hook at the end of the program
};

struct EngineHandleDeleter {
  void operator()(EngineHandle* handle) const { EngineHandle::Delete(handle); }
};

}  // namespace llmi
