// Permutes quantised tiles to the chunks that devices store (kernels/layout/chunks.h).
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/reference/packed_block.h"
#include "kernels/layout/chunks.h"

namespace llmi {

// Writes a quantised tile as chunks to zeroed memory.
inline void PermuteToChunks(PackedType type, const uint8_t* tile, int64_t num_cols, uint8_t* to) {
  const bool is_half = PackedLowBits(type) == 4;
  const uint32_t sign = PackedOffset(type) == 0 ? 0u : is_half ? 0x08080808u : 0x80808080u;
  for (int64_t index = 0; index < num_cols / kBlockSize; ++index) {
    const ChunkPlace place = ChunkPlaceOf(type, num_cols, index);
    uint8_t* chunk = to + place.chunk_bytes;
    for (int64_t row = 0; row < kTileRows; ++row) {
      const reference::PackedRow from = {type, tile, row};
      for (int64_t group = 0; group < kBlockSize / 4; ++group) {
        const uint32_t word = from.CodeWord(index, group) ^ sign;
        auto* word_to = reinterpret_cast<uint32_t*>(chunk + ChunkWord(type, place.block, row, group));
        *word_to |= is_half ? word << (place.block % 2 * 4) : word;
      }
      for (int64_t which = 0; which < (HasMinimumPacked(type) ? 2 : 1); ++which) {
        std::memcpy(chunk + ChunkScale(type, place, row, which), from.Scales(index) + (which * kTileRows + row) * 2, 2);
      }
    }
  }
}

}  // namespace llmi
