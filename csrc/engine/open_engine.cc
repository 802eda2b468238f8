#include "engine/open_engine.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "core/errors.h"
#include "core/fp_env.h"
#include "core/system_limits.h"
#include "core/thread_pool.h"
#include "engine/sizing.h"
#include "kernels/dispatch/tables.h"
#include "model/loader.h"
#include "model/workspace.h"
#include "speculative/hidden_log.h"

namespace llmi {
namespace {

// All fields except the sizes of the cache, which depend on the model.
EngineConfig ConfigOf(const EngineOptions& options) {
  EngineConfig config;
  config.scheduler = options.scheduler;
  config.scheduler.num_in_flight = options.num_stages;
  config.block_size = options.block_size;
  config.kv_type = options.kv_type;
  config.policy_hook = options.policy_hook;
  config.batch_hook = options.batch_hook;
  config.prefix_caching = options.prefix_caching;
  config.state_snapshot_interval = options.state_snapshot_interval;
  config.audit_each_step = options.audit_each_step;
  config.small_heads = options.small_heads;
  config.check_wait = options.check_wait;
  return config;
}

}  // namespace

KernelContext ContextOf(const EngineOptions& options, Device* device) {
  KernelContext context;
  context.device = device;
  context.bf16_dots = device == nullptr && options.linear == LinearArithmetic::kBf16;
  context.wide_activations = HasTwoBytes(options.activation_bits);
  context.table = &GetKernelTable(options.table);
  context.pool = &ThreadPool::Shared();
  context.num_threads = options.num_threads > 0 ? options.num_threads : ThreadPool::DefaultNumThreads();
  return context;
}

OpenedEngine::OpenedEngine(const ModelFiles& files, const EngineOptions& options, const std::atomic<bool>* dropped)
    : device_(OpenDevice(options)), context_(ContextOf(options, device_.get())), config_(ConfigOf(options)) {
  const FloatEnvironmentGuard guard;
  ModelSpec whole = ParseSpec(options.spec, files.path());
  model_ = whole;
  KeepLayers(options.layers, &model_);
  if (config_.state_snapshot_interval % config_.block_size != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "state_snapshot_interval = " + std::to_string(config_.state_snapshot_interval) +
                    " is no multiple of block_size = " + std::to_string(config_.block_size),
                "state_snapshot_interval");
  }
  const bool has_pairs = std::all_of(model_.layers.begin(), model_.layers.end(),
                                     [](const LayerSpec& layer) { return layer.mlp.size % 2 == 0 && layer.moe.expert.size % 2 == 0; });
  if (options.eagle.files != nullptr) {
    const ModelSpec eagle = ParseSpec(options.eagle.spec, options.eagle.files->path());
    const AttentionSpec& attention = eagle.layers[0].attention;
    config_.draft_kv = {attention.num_kv_heads, attention.padded_head_dim()};
  }
  CheckArgument(!context_.bf16_dots || has_pairs, "linear_dtype = 'bf16' takes columns in pairs, and this model has an odd number");
  Load(files, options, std::move(whole), dropped);
  Describe();
}

