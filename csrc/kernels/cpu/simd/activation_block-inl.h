// A cursor over the blocks of 32 columns of MR quantised rows. A block has a fixed number of bytes in each of the arrays (codes, scales,
// sums), so one offset for each row addresses it in all of them; one pointer for each array would need too many registers.
#pragma once

#include "kernels/ops/quantize_rows.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

template <int MR>
class ActivationBlock {
 public:
  ActivationBlock(const QuantizedRows& x, int64_t row) {
    const int64_t num_blocks = x.num_cols / kBlockSize;
    const int64_t first = row * num_blocks;
    codes_ = x.codes + first * kBlockSize;
    low_ = x.low == nullptr ? nullptr : x.low + first * kBlockSize;
    scales_ = x.scales + first * (x.fine ? 2 : 1);
    sums_ = x.sums + first;
    half_sums_ = x.half_sums + 2 * first;
    for (int m = 0; m < MR; ++m) offsets_[m] = m * num_blocks * static_cast<int64_t>(sizeof(float));
  }

  template <ActivationForm kForm>
  void Next() {
    codes_ += kBlockSize;
    if constexpr (kForm == ActivationForm::kTwoBytes) low_ += kBlockSize;
    scales_ += kForm == ActivationForm::kFine ? 2 : 1;
    sums_ += 1;
    half_sums_ += 2;
  }

  const int8_t* Codes(int m) const { return codes_ + 8 * offsets_[m]; }
  const int8_t* LowCodes(int m) const { return low_ + 8 * offsets_[m]; }
  float Scale(int m) const { return *At(scales_, offsets_[m]); }
  float FineScale(int m, int half) const { return At(scales_, 2 * offsets_[m])[half]; }
  float Sum(int m) const { return *At(sums_, offsets_[m]); }
  const int32_t* HalfSums(int m) const { return At(half_sums_, 2 * offsets_[m]); }

 private:
  template <typename T>
  static const T* At(const T* p, int64_t num_bytes) {
    return reinterpret_cast<const T*>(reinterpret_cast<const uint8_t*>(p) + num_bytes);
  }

  const int8_t* codes_;
  const int8_t* low_;
  const float* scales_;
  const float* sums_;
  const int32_t* half_sums_;
  int64_t offsets_[MR];  // from the first row, in bytes, in an array with four bytes for each block
};

}  // namespace
}  // namespace llmi::LLMI_ISA_NAMESPACE
