// Layers of bf16 weights on tensor cores as the host carries them out, by every form of the kernels, however many multiprocessors there
// are: prints how many outputs have other bits than the definition in kernels/cuda/stream_half_kernel.h.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "core/philox.h"
#include "core/scalar_math.h"
#include "kernels/cuda/stream_float_launch.h"

using namespace llmi;
using namespace llmi::cuda;

namespace {

struct alignas(16) Line {
  uint8_t bytes[16];
};

struct HostLauncher {
  template <typename Kernel>
  void Launch(int64_t grid_x, int64_t grid_y, int num_threads, size_t shared_bytes, const Kernel& kernel) {
    for (int64_t y = 0; y < grid_y; ++y) {
      for (int64_t x = 0; x < grid_x; ++x) {
        std::vector<Line> shared(shared_bytes / 16 + 1);
        std::memset(shared.data(), 0xFF, shared.size() * 16);
        int64_t streamed_bytes = 0;
        kernel(HostBlock{x, y, num_threads, shared[0].bytes, &streamed_bytes});
      }
    }
  }
};

float Value(uint32_t stream, int64_t i) {
  const uint32_t word = Philox4x32({static_cast<uint32_t>(i), stream, 0, 0}, 7)[0];
  return std::ldexp(static_cast<float>(static_cast<int32_t>(word)), -31);
}

int64_t Wrong(int64_t num_outputs, int64_t num_cols, int64_t num_rows, int num_multiprocessors, bool rounds) {
  const int64_t tile_bytes = FloatPieces(PackedType::kBF16, num_cols) * kFloatPieceBytes;
  std::vector<Line> weights(static_cast<size_t>(NumTiles(num_outputs) * tile_bytes / 16));
  std::vector<float> w(static_cast<size_t>(num_outputs * num_cols));
  std::vector<float> x(static_cast<size_t>(num_rows * num_cols));
  for (size_t i = 0; i < x.size(); ++i) x[i] = Value(2, static_cast<int64_t>(i));
  for (int64_t i = 0; i < num_outputs * num_cols; ++i) {
    const int64_t row = i / num_cols;
    const uint16_t bits = FloatToBfloat16(Value(1, i));
    w[static_cast<size_t>(i)] = Bfloat16ToFloat(bits);
    const int64_t place = row / kTileRows * tile_bytes + FloatPlace(PackedType::kBF16, row % kTileRows, i % num_cols);
    std::memcpy(weights[0].bytes + place, &bits, sizeof(bits));
  }
  HostLauncher launcher;
  std::vector<Line> fragments(static_cast<size_t>(NumFragmentSets(num_rows) * FragmentSetBytes(num_cols) / 16));
  std::memset(fragments.data(), 0xFF, fragments.size() * 16);
  launcher.Launch(num_rows, 1, 256, 0, RoundToFragmentsKernel{x.data(), num_cols, {fragments[0].bytes, HalfFormat::kBF16, num_cols}});
  std::vector<float> out(static_cast<size_t>(num_rows * num_outputs), std::nanf(""));
  const PackedView view = {PackedType::kBF16, num_outputs, num_cols, weights[0].bytes, {}, true};
  LinearOutput output(view, num_rows, num_outputs, false);
  output.Add(view, nullptr, out.data());
  LaunchStreamHalf<HalfFormat::kBF16>(launcher, num_multiprocessors, output, {x.data(), num_cols}, {},
                                      rounds ? nullptr : fragments[0].bytes);
  int64_t wrong = 0;
  for (int64_t i = 0; i < num_rows * num_outputs; ++i) {
    const float* row = x.data() + i / num_outputs * num_cols;
    const float* column = w.data() + i % num_outputs * num_cols;
    float total = 0;
    for (int64_t begin = 0; begin < num_cols; begin += kHalfChunk) {
      float sum = 0;
      for (int64_t k = begin; k < begin + kHalfChunk && k < num_cols; k += 2) {
        if (k + 1 < num_cols) sum = Fma(Bfloat16ToFloat(FloatToBfloat16(row[k + 1])), column[k + 1], sum);
        sum = Fma(Bfloat16ToFloat(FloatToBfloat16(row[k])), column[k], sum);
      }
      total = total + sum;
    }
    wrong += std::memcmp(&total, &out[static_cast<size_t>(i)], sizeof(float)) != 0 ? 1 : 0;
  }
  return wrong;
}

}  // namespace

int main() {
  int64_t wrong = 0;
  for (const int64_t num_cols : {512, 333}) {
    for (const int64_t num_rows : {1, 8, 16, 33, 64, 65, 130}) {
      for (const int num_multiprocessors : {1, 3, 1000}) {
        wrong += Wrong(150, num_cols, num_rows, num_multiprocessors, false);
        if (num_rows <= kHalfRows) wrong += Wrong(150, num_cols, num_rows, num_multiprocessors, true);
      }
    }
  }
  std::printf("%lld\n", static_cast<long long>(wrong));
}