void OpenedEngine::Load(const ModelFiles& files, const EngineOptions& options, ModelSpec spec, const std::atomic<bool>* dropped) {
  SizingRequest sizes = {options.kv_cache_memory_bytes, options.max_model_len, 0};
  CheckSizes(model_, sizes, config_);
  const int64_t num_logits_rows = LogitsRowsAtOnce(model_.vocab_size, device_ != nullptr);
  const int64_t num_rows = StepRows(options.scheduler);
  const auto admit = [&](const std::function<WeightPlan(WeightFormat)>& plan) {
    const uint64_t free_bytes = device_ == nullptr ? AvailableMemoryBytes() : device_->free_bytes();
    const ModelNeeds needs = {plan(options.weights), plan(WeightFormat::kQ8_0), plan(WeightFormat::kQ4_0),
                              Workspace::Bytes(model_, num_rows, num_logits_rows, context_.wide_activations, device_ != nullptr), num_rows};
    CheckModelFits(model_, sizes, config_, needs, free_bytes);
    // For a device this is a first estimate: the cache is sized below, when weights and workspace are in its memory.
    sizes.available_bytes = device_ == nullptr ? HostCacheBytes(model_, sizes, config_, needs, free_bytes) : free_bytes;
    ResolveSizes(model_, sizes, &config_);
  };
  std::unique_ptr<Ranks> ranks = RanksOf(options, model_);
  if (ranks != nullptr) {
    ranks->group().set_on_wait([dropped] {
      if (dropped != nullptr && *dropped) throw Error(ErrorKind::kInterrupted, "nobody waits for this model any more");
    });
  }
  decoder_ = LoadDecoder(context_, files, std::move(spec), options.weights, options.layers, admit, dropped, std::move(ranks));
  if (options.eagle.files != nullptr) heads_.eagle = LoadEagle(context_, options.eagle, files, *decoder_);
  if (options.medusa.files != nullptr) heads_.medusa = LoadMedusa(context_, options.medusa, files, *decoder_);
  decoder_->AlwaysKeep(heads_.TargetLayers(*decoder_));
  if (device_ != nullptr) {
    decoder_->Reserve(context_, num_rows, Decoder::PaddedRows(num_logits_rows));
    device_->ReserveWorkspace(Decoder::PaddedRows(num_logits_rows), model_.vocab_size);
  }
  if (decoder_->ranks() != nullptr) info_.ranks = ExchangeFacts(*decoder_, options, device_.get());
  if (device_ != nullptr) SizeDeviceCache(options);
  if (decoder_->ranks() != nullptr) {
    for (RankFacts& facts : info_.ranks) {
      EngineConfig config = config_;
      config.draft_kv.held = &facts == info_.ranks.data();
      const auto number = static_cast<int>(&facts - info_.ranks.data());
      const RankPlan& plan = decoder_->ranks()->plan();
      const RankPlan its = plan.AtStage(number / plan.num_ranks());
      const KvGroups groups = GroupsOf(model_, config, &its, number % plan.num_ranks());
      facts.kv_bytes = static_cast<uint64_t>(groups.held_page_bytes() * config_.num_pages);
    }
    const RankStart start = {config_.num_pages, config_.max_model_len, config_.states, config_.draft_kv};
    BeginRanks(*decoder_->ranks(), start);
    decoder_->ranks()->group().set_on_wait(nullptr);
    RestartRanks(*decoder_, options, device_.get(), start);
  }
  if (device_ == nullptr) return;
  decoder_->ReservePositions(context_, config_.max_model_len);
  if (heads_.eagle != nullptr) heads_.eagle->ReservePositions(context_, config_.max_model_len);
}

// Bytes of a cache of which each rank's device has room for its part.
uint64_t OpenedEngine::FreeDeviceBytes(const EngineOptions& options) const {
  if (decoder_->ranks() == nullptr) {
    return DeviceCacheBytes(device_->total_bytes(), device_->free_bytes(), options.gpu_memory_utilization);
  }
  const auto page_bytes = static_cast<double>(GroupsOf(model_, config_).page_bytes());
  uint64_t least = UINT64_MAX;
  for (size_t rank = 0; rank < info_.ranks.size(); ++rank) {
    const KvGroups groups = GroupsOf(model_, config_, &decoder_->ranks()->plan(), static_cast<int>(rank));
    const double whole = static_cast<double>(info_.ranks[rank].free_bytes) * page_bytes / static_cast<double>(groups.held_page_bytes());
    least = std::min(least, static_cast<uint64_t>(std::min(whole, 1e18)));
  }
  return least;
}

