// Reads single values out of packed tiles: the scalar definition of the layout in packed_weights.h.
#pragma once

#include <stdint.h>

#include "core/half.h"
#include "core/scalar_math.h"
#include "kernels/layout/packed_weights.h"

// Unnamed: the SIMD files include this, and no inline function may be shared between instruction sets.
namespace llmi::reference {
namespace {

struct PackedRow {  // one row of a quantised tile
  PackedType type;
  const uint8_t* tile;
  int64_t lane;

  LLMI_HD const uint8_t* Group(int64_t block) const { return tile + PackedGroup(type, block) * PackedGroupBytes(type); }
  LLMI_HD const uint8_t* Codes(int64_t block) const { return Group(block) + PackedBlockInGroup(type, block) * PackedCodeBytes(type); }
  LLMI_HD const uint8_t* Scales(int64_t block) const { return Group(block) + PackedScaleOffset(type, PackedBlockInGroup(type, block)); }
  LLMI_HD int32_t Offset() const { return PackedOffset(type); }
  // The codes of columns 4 group to 4 group + 3 of a block, one byte each; the first is the lowest byte.
  LLMI_HD uint32_t CodeWord(int64_t block, int64_t group) const {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(Codes(block)) + lane;
    if (type == PackedType::kQ8) return words[group * kTileRows];
    const uint32_t low = words[group % 4 * kTileRows] >> (group < 4 ? 0 : 4) & 0x0F0F0F0Fu;
    const int high_bits = PackedHighBits(type);
    if (high_bits == 0) return low;
    const uint32_t high = words[(4 + group * high_bits / 8) * kTileRows] >> (group * high_bits % 8);
    return low | (high & (high_bits == 2 ? 0x03030303u : 0x01010101u)) << 4;
  }
  LLMI_HD int32_t Code(int64_t block, int64_t k) const { return static_cast<int32_t>(CodeWord(block, k / 4) >> (k % 4 * 8) & 255); }
  // index: selects a vector of 16 values among a block's scales or a super-block's d and d_min.
  LLMI_HD float Half(const uint8_t* at, int64_t index) const {
    return HalfToFloat(reinterpret_cast<const uint16_t*>(at)[index * 16 + lane]);
  }
  LLMI_HD float Product(int64_t block, int64_t d, int64_t byte) const {
    const auto* bytes = reinterpret_cast<const int8_t*>(Scales(block));
    return Half(Group(block) + PackedScaleOffset(type, PackedGroupBlocks(type)), d) * static_cast<float>(bytes[byte * 16 + lane]);
  }
  LLMI_HD float Scale(int64_t block, int64_t half) const {
    if (!IsSuperBlockPacked(type)) return Half(Scales(block), 0);
    return Product(block, 0, type == PackedType::kQ6K ? half : 0);
  }
  LLMI_HD bool HasMinimum() const { return HasMinimumPacked(type); }
  LLMI_HD float Minimum(int64_t block) const { return type == PackedType::kQ4K ? Product(block, 1, 1) : Half(Scales(block), 1); }
};

LLMI_HD inline float HalfWeight(PackedType type, uint16_t bits) {
  return type == PackedType::kF16 || type == PackedType::kF16Rows ? HalfToFloat(bits) : Bfloat16ToFloat(bits);
}

LLMI_HD inline float FloatWeight(PackedType type, const uint8_t* tile, int64_t k, int64_t lane) {
  const int64_t index = k * kTileRows + lane;
  if (type == PackedType::kF32) return reinterpret_cast<const float*>(tile)[index];
  return HalfWeight(type, reinterpret_cast<const uint16_t*>(tile)[index]);
}

// W[row][k], dequantised.
LLMI_HD inline float WeightValue(const PackedView& weights, int64_t row, int64_t k) {
  if (IsRowsPacked(weights.type)) {
    return HalfWeight(weights.type, reinterpret_cast<const uint16_t*>(weights.data)[row * weights.num_cols + k]);
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
