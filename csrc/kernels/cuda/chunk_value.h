// Reads single values out of chunks (kernels/layout/chunks.h), for embeddings.
#pragma once

#include <cstdint>

#include "core/scalar_math.h"
#include "kernels/cuda/half_format.h"
#include "kernels/layout/chunks.h"

namespace llmi::cuda {

// The code of column k of a block, with its offset subtracted.
LLMI_HD inline int32_t ChunkLevel(PackedType type, const uint8_t* chunk, int64_t block, int64_t row, int64_t k) {
  const uint8_t byte = chunk[ChunkWord(type, block, row, k / 4) + k % 4];
  if (PackedLowBits(type) == 8) return static_cast<int8_t>(byte);
  const auto high = static_cast<uint8_t>(block % 2 == 1 ? byte & 0xF0 : byte << 4);
  return PackedOffset(type) != 0 ? static_cast<int8_t>(high) / 16 : high / 16;
}

// W[row][k], dequantised.
LLMI_HD inline float ChunkValue(const PackedView& weights, int64_t row, int64_t k) {
  const ChunkPlace place = ChunkPlaceOf(weights.type, weights.num_cols, k / kBlockSize);
  const uint8_t* chunk = weights.data + row / kTileRows * ChunkTileBytes(weights.type, weights.num_cols) + place.chunk_bytes;
  const int64_t lane = row % kTileRows;
  const auto half = [&](int64_t which) {
    return HalfBitsToFloat(*reinterpret_cast<const uint16_t*>(chunk + ChunkScale(weights.type, place, lane, which)));
  };
  const auto level = static_cast<float>(ChunkLevel(weights.type, chunk, place.block, lane, k % kBlockSize));
  return HasMinimumPacked(weights.type) ? Fma(half(0), level, half(1)) : half(0) * level;
}

}  // namespace llmi::cuda
