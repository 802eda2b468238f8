// The layout of float weights on a device: a tile of 16 rows is a series of pieces of 512 bytes, in the order in which a matrix instruction
// takes 16 bits (kernels/cuda/warp.h, m16n8k16). It is a permutation of the tile, but that its last piece is filled up with zeros.
//
// A piece has 16 columns of 16 bits, or 8 of 32. Lane 4 g + t has 16 bytes of it: words 0 and 2 of row g, words 1 and 3 of row g + 8.
//   16 bits: words 0 and 1 are columns 2 t and 2 t + 1, words 2 and 3 columns 2 t + 8 and 2 t + 9
//   32 bits: words 0 and 1 are column 2 t, words 2 and 3 column 2 t + 1
// The lanes of a row stand in an order of their own, so that lanes 0 to 7 as well as the lanes of eight rows with the same t find all banks
// of shared memory.
#pragma once

#include <stdint.h>

#include "core/host_device.h"
#include "kernels/layout/packed_weights.h"

namespace llmi {

constexpr int kFloatPieceBytes = 512;

LLMI_HD static constexpr bool HasFloatPieces(PackedType type) {
  return type == PackedType::kF32 || type == PackedType::kF16 || type == PackedType::kBF16;
}
LLMI_HD static constexpr int FloatPieceColumns(PackedType type) { return type == PackedType::kF32 ? 8 : 16; }
LLMI_HD static constexpr int64_t FloatPieces(PackedType type, int64_t num_cols) {
  return (num_cols + FloatPieceColumns(type) - 1) / FloatPieceColumns(type);
}
// Byte of a lane in a piece.
LLMI_HD static constexpr int FloatPieceLane(int lane) { return (lane ^ (lane / 8)) * 16; }
// Byte of column k of a row of the tile, from the tile's start.
LLMI_HD static constexpr int64_t FloatPlace(PackedType type, int64_t row, int64_t k) {
  const int64_t piece = k / FloatPieceColumns(type);
  const auto column = static_cast<int>(k % FloatPieceColumns(type));
  const int lane = static_cast<int>(row) % 8 * 4 + column % 8 / 2;
  const int word = static_cast<int>(row) / 8 + (type == PackedType::kF32 ? column % 2 : column / 8) * 2;
  return piece * kFloatPieceBytes + FloatPieceLane(lane) + word * 4 + (type == PackedType::kF32 ? 0 : column % 2 * 2);
}

}  // namespace llmi
