// Which experts the rows of a decoder used, counted since it was loaded.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/experts.h"
#include "model/spec.h"

namespace llmi {

struct ExpertCounts {
  // By layer and expert; a layer without experts has none.
  std::vector<std::vector<int64_t>> uses;
  // By layer, [experts of the layer before * experts of the layer]: rows that used both. Empty where one of the two has no experts.
  std::vector<std::vector<int64_t>> with_last;
  // By layer: how often an expert's weights were read, which several rows of a forward may share.
  std::vector<int64_t> reads;
};

// The engine thread alone.
class ExpertUse {
 public:
  explicit ExpertUse(const ModelSpec& spec);

  // Rows [row, row + pairs.num_rows) of a forward in this layer. The layers of a forward must come in order.
  void Count(int64_t layer, int64_t row, const ExpertPairs& pairs);
  const ExpertCounts& counts() const { return counts_; }
  // ExpertCounts::reads of a layer since the last call.
  int64_t TakeReads(int64_t layer);

 private:
  ExpertCounts counts_;
  std::vector<int64_t> num_used_;           // by layer
  std::vector<int64_t> taken_;              // reads that TakeReads has told, by layer
  std::vector<std::vector<int32_t>> last_;  // by layer: the experts of each row of its latest forward
};

}  // namespace llmi
