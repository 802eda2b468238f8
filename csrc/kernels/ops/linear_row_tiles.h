// linear_row_tiles: a linear layer (linear.h) of which each row needs some outputs alone, such as the head of rows whose masks allow few
// tokens. The bits are those of the whole layer.
#pragma once

#include <stdint.h>

#include <span>

#include "kernels/ops/linear.h"

namespace llmi {

// These tiles of rows [row, row + num_rows).
struct RowTiles {
  int64_t row;
  int64_t num_rows;
  TileRange tiles;
};
// Linear for one part on the CPU, where each row has tiles of its own; no output may be in two entries. Other columns of out stay as they
// are. Entries run in their order, so a tile that two rows need in entries next to each other is read from memory once.
// Errors (kInvalidArgument): several parts; a device; an entry outside the rows or tiles.
void LinearRowTiles(const KernelContext& context, const LinearArgs& args, std::span<const RowTiles> entries);

}  // namespace llmi
