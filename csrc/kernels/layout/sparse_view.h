// Which of the positions up to its own a row sees: a parameter of its sequence (sparse attention). A function of the position alone, or of
// the row's query and the keys before it, so that it is the same in any batch.
#pragma once

#include <stdint.h>

namespace llmi {

struct SparseView {
  int64_t sinks = 0;   // the first positions of the sequence
  int64_t recent = 0;  // the last positions, the row's own included; 0: the row sees all
  // Tiles of 16 positions between them that each KV head picks (kernels/ops/picked_attention.h); `sinks` and `recent` then are whole tiles,
  // the row's own among the last. 0: it sees nothing between them, and blocks that the last positions have passed are given back.
  int64_t num_best = 0;

  bool streams() const { return recent > 0 && num_best == 0; }
  bool picks() const { return num_best > 0; }
  bool operator==(const SparseView&) const = default;
};

}  // namespace llmi
