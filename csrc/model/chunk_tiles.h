// Permutes tiles to the chunks that devices store (kernels/layout/chunks.h, float_chunks.h).
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/reference/packed_block.h"
#include "kernels/layout/chunks.h"

namespace llmi {

// Writes a tile of floats as pieces to zeroed memory.
template <typename T>
void PermuteFloats(PackedType type, const uint8_t* tile, int64_t num_cols, uint8_t* to) {
  for (int64_t k = 0; k < num_cols; ++k) {
    for (int64_t row = 0; row < kTileRows; ++row) {
      std::memcpy(to + FloatPlace(type, row, k), tile + (k * kTileRows + row) * static_cast<int64_t>(sizeof(T)), sizeof(T));
    }
  }
}

// Writes a tile as chunks to zeroed memory.
inline void PermuteToChunks(PackedType type, const CodeTable& table, const uint8_t* tile, int64_t num_cols, uint8_t* to) {
  if (type == PackedType::kF32) return PermuteFloats<float>(type, tile, num_cols, to);
  if (HasFloatPieces(type)) return PermuteFloats<uint16_t>(type, tile, num_cols, to);
  constexpr uint32_t kBytes = 0x01010101u;
  const uint32_t sign = HasSignedCodes(type) ? kBytes << (PackedBits(type) - 1) : 0u;
  const int64_t num_kinds = HasMinimumPacked(type) ? 2 : 1;
  const auto scale_bytes = static_cast<size_t>(ChunkScaleSize(type));
  for (int64_t index = 0; index < num_cols / kBlockSize; ++index) {
    const ChunkPlace place = ChunkPlaceOf(type, num_cols, index);
    uint8_t* chunk = to + place.chunk_bytes;
    for (int64_t row = 0; row < kTileRows; ++row) {
      const reference::PackedRow from = {type, tile, row};
      for (int64_t group = 0; group < kBlockSize / 4; ++group) {
        const uint32_t word = from.CodeWord(index, group) ^ sign;
        if (IsTablePacked(type)) {
          uint32_t codes = 0;
          for (int i = 0; i < 4; ++i) codes |= ChunkTableCode(table, word >> (8 * i) & 15) << (4 * i);
          auto* word_to = reinterpret_cast<uint32_t*>(chunk + place.block / 2 * kChunkPieceBytes + ChunkWord(type, row, group));
          *word_to |= codes << (place.block % 2 * 16);
          continue;
        }
        for (int i = 0; i < NumChunkFields(type, place.block); ++i) {
          const ChunkField field = ChunkFieldOf(type, place.block, i);
          auto* word_to = reinterpret_cast<uint32_t*>(chunk + field.piece * kChunkPieceBytes + ChunkWord(type, row, group));
          *word_to |= (word >> field.from & kBytes * ((1u << field.bits) - 1)) << field.to;
        }
      }
      for (int64_t which = 0; which < num_kinds; ++which) {
        // A tile has [16] scales, then [16] minima, or the second halves' scales.
        uint8_t* scale = chunk + ChunkScale(type, place, row, which);
        if (PackedScales(type) == PackedScale::kHalf) {
          std::memcpy(scale, from.Scales(index) + (which * kTileRows + row) * 2, 2);
        } else {
          for (size_t i = 0; i < scale_bytes; ++i) scale[i] = from.ScaleByte(index, which + static_cast<int64_t>(i));
        }
        if (!IsSuperBlockPacked(type)) continue;
        const uint8_t* super = from.Group(index) + PackedScaleOffset(type, PackedGroupBlocks(type));
        std::memcpy(chunk + ChunkSuper(type, row, which), super + (which * kTileRows + row) * 2, 2);
      }
    }
  }
}

}  // namespace llmi
