// Which of the positions up to its own a row sees: a parameter of its sequence (sparse attention). A function of the position alone, or of
// the row's query and the keys before it, so that it is the same in any batch.
#pragma once

#include <stdint.h>

namespace llmi {

struct SparseView {
  int64_t sinks = 0;   // the first positions of the sequence
  int64_t recent = 0;  // the last positions, the row's own included; 0: the row sees all

  bool streams() const { return recent > 0; }
  bool operator==(const SparseView&) const = default;
};

}  // namespace llmi
