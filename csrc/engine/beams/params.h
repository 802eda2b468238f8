// Parameters of a beam search: the fields of BeamSearchParams that are not sampling parameters. docs/parameters.md explains them.
#pragma once

#include <cstdint>

namespace llmi {

// When a search ends before max_tokens; transformers' early_stopping.
enum class EarlyStopping : uint8_t {
  kNo,     // False: no running beam can improve if it ended now
  kYes,    // True: `width` hypotheses have finished
  kNever,  // "never": no running beam can ever improve
};

struct BeamParams {
  int64_t width = 1;         // running beams, and finished hypotheses that are kept
  int64_t num_returned = 1;  // of the finished hypotheses, best first
  double length_penalty = 1.0;
  // The length in the penalty is that of prompt and output, without an EOS at the end. false: that of the output, with it.
  bool length_includes_prompt = false;
  EarlyStopping early_stopping = EarlyStopping::kNo;
  bool do_sample = false;  // candidates are drawn without replacement, in proportion to exp(score)
  int64_t num_groups = 1;
  double diversity_penalty = 0.0;
};

}  // namespace llmi
