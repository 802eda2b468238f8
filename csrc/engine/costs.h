// The costs of a step on this machine: the curve c(M), which is the measured time of a forward of M rows, and the ratio of real steps to
// it. The engine uses them to decide how many prompt tokens may join a step of decodes, and whether the blocks of a preempted sequence are
// copied. Times decide only when something is computed, never which tokens are generated. Engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cache/kv_cache.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "speculative/cost_curve.h"

namespace llmi {

// The properties of a step that determine its time.
struct StepShape {
  int64_t num_rows = 0;
  int64_t num_sequences = 0;
  int64_t num_prompts = 0;  // sequences with more than one new token
  bool drafted = false;     // some sequence had a draft
};

class StepCosts {
 public:
  // max_num_rows: the largest step that is measured. check: called between two measured forwards; its exception ends the measurement.
  StepCosts(const KernelContext& context, Decoder& decoder, KvCache& cache, int64_t max_num_rows, std::function<void()> check);

  // c(M). The first call measures it, in free cache pages; empty if there are none.
  const CostCurve& Curve();
  // c(M) as far as it is known without measuring: measured if it was, else Recorded, scaled to the steps seen. Never empty.
  const CostCurve& CurveSoFar() const { return curve_.empty() ? recorded_.curve : curve_; }
  // c(M) over c(1) as it was measured on other machines: a function of the engine's options and the model's spec alone.
  const CostCurve& Recorded() const { return table_; }
  // c(1), c(2), ... up to the largest measured size, for length policies. Measures like Curve.
  const std::vector<double>& SecondsByRows();

  // Prompt tokens that a step may take in addition to num_decodes decodes: as many as keep the step within 1.7 times the predicted time of
  // its decodes alone, but at least 8. Measures like Curve.
  int64_t PromptBudget(int64_t num_decodes);
  // Whether copying the blocks of a preempted sequence to the host and back is expected to take less time than computing them again.
  bool PrefersCopy(const KvSequence& sequence);
  // Of recent steps with prompts; 0: there was none.
  double prompt_seconds_per_token() const { return prompt_seconds_per_token_; }
  // Learns that a step of this shape took `seconds`.
  void Learn(const StepShape& step, double seconds);

  // Seconds of decode steps over c(M), smoothed. Long contexts cost more than the short ones that c(M) was measured on.
  double decode_ratio() const { return decode_ratio_; }
  // The same for steps with drafts, relative to decode_ratio().
  double drafted_ratio() const { return drafted_ratio_; }
  // Preemptions whose blocks were not copied because computing them again looked faster.
  int64_t num_copies_left_out() const { return num_copies_left_out_; }

 private:
  void TakeUnit(const StepShape& step, double seconds);
  void Measure();
  double TimeRows(const KvSequence& kv, int64_t num_rows);

  const KernelContext& context_;
  Decoder& decoder_;
  KvCache& cache_;
  const int64_t max_num_rows_;
  const std::function<void()> check_;
  const CostCurve table_;  // Recorded()
  CostCurve curve_;
  struct {
    CostCurve curve;  // in the time of plain steps
    double unit_seconds = 0;
    int num_steps = 0;  // that gave the unit
  } recorded_;          // used before curve_ is measured
  std::vector<double> seconds_by_rows_;
  double decode_ratio_ = 1;
  double mixed_ratio_ = 1;  // of steps with prompts and decodes
  bool seen_plain_decode_ = false;
  double drafted_ratio_ = 1;
  double prompt_seconds_per_token_ = 0;  // of recent steps with prompts; 0: none so far
  int64_t num_slow_copies_ = 0;          // preemptions where copying looked slower than computing again
  int64_t num_copies_left_out_ = 0;      // these without every fourth, which is copied to refresh the estimate
};

}  // namespace llmi
