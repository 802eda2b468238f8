#include "kernels/ops/vocab.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/scalar_math.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/row_tasks.h"

namespace llmi {

void SoftCap(const KernelContext& context, float* x, int64_t count, float cap) {
  if (context.device != nullptr) return context.device->SoftCap(x, count, cap);
  for (int64_t i = 0; i < count; ++i) x[i] = SoftCapF32(x[i], cap);
}

float LogSumExp(const KernelContext& context, const float* logits, int64_t vocab_size) {
  const int64_t num_chunks = (vocab_size + kVocabChunk - 1) / kVocabChunk;
  std::vector<float> maxima(static_cast<size_t>(num_chunks));
  std::vector<float> sums(static_cast<size_t>(num_chunks));
  ParallelRows(context, num_chunks, 4, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kVocabChunk;
      const auto index = static_cast<size_t>(chunk);
      context.table->softmax_chunk(logits + first, std::min(kVocabChunk, vocab_size - first), &maxima[index], &sums[index]);
    }
  });
  LogSum total;
  for (size_t chunk = 0; chunk < maxima.size(); ++chunk) total.Merge(maxima[chunk], sums[chunk]);
  return total.Log();
}

float LayerDivergence(const KernelContext& context, const float* a, const float* b, int64_t vocab_size, bool of_mean) {
  const int64_t num_chunks = (vocab_size + kVocabChunk - 1) / kVocabChunk;
  std::vector<float> sums(static_cast<size_t>(num_chunks));
  ParallelRows(context, num_chunks, 2, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kVocabChunk;
      const int64_t size = std::min(kVocabChunk, vocab_size - first);
      context.table->divergence_chunk(a + first, b + first, size, of_mean, &sums[static_cast<size_t>(chunk)]);
    }
  });
  double total = 0;
  for (float sum : sums) total += static_cast<double>(sum);
  return static_cast<float>(total * 0.5);
}

int64_t ArgMax(const KernelContext& context, const float* logits, int64_t vocab_size) {
  float best = -std::numeric_limits<float>::infinity();
  int64_t best_chunk = -1;
  for (int64_t first = 0; first < vocab_size; first += kVocabChunk) {
    float maximum = 0.0f;
    bool all_below_infinity = false;
    context.table->max_chunk(logits + first, std::min(kVocabChunk, vocab_size - first), &maximum, &all_below_infinity);
    if (!all_below_infinity) return -1;
    if (!(maximum > best)) continue;
    best = maximum;
    best_chunk = first;
  }
  if (best_chunk < 0) return -1;
  return std::find(logits + best_chunk, logits + vocab_size, best) - logits;
}

void TokenMasses(const KernelContext& context, const float* logits, int64_t vocab_size, float maximum, uint64_t* masses) {
  ParallelRows(context, vocab_size, 8192,
               [&](int64_t begin, int64_t end) { context.table->token_masses(logits + begin, end - begin, maximum, masses + begin); });
}

MassMoments MomentsOfMasses(const KernelContext& context, const float* logits, int64_t vocab_size, float maximum) {
  MassMoments moments = {};
  double products[16] = {};
  for (int64_t first = 0; first < vocab_size; first += kVocabChunk) {
    double masses[16] = {};  // exact: at most 256 masses of 2^40 each
    context.table->mass_moments(logits + first, std::min(kVocabChunk, vocab_size - first), maximum, masses, products);
    for (const double mass : masses) moments.total += static_cast<uint64_t>(mass);
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) products[lane] += products[lane + half];
  }
  moments.product = products[0];
  return moments;
}

}  // namespace llmi
