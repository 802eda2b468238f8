// Blocks that are unpacked: the IQ types, whose codes are points of grids, TQ1_0 and NVFP4. All values come out exact: a signed byte in
// steps of an fp32 scale for each 16 values.
#include "core/float8.h"
#include "core/half.h"
#include "model/block_readers.h"
#include "model/grids.h"

namespace llmi {
namespace {

// The values of the grids, by their index in a point.
constexpr int kIq1Values[] = {-8, 0, 8};  // in steps of 1/8: the grid's -1, 0 and 1, to which 1/8 is added, or from which it is subtracted
constexpr int kIq2Values[] = {8, 25, 43};
constexpr int kIq3XxsValues[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr int kIq3SValues[] = {1, 3, 5, 7, 9, 11, 13, 15};

uint8_t CodeOf(int value) { return static_cast<uint8_t>(value + 128); }

void SetScales(float first, float second, CodeBlock* block) {
  block->scales[0] = first;
  block->scales[1] = second;
}

// Bit i of `signs`: value i is negative.
void ReadEight(uint32_t point, uint32_t signs, uint8_t* codes) {
  for (int i = 0; i < 8; ++i) {
    const int value = kIq2Values[point >> (2 * i) & 3];
    codes[i] = CodeOf((signs >> i & 1) != 0 ? -value : value);
  }
}

void ReadFour(uint32_t point, uint32_t signs, const int (&values)[8], uint8_t* codes) {
  for (int i = 0; i < 4; ++i) {
    const int value = values[point >> (3 * i) & 7];
    codes[i] = CodeOf((signs >> i & 1) != 0 ? -value : value);
  }
}

void ReadOneBit(uint32_t index, bool minus, uint8_t* codes) {
  const uint32_t point = kIq1Grid[index];
  for (int i = 0; i < 8; ++i) codes[i] = CodeOf(kIq1Values[point >> (2 * i) & 3] + (minus ? -1 : 1));
}

// Seven signs are stored; the eighth makes the number of minus signs even.
uint32_t EvenSigns(uint32_t seven) { return seven | static_cast<uint32_t>(__builtin_parity(seven)) << 7; }

int Nibble(const uint8_t* bytes, int64_t index) { return bytes[index / 2] >> (4 * (index % 2)) & 15; }

float Iq2Scale(float d, int code) { return d * (0.5f + static_cast<float>(code)) * 0.25f; }

void ReadIQ2XXS(const uint8_t* data, int64_t index, CodeBlock* block) {
  const uint8_t* points = data + 2 + 8 * index;
  const uint32_t rest = ReadU32(points + 4);
  const float scale = Iq2Scale(HalfToFloat(ReadU16(data)), static_cast<int>(rest >> 28));
  SetScales(scale, scale, block);
  for (int i = 0; i < 4; ++i) ReadEight(kIq2XxsGrid[points[i]], EvenSigns(rest >> (7 * i) & 127), block->codes + 8 * i);
}

void ReadIQ2XS(const uint8_t* data, int64_t index, CodeBlock* block) {
  const float d = HalfToFloat(ReadU16(data));
  SetScales(Iq2Scale(d, Nibble(data + 66, 2 * index)), Iq2Scale(d, Nibble(data + 66, 2 * index + 1)), block);
  for (int64_t i = 0; i < 4; ++i) {
    const uint32_t word = ReadU16(data + 2 + 2 * (4 * index + i));
    ReadEight(kIq2XsGrid[word & 511], EvenSigns(word >> 9), block->codes + 8 * i);
  }
}

void ReadIQ2S(const uint8_t* data, int64_t index, CodeBlock* block) {
  const float d = HalfToFloat(ReadU16(data));
  SetScales(Iq2Scale(d, Nibble(data + 74, 2 * index)), Iq2Scale(d, Nibble(data + 74, 2 * index + 1)), block);
  for (int64_t i = 0; i < 4; ++i) {
    const uint32_t high = data[66 + index] >> (2 * i) & 3;
    ReadEight(kIq2SGrid[data[2 + 4 * index + i] | high << 8], data[34 + 4 * index + i], block->codes + 8 * i);
  }
}

void ReadIQ3XXS(const uint8_t* data, int64_t index, CodeBlock* block) {
  const uint32_t rest = ReadU32(data + 66 + 4 * index);
  const float scale = HalfToFloat(ReadU16(data)) * (0.5f + static_cast<float>(rest >> 28)) * 0.5f;
  SetScales(scale, scale, block);
  for (int64_t i = 0; i < 8; ++i) {
    const uint32_t signs = EvenSigns(rest >> (7 * (i / 2)) & 127) >> (4 * (i % 2));
    ReadFour(kIq3XxsGrid[data[2 + 8 * index + i]], signs, kIq3XxsValues, block->codes + 4 * i);
  }
}

void ReadIQ3S(const uint8_t* data, int64_t index, CodeBlock* block) {
  const float scale = HalfToFloat(ReadU16(data)) * static_cast<float>(1 + 2 * Nibble(data + 106, index));
  SetScales(scale, scale, block);
  for (int64_t i = 0; i < 8; ++i) {
    const uint32_t high = data[66 + index] >> i & 1;
    const uint32_t signs = data[74 + 4 * index + i / 2] >> (4 * (i % 2));
    ReadFour(kIq3SGrid[data[2 + 8 * index + i] | high << 8], signs, kIq3SValues, block->codes + 4 * i);
  }
}

void ReadIQ1S(const uint8_t* data, int64_t index, CodeBlock* block) {
  const uint32_t rest = ReadU16(data + 34 + 2 * index);
  const float scale = HalfToFloat(ReadU16(data)) * static_cast<float>(2 * (rest >> 12 & 7) + 1) * 0.125f;
  SetScales(scale, scale, block);
  for (int64_t i = 0; i < 4; ++i) {
    ReadOneBit(data[2 + 4 * index + i] | (rest >> (3 * i) & 7) << 8, (rest & 0x8000) != 0, block->codes + 8 * i);
  }
}

// The four words of scales hold d in their highest four bits, and four scales of three bits each.
void ReadIQ1M(const uint8_t* data, int64_t index, CodeBlock* block) {
  uint32_t d = 0;
  for (int64_t i = 0; i < 4; ++i) d |= static_cast<uint32_t>(ReadU16(data + 48 + 2 * i) >> 12) << (4 * i);
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t place = 2 * index + half;
    const int code = ReadU16(data + 48 + 2 * (place / 4)) >> (3 * (place % 4)) & 7;
    block->scales[half] = HalfToFloat(static_cast<uint16_t>(d)) * static_cast<float>(2 * code + 1) * 0.125f;
  }
  for (int64_t i = 0; i < 4; ++i) {
    const auto rest = static_cast<uint32_t>(Nibble(data + 32, 4 * index + i));
    ReadOneBit(data[4 * index + i] | (rest & 7) << 8, (rest & 8) != 0, block->codes + 8 * i);
  }
}

// Five codes of three values in a byte, four in the last four bytes: the byte is their fraction, in base three, of 256.
void ReadTQ1(const uint8_t* data, int64_t index, CodeBlock* block) {
  constexpr uint8_t kPowers[] = {1, 3, 9, 27, 81};
  const float scale = HalfToFloat(ReadU16(data + 52));
  SetScales(scale, scale, block);
  for (int64_t i = 0; i < 32; ++i) {
    const int64_t value = 32 * index + i;
    const int64_t place = value < 160 ? value % 32 : value < 240 ? 32 + value % 16 : 48 + value % 4;
    const int64_t power = value < 160 ? value / 32 : value < 240 ? (value - 160) / 16 : (value - 240) / 4;
    const auto fraction = static_cast<uint8_t>(data[place] * kPowers[power]);
    block->codes[i] = CodeOf((fraction * 3 >> 8) - 1);
  }
}

// A scale is e4m3 without a sign; its half is that of doubled values. As in ggml, 0x7F means zero, and the highest bit nothing else.
float Nvfp4Scale(uint8_t code) {
  if (code == 0x7F) return 0.0f;
  return 0.5f * ((code & 0x7F) == 0x7F ? 480.0f : Float8ToFloat(code & 0x7F));
}

void ReadNVFP4(const uint8_t* data, int64_t index, CodeBlock* block) {
  const CodeTable table = CodeTableOf(DType::kMXFP4);
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t place = 2 * index + half;
    block->scales[half] = Nvfp4Scale(data[place]);
    for (int64_t i = 0; i < 16; ++i) {
      const uint8_t both = data[4 + 8 * place + i % 8];
      block->codes[16 * half + i] = CodeOf(table[i < 8 ? both & 15u : both >> 4u]);
    }
  }
}

}  // namespace

void ReadUnpacked(DType dtype, const uint8_t* data, int64_t index, CodeBlock* block) {
  switch (dtype) {
    case DType::kIQ1_S: return ReadIQ1S(data, index, block);
    case DType::kIQ1_M: return ReadIQ1M(data, index, block);
    case DType::kIQ2_XXS: return ReadIQ2XXS(data, index, block);
    case DType::kIQ2_XS: return ReadIQ2XS(data, index, block);
    case DType::kIQ2_S: return ReadIQ2S(data, index, block);
    case DType::kIQ3_XXS: return ReadIQ3XXS(data, index, block);
    case DType::kIQ3_S: return ReadIQ3S(data, index, block);
    case DType::kTQ1_0: return ReadTQ1(data, index, block);
    case DType::kNVFP4: return ReadNVFP4(data, index, block);
    default: return;
  }
}

}  // namespace llmi
