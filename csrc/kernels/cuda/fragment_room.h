// The device's memory for rows of x in 16 bits (half_fragments.h), and which rows it holds: those that the latest launch made, so that the
// layer behind it need not round them.
#pragma once

#include <cstdint>
#include <optional>

#include "core/aligned.h"
#include "kernels/cuda/half_fragments.h"
#include "kernels/dispatch/device.h"

namespace llmi::cuda {

class FragmentRoom {
 public:
  FragmentRoom(const DeviceOptions& options, MemorySource* source) : source_(source) {
    if (options.bf16_linear) format_ = HalfFormat::kBF16;
    if (options.f16_linear) format_ = HalfFormat::kF16;
  }

  // Whether tensor cores multiply weights of this type.
  bool Takes(PackedType type) const { return format_ && type == (*format_ == HalfFormat::kBF16 ? PackedType::kBF16 : PackedType::kF16); }
  void Reserve(size_t num_bytes) {
    if (format_) buffer_.Reserve(num_bytes, "activations in 16 bits", source_);
  }
  // Where a launch puts rows that it makes or rounds, which the room holds once it is told; null: no layer reads fragments of so few.
  HalfRows Make(int64_t num_rows, int64_t num_cols) {
    if (!format_ || BlocksRound(num_rows, num_cols)) return {};
    Reserve(static_cast<size_t>(NumFragmentSets(num_rows) * FragmentSetBytes(num_cols)));
    return {buffer_.data(), *format_, num_cols};
  }
  // Rows that were made, those of x.
  struct Held {
    const float* x = nullptr;  // null: none
    int64_t x_stride = 0;
    int64_t num_rows = 0;
    int64_t num_cols = 0;
    bool operator==(const Held&) const = default;
  };
  void Hold(const Held& rows) { held_ = rows; }
  const Held& held() const { return held_; }
  // Null: the room does not hold these rows.
  const uint8_t* Find(const Held& rows) const { return rows == held_ ? buffer_.data() : nullptr; }
  // The rows may have changed.
  void Forget() { held_ = {}; }

 private:
  MemorySource* source_;
  std::optional<HalfFormat> format_;  // none: no layer reads fragments
  AlignedBuffer buffer_;
  Held held_;
};

}  // namespace llmi::cuda
