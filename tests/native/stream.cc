// The stream and the order of turns (kernels/cuda/stream.h) as the host carries them out, with planted errors:
//   stream KIND FORWARDS: prints what 60 pieces of 64 floats add up to in their order, as hex, or the error.
#include <cstdio>
#include <memory>
#include <string>

#include "kernels/cuda/stream.h"

using namespace llmi::cuda;

namespace {

constexpr unsigned kPieces = 60;
constexpr int kFloats = 64;
constexpr int kWarps = 4;  // of each set

struct Shared {
  StreamRoom<8, kFloats * sizeof(float)> room;
  float totals[2];
};

float SumOf(const uint8_t* piece) {
  float sum = 0;
  for (int i = 0; i < kFloats; ++i) sum += reinterpret_cast<const float*>(piece)[i];
  return sum;
}

// Two sets of warps sum the same pieces.
float Sum(const std::string& kind, bool forwards, Shared* shared) {
  alignas(16) static float values[kPieces][kFloats];
  for (unsigned p = 0; p < kPieces; ++p) {
    for (unsigned i = 0; i < kFloats; ++i)
      values[p][i] = 1.0f / static_cast<float>(1 + (p * 37 + i * 11) % 1009) * (p % 3 == 0 ? 2.0f : -1.0f);
  }
  int64_t streamed_bytes = 0;
  const HostBlock block = {forwards ? 0 : 1, 0, kStreamThreads, reinterpret_cast<uint8_t*>(shared), &streamed_bytes};
  auto stream = OpenStream(block, &shared->room, 2, kPieces,
                           [&](unsigned p) -> StreamPiece { return {reinterpret_cast<const uint8_t*>(values[p]), sizeof(values[p])}; });
  float sums[kMostWarps] = {};
  const auto add = [](float* total, float sum) { *total = *total * 0.75f + sum; };  // another order gives another total
  RunInOrder(
      block, stream, {2, kWarps, kPieces}, [&](const HostWarp&, int set) { shared->totals[set] = 0; },
      [&](const HostWarp& warp, int set, unsigned unit) {
        const uint8_t* piece = kind == "unlanded" ? stream.SlotOf(unit) : stream.Wait(unit);
        if (kind == "early") stream.Release(warp, unit);
        if (kind == "twice" && set == 0) stream.Release(warp, unit);
        sums[warp.index] = SumOf(piece);
        if (kind == "unlanded") stream.Wait(unit);
        if (kind != "early") stream.Release(warp, unit);
        if (kind == "out of turn") add(&shared->totals[set], sums[warp.index]);
      },
      [&](const HostWarp& warp, int set, unsigned) {
        if (kind != "out of turn") add(&shared->totals[set], sums[warp.index]);
      });
  return shared->totals[0] == shared->totals[1] ? shared->totals[0] : shared->totals[0] - shared->totals[1];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto shared = std::make_unique<Shared>();
  try {
    std::printf("%a\n", static_cast<double>(Sum(argv[1], std::string(argv[2]) == "forwards", shared.get())));
  } catch (const llmi::Error& error) {
    std::printf("%s\n", error.what());
  }
}
