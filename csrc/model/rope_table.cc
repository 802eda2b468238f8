#include "model/rope_table.h"

#include "core/scalar_math.h"
#include "kernels/dispatch/row_tasks.h"

namespace llmi {
namespace {

constexpr double kTwoPi = 6.283185307179586;

// Llama 3's scaling: frequencies of long wavelengths are divided by llama3_factor, those of short ones stay, those between are blended.
float Llama3Frequency(const RopeConfig& config, float frequency) {
  const double original = static_cast<double>(config.llama3_original_context);
  const double wavelength = kTwoPi / static_cast<double>(frequency);
  if (wavelength < original / config.llama3_high_freq_factor) return frequency;
  const float scaled = frequency / static_cast<float>(config.llama3_factor);
  if (wavelength > original / config.llama3_low_freq_factor) return scaled;
  const float smooth = static_cast<float>((original / wavelength - config.llama3_low_freq_factor) /
                                          (config.llama3_high_freq_factor - config.llama3_low_freq_factor));
  return (1.0f - smooth) * scaled + smooth * frequency;
}

}  // namespace

RopeTable::RopeTable(const RopeConfig& config) {
  const int64_t half = config.rotary_dim / 2;
  const double log_theta = LogF64(config.theta);
  for (int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.rotary_dim);
    const float power = static_cast<float>(ExpF64(static_cast<double>(exponent) * log_theta));
    float frequency = 1.0f / power;
    if (!config.frequency_divisors.empty()) frequency = frequency / config.frequency_divisors[static_cast<size_t>(i)];
    if (config.llama3_factor != 1.0) frequency = Llama3Frequency(config, frequency);
    inverse_frequencies_.push_back(frequency / static_cast<float>(config.linear_factor));
  }
}

void RopeTable::Compute(const KernelContext& context, const int32_t* positions, int64_t num_rows, float* cosine, float* sine) const {
  const auto half = static_cast<int64_t>(inverse_frequencies_.size());
  ParallelRows(context, num_rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[row]) * inverse_frequencies_[static_cast<size_t>(i)];
        double s = 0;
        double c = 0;
        SinCosF64(static_cast<double>(angle), &s, &c);
        cosine[row * half + i] = static_cast<float>(c);
        sine[row * half + i] = static_cast<float>(s);
      }
    }
  });
}

}  // namespace llmi
