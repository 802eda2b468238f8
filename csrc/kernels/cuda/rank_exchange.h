// What several devices exchange at once.
#pragma once

#include <cstdint>
#include <vector>

#include "core/rank_group.h"

namespace llmi::cuda {

// One part a rank, side by side in memory of the device; its owner knows it.
struct RankExchange {
  uint8_t* packed;
  int64_t num_bytes;
  std::vector<RankGroup::Block> parts;  // of one row each, in the order of owners
  bool to_first;                        // rank 0 alone gets those of the others
};

}  // namespace llmi::cuda
