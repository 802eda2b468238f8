// The layout of quantised weights on a device: chunks of 16 rows x 256 columns, in the order in which a matrix instruction takes them
// (kernels/cuda/warp.h, m16n8k32 and m16n8k16 of int8). It is a permutation of a tile's codes and scales, but for half a pair where the
// last chunk has an odd number of blocks. A tile is its chunks, one after the other; the last one has as many blocks of 32 columns as are
// left.
//
// A chunk: pieces of 512 bytes with codes, then scales. A piece has 16 bytes for each lane of the instruction. Lane 4 g + t has 8 columns
// of a block of rows g and g + 8: words 0 and 1 are four columns of the two rows, words 2 and 3 the other four. They are columns 8 t to 8 t
// + 7; where each half of a block has a scale of its own, columns 4 t to 4 t + 3 of both halves.
//   8 bits: a piece is a block
//   4 bits: a piece is two blocks, the first in the low halves of the bytes
//   4 bits of a table: a piece is two blocks, the first in the low halves of the words (ChunkTableCode)
//   5 bits: first a piece with a bit of each of up to eight blocks, then the other four bits of each (ChunkFieldOf)
//   6 bits: three pieces are four blocks (ChunkFieldOf)
//   scales: [16 rows][blocks of the chunk], then, with minima, as many minima: fp16, or bytes, two for a block whose halves have their own
//   of a super-block, [16 rows] fp16 d, or d and d_min
// Codes from which an offset is subtracted are stored with it subtracted, as signed numbers of their bits.
#pragma once

#include <stdint.h>

#include "core/host_device.h"
#include "kernels/layout/float_chunks.h"
#include "kernels/layout/packed_weights.h"

