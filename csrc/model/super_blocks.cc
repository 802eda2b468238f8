// Super-blocks whose codes stand in the file as they are: the K types, IQ4_XS and TQ2_0.
#include "model/block_readers.h"

namespace llmi {
namespace {

// Q4_K packs eight 6-bit scales and minima into 12 bytes.
void UnpackScaleMin(const uint8_t* packed, int64_t index, uint8_t* scale, uint8_t* minimum) {
  if (index < 4) {
    *scale = packed[index] & 63;
    *minimum = packed[index + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((packed[index + 4] & 15) | ((packed[index - 4] >> 6) << 4));
    *minimum = static_cast<uint8_t>((packed[index + 4] >> 4) | ((packed[index] >> 6) << 4));
  }
}

// 64 bytes hold codes of two bits: each 32 of them four blocks.
void ReadTwoBits(const uint8_t* data, int64_t index, uint8_t* codes) {
  const uint8_t* bytes = data + index / 4 * 32;
  for (int i = 0; i < 32; ++i) codes[i] = (bytes[i] >> (2 * (index % 4))) & 3;
}

// Q3_K packs sixteen 6-bit scales, with offset 32, into 12 bytes.
uint8_t UnpackSixBits(const uint8_t* packed, int64_t index) {
  const int low = packed[index % 8] >> (index < 8 ? 0 : 4) & 15;
  const int high = packed[8 + index % 4] >> (2 * (index / 4)) & 3;
  return static_cast<uint8_t>((low | high << 4) - 32);
}

}  // namespace

void ReadQ2K(const uint8_t* super_block, int64_t index, CodeBlock* block) {
  ReadTwoBits(super_block + 16, index, block->codes);
  for (int64_t half = 0; half < 2; ++half) block->scale_codes[half] = super_block[2 * index + half];
  block->half_scale = ReadU16(super_block + 80);
  block->half_minimum = static_cast<uint16_t>(ReadU16(super_block + 82) ^ 0x8000u);
}

void ReadQ3K(const uint8_t* super_block, int64_t index, CodeBlock* block) {
  ReadTwoBits(super_block + 32, index, block->codes);
  for (int i = 0; i < 32; ++i) block->codes[i] = static_cast<uint8_t>(block->codes[i] | (super_block[i] >> index & 1) << 2);
  for (int64_t half = 0; half < 2; ++half) block->scale_codes[half] = UnpackSixBits(super_block + 96, 2 * index + half);
  block->half_scale = ReadU16(super_block + 108);
}

void ReadQ4K(const uint8_t* super_block, int64_t index, bool has_fifth_bits, CodeBlock* block) {
  block->half_scale = ReadU16(super_block);
  block->half_minimum = static_cast<uint16_t>(ReadU16(super_block + 2) ^ 0x8000u);
  UnpackScaleMin(super_block + 4, index, &block->scale_codes[0], &block->scale_codes[1]);
  const uint8_t* fifth = super_block + 16;
  const uint8_t* codes = fifth + (has_fifth_bits ? 32 : 0) + index / 2 * 32;
  for (int i = 0; i < 32; ++i) {
    const int nibble = index % 2 == 0 ? codes[i] & 15 : codes[i] >> 4;
    block->codes[i] = static_cast<uint8_t>(has_fifth_bits ? nibble | (fifth[i] >> index & 1) << 4 : nibble);
  }
}

void ReadQ6K(const uint8_t* super_block, int64_t index, CodeBlock* block) {
  block->half_scale = ReadU16(super_block + 208);
  const int64_t half = index / 4;     // 128 values each
  const int64_t quarter = index % 4;  // 32 values each
  const uint8_t* low = super_block + half * 64 + quarter % 2 * 32;
  const uint8_t* high = super_block + 128 + half * 32;
  for (int i = 0; i < 32; ++i) {
    const int nibble = quarter < 2 ? low[i] & 15 : low[i] >> 4;
    const int top = (high[i] >> (2 * quarter)) & 3;
    block->codes[i] = static_cast<uint8_t>(nibble | (top << 4));
  }
  for (int64_t i = 0; i < 2; ++i) block->scale_codes[i] = super_block[192 + 2 * index + i];
}

void ReadIQ4XS(const uint8_t* super_block, int64_t index, CodeBlock* block) {
  block->half_scale = ReadU16(super_block);
  const int low = super_block[4 + index / 2] >> (4 * (index % 2)) & 15;
  const int high = ReadU16(super_block + 2) >> (2 * index) & 3;
  block->scale_codes[0] = static_cast<uint8_t>((low | high << 4) - 32);
  ReadNibbles(super_block + 8 + 16 * index, block->codes);
}

void ReadTQ2(const uint8_t* super_block, int64_t index, CodeBlock* block) {
  ReadTwoBits(super_block, index, block->codes);
  block->half_scale = ReadU16(super_block + 64);
}

}  // namespace llmi
