// Readers of quantised blocks on disk, one for each storage type. A super-block has 256 values; `index`: which of its eight blocks of 32.
// Source of the layouts: ggml's ggml-common.h and ggml-quants.c.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "model/dequantize.h"

namespace llmi {

inline uint16_t ReadU16(const uint8_t* data) {
  uint16_t value;
  std::memcpy(&value, data, 2);
  return value;
}

inline uint32_t ReadU32(const uint8_t* data) {
  uint32_t value;
  std::memcpy(&value, data, 4);
  return value;
}

// Codes of 16 bytes: the low nibbles of all, then the high ones.
inline void ReadNibbles(const uint8_t* data, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = data[i] & 15;
    codes[i + 16] = data[i] >> 4;
  }
}

void ReadQ2K(const uint8_t* super_block, int64_t index, CodeBlock* block);
void ReadQ3K(const uint8_t* super_block, int64_t index, CodeBlock* block);
// Q4_K, and Q5_K with the fifth bits.
void ReadQ4K(const uint8_t* super_block, int64_t index, bool has_fifth_bits, CodeBlock* block);
void ReadQ6K(const uint8_t* super_block, int64_t index, CodeBlock* block);
void ReadIQ4XS(const uint8_t* super_block, int64_t index, CodeBlock* block);
void ReadTQ2(const uint8_t* super_block, int64_t index, CodeBlock* block);

// The types that are unpacked: codes are the values in steps of `scales`, plus 128. `data`: the row's block of NVFP4, else a super-block.
void ReadUnpacked(DType dtype, const uint8_t* data, int64_t index, CodeBlock* block);

}  // namespace llmi
