#include "model/rope_table.h"

#include <algorithm>

#include "core/errors.h"
#include "core/scalar_math.h"
#include "kernels/dispatch/row_tasks.h"

namespace llmi {
namespace {

constexpr double kTwoPi = 6.283185307179586;

// Llama 3's scaling: frequencies of long wavelengths are divided by llama3_factor, those of short ones stay, those between are blended.
float Llama3Frequency(const RopeSpec& spec, float frequency) {
  const double original = static_cast<double>(spec.llama3_original_context);
  const double wavelength = kTwoPi / static_cast<double>(frequency);
  if (wavelength < original / spec.llama3_high_freq_factor) return frequency;
  const float scaled = frequency / static_cast<float>(spec.llama3_factor);
  if (wavelength > original / spec.llama3_low_freq_factor) return scaled;
  const float smooth = static_cast<float>((original / wavelength - spec.llama3_low_freq_factor) /
                                          (spec.llama3_high_freq_factor - spec.llama3_low_freq_factor));
  return (1.0f - smooth) * scaled + smooth * frequency;
}

// YaRN: frequency i stays below yarn_low, is divided by yarn_factor above yarn_high, and is blended between. Peng et al., 2023;
// transformers' _compute_yarn_parameters.
float YarnFrequency(const RopeSpec& spec, int64_t i, float frequency) {
  const double width = spec.yarn_high > spec.yarn_low ? spec.yarn_high - spec.yarn_low : 0.001;
  const double place = (static_cast<double>(i) - spec.yarn_low) / width;
  const float ramp = static_cast<float>(std::clamp(place, 0.0, 1.0));
  const float kept = 1.0f - ramp;
  return frequency / static_cast<float>(spec.yarn_factor) * (1.0f - kept) + frequency * kept;
}

}  // namespace

RopeTable::RopeTable(const RopeSpec& spec)
    : cosine_factor_(static_cast<float>(spec.magnitude)), sine_factor_(spec.reversed ? -cosine_factor_ : cosine_factor_) {
  const int64_t half = spec.rotary_dim / 2;
  CheckInternal(spec.divisors_tensor.empty() || !spec.frequency_divisors.empty(), "divisors of frequencies that were not read");
  const double log_theta = LogF64(spec.theta);
  for (int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(spec.rotary_dim);
    const float power = static_cast<float>(ExpF64(static_cast<double>(exponent) * log_theta));
    float frequency = 1.0f / power;
    if (!spec.frequency_divisors.empty()) frequency = frequency / spec.frequency_divisors[static_cast<size_t>(i)];
    if (spec.llama3_factor != 1.0) frequency = Llama3Frequency(spec, frequency);
    if (spec.yarn_factor != 1.0) frequency = YarnFrequency(spec, i, frequency);
    inverse_frequencies_.push_back(frequency / static_cast<float>(spec.linear_factor));
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
        cosine[row * half + i] = static_cast<float>(c) * cosine_factor_;
        sine[row * half + i] = static_cast<float>(s) * sine_factor_;
      }
    }
  });
}

}  // namespace llmi
