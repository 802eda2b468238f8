// Drafts what a table of other texts expects to follow the last tokens (corpus_table.h).
//
// A draft is a function of the sequence's last tokens and the table alone.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "speculative/corpus_table.h"
#include "speculative/drafter.h"

namespace llmi {

class CorpusDrafter : public Drafter {
 public:
  explicit CorpusDrafter(std::shared_ptr<const CorpusTable> table) : table_(std::move(table)) {}
  std::string name() const override { return "corpus"; }
  std::unique_ptr<DrafterState> NewState(uint64_t request_id, int64_t sample_index) override;
  // Kinds 1 to 5, by the rates of the table.
  bool tells_kinds() const override { return true; }
  double expected_rate(int32_t kind, bool greedy) const override;
  int64_t num_bytes() const override { return table_->num_bytes(); }
  void Propose(std::span<DraftContext*> contexts) override;

 private:
  std::shared_ptr<const CorpusTable> table_;
};

}  // namespace llmi
