// Which requests may enter: values in range, and enough cache for the longest that a request can grow to.
#pragma once

#include <cstdint>

#include "cache/kv_groups.h"
#include "engine/config.h"
#include "engine/request.h"
#include "model/spec.h"

namespace llmi {

// Tokens of the prompt that the model reads. If the prompt is only scored, the last one is not read: nothing follows it.
int64_t NumInputs(const Request& request);

class RequestLimits {
 public:
  RequestLimits(const ModelSpec& model, const EngineConfig& config);

  // Throws Error(kInvalidArgument) if a value is out of range, Error(kOutOfMemory) if the request could never run.
  void Check(const Request& request) const;

 private:
  void CheckPrompt(const Request& request) const;
  void CheckWords(const Request& request) const;
  void CheckBeams(const Request& request, int64_t last_len) const;

  const int64_t vocab_size_;
  const KvGroups groups_;
  const int64_t max_model_len_;
  const int64_t max_num_seqs_;
  const int64_t num_pages_;
};

}  // namespace llmi
