#include "model/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/errors.h"
#include "core/half.h"

namespace llmi {
namespace {

constexpr int64_t kBlock = 32;

void StoreScale(float scale, uint8_t* out) {
  const uint16_t half = FloatToHalf(scale);
  std::memcpy(out, &half, sizeof(half));
}

// One scale, codes -127 to 127.
void QuantizeQ8(const float* values, uint8_t* out) {
  float largest = 0;
  for (int64_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(values[i]));
  const float scale = largest / 127.0f;
  const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
  StoreScale(scale, out);
  for (int64_t i = 0; i < kBlock; ++i) out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(values[i] * inverse)));
}

// One scale, codes 0 to 15 with offset 8. The value of the largest magnitude gets code 0, so that all 16 codes are used.
void QuantizeQ4(const float* values, uint8_t* out) {
  float extreme = 0;
  for (int64_t i = 0; i < kBlock; ++i) {
    if (std::fabs(values[i]) > std::fabs(extreme)) extreme = values[i];
  }
  const float scale = extreme / -8.0f;
  const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
  StoreScale(scale, out);
  const auto code = [&](float value) { return static_cast<uint8_t>(std::min(15, static_cast<int>(value * inverse + 8.5f))); };
  for (int64_t i = 0; i < kBlock / 2; ++i) out[2 + i] = static_cast<uint8_t>(code(values[i]) | (code(values[i + kBlock / 2]) << 4));
}

}  // namespace

void QuantizeRow(DType dtype, const float* values, int64_t num_values, uint8_t* out) {
  CheckInternal(dtype == DType::kQ8_0 || dtype == DType::kQ4_0, "quantize: Q8_0 or Q4_0");
  for (int64_t begin = 0; begin < num_values; begin += kBlock, out += Info(dtype).block_bytes) {
    if (dtype == DType::kQ8_0) {
      QuantizeQ8(values + begin, out);
    } else {
      QuantizeQ4(values + begin, out);
    }
  }
}

}  // namespace llmi
