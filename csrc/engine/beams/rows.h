// From the logits of beams to their candidates, one row per thread: log-probabilities, then what the parameters and the user's processors
// change of them (not normalised again), then the best tokens. Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/beams/group.h"
#include "engine/rows/device_draws.h"
#include "engine/rows/user_processors.h"
#include "engine/running.h"
#include "kernels/ops/context.h"

namespace llmi {

class BeamRows {
 public:
  BeamRows(const KernelContext& context, UserProcessors& processors, int64_t vocab_size)
      : context_(context), processors_(processors), vocab_size_(vocab_size) {}

  // Fills the arrivals of those rows of a chunk that beams decide. logits: their rows, raw; those of rows whose candidates the device has
  // found are not there.
  void Prepare(std::span<const LogitsRow> rows, const HostLogits& logits, const DeviceDraws& device);

 private:
  struct Row {
    const LogitsRow* row;
    const float* logits;  // [vocab_size]
    BeamArrival* arrival;
    float total = 0;                 // ln of the sum of exp(logits)
    float* scored = nullptr;         // [vocab_size] log-probabilities, if something changes them; else null
    std::vector<float> before = {};  // the row before adaptive_p
  };
  template <typename Body>
  void ForEach(std::vector<Row>& rows, const Body& body);
  void Normalise(const KernelContext& context, Row& row) const;
  void Choose(const KernelContext& context, Row& row) const;
  void Keep(const Row& row) const;

  const KernelContext& context_;
  UserProcessors& processors_;
  const int64_t vocab_size_;
  std::vector<float> matrix_;  // the log-probabilities [rows, vocab_size] of a chunk, used again for each
};

}  // namespace llmi
