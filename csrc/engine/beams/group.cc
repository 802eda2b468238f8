#include "engine/beams/group.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/clock.h"

namespace llmi {

// transformers' number: max(2, 1 + number of EOS ids) for each beam, so that enough remain if all EOS tokens come first.
int64_t NumBeamCandidates(const Request& request) {
  const SamplingParams& params = request.params;
  std::set<int32_t> ends(params.stop_token_ids.begin(), params.stop_token_ids.end());
  if (!params.ignore_eos) ends.insert(params.eos_token_ids.begin(), params.eos_token_ids.end());
  return std::max<int64_t>(2, 1 + static_cast<int64_t>(ends.size())) * (request.beams->width / request.beams->num_groups);
}

int64_t NumRowCandidates(const Request& request) {
  return NumBeamCandidates(request) + (request.beams->diversity_penalty != 0 ? request.beams->width : 0);
}

BeamGroup::BeamGroup(const Request& request, Sample* leader, std::shared_ptr<const TokenBytes> token_bytes)
    : sampling_(request.params),
      token_bytes_(std::move(token_bytes)),
      scoring_{*request.beams, static_cast<int64_t>(request.prompt_token_ids.size()), request.params.max_tokens},
      num_candidates_(NumBeamCandidates(request)),
      num_of_row_(NumRowCandidates(request)),
      arrivals_(static_cast<size_t>(request.num_samples)) {
  // Every team starts from the leader's row.
  for (int64_t i = 0; i < params().num_groups; ++i) teams_.push_back({{{leader, 0, -1}}, FinishedBeams(team_width())});
}

BeamArrival& BeamGroup::arrival(const Sample& sample) { return arrivals_[static_cast<size_t>(sample.index)]; }

double BeamGroup::SumOf(const Sample& sample) const {
  for (const BeamTeam& team : teams_) {
    for (const RunningBeam& beam : team.running) {
      if (beam.sample == &sample) return beam.sum;
    }
  }
  return 0;
}

bool BeamGroup::all_arrived() const {
  return std::all_of(teams_.begin(), teams_.end(), [&](const BeamTeam& team) {
    return std::all_of(team.running.begin(), team.running.end(),
                       [&](const RunningBeam& beam) { return arrivals_[static_cast<size_t>(beam.sample->index)].arrived; });
  });
}

void BeamGroup::BeginStep() {
  for (BeamArrival& arrival : arrivals_) {
    arrival.arrived = false;
    arrival.candidates.clear();
    arrival.error = nullptr;
  }
  ++num_tokens_;
}

int32_t BeamGroup::AddNode(const BeamNode& node) {
  nodes_.push_back(node);
  return static_cast<int32_t>(nodes_.size() - 1);
}

int32_t BeamGroup::AddRecord(TokenLogprobs logprobs) {
  records_.push_back(std::move(logprobs));
  return static_cast<int32_t>(records_.size() - 1);
}

int32_t BeamGroup::AddTrace(const TraceRow& row) {
  traces_.push_back(row);
  return static_cast<int32_t>(traces_.size() - 1);
}

void BeamGroup::AddFinished(BeamTeam& team, int32_t node, const BeamCandidate& candidate, int64_t rank, TextEnd end) {
  const double score = scoring_.Score(candidate.score, num_tokens_ + 1, end.at_token);
  team.finished.Add({score, candidate.score, num_tokens_ + 1, rank, node, ends_.size()});
  ends_.push_back(std::move(end));
}

std::string BeamGroup::TextOf(const std::vector<int32_t>& token_ids, const TextEnd& end) {
  if (!sampling_.detokenize) return "";
  const Stopwatch stopwatch(&text_seconds_);
  Detokenizer detokenizer(token_bytes_, sampling_.skip_special_tokens, StopsOf(sampling_), sampling_.include_stop_str_in_output);
  for (size_t i = 0; i < token_ids.size(); ++i) {
    if (end.at_token && i + 1 == token_ids.size() && !sampling_.include_stop_str_in_output) break;
    detokenizer.Push(token_ids[i], static_cast<int64_t>(i) + 1 >= sampling_.min_tokens);
  }
  detokenizer.Finish();
  return detokenizer.text();
}

SampleOutput BeamGroup::Output(const FinishedBeam& beam, const TextEnd& end) {
  SampleOutput output;
  output.cumulative_logprob = beam.sum;
  output.score = beam.score;
  output.finish_reason = end.reason;
  output.stop_reason = end.stop_reason;
  std::vector<const BeamNode*> path;
  for (int32_t at = beam.node; at >= 0; at = path.back()->before) path.push_back(&nodes_[static_cast<size_t>(at)]);
  std::reverse(path.begin(), path.end());
  for (const BeamNode* token : path) {
    output.token_ids.push_back(token->token);
    output.beam_indices.push_back(token->parent_rank);
    output.token_times_s.push_back(token->time_s);
    if (token->record >= 0) output.logprobs.push_back(records_[static_cast<size_t>(token->record)]);
    if (token->trace >= 0) output.trace.push_back(traces_[static_cast<size_t>(token->trace)]);
  }
  output.text = TextOf(output.token_ids, end);
  return output;
}

std::vector<SampleOutput> BeamGroup::Outputs(FinishReason reason) {
  std::vector<FinishedBeam> finished;
  for (const BeamTeam& team : teams_) finished.insert(finished.end(), team.finished.beams().begin(), team.finished.beams().end());
  std::stable_sort(finished.begin(), finished.end(), IsBetter);
  std::vector<SampleOutput> outputs;
  const auto wanted = static_cast<size_t>(params().num_returned);
  for (const FinishedBeam& beam : finished) {
    if (outputs.size() < wanted) outputs.push_back(Output(beam, ends_[beam.end]));
  }
  if (reason == FinishReason::kStop) return outputs;
  for (const BeamTeam& team : teams_) {
    for (const RunningBeam& beam : team.running) {
      if (team.done || outputs.size() == wanted) continue;
      const double score = num_tokens_ > 0 ? scoring_.Score(beam.sum, num_tokens_, false) : 0.0;
      outputs.push_back(Output({score, beam.sum, num_tokens_, 0, beam.node, 0}, {reason, {}}));
    }
  }
  return outputs;
}

}  // namespace llmi
