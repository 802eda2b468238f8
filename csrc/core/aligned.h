// Owned memory, 64-byte aligned and zeroed, in huge pages if the system has them. If an allocation fails, the Error says how much memory
// was needed and how much is free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace llmi {

// A source of memory other than the system, such as an accelerator, whose memory the host must not touch.
class MemorySource {
 public:
  MemorySource() = default;
  virtual ~MemorySource() = default;
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;
  // Aligned to 256 bytes and zeroed; throws Error(kOutOfMemory).
  virtual void* Allocate(size_t num_bytes, const char* what) = 0;
  virtual void Free(void* address) noexcept = 0;
};

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Throws Error(kOutOfMemory) if the system, or the source, refuses. what: names the use in the message. source: must outlive the buffer;
  // null: the system.
  explicit AlignedBuffer(size_t num_bytes, const char* what = "a buffer", MemorySource* source = nullptr);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  // Grows to at least num_bytes; the contents are lost when it grows.
  void Reserve(size_t num_bytes, const char* what = "a workspace", MemorySource* source = nullptr);

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
  size_t num_bytes_ = 0;  // the size that the constructor or Reserve was given
  size_t mapped_bytes_ = 0;
  MemorySource* source_ = nullptr;
};

}  // namespace llmi
