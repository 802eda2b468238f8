#include "engine/beams/hypotheses.h"

#include <algorithm>
#include <cmath>

#include "core/scalar_math.h"

namespace llmi {

double LengthDivisor(int64_t length, double penalty) {
  const auto base = static_cast<double>(length);
  const double magnitude = std::abs(penalty);
  double power = 1;
  if (magnitude == std::floor(magnitude)) {
    for (int64_t i = 0; i < static_cast<int64_t>(magnitude); ++i) power *= base;
  } else {
    power = ExpF64(magnitude * LogF64(base));
  }
  return penalty < 0 ? 1 / power : power;
}

double BeamScoring::Score(double sum, int64_t num_tokens, bool ends_in_eos) const {
  const int64_t length = params.length_includes_prompt ? prompt_len + num_tokens - (ends_in_eos ? 1 : 0) : num_tokens;
  return sum / LengthDivisor(length, params.length_penalty);
}

bool IsBetter(const FinishedBeam& a, const FinishedBeam& b) {
  if (a.score != b.score) return a.score > b.score;
  if (a.step != b.step) return a.step < b.step;
  return a.rank < b.rank;
}

void FinishedBeams::Add(const FinishedBeam& beam) {
  beams_.insert(std::upper_bound(beams_.begin(), beams_.end(), beam, IsBetter), beam);
  if (static_cast<int64_t>(beams_.size()) > capacity_) beams_.pop_back();
}

bool FinishedBeams::Ends(const BeamScoring& scoring, double best_sum, int64_t num_tokens) const {
  if (!full()) return false;
  if (scoring.params.early_stopping == EarlyStopping::kYes) return true;
  const bool longest = scoring.params.early_stopping == EarlyStopping::kNever && scoring.params.length_penalty > 0;
  return !(scoring.Score(best_sum, longest ? scoring.max_tokens : num_tokens, false) > beams_.back().score);
}

}  // namespace llmi
