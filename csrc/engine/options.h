// The options of an engine: one field for each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/rank_group.h"
#include "engine/engine.h"
#include "kernels/dispatch/device.h"
#include "model/eagle.h"
#include "model/medusa.h"
#include "model/pack.h"
#include "scheduler/scheduler.h"

namespace llmi {

enum class DeviceKind : uint8_t {
  kCpu,
  kCuda,
  kEmulated,  // the host runs CUDA's kernels; in builds with LLMI_TESTING alone
};

// How layers of bf16 and fp16 weights treat their input. Layers of other weights ignore it.
enum class LinearArithmetic : uint8_t {
  kF32,   // they read it as fp32
  kBf16,  // layers of bf16 weights round it to bf16: pairs of products on the CPU, tensor cores on a GPU
  kF16,   // layers of fp16 weights round it to fp16, on a GPU's tensor cores alone
};

struct EngineOptions {
  DeviceKind device = DeviceKind::kCpu;
  LinearArithmetic linear = LinearArithmetic::kF32;
  // cuBLASLt, a path or a name that the linker finds: on a GPU it multiplies layers of bf16 and fp16 weights instead of llmi's kernels,
  // whatever `linear` says, in an order of sums of its own. Empty: llmi's kernels.
  std::string cublas_lt;
  std::string nccl;  // likewise: gathers of several ranks on GPUs; empty: the host's shared memory
  WeightFormat weights = WeightFormat::kAsStored;
  int activation_bits = 16;  // of what quantised layers read: 8 or 16
  KvType kv_type = KvType::kF16;
  std::string table;    // name of the CPU's kernel table; empty: $LLMI_ISA, or the best of the machine
  int num_threads = 0;  // 0: ThreadPool::DefaultNumThreads()

  SchedulerConfig scheduler;
  std::shared_ptr<PolicyHook> policy_hook;  // orders waiting requests under SchedulingPolicy::kCustom
  std::shared_ptr<BatchHook> batch_hook;    // engine-wide logits processors; may be null
  std::function<void()> check_wait;         // see EngineConfig; may be empty

  int64_t block_size = 16;              // tokens in a block of the KV cache
  int64_t kv_cache_memory_bytes = 0;    // 0: half of the host's free memory, or what gpu_memory_utilization leaves
  int64_t max_model_len = 0;            // 0: the model's limit, or what the cache holds
  double gpu_memory_utilization = 0.9;  // share of a GPU's memory that may be in use, weights and other programs included
  bool prefix_caching = true;
  int64_t state_snapshot_interval = 0;  // tokens between the prefix cache's snapshots of states; 0: at the end of a prompt alone
  bool audit_each_step = false;
  bool small_heads = true;

  std::vector<int64_t> layers;  // only these layers of the model, ascending; empty: all
  std::string spec;             // the model's, as JSON (model/spec.h)

  std::shared_ptr<RankGroup> ranks;  // several processes compute the model, of which this is one; null: this one alone does
  // Starts the others again, in a new group; empty: when one of them dies the engine ends, too.
  std::function<std::shared_ptr<RankGroup>(const std::string& reason)> restart_ranks;
  std::vector<double> tensor_split;  // their shares; empty: equal ones
  int stage = 0;                     // of a pipeline of num_stages, of which `ranks` are one; each stage is linked to the next
  int num_stages = 1;
  std::string identity;  // of version, files and arithmetic, which must be those of all ranks

  EagleFile eagle;    // a layer that drafts for the model; files null: none
  MedusaFile medusa;  // heads that draft for the model; files null: none
};

// Calls visit(name, field) for each option that has a plain value. Names are those of LLM's arguments, where LLM has such an argument.
template <typename Options, typename Visit>
void VisitOptions(Options& options, const Visit& visit) {
  visit("device", options.device);
  visit("linear_dtype", options.linear);
  visit("cublas_lt", options.cublas_lt);
  visit("nccl", options.nccl);
  visit("dtype", options.weights);
  visit("activation_bits", options.activation_bits);
  visit("kv_cache_dtype", options.kv_type);
  visit("table", options.table);
  visit("num_threads", options.num_threads);
  visit("scheduling_policy", options.scheduler.policy);
  visit("policy_hook", options.policy_hook);
  visit("max_num_seqs", options.scheduler.max_num_seqs);
  visit("max_num_batched_tokens", options.scheduler.max_num_batched_tokens);
  visit("waiting_served_ratio", options.scheduler.waiting_served_ratio);
  visit("enable_chunked_prefill", options.scheduler.chunked_prefill);
  visit("batch_hook", options.batch_hook);
  visit("block_size", options.block_size);
  visit("kv_cache_memory_bytes", options.kv_cache_memory_bytes);
  visit("max_model_len", options.max_model_len);
  visit("gpu_memory_utilization", options.gpu_memory_utilization);
  visit("enable_prefix_caching", options.prefix_caching);
  visit("state_snapshot_interval", options.state_snapshot_interval);
  visit("audit_each_step", options.audit_each_step);
  visit("small_heads", options.small_heads);
  visit("layers", options.layers);
  visit("spec", options.spec);
  visit("ranks", options.ranks);
  visit("restart_ranks", options.restart_ranks);
  visit("tensor_split", options.tensor_split);
  visit("stage", options.stage);
  visit("pipeline_parallel_size", options.num_stages);
  visit("identity", options.identity);
  visit("eagle_files", options.eagle.files);
  visit("eagle_spec", options.eagle.spec);
  visit("eagle_shortlist", options.eagle.shortlist);
  visit("eagle_taps", options.eagle.form.taps);
  visit("eagle_norm_output", options.eagle.form.norm_output);
  visit("eagle_tap_norms", options.eagle.tap_norms);
  visit("eagle_head", options.eagle.head);
  visit("eagle_embedding_norm", options.eagle.embedding_norm);
  visit("eagle_stream_norm", options.eagle.stream_norm);
  visit("eagle_inert", options.eagle.inert);
  visit("medusa_files", options.medusa.files);
  visit("medusa_blocks", options.medusa.blocks);
  visit("medusa_vocabularies", options.medusa.vocabularies);
  visit("medusa_shortlist", options.medusa.shortlist);
  visit("medusa_inert", options.medusa.inert);
}

// The choice of this name. Each throws Error(kInvalidArgument) for an unknown name.
SchedulingPolicy ParsePolicy(const std::string& name);
DeviceKind ParseDeviceKind(const std::string& name);              // cpu, cuda, emulated
LinearArithmetic ParseLinearArithmetic(const std::string& name);  // auto, float32, bf16, fp16

// Whether codes of activations have two bytes: true for 16 bits, false for 8. Throws Error(kInvalidArgument) for other numbers.
bool HasTwoBytes(int activation_bits);

// Null for the CPU. Throws Error(kDevice) if the machine or the build lacks the device, Error(kInvalidArgument) for arithmetic that the
// CPU lacks.
std::unique_ptr<Device> OpenDevice(const EngineOptions& options);

}  // namespace llmi
