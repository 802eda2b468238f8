// Reads single values out of packed tiles: the scalar definition of the layout in packed_weights.h.
#pragma once

#include <stdint.h>

#include "core/float8.h"
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
  CodeTable table = {};

  LLMI_HD const uint8_t* Group(int64_t block) const { return tile + PackedGroup(type, block) * PackedGroupBytes(type); }
  LLMI_HD const uint8_t* Codes(int64_t block) const { return Group(block) + PackedBlockInGroup(type, block) * PackedCodeBytes(type); }
  LLMI_HD const uint8_t* Scales(int64_t block) const { return Group(block) + PackedScaleOffset(type, PackedBlockInGroup(type, block)); }
  // The codes of columns 4 group to 4 group + 3 of a block, one byte each; the first is the lowest byte.
  LLMI_HD uint32_t CodeWord(int64_t block, int64_t group) const {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(Codes(block)) + lane;
    const int low_bits = PackedLowBits(type);
    if (low_bits == 8) return words[group * kTileRows];
    const int64_t vector = group & (low_bits - 1);
    const uint32_t low = words[vector * kTileRows] >> (group - vector) & (low_bits == 4 ? 0x0F0F0F0Fu : 0x03030303u);
    const int high_bits = PackedHighBits(type);
    if (high_bits == 0) return low;
    const uint32_t high = words[(low_bits + group * high_bits / 8) * kTileRows] >> (group * high_bits % 8);
    return low | (high & (high_bits == 2 ? 0x03030303u : 0x01010101u)) << low_bits;
  }
  LLMI_HD int32_t Code(int64_t block, int64_t k) const { return static_cast<int32_t>(CodeWord(block, k / 4) >> (k % 4 * 8) & 255); }
  // The level of column k's code: its value before it is scaled.
  LLMI_HD int32_t Level(int64_t block, int64_t k) const {
    const int32_t code = Code(block, k);
    return IsTablePacked(type) ? table[static_cast<uint32_t>(code)] : code - PackedOffset(type);
  }
  // index: selects a vector of 16 values among a block's scales or a super-block's d and d_min.
  LLMI_HD float Half(const uint8_t* at, int64_t index) const {
    return HalfToFloat(reinterpret_cast<const uint16_t*>(at)[index * 16 + lane]);
  }
  // d or d_min of a super-block.
  LLMI_HD float Super(int64_t block, int64_t index) const {
    return Half(Group(block) + PackedScaleOffset(type, PackedGroupBlocks(type)), index);
  }
  LLMI_HD uint8_t ScaleByte(int64_t block, int64_t index) const { return Scales(block)[index * 16 + lane]; }
  LLMI_HD float SignedByte(int64_t block, int64_t index) const { return static_cast<float>(static_cast<int8_t>(ScaleByte(block, index))); }
  LLMI_HD float Scale(int64_t block, int64_t half) const {
    switch (PackedScales(type)) {
      case PackedScale::kHalf: return Half(Scales(block), 0);
      case PackedScale::kFloat: return reinterpret_cast<const float*>(Scales(block))[half * 16 + lane];
      case PackedScale::kExponent: return PowerOfTwoScale(ScaleByte(block, 0));
      case PackedScale::kBytes: return Super(block, 0) * SignedByte(block, HasHalfScalesPacked(type) ? half : 0);
      case PackedScale::kNibbles: return Super(block, 0) * static_cast<float>(ScaleByte(block, half) & 15);
      case PackedScale::kNone: break;
    }
    return Super(block, 0);
  }
  LLMI_HD bool HasMinimum() const { return HasMinimumPacked(type); }
  LLMI_HD float Minimum(int64_t block, int64_t half) const {
    switch (PackedScales(type)) {
      case PackedScale::kBytes: return Super(block, 1) * SignedByte(block, 1);
      case PackedScale::kNibbles: return Super(block, 1) * static_cast<float>(ScaleByte(block, half) >> 4);
      default: return Half(Scales(block), 1);
    }
  }
};

// Row `lane` of a tile of `weights`.
LLMI_HD inline PackedRow RowOf(const PackedView& weights, const uint8_t* tile, int64_t lane) {
  return {weights.type, tile, lane, weights.table};
}

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
  const PackedRow packed = RowOf(weights, tile, lane);
  const int64_t block = k / kBlockSize;
  const int64_t half = k % kBlockSize / 16;
  const float level = static_cast<float>(packed.Level(block, k % kBlockSize));
  const float scale = packed.Scale(block, half);
  return packed.HasMinimum() ? Fma(scale, level, packed.Minimum(block, half)) : scale * level;
}

}  // namespace
}  // namespace llmi::reference
