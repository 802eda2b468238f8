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

  const uint8_t* Block(int64_t block) const { return tile + block * PackedBlockBytes(type); }
  bool FourBit() const { return type == PackedType::kQ4 || type == PackedType::kQ4Min || type == PackedType::kQ4MinF32; }
  int32_t Offset() const { return type == PackedType::kQ4 ? 8 : FourBit() ? 0 : 128; }
  int32_t Code(int64_t block, int64_t k) const {
    const int64_t group = k / 4;
    if (!FourBit()) return Block(block)[group * 64 + lane * 4 + k % 4];
    const int32_t byte = Block(block)[group % 4 * 64 + lane * 4 + k % 4];
    return group < 4 ? byte & 15 : byte >> 4;
  }
  // `index` counts the vectors of 16 fp16 or fp32 values behind the codes.
  float Half(int64_t block, int64_t index) const {
    return HalfToFloat(reinterpret_cast<const uint16_t*>(Block(block) + (FourBit() ? 256 : 512))[index * 16 + lane]);
  }
  float Single(int64_t block, int64_t index) const {
    return reinterpret_cast<const float*>(Block(block) + (FourBit() ? 256 : 512))[index * 16 + lane];
  }
  float Scale(int64_t block, int64_t half) const {
    switch (type) {
      case PackedType::kQ4MinF32: return Single(block, 0);
      case PackedType::kQ8HalfF32: return Single(block, half);
      default: return Half(block, 0);
    }
  }
  bool HasMinimum() const { return type == PackedType::kQ4Min || type == PackedType::kQ4MinF32; }
  float Minimum(int64_t block) const { return type == PackedType::kQ4Min ? Half(block, 1) : Single(block, 1); }
};

inline float FloatWeight(PackedType type, const uint8_t* tile, int64_t k, int64_t lane) {
  const int64_t index = k * kTileRows + lane;
  if (type == PackedType::kF32) return reinterpret_cast<const float*>(tile)[index];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(tile)[index];
  return type == PackedType::kF16 ? HalfToFloat(bits) : Bfloat16ToFloat(bits);
}

}  // namespace
}  // namespace llmi::reference
