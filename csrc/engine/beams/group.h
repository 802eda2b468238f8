// One beam search under way: its running beams with what their rows have brought, the tree of chosen tokens, and its finished hypotheses.
//
// A beam is a Sample. When its row comes, the row's best candidates are kept here, and the sample idles until every running beam has its
// row: then BeamSteps selects. So the beams need not run in the same step, and bits do not depend on when each did. Engine thread only.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "engine/beams/candidates.h"
#include "engine/beams/hypotheses.h"
#include "engine/detokenizer.h"
#include "engine/emit.h"
#include "engine/request.h"
#include "engine/running.h"

namespace llmi {

// A chosen token: the path from a node to the root is a hypothesis, read backwards.
struct BeamNode {
  int32_t before = -1;
  int32_t token = 0;
  int32_t parent_rank = 0;
  double time_s = 0;
  int32_t record = -1;  // of its log-probabilities
  int32_t trace = -1;   // of its row in the decode trace
};

struct RunningBeam {
  Sample* sample = nullptr;
  double sum = 0;
  int32_t node = -1;
};

// What the row of one sample has brought for the step under way.
struct BeamArrival {
  bool arrived = false;
  std::vector<BeamCandidate> candidates;  // best first; empty: nothing is allowed, so the beam is dropped
  std::vector<float> logits;              // the model's, if the selection needs them; else empty
  std::vector<float> scored;              // the log-probabilities that were scored, if the selection needs them
  std::exception_ptr error;
};

// The beams that compete with each other: all of them, or one group of a diverse search.
struct BeamTeam {
  std::vector<RunningBeam> running;  // by rank
  FinishedBeams finished;
  bool done = false;
};

// Candidates of a team of the search, and those that a row must bring so that the best ones stay known after the diversity penalty.
int64_t NumBeamCandidates(const Request& request);
int64_t NumRowCandidates(const Request& request);

class BeamGroup {
 public:
  // leader: the sample that computes the prompt.
  BeamGroup(const Request& request, Sample* leader, std::shared_ptr<const TokenBytes> token_bytes);

  const BeamScoring& scoring() const { return scoring_; }
  const BeamParams& params() const { return scoring_.params; }
  std::vector<BeamTeam>& teams() { return teams_; }
  // The rank of the team's best beam among all beams.
  int64_t FirstRank(const BeamTeam& team) const { return (&team - teams_.data()) * team_width(); }
  int64_t team_width() const { return params().width / params().num_groups; }
  int64_t num_candidates() const { return num_candidates_; }  // as NumBeamCandidates
  int64_t num_of_row() const { return num_of_row_; }          // as NumRowCandidates
  int64_t num_tokens() const { return num_tokens_; }          // output tokens of the running beams

  BeamArrival& arrival(const Sample& sample);
  // The sum of a sample's beam; a sample that starts several teams has 0.
  double SumOf(const Sample& sample) const;
  bool all_arrived() const;
  // The step's rows are used: the next step begins. Keeps the memory of the rows.
  void BeginStep();

  int32_t AddNode(const BeamNode& node);
  int32_t AddRecord(TokenLogprobs logprobs);
  int32_t AddTrace(const TraceRow& row);
  void AddFinished(BeamTeam& team, int32_t node, const BeamCandidate& candidate, int64_t rank, TextEnd end);

  // The best hypotheses, best first, at most num_returned. reason: why the search ends; unless it is kStop, running beams
  // follow the finished ones, with this reason, if there are too few.
  std::vector<SampleOutput> Outputs(FinishReason reason);
  // Time that Outputs has spent on texts.
  double text_seconds() const { return text_seconds_; }

  bool streamed = false;  // the hypotheses have been sent to a caller that streams

 private:
  SampleOutput Output(const FinishedBeam& beam, const TextEnd& end);

  std::string TextOf(const std::vector<int32_t>& token_ids, const TextEnd& end);

  const SamplingParams sampling_;
  const std::shared_ptr<const TokenBytes> token_bytes_;
  const BeamScoring scoring_;
  const int64_t num_candidates_;
  const int64_t num_of_row_;
  std::vector<BeamTeam> teams_;
  std::vector<BeamArrival> arrivals_;  // by sample
  std::vector<BeamNode> nodes_;
  std::vector<TokenLogprobs> records_;
  std::vector<TraceRow> traces_;
  std::vector<TextEnd> ends_;
  int64_t num_tokens_ = 0;
  double text_seconds_ = 0;
};

}  // namespace llmi
