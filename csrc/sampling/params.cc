#include "sampling/params.h"

#include <algorithm>
#include <cmath>
#include <sstream>
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

void CheckRange(const char* name, double value, const NumberRange& range) {
  const bool above = range.without_low ? value > range.low : value >= range.low;
  const bool below = range.without_high ? value < range.high : value <= range.high;
  if (above && below) return;
  std::ostringstream problem;
  problem << "must lie in " << (range.without_low ? '(' : '[') << range.low << ", " << range.high << (range.without_high ? ')' : ']');
  Fail(name, problem.str());
}

void CheckRows(const SamplingParams& params) {
  if (params.guided() && params.contrasts_layers()) Fail("guidance_scale", "cannot be set with dola_layers");
}

void CheckBreakers(const SamplingParams& params, int64_t vocab_size) {
  for (const std::vector<int32_t>& breaker : params.dry_breakers) {
    if (breaker.empty()) Fail("dry_sequence_breakers", "holds an empty sequence");
    CheckIds("dry_sequence_breakers", breaker, vocab_size);
  }
  if (!std::is_sorted(params.dry_breakers.begin(), params.dry_breakers.end())) Fail("dry_sequence_breakers", "must ascend");
}

// Contrastive search takes the best of a few candidates: nothing is drawn.
void CheckContrast(const SamplingParams& params) {
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
  VisitSamplingParams([&]([[maybe_unused]] const char* name, [[maybe_unused]] auto member, const auto&... range) {
    (CheckRange(name, static_cast<double>(params.*member), range), ...);
  });
  if (params.min_tokens > params.max_tokens) Fail("min_tokens", "must lie in [0, max_tokens]");
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
  CheckRows(params);
  CheckBreakers(params, vocab_size);
  CheckOrder(params);
  CheckContrast(params);
  CheckEnds(params, vocab_size);
}

}  // namespace llmi
