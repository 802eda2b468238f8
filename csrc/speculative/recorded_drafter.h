// Recorded outputs as drafts: a text that is checked, or that goes on where another process stopped, goes through the model in few passes,
// and each of its tokens is drawn as plain decoding draws it.
#pragma once

#include <utility>
#include <vector>

#include "speculative/drafter.h"

namespace llmi {

class RecordedDrafter : public Drafter {
 public:
  // outputs: the recorded tokens by sample.
  explicit RecordedDrafter(std::vector<std::vector<int32_t>> outputs) : Drafter({.name = "recorded"}), outputs_(std::move(outputs)) {}
  // Proposes what the record has behind the output so far; nothing where the output is another one.
  void Propose(std::span<Seat> seats) override;

 private:
  const std::vector<std::vector<int32_t>> outputs_;
};

}  // namespace llmi