namespace llmi {

constexpr int kChunkBlocks = 8;
constexpr int kChunkPieceBytes = 512;  // of 32 lanes, 16 bytes each

// Whether devices store this type in chunks.
LLMI_HD static constexpr bool HasChunksPacked(PackedType type) {
  switch (type) {
    case PackedType::kF32:
    case PackedType::kF16:
    case PackedType::kBF16:
    case PackedType::kQ4:
    case PackedType::kQ4Min:
    case PackedType::kQ4K:
    case PackedType::kQ5:
    case PackedType::kQ5Min:
    case PackedType::kQ5K:
    case PackedType::kQ6K:
    case PackedType::kTable:
    case PackedType::kTableK:
    case PackedType::kTableExp:
    case PackedType::kQ8: return true;
    default: return false;
  }
}
LLMI_HD static constexpr int PackedBits(PackedType type) { return PackedLowBits(type) + PackedHighBits(type); }
// Whether the stored codes are signed.
LLMI_HD static constexpr bool HasSignedCodes(PackedType type) { return PackedOffset(type) != 0; }

LLMI_HD static constexpr int64_t ChunkCodeBytes(PackedType type, int64_t num_blocks) {
  const int64_t pieces = PackedBits(type) == 5 ? (num_blocks + 1) / 2 + 1 : (num_blocks * PackedBits(type) + 7) / 8;
  return pieces * kChunkPieceBytes;
}
LLMI_HD static constexpr int64_t ChunkSuperBytes(PackedType type) {
  return !IsSuperBlockPacked(type) ? 0 : HasMinimumPacked(type) ? 64 : 32;
}
LLMI_HD static constexpr int64_t ChunkBytes(PackedType type, int64_t num_blocks) {
  if (num_blocks == 0) return 0;
  return ChunkCodeBytes(type, num_blocks) + num_blocks * PackedScaleBytes(type) + ChunkSuperBytes(type);
}
LLMI_HD static constexpr int64_t ChunkTileBytes(PackedType type, int64_t num_cols) {
  if (HasFloatPieces(type)) return FloatPieces(type, num_cols) * kFloatPieceBytes;
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
// Byte of the word of columns 4 group to 4 group + 3 of a block of one row, in a piece.
LLMI_HD static constexpr int64_t ChunkWord(PackedType type, int64_t row, int64_t group) {
  const bool halves = HasHalfScalesPacked(type);
  const int64_t lane = row % 8 * 4 + (halves ? group % 4 : group / 2);
  return lane * 16 + (row / 8 + (halves ? group / 4 : group % 2) * 2) * 4;
}

// A part of a code: its bits [from, from + bits) are those from bit `to` on of a byte of a piece.
struct ChunkField {
  int64_t piece;
  int from;
  int bits;
  int to;
};
LLMI_HD static constexpr int NumChunkFields(PackedType type, int64_t block) {
  const int bits = PackedBits(type);
  return bits == 5 ? 2 : bits == 6 && block % 4 == 3 ? 3 : 1;
}
// 5 bits: the first piece has an odd block's lowest bit and an even block's highest, or lowest if codes are signed, so that the
// instruction's byte needs few shifts. 6 bits: the highest bits of three pieces are three blocks; the fourth has the two lowest bits of
// each.
LLMI_HD static constexpr ChunkField ChunkFieldOf(PackedType type, int64_t block, int index) {
  const int odd = static_cast<int>(block % 2);
  switch (PackedBits(type)) {
    case 4: return {block / 2, 0, 4, odd * 4};
    case 5: {
      const bool has_lowest = odd == 1 || HasSignedCodes(type);
      if (index == 0) return {1 + block / 2, has_lowest ? 1 : 0, 4, odd * 4};
      return {0, has_lowest ? 0 : 4, 1, static_cast<int>(block + 4) % 8};
    }
    case 6:
      if (block % 4 < 3) return {block / 4 * 3 + block % 4, 0, 6, 2};
      return {block / 4 * 3 + index, 4 - 2 * index, 2, 0};
    default: return {block, 0, 8, 0};
  }
}

// A table's code in a chunk: the lowest bit comes last. A byte permutation looks four codes up in eight bytes, and gives the sign of a byte
// where the fourth bit is set; so two of them, XORed, look codes up in 16 values (kernels/cuda/chunk_parts.h), if codes that differ in the
// lowest bit alone have values of one sign. The zero of MXFP4 that stands with negative values is stored as the other zero.
LLMI_HD static constexpr uint32_t ChunkTableCode(const CodeTable& table, uint32_t code) {
  uint32_t first = 0;
  while (table[first] != table[code]) ++first;
  return first >> 1 | (first & 1) << 3;
}
LLMI_HD static constexpr uint32_t CodeOfChunkTable(uint32_t code) { return (code & 7) << 1 | code >> 3; }
struct ChunkTable {
  uint32_t even[2] = {};
  uint32_t odd[2] = {};
};
LLMI_HD static constexpr ChunkTable ChunkTableOf(const CodeTable& table) {
  ChunkTable result;
  for (uint32_t i = 0; i < 8; ++i) {
    const bool is_negative = table[2 * i + 1] < 0;
    const int32_t even = is_negative && table[2 * i] == 0 ? -1 : table[2 * i];
    const int32_t odd = is_negative ? ~table[2 * i + 1] : table[2 * i + 1];
    result.even[i / 4] |= static_cast<uint32_t>(even & 255) << (i % 4 * 8);
    result.odd[i / 4] |= static_cast<uint32_t>(odd & 255) << (i % 4 * 8);
  }
  return result;
}

// Byte of a row's first scale (0) or minimum (1) of a block.
LLMI_HD static constexpr int64_t ChunkScaleSize(PackedType type) {  // of a block's scales, and of its minima
  return PackedScaleBytes(type) / kTileRows / (HasMinimumPacked(type) ? 2 : 1);
}
LLMI_HD static constexpr int64_t ChunkScale(PackedType type, const ChunkPlace& place, int64_t row, int64_t which) {
  return ChunkCodeBytes(type, place.num_blocks) + ((which * kTileRows + row) * place.num_blocks + place.block) * ChunkScaleSize(type);
}
// Byte of a row's d (0) or d_min (1).
LLMI_HD static constexpr int64_t ChunkSuper(PackedType type, int64_t row, int64_t which) {
  return ChunkBytes(type, kChunkBlocks) - ChunkSuperBytes(type) + row * ChunkSuperBytes(type) / kTileRows + which * 2;
}

}  // namespace llmi
