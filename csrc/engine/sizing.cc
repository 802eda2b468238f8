#include "engine/sizing.h"

#include <algorithm>
#include <string>

#include "core/errors.h"
#include "model/kv_layers.h"
#include "model/mixer.h"
#include "speculative/draft.h"

namespace llmi {
namespace {

std::string Grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (int64_t place = static_cast<int64_t>(text.size()) - 3; place > 0; place -= 3) text.insert(static_cast<size_t>(place), 1, ',');
  return text;
}

std::string Megabytes(uint64_t bytes) { return Grouped(static_cast<int64_t>(bytes / 1000000)) + " MB"; }

std::string StateText(int64_t state_bytes) {
  return state_bytes == 0 ? "" : ", and " + Megabytes(static_cast<uint64_t>(state_bytes)) + " of states";
}

// Length of the sequence that must fit: max_model_len, or one block if it is not given.
int64_t OneSequenceLength(const ModelSpec& model, const SizingRequest& request, const EngineConfig& config) {
  return request.max_model_len > 0 ? request.max_model_len : std::min(config.block_size, model.max_position);
}

uint64_t OneSequenceBytes(const ModelSpec& model, const SizingRequest& request, const EngineConfig& config) {
  const KvGroups groups = GroupsOf(model, config);
  const int64_t pages = groups.MaxPages(OneSequenceLength(model, request, config), config.block_size);
  return static_cast<uint64_t>(pages) * static_cast<uint64_t>(groups.page_bytes()) + StatesFor(model, 1).num_bytes();
}

// States take at most half of the cache's bytes, unless one sequence needs more.
StateSizes StatesWithin(const ModelSpec& model, int64_t max_num_seqs, int64_t bytes) {
  int64_t low = 1;
  int64_t high = max_num_seqs;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (StatesFor(model, middle).num_bytes() <= static_cast<uint64_t>(bytes / 2)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return StatesFor(model, low);
}

}  // namespace

int64_t StepRows(const SchedulerConfig& scheduler) { return std::max(scheduler.max_num_batched_tokens, 1 + kMaxDraftNodes); }

KvGroups GroupsOf(const ModelSpec& model, const EngineConfig& config, const RankPlan* plan, int rank) {
  return {KvLayersOf(model, plan, rank), config.kv_type, config.block_size, config.draft_kv};
}

// A sequence writes one version while it or the prefix cache holds another; one that is driven by hand, or forked, holds a few. Each
// drafting sequence writes two chunks of inputs; the largest draft takes kMaxDraftNodes of them, whatever else it keeps.
StateSizes StatesFor(const ModelSpec& model, int64_t num_sequences) {
  StateSizes sizes = StateLayout(model).sizes();
  if (!model.has_states()) return sizes;
  sizes.num_slots = 2 * num_sequences + 4;
  sizes.num_chunks = 2 * num_sequences + (kMaxDraftNodes + kKeptInputs) / kLogRows + 2;
  return sizes;
}

StateSizes RankStates(const StateSizes& own, const StateSizes& whole) {
  if (whole.num_slots == 0) return {};
  constexpr int64_t kLeastBytes = 64;  // of a rank without heads
  return {std::max(own.slot_bytes, kLeastBytes), std::max(own.log_row_bytes, kLeastBytes), whole.num_slots, whole.num_chunks};
}

uint64_t DeviceCacheBytes(uint64_t total_bytes, uint64_t free_bytes, double utilization) {
  const auto allowed = static_cast<uint64_t>(static_cast<double>(total_bytes) * utilization);
  const uint64_t taken = total_bytes - free_bytes;
  if (taken < allowed) return allowed - taken;
  throw Error::OutOfMemory("gpu_memory_utilization = " + std::to_string(utilization) + " allows " + Megabytes(allowed) +
                               " of the device's " + Megabytes(total_bytes) + ", and " + Megabytes(taken) +
                               " are taken, weights and workspaces included: nothing is left for the KV cache; raise it, or lower "
                               "max_num_batched_tokens",
                           taken, allowed);
}

void CheckSizes(const ModelSpec& model, const SizingRequest& request, const EngineConfig& config) {
  if (config.scheduler.max_num_seqs < 1) throw Error(ErrorKind::kInvalidArgument, "max_num_seqs must be 1 or more", "max_num_seqs");
  if (config.scheduler.max_num_batched_tokens < 1) {
    throw Error(ErrorKind::kInvalidArgument, "max_num_batched_tokens must be 1 or more", "max_num_batched_tokens");
  }
  if (request.max_model_len > model.max_position) {
    throw Error(ErrorKind::kInvalidArgument,
                "max_model_len = " + Grouped(request.max_model_len) + " exceeds the model's " + Grouped(model.max_position),
                "max_model_len");
  }
}

uint64_t HostCacheBytes(const ModelSpec& model, const SizingRequest& request, const EngineConfig& config, const ModelNeeds& needs,
                        uint64_t free_bytes) {
  const uint64_t left = free_bytes - std::min(free_bytes, needs.weights.num_bytes() + needs.workspace_bytes);
  return std::min(left, std::max(free_bytes / 2, request.max_model_len > 0 ? OneSequenceBytes(model, request, config) : 0));
}

void CheckModelFits(const ModelSpec& model, const SizingRequest& request, const EngineConfig& config, const ModelNeeds& needs,
                    uint64_t free_bytes) {
  const bool asked = request.kv_cache_memory_bytes > 0;
  const uint64_t cache = asked ? static_cast<uint64_t>(request.kv_cache_memory_bytes) : OneSequenceBytes(model, request, config);
  const uint64_t weights = needs.weights.num_bytes();
  const uint64_t needed = weights + needs.workspace_bytes + cache;
  if (needed <= free_bytes) return;
  std::string types;
  for (const auto& [type, bytes] : needs.weights.bytes_by_type) types += (types.empty() ? "" : ", ") + type + " " + Megabytes(bytes);
  const int64_t length = OneSequenceLength(model, request, config);
  std::string advice;
  const auto advise = [&](const std::string& text) { advice += (advice.empty() ? "" : ", or ") + text; };
  const uint64_t rest = needs.workspace_bytes + cache;
  for (const auto& [name, plan] : {std::pair("q8_0", &needs.at_q8_0), std::pair("q4_0", &needs.at_q4_0)}) {
    const uint64_t smaller = plan->num_bytes();
    if (smaller == 0 || smaller >= weights || smaller + rest > free_bytes) continue;
    advise(std::string("quantization='") + name + "' (" + Megabytes(smaller) + " of weights)");
    break;
  }
  if (advice.empty() && weights + needs.workspace_bytes > free_bytes) advise("take a smaller model, or a file with fewer bits a weight");
  if (asked) advise("lower kv_cache_memory_bytes");
  if (!asked && request.max_model_len > 0) advise("lower max_model_len, or kv_cache_dtype='int8'");
  if (needs.workspace_bytes > needed / 8) advise("lower max_num_batched_tokens");
  std::string text = "the model needs ";
  text += Megabytes(needed) + ", " + Megabytes(free_bytes) + " are free: weights " + Megabytes(weights) + " (" + types + ") + KV cache ";
  text += Megabytes(cache) + " (";
  text += asked ? "kv_cache_memory_bytes" : std::string("one sequence of ").append(Grouped(length)).append(" tokens");
  if (!asked) text += StateText(static_cast<int64_t>(StatesFor(model, 1).num_bytes()));
  text +=
      ") + workspace " + Megabytes(needs.workspace_bytes) + " (steps of " + Grouped(needs.workspace_rows) + " tokens). To make it fit: ";
  throw Error::OutOfMemory(text + advice, needed, free_bytes);
}

void ResolveSizes(const ModelSpec& model, const SizingRequest& request, EngineConfig* config) {
  CheckSizes(model, request, *config);
  const KvGroups groups = GroupsOf(model, *config);
  const int64_t wanted_len = request.max_model_len > 0 ? request.max_model_len : model.max_position;
  int64_t bytes = request.kv_cache_memory_bytes;
  if (bytes == 0) {
    bytes = static_cast<int64_t>(request.available_bytes);
    const int64_t useful = groups.MaxPages(wanted_len, config->scheduler.max_num_batched_tokens);
    if (useful < INT64_MAX / groups.page_bytes() / config->scheduler.max_num_seqs) {
      const auto states = static_cast<int64_t>(StatesFor(model, config->scheduler.max_num_seqs).num_bytes());
      bytes = std::min(bytes, 2 * states + useful * groups.page_bytes() * config->scheduler.max_num_seqs);
    }
  }
  config->states = StatesWithin(model, config->scheduler.max_num_seqs, bytes);
  const auto state_bytes = static_cast<int64_t>(config->states.num_bytes());
  config->num_pages = std::clamp<int64_t>((bytes - state_bytes) / groups.page_bytes(), 0, INT32_MAX - 1);
  // The longest lone sequence that fits, by bisection.
  int64_t low = 0;
  int64_t high = wanted_len;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (groups.MaxPages(middle, config->block_size) <= config->num_pages) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int64_t needed = groups.MaxPages(wanted_len, config->block_size) * groups.page_bytes() + state_bytes;
  if (low == 0 || (request.max_model_len > 0 && low < wanted_len)) {
    throw Error::OutOfMemory(
        "a sequence of " + Grouped(wanted_len) + " tokens needs " + Grouped((needed + 999999) / 1000000) + " MB of KV cache (" +
            Grouped(groups.BytesPerToken()) + " bytes a token" + StateText(state_bytes) + "), " + Grouped(bytes / 1000000) +
            " MB are given: " + (low > 0 ? "lower max_model_len to " + Grouped(low) + " or " : "") + "raise kv_cache_memory_bytes",
        static_cast<uint64_t>(needed), static_cast<uint64_t>(bytes));
  }
  config->max_model_len = low;
}

}  // namespace llmi