void OpenedEngine::SizeDeviceCache(const EngineOptions& options) {
  if (options.kv_cache_memory_bytes == 0) {
    uint64_t left = FreeDeviceBytes(options);
    left -= std::min(left, HiddenLogBytes());
    ResolveSizes(model_, {0, options.max_model_len, left}, &config_);
    // The cache leaves room for the values of all positions. It may then hold fewer.
    left -= std::min(left, PositionBytes());
    ResolveSizes(model_, {0, options.max_model_len, left}, &config_);
  }
}

// Values of positions on the device, of the model and of EAGLE's layer.
uint64_t OpenedEngine::PositionBytes() const {
  const int64_t eagle = heads_.eagle == nullptr ? 0 : PositionValues::FloatsPerRow(heads_.eagle->spec());
  return FloatBytes(config_.max_model_len * (PositionValues::FloatsPerRow(model_) + eagle));
}

// What trained heads keep of the hidden states of the sequences.
uint64_t OpenedEngine::HiddenLogBytes() const {
  const int64_t num_rows = HiddenLog::PlannedRows(config_.scheduler.max_num_seqs);
  return heads_.TargetLayers(*decoder_).size() * FloatBytes(num_rows * model_.hidden_size);
}

void OpenedEngine::Describe() {
  const ModelWeights& weights = decoder_->weights();
  info_.max_model_len = config_.max_model_len;
  info_.num_pages = config_.num_pages;
  info_.block_size = config_.block_size;
  info_.weight_bytes = weights.num_bytes();
  info_.step_weight_bytes = weights.num_step_bytes();
  for (size_t rank = 1; rank < info_.ranks.size(); ++rank) {
    info_.weight_bytes += info_.ranks[rank].weight_bytes;
    info_.step_weight_bytes += info_.ranks[rank].step_weight_bytes;
  }
  info_.draft_weight_bytes = heads_.num_bytes();
  info_.weight_types = weights.TypeNames();
  info_.unpacked = weights.Unpacked();
  info_.has_quantized_layers = weights.HasQuantizedLayers();
  // The numerics id of a model without quantised layers does not name the bits of activations, so nothing may depend on them.
  context_.wide_activations = context_.wide_activations && info_.has_quantized_layers;
  info_.table = context_.table->name;
  info_.device = device_ == nullptr ? "cpu" : device_->name();
  info_.num_threads = context_.num_threads;
  const KvGroups groups = GroupsOf(model_, config_);
  info_.page_bytes = groups.page_bytes();
  info_.state_bytes = config_.states.slot_bytes;
  info_.num_state_slots = config_.states.num_slots;
  info_.state_pool_bytes = static_cast<int64_t>(config_.states.num_bytes());
  info_.kv_bytes_per_token = groups.BytesPerToken();
  info_.kv_wasted_share = groups.WastedShare();
  info_.draft_kv_bytes = groups.DraftBytes(groups.block_size()) * (config_.num_pages / groups.pages_per_block());
}

void OpenedEngine::Start(TokenBytes tokens, SavedPrefixOptions saved_prefixes) {
  if (!saved_prefixes.directory.empty() && model_.has_states()) {
    throw Error(
        ErrorKind::kUnsupportedModel,
        saved_prefixes.option() + " is for models whose layers keep K and V alone so far: this one has layers with states; leave it out",
        saved_prefixes.option());
  }
  config_.saved_prefixes = std::move(saved_prefixes);
  // A model's head may be padded beyond the tokenizer's ids.
  const size_t size = std::max(static_cast<size_t>(model_.vocab_size), tokens.bytes.size());
  tokens.bytes.resize(size);
  tokens.special.resize(size);
  engine_ = std::make_unique<Engine>(std::move(decoder_), std::move(heads_), context_, config_,
                                     std::make_shared<const TokenBytes>(std::move(tokens)));
}

std::unique_ptr<OpenedEngine> OpenEngine(const ModelFiles& files, const EngineOptions& options, const std::atomic<bool>* dropped) {
  return std::make_unique<OpenedEngine>(files, options, dropped);
}

}  // namespace llmi
