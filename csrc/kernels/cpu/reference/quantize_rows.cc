#include "kernels/quantize_rows.h"

#include "core/scalar_math.h"
#include "kernels/kernel_table.h"

namespace llmi::reference {
namespace {

// Rounds to nearest even for |x| < 2^22 by the fp32 adder.
int32_t RoundToInt(float x) {
  const float shifted = x + 12582912.0f;
  return static_cast<int32_t>(__builtin_bit_cast(uint32_t, shifted) - 0x4B400000u);
}

}  // namespace

void quantize_rows(const float* x, int64_t row_begin, int64_t row_end, const QuantizedRows& out) {
  const int64_t num_blocks = out.num_cols / kBlockSize;
  for (int64_t block = row_begin * num_blocks; block < row_end * num_blocks; ++block) {
    const float* values = x + block * kBlockSize;
    float maximum = 0.0f;
    float poison = 0.0f;  // NaN as soon as one value is not finite, else zero
    for (int i = 0; i < kBlockSize; ++i) {
      const float magnitude = __builtin_fabsf(values[i]);
      maximum = magnitude > maximum ? magnitude : maximum;
      poison = Fma(values[i], 0.0f, poison);
    }
    const float inverse = maximum > 0x1p-100f ? 127.0f / maximum : 0.0f;
    const bool finite = poison == 0.0f;
    int32_t half_sums[2] = {0, 0};
    for (int i = 0; i < kBlockSize; ++i) {
      const int32_t code = finite ? RoundToInt(values[i] * inverse) : 0;
      out.codes[block * kBlockSize + i] = static_cast<int8_t>(code);
      half_sums[i / 16] += code;
    }
    const float scale = maximum / 127.0f + poison;
    out.scales[block] = scale;
    out.sums[block] = scale * static_cast<float>(half_sums[0] + half_sums[1]);
    out.half_sums[2 * block] = half_sums[0];
    out.half_sums[2 * block + 1] = half_sums[1];
  }
}

}  // namespace llmi::reference
