// Drafts what a table of other texts expects to follow the last tokens (corpus_table.h).
//
// A draft is a function of the sequence's last tokens and the table alone.
#pragma once

#include <memory>
#include <utility>

#include "speculative/corpus_table.h"
#include "speculative/drafter.h"

namespace llmi {

class CorpusDrafter : public Drafter {
 public:
  // Kinds 1 to 5, by the rates of the table.
  explicit CorpusDrafter(std::shared_ptr<const CorpusTable> table)
      : Drafter({.name = "corpus", .tells_kinds = true}), table_(std::move(table)) {}
  double expected_rate(int32_t kind, bool greedy) const override;
  int64_t num_bytes() const override { return table_->num_bytes(); }
  void Propose(std::span<Seat> seats) override;

 private:
  std::shared_ptr<const CorpusTable> table_;
};

}  // namespace llmi
