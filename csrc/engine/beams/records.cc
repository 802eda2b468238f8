#include "engine/beams/records.h"

#include <algorithm>
#include <limits>

#include "sampling/filters/row.h"

namespace llmi {

TokenLogprobs BeamLogprobs(const KernelContext& context, const BeamArrival& arrival, int32_t token, const WantedLogprobs& wanted) {
  const auto size = static_cast<int64_t>(arrival.logits.size());
  TokenLogprobs result = ComputeLogprobs(context, arrival.logits.data(), arrival.logits.data(), false, size, token, wanted);
  for (size_t i = 0; i < result.token_ids.size(); ++i) {
    result.processed_logprobs[i] = arrival.scored[static_cast<size_t>(result.token_ids[i])];
  }
  return result;
}

TraceRow BeamTraceRow(const KernelContext& context, const BeamArrival& arrival, const BeamCandidate& candidate, bool draws, int64_t step,
                      int64_t position, double time_s) {
  const TokenLogprobs logprobs = BeamLogprobs(context, arrival, candidate.token, {});
  TraceRow row;
  row.step = step;
  row.position = position;
  row.depth = 1;
  row.token_id = candidate.token;
  row.raw_logprob = logprobs.logprobs[0];
  row.processed_logprob = logprobs.processed_logprobs[0];
  row.rank = logprobs.ranks[0];
  row.num_kept = std::count_if(arrival.scored.begin(), arrival.scored.end(), [](float value) { return value > kMinusInfinity; });
  // log E, as in a draw: the key is the score less this.
  row.noise = draws ? candidate.score - candidate.key : std::numeric_limits<double>::quiet_NaN();
  row.draft_prob = std::numeric_limits<float>::quiet_NaN();
  row.time_s = time_s;
  return row;
}

}  // namespace llmi
