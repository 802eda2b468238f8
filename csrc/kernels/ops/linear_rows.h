// A part of a linear layer's work (linear.h) on the calling thread, for ops that cut it by rows and tiles.
#pragma once

#include <stdint.h>

#include "kernels/ops/linear.h"

namespace llmi {

// The same layer for rows [row, row + num_rows) alone.
LinearArgs LinearOfRows(LinearArgs args, int64_t row, int64_t num_rows);

// All rows, and these tiles of the part.
void RunLinearTiles(const KernelContext& context, const LinearArgs& args, const LinearPart& part, const TileRange& tiles);

}  // namespace llmi
