// Reads single values out of packed tiles: the scalar definition of the layout in packed_weights.h.
#pragma once

#include <stdint.h>

#include "core/half.h"
#include "core/scalar_math.h"
#include "kernels/packed_weights.h"

// Unnamed: the SIMD files include this, and no inline function may be shared between instruction sets.
namespace llmi::reference {
namespace {

struct PackedRow {  // one row of a quantised tile
  PackedType type;
  const uint8_t* tile;
  int64_t lane;

  LLMI_HD const uint8_t* Block(int64_t block) const { return tile + block * PackedBlockBytes(type); }
  LLMI_HD bool FourBit() const { return IsFourBitPacked(type); }
  LLMI_HD int32_t Offset() const { return type == PackedType::kQ4 ? 8 : FourBit() ? 0 : 128; }
  LLMI_HD int32_t Code(int64_t block, int64_t k) const {
    const int64_t group = k / 4;
    if (!FourBit()) return Block(block)[group * 64 + lane * 4 + k % 4];
    const int32_t byte = Block(block)[group % 4 * 64 + lane * 4 + k % 4];
    return group < 4 ? byte & 15 : byte >> 4;
  }
  // `index` counts the vectors of 16 fp16 or fp32 values behind the codes.
  LLMI_HD float Half(int64_t block, int64_t index) const {
    return HalfToFloat(reinterpret_cast<const uint16_t*>(Block(block) + PackedCodeBytes(type))[index * 16 + lane]);
  }
  LLMI_HD float Single(int64_t block, int64_t index) const {
    return reinterpret_cast<const float*>(Block(block) + PackedCodeBytes(type))[index * 16 + lane];
  }
  LLMI_HD float Scale(int64_t block, int64_t half) const {
    switch (type) {
      case PackedType::kQ4MinF32: return Single(block, 0);
      case PackedType::kQ8HalfF32: return Single(block, half);
      default: return Half(block, 0);
    }
  }
  LLMI_HD bool HasMinimum() const { return HasMinimumPacked(type); }
  LLMI_HD float Minimum(int64_t block) const { return type == PackedType::kQ4Min ? Half(block, 1) : Single(block, 1); }
};

LLMI_HD inline float FloatWeight(PackedType type, const uint8_t* tile, int64_t k, int64_t lane) {
  const int64_t index = k * kTileRows + lane;
  if (type == PackedType::kF32) return reinterpret_cast<const float*>(tile)[index];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(tile)[index];
  return type == PackedType::kF16 ? HalfToFloat(bits) : Bfloat16ToFloat(bits);
}

// W[row][k], dequantised.
LLMI_HD inline float WeightValue(const PackedView& weights, int64_t row, int64_t k) {
  if (weights.type == PackedType::kBF16Rows) {
    return Bfloat16ToFloat(reinterpret_cast<const uint16_t*>(weights.data)[row * weights.num_cols + k]);
  }
  const uint8_t* tile = weights.data + row / kTileRows * PackedTileBytes(weights.type, weights.num_cols);
  const int64_t lane = row % kTileRows;
  if (!IsQuantizedPacked(weights.type)) return FloatWeight(weights.type, tile, k, lane);
  const PackedRow packed{weights.type, tile, lane};
  const int64_t block = k / kBlockSize;
  const float code = static_cast<float>(packed.Code(block, k % kBlockSize) - packed.Offset());
  const float scale = packed.Scale(block, k % kBlockSize / 16);
  return packed.HasMinimum() ? Fma(scale, code, packed.Minimum(block)) : scale * code;
}

}  // namespace
}  // namespace llmi::reference
