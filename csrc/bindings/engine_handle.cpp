#include "bindings/engine_handle.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

#include "bindings/gil.h"
#include "core/fp_env.h"
#include "core/system_limits.h"
#include "core/thread_pool.h"
#include "kernels/dispatch/tables.h"
#include "model/loader.h"

namespace py = pybind11;

namespace llmi {

SchedulingPolicy ParsePolicy(const std::string& name) {
  if (name == "fcfs") return SchedulingPolicy::kFcfs;
  if (name == "priority") return SchedulingPolicy::kPriority;
  if (name == "static") return SchedulingPolicy::kStatic;
  if (name == "prefill_first") return SchedulingPolicy::kPrefillFirst;
  if (name == "shortest_remaining") return SchedulingPolicy::kShortestRemaining;
  if (name == "longest_prefix") return SchedulingPolicy::kLongestPrefix;
  if (name == "custom") return SchedulingPolicy::kCustom;
  throw Error(ErrorKind::kInvalidArgument, "scheduling_policy '" + name + "' is unknown", "scheduling_policy");
}

std::unique_ptr<Device> OpenDevice(const std::string& name) {
  std::string kind = name;
  const auto take = [&](std::string_view suffix) {
    const bool found = kind.ends_with(suffix);
    if (found) kind.resize(kind.size() - suffix.size());
    return found;
  };
  DeviceOptions options;
  constexpr std::string_view kLibrary = "+cublaslt:";
  if (const size_t at = kind.find(kLibrary); at != std::string::npos) {
    options.cublas_lt = kind.substr(at + kLibrary.size());
    kind.resize(at);
  }
  if (take("+tight")) options.most_partial_bytes = 1 << 16;
  options.bf16_linear = take("+bf16");
  options.f16_linear = take("+fp16");
  if (kind == "cuda") return OpenCudaDevice(options);
  if (kind == "emulated") return OpenEmulatedDevice(options);
  CheckArgument(name == "cpu" || name == "cpu+bf16", "device must be cpu or cuda");
  return nullptr;
}

bool HasTwoBytes(int activation_bits) {
  CheckArgument(activation_bits == 8 || activation_bits == 16, "activation_bits must be 8 or 16");
  return activation_bits == 16;
}

namespace {

std::shared_ptr<TokenBytes> ParseTokens(const std::vector<py::bytes>& bytes, const std::map<int64_t, std::string>& special,
                                        int64_t vocab_size) {
  auto tokens = std::make_shared<TokenBytes>();
  // A model's head may be padded past the tokenizer: such ids have no text.
  tokens->bytes.resize(std::max(static_cast<size_t>(vocab_size), bytes.size()));
  tokens->special.resize(tokens->bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) tokens->bytes[i] = std::string(bytes[i]);
  for (const auto& [id, text] : special) {
    if (id >= 0 && static_cast<size_t>(id) < tokens->special.size()) tokens->special[static_cast<size_t>(id)] = text;
  }
  return tokens;
}

}  // namespace

EngineHandle::EngineHandle(const ModelFiles& files, const std::string& device, const std::string& dtype, const std::string& kv_dtype,
                           int activation_bits, const std::string& isa, int num_threads, const std::string& policy, int64_t max_num_seqs,
                           int64_t max_num_batched_tokens, bool chunked_prefill, int64_t block_size, int64_t kv_cache_memory_bytes,
                           int64_t max_model_len, double gpu_memory_utilization, bool prefix_caching, double waiting_served_ratio,
                           bool audit_each_step, const std::shared_ptr<PolicyHook>& policy_hook,
                           const std::shared_ptr<BatchHook>& batch_hook, const std::vector<int64_t>& layers, const std::string& overrides,
                           const std::atomic<bool>& dropped) {
  device_ = OpenDevice(device);
  context_.device = device_.get();
  context_.bf16_dots = device == "cpu+bf16";
  context_.wide_activations = HasTwoBytes(activation_bits);
  context_.table = &GetKernelTable(isa);
  context_.pool = &ThreadPool::Shared();
  context_.num_threads = num_threads > 0 ? num_threads : ThreadPool::DefaultNumThreads();
  config_.scheduler = {ParsePolicy(policy), max_num_seqs, max_num_batched_tokens, waiting_served_ratio, chunked_prefill};
  config_.block_size = block_size;
  config_.kv_type = ParseKvType(kv_dtype);
  config_.policy_hook = policy_hook;
  config_.batch_hook = batch_hook;
  config_.prefix_caching = prefix_caching;
  config_.audit_each_step = audit_each_step;
  config_.check_wait = &CheckSignals;
  const FloatEnvironmentGuard guard;
  model_ = LoadConfig(files, layers, overrides);
  CheckArgument(!context_.bf16_dots || (model_.hidden_size % 2 == 0 && model_.intermediate_size % 2 == 0),
                "linear_dtype = 'bf16' takes columns in pairs, and this model has an odd number");
  SizingRequest sizes = {kv_cache_memory_bytes, max_model_len, 0};
  CheckSizes(model_, sizes, config_);
  const WeightFormat format = ParseWeightFormat(dtype);
  const int64_t num_logits_rows = LogitsRowsAtOnce(model_.vocab_size, device_ != nullptr);
  const int64_t num_rows = std::max(max_num_batched_tokens, 1 + kMaxDraftNodes);
  const auto admit = [&](const std::function<WeightPlan(WeightFormat)>& plan) {
    const uint64_t free_bytes = device_ == nullptr ? AvailableMemoryBytes() : device_->free_bytes();
    const ModelNeeds needs = {plan(format), plan(WeightFormat::kQ8_0), plan(WeightFormat::kQ4_0),
                              Decoder::WorkspaceBytes(model_, num_rows, num_logits_rows, context_.wide_activations), num_rows};
    CheckModelFits(model_, sizes, config_, needs, free_bytes);
    // A device's memory is looked at again when all else has its place.
    sizes.available_bytes = device_ == nullptr ? HostCacheBytes(model_, sizes, config_, needs, free_bytes) : free_bytes;
    ResolveSizes(model_, sizes, &config_);
  };
  decoder_ = LoadDecoder(context_, files, format, layers, overrides, admit, &dropped);
  if (device_ != nullptr) {
    decoder_->Reserve(context_, num_rows, num_logits_rows);
    device_->ReserveWorkspace(num_logits_rows, model_.vocab_size);
    if (kv_cache_memory_bytes == 0) {
      const uint64_t left = DeviceCacheBytes(device_->total_bytes(), device_->free_bytes(), gpu_memory_utilization);
      ResolveSizes(model_, {0, max_model_len, left}, &config_);
    }
  }
  weight_bytes_ = decoder_->weights().num_bytes();
  weight_types_ = decoder_->weights().TypeNames();
  has_quantized_layers_ = decoder_->weights().HasQuantizedLayers();
  // The id of a model of floats names no mode, so none may enter what tokens depend on.
  context_.wide_activations = context_.wide_activations && has_quantized_layers_;
  // An embedding of its own is looked up, not read through.
  const ModelWeights& weights = decoder_->weights();
  step_weight_bytes_ = weight_bytes_ - (weights.head.num_bytes() > 0 ? weights.embedding.num_bytes() : 0);
}

void EngineHandle::Start(const std::vector<py::bytes>& bytes, const std::map<int64_t, std::string>& special) {
  engine_ = std::make_unique<Engine>(std::move(decoder_), context_, config_, ParseTokens(bytes, special, model_.vocab_size));
}

void EngineHandle::Close(double patience_s) {
  constexpr double kCheckIntervalS = 0.05;
  constexpr double kHookPatienceS = 0.5;
  if (engine_ == nullptr || abandoned_ || engine_->IsForked()) return;
  engine_->BeginClose();
  if (engine_->OnEngineThread()) return;
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    bool ended = false;
    {
      const GilReleased released;
      ended = engine_->WaitEnded(kCheckIntervalS);
    }
    if (ended) break;
    const double waited_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (waited_s > patience_s) {
      abandoned_ = true;
      return;
    }
    if (waited_s > kHookPatienceS) HookScope::Interrupt(engine_->native_thread(), nullptr);
    CheckSignals();
  }
  const GilReleased released;
  engine_->Close();
}

