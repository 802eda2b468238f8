#include "core/aligned.h"

#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <string>

#include "core/errors.h"
#include "core/system_limits.h"

namespace llmi {
namespace {

std::string Megabytes(uint64_t bytes) { return std::to_string((bytes + 999999) / 1000000) + " MB"; }

}  // namespace

AlignedBuffer::AlignedBuffer(size_t num_bytes, const char* what, MemorySource* source) {
  if (num_bytes == 0) return;
  if (source != nullptr) {
    data_ = static_cast<uint8_t*>(source->Allocate(num_bytes, what));
    num_bytes_ = num_bytes;
    source_ = source;
    return;
  }
  if (num_bytes > std::numeric_limits<size_t>::max() / 2) {
    throw Error::OutOfMemory(std::string(what) + " needs more than the address space", num_bytes, AvailableMemoryBytes());
  }
  const size_t mapped = (num_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* address = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    const uint64_t available = AvailableMemoryBytes();
    throw Error::OutOfMemory(std::string(what) + " needs " + Megabytes(num_bytes) + ", " + Megabytes(available) + " are free", num_bytes,
                             available);
  }
  if (mapped >= kHugePageBytes) madvise(address, mapped, MADV_HUGEPAGE);
  data_ = static_cast<uint8_t*>(address);
  num_bytes_ = num_bytes;
  mapped_bytes_ = mapped;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ == nullptr) return;
  if (source_ != nullptr) {
    source_->Free(data_);
  } else {
    munmap(data_, mapped_bytes_);
  }
}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(source_, other.source_);
  return *this;
}

void AlignedBuffer::Reserve(size_t num_bytes, const char* what, MemorySource* source) {
  if (num_bytes <= num_bytes_) return;
  *this = AlignedBuffer();  // give the old memory back first
  AlignedBuffer grown(num_bytes + num_bytes / 4, what, source);
  *this = std::move(grown);
}

}  // namespace llmi
