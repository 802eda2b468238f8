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

// The ids with the largest logits, the largest first; of equal ones the lowest id.
std::vector<int32_t> LargestOf(const float* logits, int64_t vocab_size, int64_t count) {
  const auto better = [&](int32_t a, int32_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); };
  std::vector<int32_t> kept;  // a heap, the least of them in front
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (static_cast<int64_t>(kept.size()) == count) {
      if (!(logits[id] > logits[kept.front()])) continue;
      std::pop_heap(kept.begin(), kept.end(), better);
      kept.pop_back();
    }
    kept.push_back(id);
    std::push_heap(kept.begin(), kept.end(), better);
  }
  std::sort_heap(kept.begin(), kept.end(), better);
  return kept;
}

// The ids of `also` that are not listed yet, each once, in their order.
std::vector<int32_t> NotListed(std::span<const int32_t> also, const std::vector<int32_t>& listed) {
  std::vector<int32_t> known = listed;
  std::sort(known.begin(), known.end());
  std::vector<int32_t> found;
  for (const int32_t id : also) {
    const auto place = std::lower_bound(known.begin(), known.end(), id);
    if (place != known.end() && *place == id) continue;
    known.insert(place, id);
    found.push_back(id);
  }
  return found;
}

// The rank of each id, in one pass over the row.
std::vector<int32_t> RanksOf(const float* logits, int64_t vocab_size, const std::vector<int32_t>& ids) {
  const auto better = [&](int32_t a, int32_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); };
  std::vector<size_t> order(ids.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return better(ids[a], ids[b]); });
  std::vector<int32_t> above(ids.size() + 1, 0);  // by place in `order`: tokens better than it and not better than the one before
  for (int32_t id = 0; id < vocab_size; ++id) {
    const auto worse = std::partition_point(order.begin(), order.end(), [&](size_t i) { return !better(id, ids[i]); });
    ++above[static_cast<size_t>(worse - order.begin())];
  }
  std::vector<int32_t> ranks(ids.size());
  int32_t sum = 0;
  for (size_t place = 0; place < order.size(); ++place) {
    sum += above[place];
    ranks[order[place]] = sum + 1;
  }
  return ranks;
}

}  // namespace

float ToLogprobs(const KernelContext& context, float* row, int64_t vocab_size) {
  const float total = LogSumExp(context, row, vocab_size);
  if (!std::isfinite(total)) throw Error(ErrorKind::kNonFiniteLogits, "the model's logits hold NaN or infinity");
  for (int64_t i = 0; i < vocab_size; ++i) row[i] -= total;
  return total;
}

TokenLogprobs ComputeLogprobs(const KernelContext& context, const float* raw, const float* law, bool greedy, int64_t vocab_size,
                              int32_t token, const WantedLogprobs& wanted) {
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
  const int64_t num_top = std::min(wanted.num_top, vocab_size);
  if (num_top > 0) {
    int32_t rank = 0;
    for (const int32_t id : LargestOf(raw, vocab_size, num_top)) add(id, ++rank);
  }
  if (wanted.token_ids.empty()) return result;
  const std::vector<int32_t> more = NotListed(wanted.token_ids, result.token_ids);
  const std::vector<int32_t> ranks = RanksOf(raw, vocab_size, more);
  for (size_t i = 0; i < more.size(); ++i) add(more[i], ranks[i]);
  return result;
}

}  // namespace llmi
