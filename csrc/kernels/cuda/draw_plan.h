// What the launches of a draw are given, and what they pass on (kernels/draws/draw.h, kernels/cuda/draw_kernels.h).
#pragma once

#include "core/host_device.h"
#include "kernels/cuda/block_ops.h"
#include "kernels/cuda/last_block.h"
#include "kernels/draws/draw.h"
#include "kernels/ops/vocab.h"

namespace llmi::cuda {

constexpr int kDrawThreads = kOpThreads;
constexpr int kDrawGroups = 16;  // of a chunk's ids

// A token in the race: the least score wins, the lowest id among equals.
struct Runner {
  double score;
  int32_t id;

  LLMI_HD bool Beats(const Runner& other) const { return score < other.score || (score == other.score && id < other.id); }
};
constexpr Runner kNoRunner = {__builtin_inf(), INT32_MAX};

constexpr int32_t kIsBad = 1;      // NaN or +inf, before or after the changes
constexpr int32_t kHasLogits = 2;  // above -inf, before them

// Tokens at a glance.
struct LogitSummary {
  uint64_t best_key;  // 0: none is above -inf
  int32_t flags;      // of kIsBad and kHasLogits

  LLMI_HD static LogitSummary Join(const LogitSummary& a, const LogitSummary& b) {
    return {a.best_key > b.best_key ? a.best_key : b.best_key, a.flags | b.flags};
  }
};

// What is known of a row once its masks, penalties and filters are applied.
struct DrawState {
  uint64_t floor;  // keys below it are cut
  uint64_t total;  // mass of those that are not; only where MassDecides
  float peak;      // of the law
  int32_t best;    // its token
  int32_t cannot_draw;
  uint32_t list_size;
};

// How a row is drawn.
LLMI_HD static inline bool IsGreedy(const DrawRow& row) { return row.temperature == 0.0f; }
LLMI_HD static inline bool IsFiltered(const DrawRow& row) { return row.filter_begin < row.filter_end; }
// Its kept tokens are put on a list.
LLMI_HD static inline bool IsListed(const DrawRow& row) { return !IsGreedy(row) && (row.top_k > 0 || row.top_p < 1.0); }
// The mass of all tokens decides which those are.
LLMI_HD static inline bool MassDecides(const DrawRow& row) { return IsListed(row) && row.top_k == 0; }
// No token is cut by what only the whole row tells, so that the first launch draws it.
LLMI_HD static inline bool IsPlain(const DrawRow& row) {
  return !IsGreedy(row) && !IsListed(row) && !IsFiltered(row) && !row.IsJudged() && row.min_p == 0.0;
}
// DrawGatherKernel has work.
LLMI_HD static inline bool IsGathered(const DrawRow& row) { return IsListed(row) || !(IsGreedy(row) || IsPlain(row) || row.IsJudged()); }

LLMI_HD static inline float LawOf(const DrawRow& row, float logit) { return row.temperature == 1.0f ? logit : logit / row.temperature; }

// A DrawBatch on the device, and the places of its intermediate and final results.
struct DrawPlan {
  const DrawRow* rows;
  const MaskEdit* masks;
  const PenaltyEdit* penalties;
  const uint32_t* allowed;
  float* logits;  // [rows of the step, vocab_size], changed in place
  int64_t vocab_size;
  int64_t num_chunks;
  LogitSummary* chunks;  // [num_rows, num_chunks]
  float* group_peaks;    // [num_rows, num_chunks, kDrawGroups]
  Runner* winners;       // [num_rows, num_chunks]
  DrawState* states;     // [num_rows]
  uint32_t* counts;      // [num_rows]; zero between launches
  uint64_t* lists;       // [num_rows, vocab_size] rank keys, or the bits of float64 weights
  const FilterStep* filters;
  const DraftedToken* drafted;
  const float* laws;             // [batch.num_laws, vocab_size]
  int32_t* tokens;               // [num_rows]
  int32_t* accepted;             // [num_rows]
  const int32_t* tokens_before;  // of the draw before

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(rows);
    visit(masks);
    visit(penalties);
    visit(allowed);
    visit(logits);
    visit(chunks);
    visit(group_peaks);
    visit(winners);
    visit(states);
    visit(counts);
    visit(lists);
    visit(filters);
    visit(drafted);
    visit(laws);
    visit(tokens);
    visit(accepted);
    visit(tokens_before);
  }

  LLMI_HD float* Logits(const DrawRow& row) const { return logits + row.logits_row * vocab_size; }
  LLMI_HD int64_t ChunkSize(int64_t chunk) const {
    const int64_t left = vocab_size - chunk * kVocabChunk;
    return left < kVocabChunk ? left : kVocabChunk;
  }
  // One thread's.
  LLMI_HD void Give(int64_t row, int32_t token, int32_t accepted_child = -1) const {
    tokens[row] = token;
    accepted[row] = accepted_child;
  }
};

}  // namespace llmi::cuda
