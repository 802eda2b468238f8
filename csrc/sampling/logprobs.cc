#include "sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/errors.h"
#include "kernels/ops/vocab.h"

namespace llmi {
namespace {

int32_t RankOf(const float* logits, int64_t vocab_size, int32_t token) {
  int32_t better = 0;
  const float logit = logits[token];
  for (int64_t i = 0; i < vocab_size; ++i) better += logits[i] > logit || (logits[i] == logit && i < token);
  return better + 1;
}

}  // namespace

float ToLogprobs(const KernelContext& context, float* row, int64_t vocab_size) {
  const float total = LogSumExp(context, row, vocab_size);
  if (!std::isfinite(total)) throw Error(ErrorKind::kNonFiniteLogits, "the model's logits hold NaN or infinity");
  for (int64_t i = 0; i < vocab_size; ++i) row[i] -= total;
  return total;
}

TokenLogprobs ComputeLogprobs(const KernelContext& context, const float* raw, const float* law, bool greedy, int64_t vocab_size,
                              int32_t token, int64_t num_top) {
  const float raw_total = LogSumExp(context, raw, vocab_size);
  const float law_total = greedy ? 0.0f : raw == law ? raw_total : LogSumExp(context, law, vocab_size);
  TokenLogprobs result;
  const int64_t chosen = greedy ? ArgMax(context, law, vocab_size) : -1;
  const auto add = [&](int32_t id, int32_t rank) {
    result.token_ids.push_back(id);
    result.logprobs.push_back(raw[id] - raw_total);
    if (greedy) {
      result.processed_logprobs.push_back(id == chosen ? 0.0f : -std::numeric_limits<float>::infinity());
    } else {
      result.processed_logprobs.push_back(law[id] - law_total);
    }
    result.ranks.push_back(rank);
  };
  add(token, RankOf(raw, vocab_size, token));
  num_top = std::min(num_top, vocab_size);
  if (num_top <= 0) return result;
  std::vector<int32_t> order(static_cast<size_t>(vocab_size));
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + num_top, order.end(),
                    [&](int32_t a, int32_t b) { return raw[a] > raw[b] || (raw[a] == raw[b] && a < b); });
  for (int64_t i = 0; i < num_top; ++i) add(order[static_cast<size_t>(i)], static_cast<int32_t>(i + 1));
  return result;
}

}  // namespace llmi
