#include "sampling/contrast.h"

#include <algorithm>
#include <limits>

#include "kernels/ops/vocab.h"

namespace llmi {
namespace {

constexpr float kLogTenth = -2.30258509299404568402f;  // log 0.1, as fp32

void LogSoftmax(const KernelContext& context, float* row, int64_t size) {
  const float total = LogSumExp(context, row, size);
  for (int64_t i = 0; i < size; ++i) row[i] = row[i] - total;
}

}  // namespace

void Guide(const KernelContext& context, const float* conditional, double scale, float* unconditional, int64_t vocab_size) {
  const float total = LogSumExp(context, conditional, vocab_size);
  const float unconditional_total = LogSumExp(context, unconditional, vocab_size);
  const auto factor = static_cast<float>(scale);
  for (int64_t i = 0; i < vocab_size; ++i) {
    const float u = unconditional[i] - unconditional_total;
    const float change = (conditional[i] - total) - u;
    const float scaled = factor * change;
    unconditional[i] = u + scaled;
  }
}

int64_t ContrastLayers(const KernelContext& context, const float* final, std::span<float> layers, bool by_transformers, float* out,
                       int64_t vocab_size) {
  std::copy_n(final, vocab_size, out);
  LogSoftmax(context, out, vocab_size);
  const int64_t num_layers = static_cast<int64_t>(layers.size()) / vocab_size;
  int64_t chosen = 0;
  float farthest = -std::numeric_limits<float>::infinity();
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    float* row = layers.data() + layer * vocab_size;
    LogSoftmax(context, row, vocab_size);
    if (num_layers == 1) break;
    const float distance = LayerDivergence(context, out, row, vocab_size, by_transformers);
    if (!(distance > farthest)) continue;
    farthest = distance;
    chosen = layer;
  }
  const int64_t best = ArgMax(context, out, vocab_size);
  const float bound = (best < 0 ? std::numeric_limits<float>::quiet_NaN() : out[best]) + kLogTenth;
  const float* base = layers.data() + chosen * vocab_size;
  for (int64_t i = 0; i < vocab_size; ++i) out[i] = out[i] >= bound ? out[i] - base[i] : -std::numeric_limits<float>::infinity();
  return chosen;
}

}  // namespace llmi
