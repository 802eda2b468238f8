#include "sampling/params.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/errors.h"
#include "sampling/steps.h"

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

void CheckRange(const char* name, double value, double low, double high) {
  if (!(value >= low && value <= high)) Fail(name, "must lie in [" + std::to_string(low) + ", " + std::to_string(high) + "]");
}

void CheckFilters(const SamplingParams& params) {
  constexpr double kLargest = 1e30;
  if (!(params.typical_p > 0 && params.typical_p <= 1)) Fail("typical_p", "must lie in (0, 1]");
  if (!(params.epsilon_cutoff >= 0 && params.epsilon_cutoff < 1)) Fail("epsilon_cutoff", "must lie in [0, 1)");
  if (!(params.eta_cutoff >= 0 && params.eta_cutoff < 1)) Fail("eta_cutoff", "must lie in [0, 1)");
  CheckRange("top_h", params.top_h, 0, 1);
  CheckRange("top_n_sigma", params.top_n_sigma, -kLargest, kLargest);
  CheckRange("xtc_probability", params.xtc_probability, 0, 1);
  CheckRange("xtc_threshold", params.xtc_threshold, 0, 1);
  CheckRange("dynatemp_range", params.dynatemp_range, 0, kLargest);
  CheckRange("dynatemp_exponent", params.dynatemp_exponent, 0, kLargest);
  CheckRange("adaptive_p", params.adaptive_p, -kLargest, 1);
  CheckRange("adaptive_p_decay", params.adaptive_p_decay, 0, 0.99);
  if (params.mirostat < 0 || params.mirostat > 2) Fail("mirostat", "must be 0, 1 or 2");
  CheckRange("mirostat_tau", params.mirostat_tau, 0, kLargest);
  CheckRange("mirostat_eta", params.mirostat_eta, 0, kLargest);
}

void CheckRows(const SamplingParams& params) {
  CheckRange("guidance_scale", params.guidance_scale, -1e30, 1e30);
  if (params.guided() && params.contrasts_layers()) Fail("guidance_scale", "cannot be set with dola_layers");
}

void CheckRepetition(const SamplingParams& params, int64_t vocab_size) {
  constexpr double kLargest = 1e30;
  if (params.penalty_last_n < -1) Fail("penalty_last_n", "must be -1 (all) or more");
  if (params.no_repeat_ngram_size < 0) Fail("no_repeat_ngram_size", "must be 0 (off) or more");
  CheckRange("dry_multiplier", params.dry_multiplier, 0, kLargest);
  CheckRange("dry_base", params.dry_base, 1, kLargest);
  if (params.dry_allowed_length < 1) Fail("dry_allowed_length", "must be 1 or more");
  if (params.dry_penalty_last_n < -1) Fail("dry_penalty_last_n", "must be -1 (all) or more");
  for (const std::vector<int32_t>& breaker : params.dry_breakers) {
    if (breaker.empty()) Fail("dry_sequence_breakers", "holds an empty sequence");
    CheckIds("dry_sequence_breakers", breaker, vocab_size);
  }
  if (!std::is_sorted(params.dry_breakers.begin(), params.dry_breakers.end())) Fail("dry_sequence_breakers", "must ascend");
}

// Contrastive search takes the best of a few candidates: nothing is drawn.
void CheckContrast(const SamplingParams& params) {
  if (!std::isfinite(params.penalty_alpha) || params.penalty_alpha > 1) Fail("penalty_alpha", "must lie in [0, 1], or below 0 (off)");
  if (!params.contrasts()) return;
  if (!params.greedy()) Fail("penalty_alpha", "draws nothing: temperature must be 0");
  if (params.top_k < kLeastCandidates || params.top_k > kMostContrasted) {
    Fail("penalty_alpha", "needs top_k in [2, 64], the number of its candidates; it is " + std::to_string(params.top_k));
  }
}

void CheckEnds(const SamplingParams& params, int64_t vocab_size) {
  constexpr int64_t kMostTokens = 65536;  // that are read behind each token
  CheckIds("logprob_token_ids", params.logprob_token_ids, vocab_size);
  if (params.repetition_max_size == 0) return;
  const int64_t most = params.repetition_max_size;
  const int64_t count = params.repetition_min_count;
  if (most < 0 || params.repetition_min_size < 1 || params.repetition_min_size > most || count < 2 || most > kMostTokens / count) {
    Fail("repetition_detection", "needs 1 <= min_pattern_size <= max_pattern_size, min_count >= 2, and max_pattern_size x min_count <= " +
                                     std::to_string(kMostTokens));
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
  CheckFilters(params);
  CheckRows(params);
  CheckRepetition(params, vocab_size);
  CheckOrder(params);
  CheckContrast(params);
  CheckEnds(params, vocab_size);
}

}  // namespace llmi
