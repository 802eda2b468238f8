// The scales and minima of a packed block for its 16 rows of weights (kernels/layout/packed_weights.h).
#pragma once

#include "kernels/layout/packed_weights.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// The factors d and d_min that all scales of a super-block share.
template <PackedType T>
struct SuperScales {
  explicit SuperScales(const uint8_t* group) {
    if constexpr (IsSuperBlockPacked(T)) {
      const auto* halves = reinterpret_cast<const uint16_t*>(group + PackedScaleOffset(T, PackedGroupBlocks(T)));
      scale = LoadHalf(halves);
      if constexpr (HasMinimumPacked(T)) minimum = LoadHalf(halves + 16);
    }
  }
  F32x16 scale = Zero();
  F32x16 minimum = Zero();
};

// The scales of a block, or of its halves. Each product of a super-block is exact.
template <PackedType T>
struct BlockScales {
  static constexpr int kCount = HasHalfScalesPacked(T) ? 2 : 1;
  static constexpr bool kMinimum = HasMinimumPacked(T);

  BlockScales(const uint8_t* own, const SuperScales<T>& super) {
    constexpr PackedScale kForm = PackedScales(T);
    if constexpr (kForm == PackedScale::kHalf) {
      const auto* halves = reinterpret_cast<const uint16_t*>(own);
      scales[0] = LoadHalf(halves);
      if constexpr (kMinimum) minima[0] = LoadHalf(halves + 16);
    } else if constexpr (kForm == PackedScale::kBytes) {
      const auto* bytes = reinterpret_cast<const int8_t*>(own);
      for (int i = 0; i < kCount; ++i) scales[i] = Mul(super.scale, LoadInt8(bytes + 16 * i));
      if constexpr (kMinimum) minima[0] = Mul(super.minimum, LoadInt8(bytes + 16));
    } else if constexpr (kForm == PackedScale::kNibbles) {
      for (int i = 0; i < kCount; ++i) {
        scales[i] = Mul(super.scale, LoadLowNibbles(own + 16 * i));
        minima[i] = Mul(super.minimum, LoadHighNibbles(own + 16 * i));
      }
    } else if constexpr (kForm == PackedScale::kFloat) {
      for (int i = 0; i < kCount; ++i) scales[i] = Load(reinterpret_cast<const float*>(own) + 16 * i);
    } else if constexpr (kForm == PackedScale::kExponent) {
      scales[0] = LoadPowersOfTwo(own);
    } else {
      scales[0] = super.scale;
    }
  }
  F32x16 scales[kCount];
  F32x16 minima[kCount];
};

}  // namespace
}  // namespace llmi::LLMI_ISA_NAMESPACE
