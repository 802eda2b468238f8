// A source of bytes that are read by their offset: a file, or memory in tests.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/errors.h"

namespace llmi {

class ByteSource {
 public:
  ByteSource() = default;
  virtual ~ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  // Reads num_bytes bytes from `offset` on into `out`. Throws Error(kModelFile) if they cannot be read. Several threads may call it at
  // once.
  virtual void Read(uint64_t offset, uint64_t num_bytes, void* out) const = 0;
};

// Bytes in memory. The memory must outlive the object.
class MemoryBytes : public ByteSource {
 public:
  MemoryBytes(const uint8_t* data, uint64_t num_bytes) : data_(data), num_bytes_(num_bytes) {}
  void Read(uint64_t offset, uint64_t num_bytes, void* out) const override {
    CheckInternal(offset <= num_bytes_ && num_bytes <= num_bytes_ - offset, "bytes beyond the memory");
    std::memcpy(out, data_ + offset, num_bytes);
  }

 private:
  const uint8_t* data_;
  uint64_t num_bytes_;
};

}  // namespace llmi
