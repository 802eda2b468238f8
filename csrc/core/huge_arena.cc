#include "core/huge_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

#include "core/errors.h"
#include "core/system_limits.h"

namespace llmi {
namespace {

constexpr size_t kRegionBytes = size_t{64} << 20;  // reserved addresses; the system gives memory when they are touched
constexpr size_t kAlignment = 256;

size_t RoundUp(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

HugeArena::~HugeArena() {
  for (const Region& region : regions_) munmap(region.mapping, region.mapped_bytes);
}

void* HugeArena::Allocate(size_t num_bytes, const char* what) {
  const size_t size = RoundUp(num_bytes, kAlignment);
  if (size > left_) {
    const uint64_t available = AvailableMemoryBytes();
    const size_t usable = std::max(kRegionBytes, RoundUp(size, kHugePageBytes));
    const size_t mapped = usable + kHugePageBytes;  // enough to begin at the start of a huge page
    void* mapping = MAP_FAILED;
    if (num_bytes <= available) {
      mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (mapping == MAP_FAILED) {
      throw Error::OutOfMemory(std::string(what) + " needs " + std::to_string(num_bytes / 1000000) + " MB packed, " +
                                   std::to_string(available / 1000000) + " MB are free",
                               num_bytes, available);
    }
    regions_.push_back({mapping, mapped});
    const size_t offset = RoundUp(reinterpret_cast<size_t>(mapping), kHugePageBytes) - reinterpret_cast<size_t>(mapping);
    next_ = static_cast<uint8_t*>(mapping) + offset;
    left_ = usable;
    madvise(next_, left_, MADV_HUGEPAGE);
  }
  uint8_t* address = next_;
  next_ += size;
  left_ -= size;
  return address;
}

}  // namespace llmi
