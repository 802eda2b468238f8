// draw: turns rows of raw logits on a device into tokens, without copying a row to the host. Each row takes the steps that
// sampling/law.h defines - masks, bias, penalties, temperature, min-p, top-k, top-p, the race - and gives one token.
// Masks and penalties become a list of changes of single logits. The host makes it (sampling/edits.h); host and device apply it with
// the same functions. Top-k and top-p never sort: a token's rank is one integer, its 64-bit rank key, and the tokens that are kept are
// those whose key is at least some threshold. Sums are of integers, so their order is free.
// If tokens were drafted after a row, the device may judge them first (kernels/draws/verify.h): the row then gives the first accepted
// one, or else a token drawn from what their rejection leaves of its law.
#pragma once

#include <stdint.h>

#include <span>

#include "core/ordered_bits.h"
#include "core/scalar_math.h"
#include "kernels/draws/exponential_race.h"
#include "kernels/draws/filters.h"
#include "kernels/draws/verify.h"

namespace llmi {

// logit = banned ? -inf : logit + bias.
struct MaskEdit {
  int32_t id;
  int32_t banned;
  float bias;
};

// A token of the history, and its number of occurrences in the output.
struct PenaltyEdit {
  int32_t id;
  int32_t count;
};

struct Penalties {
  float repetition = 1.0f;
  float frequency = 0.0f;
  float presence = 0.0f;
};

LLMI_HD static inline float MaskedLogit(const MaskEdit& edit, float logit) {
  return edit.banned != 0 ? -__builtin_inff() : logit + edit.bias;
}

LLMI_HD static inline float PenalisedLogit(const PenaltyEdit& edit, const Penalties& penalties, float logit) {
  if (penalties.repetition != 1.0f) logit = logit > 0 ? logit / penalties.repetition : logit * penalties.repetition;
  if (edit.count == 0) return logit;
  logit = logit - penalties.frequency * static_cast<float>(edit.count);
  return logit - penalties.presence;
}

// The least logit that min-p keeps.
LLMI_HD static inline float MinPLimit(float maximum, double min_p) {
  return static_cast<float>(static_cast<double>(maximum) + LogF64(min_p));
}

// The mass that the kept tokens must reach, of `total`.
LLMI_HD static inline uint64_t WantedMass(double top_p, uint64_t total) {
  const auto wanted = static_cast<uint64_t>(__builtin_ceil(top_p * static_cast<double>(total)));
  return wanted < total ? wanted : total;
}

// Tokens rank by logit, descending, then by id, ascending; the first has the largest key. Zeros of either sign are equal.
LLMI_HD static inline uint64_t RankKey(float logit, int64_t id) {
  return uint64_t{OrderedBits(logit)} << 32 | static_cast<uint32_t>(~static_cast<uint32_t>(id));
}
LLMI_HD static inline float RankLogit(uint64_t key) { return FromOrderedBits(static_cast<uint32_t>(key >> 32)); }
LLMI_HD static inline int32_t RankId(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }
// The least key that any id with this logit has.
LLMI_HD static inline uint64_t LeastRankKey(float logit) { return RankKey(logit, 0) & ~uint64_t{0xFFFFFFFFu}; }

struct DrawRow {
  int64_t logits_row = 0;
  int64_t mask_begin = 0, mask_end = 0;        // range in the batch's masks, ascending by id; equal ids in the order of application
  int64_t penalty_begin = 0, penalty_end = 0;  // range in its penalties, each id once
  int64_t after = -1;    // row of the previous draw whose token ends the history and is not in the penalties yet; -1: all are
  int64_t allowed = -1;  // first word of the bitmap of allowed ids; -1: all are allowed
  Penalties penalties;
  float temperature = 1.0f;                  // 0: greedy
  double min_p = 0.0;                        // 0: off
  int64_t top_k = 0;                         // 0: off
  double top_p = 1.0;                        // 1: off
  int64_t filter_begin = 0, filter_end = 0;  // range in the batch's filters; if it is not empty, they run first, and the four above are off
  RaceNoise noise = {};
  int64_t drafted_begin = 0, drafted_end = 0;  // range in the batch's drafted tokens, siblings in the order in which they are judged
  RaceNoise noise_after_rejection = {};

  LLMI_HD bool IsJudged() const { return drafted_begin < drafted_end; }
};

// The result of a row from which no token can be drawn: its logits hold NaN or +inf, or every token is cut.
constexpr int32_t kNoToken = -1;

// All arrays are in the host's memory.
struct DrawBatch {
  const DrawRow* rows;
  int64_t num_rows;
  const MaskEdit* masks;
  int64_t num_masks;
  const PenaltyEdit* penalties;
  int64_t num_penalties;
  const uint32_t* allowed;
  int64_t num_allowed;
  const FilterStep* filters;
  int64_t num_filters;
  const DraftedToken* drafted;
  int64_t num_drafted;
  const float* const* laws;  // [vocab_size] each
  int64_t num_laws;          // at most kMostDrawLaws
};

constexpr int64_t kMostDrawLaws = 64;

// The results of a batch, by row.
struct DrawnRows {
  std::span<const int32_t> tokens;
  std::span<const int32_t> accepted;  // index of the accepted one of the row's drafted tokens; -1: none was accepted, or the row has none
};

}  // namespace llmi
