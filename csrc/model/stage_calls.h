// What goes from stage to stage of a pipeline with one step: the batch, the rows of the stream, and what rank 0 wants to know of the layers
// on the way.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "model/forward_batch.h"
#include "model/spec.h"

namespace llmi {

struct StageMessage {
  std::vector<PageEvent> events;
  ForwardBatch batch;
  std::vector<float> rows;                                 // the stream before the next stage [rows of the batch, hidden]
  std::vector<uint8_t> state_faults;                       // as ForwardResult's, of the layers so far
  std::vector<std::vector<float>> taps;                    // as ForwardResult's, of the layers so far; empty: not yet
  std::vector<std::vector<std::vector<float>>> attention;  // likewise
  std::map<int, std::vector<float>> kept;                  // hidden states of all rows, by layer
  std::vector<double> busy_s;                              // that each stage so far has computed this step
};

std::vector<uint8_t> ToBytes(const StageMessage& message);
// The reverse. Throws Error(kInvalidArgument) for bytes that fit neither the model nor the cache.
StageMessage ReadStage(std::span<const uint8_t> bytes, const ModelSpec& spec, const KvCache& cache);

}  // namespace llmi
