// The steps of beam searches: when every running beam of a search has its row, chooses the next beams and moves caches, histories and
// states to them, by transformers' rule. Engine thread only.
//
// All candidates are ranked. Those that end (stop tokens, stop strings, criteria, max_tokens) leave the search, and count as finished
// hypotheses if they rank among the first `width`; the best `width` others run on.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/active_requests.h"
#include "engine/beams/group.h"
#include "engine/beams/rows.h"
#include "engine/rows/user_processors.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "scheduler/scheduler.h"

namespace llmi {

// A candidate that runs on.
struct BeamChild {
  BeamTeam* team;
  Sample* parent;
  BeamCandidate candidate;
  int32_t node;
  std::optional<Detokenizer> text;  // with the token, if texts are read while the search runs
  int64_t trial = 0;                // the slot of the hooks' state after the criteria; 0: the parent's own
  Sample* sample = nullptr;         // that it runs in
};

class BeamSteps {
 public:
  BeamSteps(const KernelContext& context, KvCache& cache, Scheduler& scheduler, ActiveRequests& requests, UserProcessors& processors,
            int64_t vocab_size);

  // Finds the candidates of the beams among the rows of a chunk, as BeamRows::Prepare does.
  void Prepare(std::span<const LogitsRow> rows, const HostLogits& logits, const DeviceDraws& device) {
    rows_.Prepare(rows, logits, device);
  }
  // The row of a beam is there. If it was the last one, the search makes a step. step_index: of the engine, for traces. Returns the number
  // of tokens that beams took. Throws what failed for the row.
  int64_t Take(const LogitsRow& row, int64_t step_index);

 private:
  using Child = BeamChild;
  int64_t Select(Running& running);
  void SelectTeam(Running& running, BeamTeam& team, std::span<const RunningBeam> beams, int64_t first_rank, std::vector<Child>* children);
  std::vector<BeamCandidate> Candidates(BeamGroup& group, std::span<const RunningBeam> beams, int64_t first_rank,
                                        std::span<const Child> earlier) const;
  static void CheckFound(BeamGroup& group);
  void Place(Running& running, Child child, int64_t rank, std::vector<Child>* children);
  std::optional<TextEnd> EndOf(Running& running, Child& child);
  int32_t AddNode(Running& running, const Child& child);
  void Continue(Running& running, std::vector<Child>& children);
  void Release(Sample& sample);
  void Fork(const Sample& parent, Sample& child);
  void Extend(Running& running, Child& child);

  const KernelContext& context_;
  KvCache& cache_;
  Scheduler& scheduler_;
  ActiveRequests& requests_;
  UserProcessors& processors_;
  BeamRows rows_;
  int64_t step_index_ = 0;
  double now_ = 0;
  int64_t num_trials_ = 0;
};

}  // namespace llmi
