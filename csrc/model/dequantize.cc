#include "model/dequantize.h"

#include <cstring>

#include "core/errors.h"
#include "core/float8.h"
#include "core/half.h"
#include "core/scalar_math.h"
#include "model/block_readers.h"

namespace llmi {
namespace {

void ReadFifthBits(uint32_t bits, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (bits >> i & 1u) << 4);
}

// A block's scale and minimum for the values of one half.
struct HalfScale {
  float scale;
  float minimum;
};

HalfScale ScaleOf(PackedType type, const CodeBlock& block, int half) {
  const float scale = HalfToFloat(block.half_scale);
  const float minimum = HalfToFloat(block.half_minimum);
  switch (PackedScales(type)) {
    case PackedScale::kFloat: return {block.scales[half], 0.0f};
    case PackedScale::kExponent: return {PowerOfTwoScale(block.scale_codes[0]), 0.0f};
    case PackedScale::kBytes: {
      const auto* codes = reinterpret_cast<const int8_t*>(block.scale_codes);
      const float own = static_cast<float>(codes[HasHalfScalesPacked(type) ? half : 0]);
      return {scale * own, minimum * static_cast<float>(codes[1])};
    }
    case PackedScale::kNibbles: {
      const uint8_t both = block.scale_codes[half];
      return {scale * static_cast<float>(both & 15), minimum * static_cast<float>(both >> 4)};
    }
    case PackedScale::kHalf:
    case PackedScale::kNone: break;
  }
  return {scale, minimum};
}

}  // namespace

PackedType OwnPackedType(DType dtype) {
  switch (dtype) {
    case DType::kF32: return PackedType::kF32;
    case DType::kF16: return PackedType::kF16;
    case DType::kBF16: return PackedType::kBF16;
    case DType::kQ4_0: return PackedType::kQ4;
    case DType::kQ4_1: return PackedType::kQ4Min;
    case DType::kQ5_0: return PackedType::kQ5;
    case DType::kQ5_1: return PackedType::kQ5Min;
    case DType::kQ8_0: return PackedType::kQ8;
    case DType::kQ2_K: return PackedType::kQ2K;
    case DType::kQ3_K: return PackedType::kQ3K;
    case DType::kQ4_K: return PackedType::kQ4K;
    case DType::kQ5_K: return PackedType::kQ5K;
    case DType::kQ6_K: return PackedType::kQ6K;
    case DType::kIQ4_NL: return PackedType::kTable;
    case DType::kIQ4_XS: return PackedType::kTableK;
    case DType::kMXFP4: return PackedType::kTableExp;
    case DType::kTQ2_0: return PackedType::kQ2;
    case DType::kI8:
    case DType::kU8:
    case DType::kI32:
    case DType::kI64:
    case DType::kF8E4M3:
    case DType::kF8E8M0: break;
    case DType::kW8:
    case DType::kTQ1_0:
    case DType::kNVFP4:
    case DType::kIQ1_S:
    case DType::kIQ1_M:
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S: return PackedType::kW8;
  }
  throw Error(ErrorKind::kInternal, "a tensor type without a packed form");
}

CodeTable CodeTableOf(DType dtype) {
  // {0, 1, 2, 3, 4, 6, 8, 12} and their negatives.
  if (dtype == DType::kMXFP4) return {0x0C08060403020100u, 0xF4F8FAFCFDFEFF00u};
  // {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
  if (dtype == DType::kIQ4_NL || dtype == DType::kIQ4_XS) return {0xF6EADDCFBFAD9881u, 0x7159453526190D01u};
  return {};
}

void ReadCodeBlock(DType dtype, const uint8_t* row, int64_t index, CodeBlock* block) {
  const DTypeInfo& info = Info(dtype);
  const int64_t blocks = info.block_size / 32;
  const uint8_t* data = row + index / blocks * info.block_bytes;
  const int64_t within = index % blocks;
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16: return;
    case DType::kQ5_0:
    case DType::kQ5_1: {
      const int64_t bits_at = dtype == DType::kQ5_1 ? 4 : 2;
      block->half_scale = ReadU16(data);
      block->half_minimum = ReadU16(data + 2);  // Q5_1
      ReadNibbles(data + bits_at + 4, block->codes);
      return ReadFifthBits(ReadU32(data + bits_at), block->codes);
    }
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kIQ4_NL:
      block->half_scale = ReadU16(data);
      block->half_minimum = ReadU16(data + 2);  // Q4_1
      return ReadNibbles(data + (dtype == DType::kQ4_1 ? 4 : 2), block->codes);
    case DType::kMXFP4: block->scale_codes[0] = data[0]; return ReadNibbles(data + 1, block->codes);
    case DType::kQ8_0:
      block->half_scale = ReadU16(data);
      for (int i = 0; i < 32; ++i) block->codes[i] = static_cast<uint8_t>(data[2 + i] ^ 0x80);
      return;
    case DType::kQ2_K: return ReadQ2K(data, within, block);
    case DType::kQ3_K: return ReadQ3K(data, within, block);
    case DType::kQ4_K: return ReadQ4K(data, within, false, block);
    case DType::kQ5_K: return ReadQ4K(data, within, true, block);
    case DType::kQ6_K: return ReadQ6K(data, within, block);
    case DType::kIQ4_XS: return ReadIQ4XS(data, within, block);
    case DType::kTQ2_0: return ReadTQ2(data, within, block);
    case DType::kW8:
      std::memcpy(block->scales, data, sizeof block->scales);
      for (int i = 0; i < 32; ++i) block->codes[i] = static_cast<uint8_t>(data[8 + i] ^ 0x80);
      return;
    default: return ReadUnpacked(dtype, data, within, block);
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
  const PackedType type = OwnPackedType(dtype);
  const CodeTable table = CodeTableOf(dtype);
  CodeBlock block{};
  for (int64_t index = 0; index < num_values / 32; ++index) {
    ReadCodeBlock(dtype, row, index, &block);
    for (int half = 0; half < 2; ++half) {
      const HalfScale of = ScaleOf(type, block, half);
      for (int i = 16 * half; i < 16 * half + 16; ++i) {
        const int32_t level = IsTablePacked(type) ? table[block.codes[i]] : block.codes[i] - PackedOffset(type);
        const float value = static_cast<float>(level);
        out[index * 32 + i] = HasMinimumPacked(type) ? Fma(of.scale, value, of.minimum) : of.scale * value;
      }
    }
  }
}

}  // namespace llmi
