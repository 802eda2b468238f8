#include "kernels/ops/probe.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/layout/packed_weights.h"

namespace llmi {
namespace {

constexpr int kRepeats = 5;

double BestSeconds(const KernelContext& context, const std::function<void(int64_t)>& task) {
  double best = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    context.pool->ParallelFor(context.num_threads, context.num_threads, task);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = repeat == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

uint64_t SumWords(const uint64_t* words, int64_t count) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i + 8 <= count; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
  }
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

ReadProbe::ReadProbe(const KernelContext& context, int64_t num_bytes)
    : context_(context),
      buffer_(static_cast<size_t>(num_bytes), "the bandwidth probe"),
      share_(num_bytes / context.num_threads / 64 * 64),
      sums_(static_cast<size_t>(context.num_threads) * 8) {
  context_.pool->ParallelFor(context_.num_threads, context_.num_threads,
                             [&](int64_t task) { std::fill_n(buffer_.data() + task * share_, share_, uint8_t{1}); });
}

double ReadProbe::BytesPerSecond() {
  const auto start = std::chrono::steady_clock::now();
  context_.pool->ParallelFor(context_.num_threads, context_.num_threads,
                             [&](int64_t task) { sums_[static_cast<size_t>(task) * 8] += SumWords(Share(task), share_ / 8); });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return static_cast<double>(share_ * context_.num_threads) / seconds;
}

Ceilings MeasureCeilings(const KernelContext& context, int64_t num_bytes) {
  Ceilings ceilings;
  const auto threads = static_cast<double>(context.num_threads);
  {
    ReadProbe probe(context, num_bytes);
    for (int repeat = 0; repeat < kRepeats; ++repeat)
      ceilings.read_bytes_per_s = std::max(ceilings.read_bytes_per_s, probe.BytesPerSecond());
  }
  constexpr int64_t kFmaIterations = 2'000'000;
  std::vector<float> out(static_cast<size_t>(context.num_threads) * kProbeDotRows * 16);
  const double fma_seconds =
      BestSeconds(context, [&](int64_t task) { context.table->probe_fma(kFmaIterations, out.data() + task * kProbeDotRows * 16); });
  ceilings.fma_ops_per_s = static_cast<double>(kFmaIterations * kProbeFmaOps) * threads / fma_seconds;

  const double bf16_seconds =
      BestSeconds(context, [&](int64_t task) { context.table->probe_bf16(kFmaIterations, out.data() + task * kProbeDotRows * 16); });
  ceilings.bf16_ops_per_s = static_cast<double>(kFmaIterations * kProbeBf16Ops) * threads / bf16_seconds;

  constexpr int64_t kDotIterations = 400'000;
  std::vector<uint8_t> block(static_cast<size_t>(PackedGroupBytes(PackedType::kQ4)), 0x5A);
  std::vector<int8_t> codes(kProbeRows * kBlockSize, 3);
  std::vector<float> scales(kProbeRows, 1.0f);
  std::vector<float> sums(kProbeRows, 96.0f);
  std::vector<int32_t> half_sums(2 * kProbeRows, 48);
  const QuantizedRows rows = {
      .num_cols = kBlockSize, .codes = codes.data(), .scales = scales.data(), .sums = sums.data(), .half_sums = half_sums.data()};
  const double dot_seconds = BestSeconds(context, [&](int64_t task) {
    context.table->probe_dots(kDotIterations, block.data(), rows, out.data() + task * kProbeDotRows * 16);
  });
  ceilings.dots_ops_per_s = static_cast<double>(kDotIterations * kProbeDotOps) * threads / dot_seconds;
  return ceilings;
}

}  // namespace llmi
