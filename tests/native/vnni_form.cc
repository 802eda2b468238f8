// Linear layers of the avx_vnni table against the reference, bit for bit. Built with AVX-512's form of VPDPBUSD, so that a
// machine without AVX-VNNI can run them too (tests/kernels/test_ops.py). Prints how many outputs were compared.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "core/half.h"
#include "kernels/dispatch/kernel_table.h"

namespace {

using llmi::PackedType;

// Random scales of a group of a tile, from `at` on: those that random bytes would make too large.
void FillScales(PackedType type, std::mt19937& random, uint8_t* group, int64_t at) {
  std::uniform_real_distribution<float> scale(-0.1f, 0.1f);
  while (at < llmi::PackedGroupBytes(type)) {
    const float value = scale(random);
    if (llmi::PackedScales(type) == llmi::PackedScale::kFloat) {
      std::memcpy(group + at, &value, 4);
      at += 4;
    } else if (llmi::PackedScales(type) == llmi::PackedScale::kExponent) {
      group[at++] = static_cast<uint8_t>(116 + random() % 8);
    } else {
      const uint16_t half = llmi::FloatToHalf(value);
      std::memcpy(group + at, &half, 2);
      at += 2;
    }
  }
}

std::vector<uint8_t> RandomTiles(PackedType type, int64_t num_cols, int64_t num_tiles, std::mt19937& random) {
  const int64_t group_bytes = llmi::PackedGroupBytes(type);
  const int64_t scales_at = llmi::PackedScaleOffset(type, llmi::IsSuperBlockPacked(type) ? llmi::PackedGroupBlocks(type) : 0);
  std::vector<uint8_t> tiles(static_cast<size_t>(num_tiles * llmi::PackedTileBytes(type, num_cols)));
  for (uint8_t& byte : tiles) byte = static_cast<uint8_t>(random());
  for (uint8_t* group = tiles.data(); group != tiles.data() + tiles.size(); group += group_bytes) {
    FillScales(type, random, group, scales_at);
  }
  return tiles;
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  constexpr int64_t kCols = 512;
  constexpr int64_t kOutputs = 40;  // the last tile is not full
  int64_t compared = 0;
  constexpr llmi::CodeTable kTable = {0x7F6A5443322110FFu, 0x80CDB1A3EEDCCB81u};  // with the least and the largest value
  for (int number = static_cast<int>(PackedType::kQ4); number <= static_cast<int>(PackedType::kW8); ++number) {
    const auto type = static_cast<PackedType>(number);
    const std::vector<uint8_t> tiles = RandomTiles(type, kCols, 3, random);
    for (int64_t i = 0; i < 36; ++i) {
      const int64_t rows = i / 4 + 1;
      const bool fine = i % 4 == 1;
      const bool two_bytes = i % 4 > 1;
      std::vector<float> x(static_cast<size_t>(rows * kCols));
      for (float& value : x) value = normal(random);
      std::vector<int8_t> codes(x.size()), low(x.size());
      std::vector<float> scales(x.size() / 16), sums(x.size() / 32);
      std::vector<int32_t> half_sums(x.size() / 16);
      const llmi::QuantizedRows quantized = {.num_cols = kCols,
                                             .codes = codes.data(),
                                             .scales = scales.data(),
                                             .sums = sums.data(),
                                             .half_sums = half_sums.data(),
                                             .fine = fine,
                                             .low = two_bytes ? low.data() : nullptr};
      llmi::reference::quantize_rows(x.data(), 0, rows, quantized);
      if (i % 4 == 3) {  // the largest of both bytes
        std::fill(codes.begin(), codes.end(), int8_t{127});
        std::fill(low.begin(), low.end(), int8_t{127});
        std::fill(half_sums.begin(), half_sums.end(), 16 * (256 * 127 + 127));
      }
      const llmi::LinearPart part = {.weights = {type, kOutputs, kCols, tiles.data(), kTable}};
      std::vector<float> expected(static_cast<size_t>(rows * kOutputs)), got(expected.size());
      llmi::LinearArgs args = {
          .parts = &part, .num_parts = 1, .num_rows = rows, .quantized = quantized, .out = expected.data(), .out_stride = kOutputs};
      llmi::reference::linear_quantized(args, part, 0, 3);
      args.out = got.data();
      llmi::avx_vnni::linear_quantized(args, part, 0, 3);
      if (std::memcmp(expected.data(), got.data(), sizeof(float) * got.size()) != 0) {
        std::printf("type %d, %d rows differ\n", static_cast<int>(type), static_cast<int>(rows));
        return 1;
      }
      compared += rows * kOutputs;
    }
  }
  std::printf("%d equal\n", static_cast<int>(compared));
}
