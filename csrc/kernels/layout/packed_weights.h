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
  kQ6K,       // value = (d s) (code - 32), an s for each 16 columns (Q6_K)
  kQ8         // value = scale (code - 128)            (Q8_0)
};

constexpr int64_t kTileRows = 16;
constexpr int64_t kBlockSize = 32;  // columns that share a scale; also the group of activation quantisation

// A quantised tile is one group after the other: a block of 32 columns, or the eight of a super-block (kQ4K, kQ6K). A group holds
//   its blocks' codes, PackedCodeBytes each;
//   its blocks' scales, PackedScaleBytes each: [16] fp16, then, kQ4Min, [16] fp16 minima;
//     of a super-block [2][16] signed bytes: s and m (kQ4K), or s of the block's halves (kQ6K);
//   of a super-block, [2][16] fp16: d and d_min (kQ6K: d and nothing).
// The codes of a block are in groups g = 0 to 7 of four columns (4 g to 4 g + 3) of 16 rows, row by row. Codes of 8 bits: group g is the
// 64 bytes from byte 64 g on. Codes of fewer bits: the low four bits of groups 0 to 3 are the low nibbles of 4 x 64 bytes, those of
// groups 4 to 7 the high nibbles. The other bits (h = PackedHighBits) follow, in vectors of 64 bytes that hold 8 / h groups each, the
// first group in the lowest bits.
LLMI_HD static constexpr bool IsSuperBlockPacked(PackedType type) { return type == PackedType::kQ4K || type == PackedType::kQ6K; }
LLMI_HD static constexpr int64_t PackedGroupBlocks(PackedType type) { return IsSuperBlockPacked(type) ? 8 : 1; }
// The group of a block, and the block's index in it. The divisor is a constant in each branch, so no division happens at run time.
LLMI_HD static constexpr int64_t PackedGroup(PackedType type, int64_t block) { return IsSuperBlockPacked(type) ? block / 8 : block; }
LLMI_HD static constexpr int64_t PackedBlockInGroup(PackedType type, int64_t block) { return IsSuperBlockPacked(type) ? block % 8 : 0; }
LLMI_HD static constexpr int PackedHighBits(PackedType type) { return type == PackedType::kQ6K ? 2 : type == PackedType::kQ5 ? 1 : 0; }
LLMI_HD static constexpr int64_t PackedCodeBytes(PackedType type) {
  return type == PackedType::kQ8 ? 512 : 256 + 64 * PackedHighBits(type);
}
LLMI_HD static constexpr int64_t PackedScaleBytes(PackedType type) { return type == PackedType::kQ4Min ? 64 : 32; }
// Offset of a block's scales from the group's start; block = PackedGroupBlocks(type): offset of a super-block's d.
LLMI_HD static constexpr int64_t PackedScaleOffset(PackedType type, int64_t block) {
  return PackedGroupBlocks(type) * PackedCodeBytes(type) + block * PackedScaleBytes(type);
}
LLMI_HD static constexpr int64_t PackedGroupBytes(PackedType type) {
  return PackedScaleOffset(type, PackedGroupBlocks(type)) + (IsSuperBlockPacked(type) ? 64 : 0);
}

LLMI_HD static constexpr bool IsRowsPacked(PackedType type) { return type == PackedType::kF16Rows || type == PackedType::kBF16Rows; }
LLMI_HD static constexpr bool IsQuantizedPacked(PackedType type) { return type >= PackedType::kQ4; }
LLMI_HD static constexpr bool HasMinimumPacked(PackedType type) { return type == PackedType::kQ4Min || type == PackedType::kQ4K; }
// The value that is subtracted from a code.
LLMI_HD static constexpr int32_t PackedOffset(PackedType type) {
  switch (type) {
    case PackedType::kQ4: return 8;
    case PackedType::kQ5: return 16;
    case PackedType::kQ6K: return 32;
    case PackedType::kQ8: return 128;
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

// A view of packed weights [num_rows, num_cols]; rows past num_rows in the last tile are zero.
struct PackedView {
  PackedType type;
  int64_t num_rows;
  int64_t num_cols;
  const uint8_t* data;  // NumTiles(num_rows) tiles, one after the other, 64-byte aligned
};

}  // namespace llmi
