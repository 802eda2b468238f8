#include "model/dequantize.h"

#include <cstring>

#include "core/half.h"
#include "core/scalar_math.h"

namespace llmi {
namespace {

uint16_t ReadU16(const uint8_t* data) {
  uint16_t value;
  std::memcpy(&value, data, 2);
  return value;
}

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

void ReadQ4K(const uint8_t* super_block, int64_t index, CodeBlock* block) {
  block->half_scale = ReadU16(super_block);
  block->half_minimum = static_cast<uint16_t>(ReadU16(super_block + 2) ^ 0x8000u);
  uint8_t scale = 0;
  uint8_t minimum = 0;
  UnpackScaleMin(super_block + 4, index, &scale, &minimum);
  block->scale_codes[0] = static_cast<int8_t>(scale);
  block->scale_codes[1] = static_cast<int8_t>(minimum);
  const uint8_t* codes = super_block + 16 + index / 2 * 32;
  for (int i = 0; i < 32; ++i) block->codes[i] = index % 2 == 0 ? codes[i] & 15 : codes[i] >> 4;
}

void ReadQ6K(const uint8_t* super_block, int64_t index, CodeBlock* block) {
  block->half_scale = ReadU16(super_block + 208);
  const int64_t half = index / 4;     // 128 values each
  const int64_t quarter = index % 4;  // 32 values each
  const uint8_t* low = super_block + half * 64 + quarter % 2 * 32;
  const uint8_t* high = super_block + 128 + half * 32;
  const auto* scales = reinterpret_cast<const int8_t*>(super_block + 192) + half * 8 + quarter * 2;
  for (int i = 0; i < 32; ++i) {
    const int nibble = quarter < 2 ? low[i] & 15 : low[i] >> 4;
    const int top = (high[i] >> (2 * quarter)) & 3;
    block->codes[i] = static_cast<uint8_t>(nibble | (top << 4));
  }
  block->scale_codes[0] = scales[0];
  block->scale_codes[1] = scales[1];
}

}  // namespace

void ReadCodeBlock(DType dtype, const uint8_t* row, int64_t index, CodeBlock* block) {
  const uint8_t* data = row + index * Info(dtype).block_bytes;
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ4_1: {
      const bool with_minimum = dtype == DType::kQ4_1;
      block->half_scale = ReadU16(data);
      block->half_minimum = with_minimum ? ReadU16(data + 2) : uint16_t{0};
      const uint8_t* codes = data + (with_minimum ? 4 : 2);
      for (int i = 0; i < 16; ++i) {
        block->codes[i] = codes[i] & 15;
        block->codes[i + 16] = codes[i] >> 4;
      }
      break;
    }
    case DType::kQ5_0: {
      block->half_scale = ReadU16(data);
      uint32_t high = 0;
      std::memcpy(&high, data + 2, 4);
      for (int i = 0; i < 16; ++i) {
        block->codes[i] = static_cast<uint8_t>((data[6 + i] & 15) | (((high >> i) & 1u) << 4));
        block->codes[i + 16] = static_cast<uint8_t>((data[6 + i] >> 4) | (((high >> (i + 16)) & 1u) << 4));
      }
      break;
    }
    case DType::kQ8_0:
      block->half_scale = ReadU16(data);
      for (int i = 0; i < 32; ++i) block->codes[i] = static_cast<uint8_t>(data[2 + i] ^ 0x80);
      break;
    case DType::kQ4_K: ReadQ4K(row + index / 8 * 144, index % 8, block); break;
    case DType::kQ6_K: ReadQ6K(row + index / 8 * 210, index % 8, block); break;
    default: break;
  }
}

void DequantizeRow(DType dtype, const uint8_t* row, int64_t num_values, float* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, row, static_cast<size_t>(num_values) * 4);
    return;
  }
  if (dtype == DType::kF16 || dtype == DType::kBF16) {
    for (int64_t i = 0; i < num_values; ++i) {
      const uint16_t bits = ReadU16(row + 2 * i);
      out[i] = dtype == DType::kF16 ? HalfToFloat(bits) : Bfloat16ToFloat(bits);
    }
    return;
  }
  CodeBlock block{};
  for (int64_t index = 0; index < num_values / 32; ++index) {
    ReadCodeBlock(dtype, row, index, &block);
    float* values = out + index * 32;
    const float half_scale = HalfToFloat(block.half_scale);
    for (int i = 0; i < 32; ++i) {
      const float code = static_cast<float>(block.codes[i]);
      switch (dtype) {
        case DType::kQ4_0: values[i] = half_scale * (code - 8.0f); break;
        case DType::kQ4_1: values[i] = Fma(half_scale, code, HalfToFloat(block.half_minimum)); break;
        case DType::kQ4_K:
          values[i] = Fma(half_scale * static_cast<float>(block.scale_codes[0]), code,
                          HalfToFloat(block.half_minimum) * static_cast<float>(block.scale_codes[1]));
          break;
        case DType::kQ5_0: values[i] = half_scale * (code - 16.0f); break;
        case DType::kQ6_K: values[i] = half_scale * static_cast<float>(block.scale_codes[i / 16]) * (code - 32.0f); break;
        default: values[i] = half_scale * (code - 128.0f); break;
      }
    }
  }
}

}  // namespace llmi
