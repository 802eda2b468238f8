// Which requests may enter: values in range, and enough cache for the longest that a request can grow to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/kv_groups.h"
#include "engine/config.h"
#include "engine/request.h"
#include "model/spec.h"

namespace llmi {

// Tokens of the prompt that the model reads. If the prompt is only scored, the last one is not read: nothing follows it.
int64_t NumInputs(const Request& request);

// Whether each sample has a second sequence, its companion.
inline bool IsGuided(const Request& request) { return request.params.guided() && request.params.max_tokens > 0; }

// Sequences that the request grows into.
inline int64_t NumSeats(const Request& request) { return request.num_samples * (IsGuided(request) ? 2 : 1); }

// Throws Error(kInvalidArgument) for a model without a head.
void CheckGenerates(const ModelSpec& model);

class RequestLimits {
 public:
  RequestLimits(const ModelSpec& model, const EngineConfig& config);

  // Throws Error(kInvalidArgument) if a value is out of range, Error(kOutOfMemory) if the request could never run.
  void Check(const Request& request) const;

 private:
  void CheckPrompt(const Request& request) const;
  void CheckBeams(const Request& request, int64_t last_len) const;
  void CheckIds(const std::vector<int32_t>& ids, const std::string& what) const;
  void CheckCompanion(const Request& request, int64_t last_len) const;
  void CheckSeats(const Request& request) const;
  void CheckLayers(const Request& request) const;
  void CheckContrast(const Request& request) const;
  void CheckPages(const Request& request, int64_t last_len) const;
  [[noreturn]] void RefusePages(const std::string& text, int64_t pages) const;

  const int64_t vocab_size_;
  const int64_t num_layers_;
  const int64_t hidden_size_;
  const KvGroups groups_;
  const int64_t max_model_len_;
  const int64_t max_num_seqs_;
  const int64_t num_pages_;
};

}  // namespace llmi
