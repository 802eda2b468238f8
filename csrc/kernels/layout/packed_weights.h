// The layout of weights for the linear kernels: interleaved tiles of 16 output rows, so that one vector register holds the same input
// column of 16 rows and no sum runs across lanes.
#pragma once

#include <stdint.h>

#include "core/host_device.h"

namespace llmi {

enum class PackedType : uint8_t {
  kF32,       // tile: [K][16] fp32
  kF16,       // tile: [K][16] fp16
  kBF16,      // tile: [K][16] bf16
  kF16Rows,   // no tiles: [rows][K] fp16, rows padded to a multiple of 16; for a device with Device::takes_half_rows()
  kBF16Rows,  // the same in bf16
  kQ4,        // value = scale (code - 8)              (Q4_0)
  kQ4Min,     // value = scale code + minimum          (Q4_1)
  kQ4K,       // value = (d s) code + (d_min m)        (Q4_K, whose d_min has the other sign)
  kQ5,        // value = scale (code - 16)             (Q5_0)
  kQ5Min,     // as kQ4Min, with codes of 5 bits       (Q5_1)
  kQ5K,       // as kQ4K, with codes of 5 bits         (Q5_K)
  kQ2,        // value = d (code - 1)                  (TQ2_0)
  kQ2K,       // as kQ4K, codes of 2 bits, an s and an m of 4 bits for each 16 columns (Q2_K)
  kQ3K,       // value = (d s) (code - 4), an s for each 16 columns  (Q3_K)
  kQ6K,       // value = (d s) (code - 32), an s for each 16 columns (Q6_K)
  kTable,     // value = scale table[code]             (IQ4_NL)
  kTableK,    // value = (d s) table[code]             (IQ4_XS)
  kTableExp,  // value = 2^(exponent - 128) table[code] (MXFP4, whose table has twice the values of e2m1)
  kQ8,        // value = scale (code - 128)            (Q8_0)
  kW8         // the same with an fp32 scale for each 16 columns: types that are unpacked while they are loaded
};

constexpr int64_t kTileRows = 16;
constexpr int64_t kBlockSize = 32;  // columns that share a scale; also the group of activation quantisation

// A quantised tile is one group after the other: a block of 32 columns, or the eight of a super-block (the types with a d). A group holds
//   its blocks' codes, PackedCodeBytes each;
//   its blocks' scales, PackedScaleBytes each, by PackedScales(type);
//   of a super-block, [2][16] fp16: d and d_min (without minima: d and nothing).
// The codes of a block are in groups g = 0 to 7 of four columns (4 g to 4 g + 3) of 16 rows, row by row: 64 bytes of whole codes. They are
// stored in vectors of 64 bytes. The low bits (n = PackedLowBits) are in n vectors: group g in vector g mod n, from bit n (g / n) of each
// byte on. The other bits (h = PackedHighBits) follow, in vectors that hold 8 / h groups each, the first group in the lowest bits.
enum class PackedScale : uint8_t {
  kHalf,      // [16] fp16, then, with minima, [16] fp16 minima
  kFloat,     // [2][16] fp32, of the block's halves
  kExponent,  // [16] bytes
  kBytes,     // [16] signed bytes s, then, with minima, [16] m; kQ3K, kQ6K: [2][16] s of the block's halves
  kNibbles,   // [2][16] bytes, of the block's halves: s in the low four bits, m in the high four
  kNone
};
LLMI_HD static constexpr PackedScale PackedScales(PackedType type) {
  switch (type) {
    case PackedType::kQ4K:
    case PackedType::kQ5K:
    case PackedType::kQ3K:
    case PackedType::kQ6K:
    case PackedType::kTableK: return PackedScale::kBytes;
    case PackedType::kQ2K: return PackedScale::kNibbles;
    case PackedType::kTableExp: return PackedScale::kExponent;
    case PackedType::kW8: return PackedScale::kFloat;
    case PackedType::kQ2: return PackedScale::kNone;
    default: return PackedScale::kHalf;
  }
}
// Whether each half of a block has a scale of its own.
LLMI_HD static constexpr bool HasHalfScalesPacked(PackedType type) {
  return type == PackedType::kQ6K || type == PackedType::kQ3K || type == PackedType::kQ2K || type == PackedType::kW8;
}
LLMI_HD static constexpr bool HasMinimumPacked(PackedType type) {
  return type == PackedType::kQ4Min || type == PackedType::kQ4K || type == PackedType::kQ5Min || type == PackedType::kQ5K ||
         type == PackedType::kQ2K;
}
LLMI_HD static constexpr bool IsTablePacked(PackedType type) {
  return type == PackedType::kTable || type == PackedType::kTableK || type == PackedType::kTableExp;
}
LLMI_HD static constexpr bool IsSuperBlockPacked(PackedType type) {
  const PackedScale scales = PackedScales(type);
  return scales == PackedScale::kBytes || scales == PackedScale::kNibbles || scales == PackedScale::kNone;
}
LLMI_HD static constexpr int64_t PackedGroupBlocks(PackedType type) { return IsSuperBlockPacked(type) ? 8 : 1; }
// The group of a block, and the block's index in it. The divisor is a constant in each branch, so no division happens at run time.
LLMI_HD static constexpr int64_t PackedGroup(PackedType type, int64_t block) { return IsSuperBlockPacked(type) ? block / 8 : block; }
LLMI_HD static constexpr int64_t PackedBlockInGroup(PackedType type, int64_t block) { return IsSuperBlockPacked(type) ? block % 8 : 0; }
LLMI_HD static constexpr int PackedLowBits(PackedType type) {
  switch (type) {
    case PackedType::kQ8:
    case PackedType::kW8: return 8;
    case PackedType::kQ2:
    case PackedType::kQ2K:
    case PackedType::kQ3K: return 2;
    default: return 4;
  }
}
LLMI_HD static constexpr int PackedHighBits(PackedType type) {
  switch (type) {
    case PackedType::kQ6K: return 2;
    case PackedType::kQ3K:
    case PackedType::kQ5:
    case PackedType::kQ5Min:
    case PackedType::kQ5K: return 1;
    default: return 0;
  }
}
LLMI_HD static constexpr int64_t PackedCodeBytes(PackedType type) { return int64_t{64} * (PackedLowBits(type) + PackedHighBits(type)); }
LLMI_HD static constexpr int64_t PackedScaleBytes(PackedType type) {
  switch (PackedScales(type)) {
    case PackedScale::kHalf: return HasMinimumPacked(type) ? 64 : 32;
    case PackedScale::kFloat: return 128;
    case PackedScale::kExponent: return 16;
    case PackedScale::kBytes: return HasHalfScalesPacked(type) || HasMinimumPacked(type) ? 32 : 16;
    case PackedScale::kNibbles: return 32;
    case PackedScale::kNone: return 0;
  }
  return 0;
}
// Offset of a block's scales from the group's start; block = PackedGroupBlocks(type): offset of a super-block's d.
LLMI_HD static constexpr int64_t PackedScaleOffset(PackedType type, int64_t block) {
  return PackedGroupBlocks(type) * PackedCodeBytes(type) + block * PackedScaleBytes(type);
}
LLMI_HD static constexpr int64_t PackedGroupBytes(PackedType type) {
  return PackedScaleOffset(type, PackedGroupBlocks(type)) + (IsSuperBlockPacked(type) ? 64 : 0);
}

LLMI_HD static constexpr bool IsRowsPacked(PackedType type) { return type == PackedType::kF16Rows || type == PackedType::kBF16Rows; }
LLMI_HD static constexpr bool IsQuantizedPacked(PackedType type) { return type >= PackedType::kQ4; }
// The value that is subtracted from a code.
LLMI_HD static constexpr int32_t PackedOffset(PackedType type) {
  switch (type) {
    case PackedType::kQ2: return 1;
    case PackedType::kQ3K: return 4;
    case PackedType::kQ4: return 8;
    case PackedType::kQ5: return 16;
    case PackedType::kQ6K: return 32;
    case PackedType::kQ8:
    case PackedType::kW8: return 128;
    default: return 0;
  }
}

// The number of columns of quantised weights is a multiple of this.
LLMI_HD static constexpr int64_t PackedGroupColumns(PackedType type) { return PackedGroupBlocks(type) * kBlockSize; }

LLMI_HD static constexpr int64_t NumTiles(int64_t num_rows) { return (num_rows + kTileRows - 1) / kTileRows; }

// Bytes of one tile of 16 rows with num_cols columns.
LLMI_HD static constexpr int64_t PackedTileBytes(PackedType type, int64_t num_cols) {
  if (IsQuantizedPacked(type)) return PackedGroup(type, num_cols / kBlockSize) * PackedGroupBytes(type);
  return num_cols * kTileRows * (type == PackedType::kF32 ? 4 : 2);
}

// What the codes 0 to 15 of a table type stand for: signed bytes. As words, so that no copy has an address on a device.
struct CodeTable {
  uint64_t low = 0;   // of codes 0 to 7, the first in the lowest byte
  uint64_t high = 0;  // of codes 8 to 15

  LLMI_HD constexpr int32_t operator[](uint32_t code) const {
    return static_cast<int8_t>(static_cast<uint8_t>((code < 8 ? low : high) >> (code % 8 * 8)));
  }
};

// A view of packed weights [num_rows, num_cols]; rows past num_rows in the last tile are zero.
struct PackedView {
  PackedType type;
  int64_t num_rows;
  int64_t num_cols;
  const uint8_t* data;   // NumTiles(num_rows) tiles, one after the other, 64-byte aligned
  CodeTable table = {};  // of table types
  // On a device: chunks instead of tiles (chunks.h).
  bool in_chunks = false;
};

}  // namespace llmi
