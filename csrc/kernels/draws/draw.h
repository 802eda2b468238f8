// draw: from rows of raw logits to tokens where the logits lie on a device, without a row coming to the host. Each row goes
// through what sampling/law.h defines - masks, bias, penalties, temperature, min-p, top-k, top-p, the race - and gives its token.
//
// What masks and penalties do to a row is a list of changes of single logits, made on the host (sampling/edits.h) and carried out
// here or there by the same functions. Top-k and top-p never sort: a token's rank is one integer, its 64-bit rank key, and the set
// that is kept is that of all keys from the least one that is kept upwards. Sums are of integers, so their order is free.
//
// A row that tokens were drafted behind may have these judged first (kernels/draws/verify.h): it gives the first that is accepted, or else
// a token of what they leave of its law.
#pragma once

#include <stdint.h>

#include <span>

#include "core/scalar_math.h"
#include "kernels/draws/race.h"
#include "kernels/draws/verify.h"

namespace llmi {

// logit = banned ? -inf : logit + bias.
struct MaskEdit {
  int32_t id;
  int32_t banned;
  float bias;
};

// A token of the history, and how often the output has it.
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

// What min-p leaves: logits from here on.
LLMI_HD static inline float MinPLimit(float maximum, double min_p) {
  return static_cast<float>(static_cast<double>(maximum) + LogF64(min_p));
}

// The mass that the shortest prefix must reach, of `total`.
LLMI_HD static inline uint64_t WantedMass(double top_p, uint64_t total) {
  const auto wanted = static_cast<uint64_t>(__builtin_ceil(top_p * static_cast<double>(total)));
  return wanted < total ? wanted : total;
}

// Of two tokens the one that ranks first (logit descending, id ascending) has the larger key. Zeros are equal whatever their sign.
LLMI_HD static inline uint64_t RankKey(float logit, int64_t id) {
  const auto bits = __builtin_bit_cast(uint32_t, logit + 0.0f);
  const uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | static_cast<uint32_t>(~static_cast<uint32_t>(id));
}
LLMI_HD static inline float RankLogit(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __builtin_bit_cast(float, ordered >> 31 != 0 ? ordered & 0x7FFFFFFFu : ~ordered);
}
LLMI_HD static inline int32_t RankId(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }
// The least key of a logit, whatever the id.
LLMI_HD static inline uint64_t LeastRankKey(float logit) { return RankKey(logit, 0) & ~uint64_t{0xFFFFFFFFu}; }

struct DrawRow {
  int64_t logits_row = 0;
  int64_t mask_begin = 0, mask_end = 0;        // of the batch's masks, ascending by id; equal ids in the order to be carried out
  int64_t penalty_begin = 0, penalty_end = 0;  // of its penalties, each id once
  int64_t after = -1;    // row of the draw before, whose token the history ends with and the penalties do not know; -1: they know all
  int64_t allowed = -1;  // first word of the bitmap of ids that are left; -1: all
  Penalties penalties;
  float temperature = 1.0f;  // 0: greedy
  double min_p = 0.0;        // 0: off
  int64_t top_k = 0;         // 0: off
  double top_p = 1.0;        // 1: off
  RaceNoise noise = {};
  int64_t drafted_begin = 0, drafted_end = 0;  // of the batch's drafted tokens, siblings in the order in which they are judged
  RaceNoise noise_after_rejection = {};

  LLMI_HD bool IsJudged() const { return drafted_begin < drafted_end; }
};

// What a row gives where no token can be drawn: logits that hold NaN or +inf, or that leave none.
constexpr int32_t kNoToken = -1;

// In: memory of the host.
struct DrawBatch {
  const DrawRow* rows;
  int64_t num_rows;
  const MaskEdit* masks;
  int64_t num_masks;
  const PenaltyEdit* penalties;
  int64_t num_penalties;
  const uint32_t* allowed;
  int64_t num_allowed;
  const DraftedToken* drafted;
  int64_t num_drafted;
  const float* const* laws;  // [vocab_size] each
  int64_t num_laws;          // at most kMostDrawLaws
};

constexpr int64_t kMostDrawLaws = 64;

// What a batch gave, by row.
struct DrawnRows {
  std::span<const int32_t> tokens;
  std::span<const int32_t> accepted;  // which of the row's drafted tokens that is; -1: none of them, or the row has none
};

}  // namespace llmi
