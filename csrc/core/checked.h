// Arithmetic for sizes and offsets that come from files: an overflow throws an Error instead of wrapping around.
#pragma once

#include <cstdint>

#include "core/errors.h"

namespace llmi {

class CheckedU64 {
 public:
  explicit CheckedU64(uint64_t value) : value_(value) {}

  CheckedU64 operator+(uint64_t other) const {
    uint64_t result = 0;
    if (__builtin_add_overflow(value_, other, &result)) Overflow();
    return CheckedU64(result);
  }
  CheckedU64 operator*(uint64_t other) const {
    uint64_t result = 0;
    if (__builtin_mul_overflow(value_, other, &result)) Overflow();
    return CheckedU64(result);
  }
  // Rounds up to a multiple of `alignment` (> 0).
  CheckedU64 AlignUp(uint64_t alignment) const {
    const uint64_t remainder = value_ % alignment;
    return remainder == 0 ? *this : *this + (alignment - remainder);
  }
  uint64_t value() const { return value_; }

 private:
  [[noreturn]] static void Overflow() { throw Error(ErrorKind::kModelFile, "a size in the file overflows 64 bits"); }
  uint64_t value_;
};

}  // namespace llmi
