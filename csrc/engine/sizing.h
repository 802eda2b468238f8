// How large the KV cache is, and how long a sequence may grow in it.
#pragma once

#include <cstdint>

#include "engine/engine.h"

namespace llmi {

struct SizingRequest {
  int64_t kv_cache_memory_bytes = 0;  // 0: half of what is free, and no more than the limits can use
  int64_t max_model_len = 0;          // 0: the model's, or what the cache holds
  uint64_t available_bytes = 0;       // free memory where the cache will lie
};

// Fills config->num_pages and max_model_len. Throws Error(kOutOfMemory) with the arithmetic where a given length
// does not fit, Error(kInvalidArgument) where it exceeds the model's.
void ResolveSizes(const ModelConfig& model, const SizingRequest& request, EngineConfig* config);

}  // namespace llmi
