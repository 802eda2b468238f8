#include "engine/sizing.h"

#include <algorithm>
#include <string>

#include "core/errors.h"

namespace llmi {
namespace {

std::string Grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (int64_t place = static_cast<int64_t>(text.size()) - 3; place > 0; place -= 3) text.insert(static_cast<size_t>(place), ",");
  return text;
}

}  // namespace

uint64_t DeviceCacheBytes(uint64_t total_bytes, uint64_t free_bytes, double utilization) {
  const auto allowed = static_cast<uint64_t>(static_cast<double>(total_bytes) * utilization);
  const uint64_t taken = total_bytes - free_bytes;
  if (taken < allowed) return allowed - taken;
  const auto megabytes = [](uint64_t bytes) { return Grouped(static_cast<int64_t>(bytes / 1000000)) + " MB"; };
  throw Error::OutOfMemory("gpu_memory_utilization = " + std::to_string(utilization) + " allows " + megabytes(allowed) +
                               " of the device's " + megabytes(total_bytes) + ", and " + megabytes(taken) +
                               " are taken, weights and workspaces included: nothing is left for the KV cache; raise it, or lower "
                               "max_num_batched_tokens",
                           taken, allowed);
}

void ResolveSizes(const ModelConfig& model, const SizingRequest& request, EngineConfig* config) {
  if (config->scheduler.max_num_seqs < 1) throw Error(ErrorKind::kInvalidArgument, "max_num_seqs must be 1 or more", "max_num_seqs");
  if (config->scheduler.max_num_batched_tokens < 1) {
    throw Error(ErrorKind::kInvalidArgument, "max_num_batched_tokens must be 1 or more", "max_num_batched_tokens");
  }
  if (request.max_model_len > model.max_position) {
    throw Error(ErrorKind::kInvalidArgument,
                "max_model_len = " + Grouped(request.max_model_len) + " exceeds the model's " + Grouped(model.max_position),
                "max_model_len");
  }
  std::vector<int64_t> windows;
  for (const LayerConfig& layer : model.layers) windows.push_back(layer.window);
  const KvGroups groups(windows, model.num_kv_heads, model.head_dim, config->kv_type, config->block_size);
  const int64_t wanted_len = request.max_model_len > 0 ? request.max_model_len : model.max_position;
  int64_t bytes = request.kv_cache_memory_bytes;
  if (bytes == 0) {
    bytes = static_cast<int64_t>(request.available_bytes);
    const int64_t useful = groups.MaxPages(wanted_len, config->scheduler.max_num_batched_tokens);
    if (useful < INT64_MAX / groups.page_bytes() / config->scheduler.max_num_seqs) {
      bytes = std::min(bytes, useful * groups.page_bytes() * config->scheduler.max_num_seqs);
    }
  }
  config->num_pages = std::min<int64_t>(bytes / groups.page_bytes(), INT32_MAX - 1);
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
  const int64_t needed = groups.MaxPages(wanted_len, config->block_size) * groups.page_bytes();
  if (low == 0 || (request.max_model_len > 0 && low < wanted_len)) {
    throw Error::OutOfMemory("a sequence of " + Grouped(wanted_len) + " tokens needs " + Grouped((needed + 999999) / 1000000) +
                                 " MB of KV cache (" + Grouped(groups.BytesPerToken()) + " bytes a token), " + Grouped(bytes / 1000000) +
                                 " MB are given: " + (low > 0 ? "lower max_model_len to " + Grouped(low) + " or " : "") +
                                 "raise kv_cache_memory_bytes",
                             static_cast<uint64_t>(needed), static_cast<uint64_t>(bytes));
  }
  config->max_model_len = low;
}

}  // namespace llmi
