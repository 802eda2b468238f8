// A lane's part of a chunk of weights (kernels/layout/chunks.h), type by type: the instruction's bytes from codes, and floats from scales
// and minima. kBlocks: of a unit, the blocks that a warp takes at a time; `block` is one of them, and a constant after the loops are
// unrolled.
#pragma once

#include <cstdint>

#include "kernels/cuda/half_format.h"
#include "kernels/cuda/warp.h"
#include "kernels/layout/chunks.h"

namespace llmi::cuda {

template <PackedType kType, int kBlocks>
struct ChunkCodes {
  static constexpr int kBits = PackedBits(kType);
  static_assert(kBits == 4 || kBits == 8 || kBlocks >= 4, "a unit of these types has the blocks that share a piece");
  static constexpr int kPieces = (kBlocks * kBits + 7) / 8;
  static constexpr bool kSigned = HasSignedCodes(kType) || IsTablePacked(kType);  // the instruction's bytes
  WideMatrixA pieces[kPieces];

  LLMI_HD void Load(const uint8_t* chunk, unsigned first_block, int lane) {
    constexpr int kShared = kBits == 5 ? 1 : 0;  // pieces at the chunk's beginning that are those of all units
    const uint8_t* from = chunk + first_block / kBlocks * ((kPieces - kShared) * kChunkPieceBytes) + lane * 16;
    LLMI_UNROLL
    for (int i = kShared; i < kPieces; ++i) pieces[i] = Load16(from + i * kChunkPieceBytes);
    if constexpr (kBits == 5) {
      pieces[0] = Load16(chunk + lane * 16);
      LLMI_UNROLL
      for (uint32_t& word : pieces[0].words) word = kBlocks == kChunkBlocks ? word : word << first_block;
    }
  }

  // What the instruction multiplies: Factor(block) times the codes.
  LLMI_HD WideMatrixA Bytes(const ChunkTable& table, int block) const {
    WideMatrixA a;
    LLMI_UNROLL
    for (int i = 0; i < 4; ++i) a.words[i] = BytesOfWord(table, block, i);
    return a;
  }
  LLMI_HD static constexpr float Factor(int block) {
    if (IsTablePacked(kType)) return 1.0f;
    switch (kBits) {
      case 4: return HasSignedCodes(kType) || block % 2 == 1 ? 16.0f : 1.0f;
      case 5: return HasSignedCodes(kType) || block % 2 == 1 ? 8.0f : 1.0f;
      case 6: return 4.0f;
      default: return 1.0f;
    }
  }

 private:
  LLMI_HD uint32_t BytesOfWord(const ChunkTable& table, int block, int i) const {
    const bool odd = block % 2 == 1;
    const auto word = [&](int piece) { return pieces[piece].words[i]; };
    if constexpr (IsTablePacked(kType)) {
      const uint32_t codes = word(block / 2);
      const uint32_t others = codes ^ 0x88888888u;
      const int down = odd ? 16 : 0;
      return PermutedBytes(table.even[0], table.even[1], codes >> down) ^ PermutedBytes(table.odd[0], table.odd[1], others >> down);
    } else if constexpr (kBits == 4) {
      return odd                     ? word(block / 2) & 0xF0F0F0F0u
             : HasSignedCodes(kType) ? word(block / 2) << 4 & 0xF0F0F0F0u
                                     : word(block / 2) & 0x0F0F0F0Fu;
    } else if constexpr (kBits == 5) {
      // The bit apart comes below the four others, or above them.
      const bool is_lowest = odd || kSigned;
      const int down = (block + 4) % 8 - (is_lowest ? 3 : 4);
      const uint32_t bit = down >= 0 ? word(0) >> down : word(0) << -down;
      const uint32_t others = word(1 + block / 2) << (is_lowest && !odd ? 4 : 0);
      return is_lowest ? (others & 0xF0F0F0F0u) | (bit & 0x08080808u) : (others & 0x0F0F0F0Fu) | (bit & 0x10101010u);
    } else if constexpr (kBits == 6) {
      const int first = block / 4 * 3;
      if (block % 4 < 3) return word(first + block % 4) & 0xFCFCFCFCu;
      return (word(first) << 6 & 0xC0C0C0C0u) | (word(first + 1) << 4 & 0x30303030u) | (word(first + 2) << 2 & 0x0C0C0C0Cu);
    } else {
      return word(block);
    }
  }
  LLMI_HD static WideMatrixA Load16(const uint8_t* from) {
    struct alignas(16) Words {
      uint32_t words[4];
    };
    const Words words = *reinterpret_cast<const Words*>(from);
    return {{words.words[0], words.words[1], words.words[2], words.words[3]}};
  }
};

// The scales, or the minima, of the two rows of the tile whose sums the lane has.
template <PackedType kType, int kBlocks>
struct ChunkScales {
  static constexpr int kSize = static_cast<int>(ChunkScaleSize(kType));
  static constexpr int kWords = kBlocks * kSize / 4;
  uint32_t words[2][kWords];
  uint32_t supers;  // of a super-block: the rows' d or d_min, two fp16

  // which: scales (0) or minima (1). Of a whole chunk, or of those of its chunk_blocks blocks that are there.
  template <bool kIsWhole>
  LLMI_HD void Load(const uint8_t* chunk, int which, int lane, unsigned chunk_blocks, unsigned first_block) {
    struct alignas(kBlocks * kSize) Words {
      uint32_t words[kWords];
    };
    LLMI_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = lane / 4 + 8 * i;
      const uint8_t* from = chunk + static_cast<unsigned>(ChunkScale(kType, {0, chunk_blocks, first_block}, row, which));
      if constexpr (kIsWhole) {
        const Words whole = *reinterpret_cast<const Words*>(from);
        LLMI_UNROLL
        for (int word = 0; word < kWords; ++word) words[i][word] = whole.words[word];
      } else {
        LLMI_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
          uint32_t& word = words[i][b * kSize / 4];
          if (b * kSize % 4 == 0) word = 0;
          if (first_block + static_cast<unsigned>(b) >= chunk_blocks) continue;
          const uint32_t value = kSize == 2 ? reinterpret_cast<const uint16_t*>(from)[b] : from[b];
          word |= value << (b * kSize % 4 * 8);
        }
      }
      if constexpr (IsSuperBlockPacked(kType)) {
        const uint32_t super = *reinterpret_cast<const uint16_t*>(chunk + static_cast<unsigned>(ChunkSuper(kType, row, which)));
        supers = i == 0 ? super : supers | super << 16;
      }
    }
  }

  // half: of the block's columns, where each has a scale of its own.
  LLMI_HD float Of(int block, int half, int row) const {
    const int at = block * kSize + half;
    const uint32_t bits = words[row][at / 4] >> (at % 4 * 8);
    switch (PackedScales(kType)) {
      case PackedScale::kBytes:
        return HalfBitsToFloat(static_cast<uint16_t>(supers >> (row * 16))) * static_cast<float>(static_cast<int8_t>(bits));
      case PackedScale::kExponent: {  // PowerOfTwoScale without a branch: for exponents 0 and 1 the bits of a subnormal number are larger
        const auto exponent = static_cast<int32_t>((at % 4 == 3 ? bits << 23 : words[row][at / 4] << (23 - at % 4 * 8)) & 0x7F800000u);
        const int32_t normal = exponent - 0x00800000;
        const int32_t subnormal = (exponent >> 2) + 0x00200000;
        return __builtin_bit_cast(float, normal > subnormal ? normal : subnormal);
      }
      default: return HalfBitsToFloat(static_cast<uint16_t>(bits));
    }
  }
};

}  // namespace llmi::cuda
