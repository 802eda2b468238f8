// top_candidates: the best tokens of each row, with their log-probabilities: what a beam search needs of a row.
//
// Tokens rank by value, descending, then by logit, descending (two logits can round to one log-probability), then by id, ascending.
// Without `values`, a token's value is logit - log_sum_exp(row), in fp32 (kernels/ops/vocab.h has the order of that sum), and the logit
// alone gives the rank. Comparisons have no order, so every table and device gives the same candidates and bits.
//
// A row with a NaN or +inf has no candidate, and -inf is never one (both of the values, if there are any). What a row lacks of `count`
// candidates is filled up with kNoCandidate.
#pragma once

#include <stdint.h>

#include "kernels/ops/context.h"

namespace llmi {

constexpr int64_t kMostCandidates = 2048;

struct TopCandidate {
  float value;
  float logit;
  int32_t token;
};
constexpr TopCandidate kNoCandidate = {-__builtin_inff(), -__builtin_inff(), -1};

struct TopCandidatesArgs {
  const float* logits;            // [num_rows, vocab_size]
  const float* values = nullptr;  // the same: log-probabilities after masks, penalties, processors; null: the log-softmax of the logits
  int64_t num_rows;
  int64_t vocab_size;
  int64_t count;      // 1 to kMostCandidates
  TopCandidate* out;  // [num_rows, count], best first
};

void TopCandidates(const KernelContext& context, const TopCandidatesArgs& args);

}  // namespace llmi
