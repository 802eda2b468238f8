// Weights as the linear kernels read them: tiles of 16 output rows, interleaved, so that one vector register
// holds the same input column of 16 rows and no sum ever runs across lanes.
#pragma once

#include <stdint.h>

#include "core/host_device.h"

namespace llmi {

enum class PackedType : uint8_t {
  kF32,       // tile: [K][16] fp32
  kF16,       // tile: [K][16] fp16
  kBF16,      // tile: [K][16] bf16
  kBF16Rows,  // no tiles: [rows][K] bf16, up to a whole tile; for a device that asks for them (Device::takes_bf16_rows)
  kQ4,        // value = scale (code - 8), scale fp16           (Q4_0)
  kQ4Min,     // value = scale code + minimum, both fp16        (Q4_1)
  kQ4MinF32,  // value = scale code + minimum, both fp32        (Q4_K: super-block scales multiplied out, exact)
  kQ8,        // value = scale (code - 128), scale fp16         (Q8_0, Q5_0)
  kQ8HalfF32  // as kQ8 with an fp32 scale for each 16 values   (Q6_K)
};

constexpr int64_t kTileRows = 16;
constexpr int64_t kBlockSize = 32;  // columns that share a scale; also the group of activation quantisation

// Bytes of one 16-row x 32-column block of a quantised tile: codes, then 16 scales (32 for kQ8HalfF32), then
// 16 minima. Codes of 8 bits: byte (k / 4) * 64 + row * 4 + k % 4. Codes of 4 bits: the same with
// k / 4 modulo 4; groups 0 to 3 in the low nibbles, 4 to 7 in the high ones.
LLMI_HD static inline int64_t PackedBlockBytes(PackedType type) {
  switch (type) {
    case PackedType::kQ4: return 256 + 32;
    case PackedType::kQ4Min: return 256 + 64;
    case PackedType::kQ4MinF32: return 256 + 128;
    case PackedType::kQ8: return 512 + 32;
    case PackedType::kQ8HalfF32: return 512 + 128;
    default: return 0;
  }
}

LLMI_HD static inline bool IsQuantizedPacked(PackedType type) { return type >= PackedType::kQ4; }
LLMI_HD static constexpr bool HasMinimumPacked(PackedType type) { return type == PackedType::kQ4Min || type == PackedType::kQ4MinF32; }
LLMI_HD static constexpr bool IsFourBitPacked(PackedType type) { return type == PackedType::kQ4 || HasMinimumPacked(type); }

LLMI_HD static constexpr int64_t PackedCodeBytes(PackedType type) { return IsFourBitPacked(type) ? 256 : 512; }

// Bytes of one tile of 16 rows with num_cols columns (a multiple of 32 where quantised).
LLMI_HD static inline int64_t PackedTileBytes(PackedType type, int64_t num_cols) {
  if (IsQuantizedPacked(type)) return num_cols / kBlockSize * PackedBlockBytes(type);
  return num_cols * kTileRows * (type == PackedType::kF32 ? 4 : 2);
}

// A view of packed weights [num_rows, num_cols]; rows past num_rows in the last tile are zero.
struct PackedView {
  PackedType type;
  int64_t num_rows;
  int64_t num_cols;
  const uint8_t* data;  // ceil(num_rows / 16) tiles, one after the other, 64-byte aligned
};

}  // namespace llmi
