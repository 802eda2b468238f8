// The layout of quantised weights on a device: chunks of 16 rows x 256 columns, in the order in which a matrix instruction takes them
// (kernels/cuda/warp.h, m16n8k32 of int8). It is a permutation of a tile's codes and scales, but for half a pair where the last chunk has
// an odd number of blocks. A tile is its chunks, one after the other; the last one has as many blocks of 32 columns as are left.
//
// A chunk: codes, then scales. Lane 4 g + t of the instruction has columns 8 t to 8 t + 7 of a block of rows g and g + 8: words 0 and 1 are
// columns 8 t to 8 t + 3 of the two rows, words 2 and 3 the next four columns.
//   4 bits: two blocks at a time, 16 bytes a lane: the first block in the low halves of the bytes
//   8 bits: one block at a time, 16 bytes a lane
//   scales: [16 rows][blocks of the chunk] fp16, then, with minima, as many minima
// Codes from which an offset is subtracted are stored with it subtracted, as signed numbers of their 4 or 8 bits.
#pragma once

#include <stdint.h>

#include "core/host_device.h"
#include "kernels/layout/packed_weights.h"

namespace llmi {

constexpr int kChunkBlocks = 8;
constexpr int kChunkPieceBytes = 512;  // of 32 lanes, 16 bytes each

// Whether devices store this type in chunks.
LLMI_HD static constexpr bool HasChunksPacked(PackedType type) {
  return type == PackedType::kQ4 || type == PackedType::kQ4Min || type == PackedType::kQ8;
}
LLMI_HD static constexpr int64_t ChunkCodeBytes(PackedType type, int64_t num_blocks) {
  return (PackedLowBits(type) == 4 ? (num_blocks + 1) / 2 : num_blocks) * kChunkPieceBytes;
}
LLMI_HD static constexpr int64_t ChunkBytes(PackedType type, int64_t num_blocks) {
  return ChunkCodeBytes(type, num_blocks) + num_blocks * PackedScaleBytes(type);
}
LLMI_HD static constexpr int64_t ChunkTileBytes(PackedType type, int64_t num_cols) {
  const int64_t num_blocks = num_cols / kBlockSize;
  return num_blocks / kChunkBlocks * ChunkBytes(type, kChunkBlocks) + ChunkBytes(type, num_blocks % kChunkBlocks);
}

// The place of a block in its tile.
struct ChunkPlace {
  int64_t chunk_bytes;  // before its chunk
  int64_t num_blocks;   // of the chunk
  int64_t block;        // in the chunk
};
LLMI_HD static constexpr ChunkPlace ChunkPlaceOf(PackedType type, int64_t num_cols, int64_t block) {
  const int64_t first = block / kChunkBlocks * kChunkBlocks;
  const int64_t left = num_cols / kBlockSize - first;
  return {first / kChunkBlocks * ChunkBytes(type, kChunkBlocks), left < kChunkBlocks ? left : kChunkBlocks, block - first};
}
// Byte of the word of columns 4 group to 4 group + 3 of a block of one row, from the chunk's start; with 4 bits half the word's bits are
// the block's.
LLMI_HD static constexpr int64_t ChunkWord(PackedType type, int64_t block, int64_t row, int64_t group) {
  const int64_t lane = row % 8 * 4 + group / 2;
  const int64_t piece = PackedLowBits(type) == 4 ? block / 2 : block;
  return piece * kChunkPieceBytes + lane * 16 + (row / 8 + group % 2 * 2) * 4;
}
// Byte of the scale (0) or minimum (1) of a row.
LLMI_HD static constexpr int64_t ChunkScale(PackedType type, const ChunkPlace& place, int64_t row, int64_t which) {
  return ChunkCodeBytes(type, place.num_blocks) + ((which * kTileRows + row) * place.num_blocks + place.block) * 2;
}

}  // namespace llmi
