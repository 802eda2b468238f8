// Reads single values out of chunks (kernels/layout/chunks.h), for embeddings.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"
#include "core/float8.h"
#include "core/scalar_math.h"
#include "kernels/cuda/half_format.h"
#include "kernels/layout/chunks.h"

namespace llmi::cuda {

// The level of column k of a block: its code, with its offset subtracted, or what a table has for it.
LLMI_HD inline int32_t ChunkLevel(const PackedView& weights, const uint8_t* chunk, int64_t block, int64_t row, int64_t k) {
  const PackedType type = weights.type;
  if (IsTablePacked(type)) {
    const auto* word = reinterpret_cast<const uint32_t*>(chunk + block / 2 * kChunkPieceBytes + ChunkWord(type, row, k / 4));
    return weights.table[CodeOfChunkTable(*word >> (block % 2 * 16 + k % 4 * 4) & 15)];
  }
  uint32_t code = 0;
  for (int i = 0; i < NumChunkFields(type, block); ++i) {
    const ChunkField field = ChunkFieldOf(type, block, i);
    const uint32_t byte = chunk[field.piece * kChunkPieceBytes + ChunkWord(type, row, k / 4) + k % 4];
    code |= (byte >> field.to & ((1u << field.bits) - 1)) << field.from;
  }
  const uint32_t sign = HasSignedCodes(type) ? 1u << (PackedBits(type) - 1) : 0u;
  return static_cast<int32_t>(code ^ sign) - static_cast<int32_t>(sign);
}

LLMI_HD inline float FloatChunkValue(const PackedView& weights, int64_t row, int64_t k) {
  const uint8_t* tile = weights.data + row / kTileRows * ChunkTileBytes(weights.type, weights.num_cols);
  const uint8_t* from = tile + FloatPlace(weights.type, row % kTileRows, k);
  if (weights.type == PackedType::kF32) return *reinterpret_cast<const float*>(from);
  const auto bits = *reinterpret_cast<const uint16_t*>(from);
  return weights.type == PackedType::kBF16 ? Bfloat16ToFloat(bits) : HalfBitsToFloat(bits);
}

// W[row][k], dequantised.
LLMI_HD inline float ChunkValue(const PackedView& weights, int64_t row, int64_t k) {
  if (HasFloatPieces(weights.type)) return FloatChunkValue(weights, row, k);
  const PackedType type = weights.type;
  const ChunkPlace place = ChunkPlaceOf(type, weights.num_cols, k / kBlockSize);
  const uint8_t* chunk = weights.data + row / kTileRows * ChunkTileBytes(type, weights.num_cols) + place.chunk_bytes;
  const int64_t lane = row % kTileRows;
  const int64_t half = HasHalfScalesPacked(type) ? k % kBlockSize / 16 : 0;
  const auto fp16 = [&](int64_t at) { return HalfBitsToFloat(*reinterpret_cast<const uint16_t*>(chunk + at)); };
  const auto scale = [&](int64_t which) {
    const int64_t at = ChunkScale(type, place, lane, which);
    switch (PackedScales(type)) {
      case PackedScale::kBytes: return fp16(ChunkSuper(type, lane, which)) * static_cast<float>(static_cast<int8_t>(chunk[at + half]));
      case PackedScale::kExponent: return PowerOfTwoScale(chunk[at]);
      default: return fp16(at);
    }
  };
  const auto level = static_cast<float>(ChunkLevel(weights, chunk, place.block, lane, k % kBlockSize));
  return HasMinimumPacked(type) ? Fma(scale(0), level, scale(1)) : scale(0) * level;
}

}  // namespace llmi::cuda
