// Linear layers of the avx_vnni table against the reference, bit for bit. Built with AVX-512's form of VPDPBUSD, so that a
// machine without AVX-VNNI can run them too (tests/test_ops.py). Prints how many outputs were compared.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "core/half.h"
#include "kernels/kernel_table.h"

namespace {

using llmi::PackedType;

std::vector<uint8_t> RandomTiles(PackedType type, int64_t num_blocks, std::mt19937& random) {
  const int64_t block_bytes = llmi::PackedBlockBytes(type);
  const bool wide = type == PackedType::kQ8 || type == PackedType::kQ8HalfF32;
  const bool single = type == PackedType::kQ4MinF32 || type == PackedType::kQ8HalfF32;
  std::uniform_real_distribution<float> scale(-0.1f, 0.1f);
  std::vector<uint8_t> tiles(static_cast<size_t>(num_blocks * block_bytes));
  for (int64_t block = 0; block < num_blocks; ++block) {
    uint8_t* data = tiles.data() + block * block_bytes;
    const int64_t code_bytes = wide ? 512 : 256;
    for (int64_t i = 0; i < code_bytes; ++i) data[i] = static_cast<uint8_t>(random());
    for (int64_t at = code_bytes; at < block_bytes; at += single ? 4 : 2) {
      const float value = scale(random);
      const uint16_t half = llmi::FloatToHalf(value);
      std::memcpy(data + at, single ? static_cast<const void*>(&value) : &half, single ? 4 : 2);
    }
  }
  return tiles;
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  constexpr int64_t kCols = 96;
  constexpr int64_t kOutputs = 40;  // the last tile is not full
  int64_t compared = 0;
  for (PackedType type : {PackedType::kQ4, PackedType::kQ4Min, PackedType::kQ4MinF32, PackedType::kQ8, PackedType::kQ8HalfF32}) {
    const std::vector<uint8_t> tiles = RandomTiles(type, 3 * kCols / 32, random);
    for (int64_t i = 0; i < 18; ++i) {
      const int64_t rows = i / 2 + 1;
      const bool fine = i % 2 != 0;
      std::vector<float> x(static_cast<size_t>(rows * kCols));
      for (float& value : x) value = normal(random);
      std::vector<int8_t> codes(x.size());
      std::vector<float> scales(x.size() / 16), sums(x.size() / 32);
      std::vector<int32_t> half_sums(x.size() / 16);
      const llmi::QuantizedRows quantized = {kCols, codes.data(), scales.data(), sums.data(), half_sums.data(), fine};
      llmi::reference::quantize_rows(x.data(), 0, rows, quantized);
      const llmi::LinearPart part = {{type, kOutputs, kCols, tiles.data()}, nullptr, 0};
      std::vector<float> expected(static_cast<size_t>(rows * kOutputs)), got(expected.size());
      llmi::LinearArgs args = {&part, 1, rows, nullptr, 0, quantized, expected.data(), kOutputs, false};
      llmi::reference::linear_part(args, part, 0, 3);
      args.out = got.data();
      llmi::avx_vnni::linear_part(args, part, 0, 3);
      if (std::memcmp(expected.data(), got.data(), sizeof(float) * got.size()) != 0) {
        std::printf("type %d, %d rows differ\n", static_cast<int>(type), static_cast<int>(rows));
        return 1;
      }
      compared += rows * kOutputs;
    }
  }
  std::printf("%d equal\n", static_cast<int>(compared));
}
