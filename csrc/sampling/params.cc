#include "sampling/params.h"

#include <cmath>

#include "core/errors.h"

namespace llmi {
namespace {

[[noreturn]] void Fail(const char* name, const std::string& problem) {
  throw Error(ErrorKind::kInvalidArgument, std::string(name) + " " + problem, name);
}

void CheckIds(const char* name, const std::vector<int32_t>& ids, int64_t vocab_size) {
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      Fail(name, "holds token id " + std::to_string(id) + ", outside [0, " + std::to_string(vocab_size) + ")");
    }
  }
}

}  // namespace

void Validate(const SamplingParams& params, int64_t vocab_size) {
  if (!(params.temperature >= 0) || !std::isfinite(params.temperature)) Fail("temperature", "must be 0 or more and finite");
  if (!(params.top_p > 0 && params.top_p <= 1)) Fail("top_p", "must lie in (0, 1]");
  if (params.top_k < 0) Fail("top_k", "must be 0 (all) or more");
  if (!(params.min_p >= 0 && params.min_p <= 1)) Fail("min_p", "must lie in [0, 1]");
  if (params.max_tokens < 0) Fail("max_tokens", "must be 1 or more");
  if (params.min_tokens < 0 || params.min_tokens > params.max_tokens) Fail("min_tokens", "must lie in [0, max_tokens]");
  if (!std::isfinite(params.presence_penalty)) Fail("presence_penalty", "must be finite");
  if (!std::isfinite(params.frequency_penalty)) Fail("frequency_penalty", "must be finite");
  if (!(params.repetition_penalty > 0) || !std::isfinite(params.repetition_penalty))
    Fail("repetition_penalty", "must be positive and finite");
  for (const auto& [id, bias] : params.logit_bias) {
    CheckIds("logit_bias", {id}, vocab_size);
    if (std::isnan(bias) || bias == INFINITY) Fail("logit_bias", "must hold numbers below infinity");
  }
  CheckIds("allowed_token_ids", params.allowed_token_ids, vocab_size);
  CheckIds("stop_token_ids", params.stop_token_ids, vocab_size);
  CheckIds("eos_token_ids", params.eos_token_ids, vocab_size);
  for (const std::vector<int32_t>& word : params.bad_words) {
    if (word.empty()) Fail("bad_words", "holds an empty word");
    CheckIds("bad_words", word, vocab_size);
  }
}

}  // namespace llmi