bool EngineHandle::InterruptHook(const std::vector<uint64_t>& request_ids) {
  if (engine_ == nullptr || engine_->IsForked() || engine_->OnEngineThread()) return false;
  return HookScope::Interrupt(engine_->native_thread(), &request_ids);
}

void EngineHandle::Delete(EngineHandle* handle) {
  if (handle->abandoned_ || (handle->engine_ != nullptr && handle->engine_->IsForked())) return;
  if (handle->engine_ != nullptr && handle->engine_->OnEngineThread()) {
    handle->engine_->BeginClose();
    std::thread([handle] { delete handle; }).detach();
  } else if (PyGILState_Check() != 0) {
    const GilReleased released;
    delete handle;
  } else {
    delete handle;
  }
}

py::dict EngineHandle::Info() const {
  py::dict dict;
  dict["max_model_len"] = config_.max_model_len;
  dict["num_pages"] = config_.num_pages;
  dict["block_size"] = config_.block_size;
  dict["weight_bytes"] = weight_bytes_;
  dict["step_weight_bytes"] = step_weight_bytes_;
  dict["weight_types"] = weight_types_;
  dict["has_quantized_layers"] = has_quantized_layers_;
  dict["table"] = context_.table->name;
  dict["device"] = device_ == nullptr ? "cpu" : device_->name();
  dict["num_threads"] = context_.num_threads;
  std::vector<int64_t> windows;
  for (const LayerConfig& layer : model_.layers) windows.push_back(layer.window);
  const KvGroups groups(windows, model_.num_kv_heads, model_.head_dim, config_.kv_type, config_.block_size);
  dict["page_bytes"] = groups.page_bytes();
  dict["kv_bytes_per_token"] = groups.BytesPerToken();
  return dict;
}

}  // namespace llmi
