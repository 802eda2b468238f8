// Owned memory, 64-byte aligned and zeroed, huge pages asked for. Failure is an Error with the arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace llmi {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Throws Error(kOutOfMemory) if the system refuses; `what` names the use in the message.
  explicit AlignedBuffer(size_t num_bytes, const char* what = "a buffer");
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  // Grows to at least num_bytes; the contents are lost when it grows.
  void Reserve(size_t num_bytes, const char* what = "a workspace");

  size_t size() const { return num_bytes_; }
  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  uint8_t* data_ = nullptr;
  size_t num_bytes_ = 0;  // as asked for
  size_t mapped_bytes_ = 0;
};

// Bytes of memory that can be taken now: the least of MemAvailable, the cgroup's room and the address-space limit.
uint64_t AvailableMemoryBytes();

}  // namespace llmi
