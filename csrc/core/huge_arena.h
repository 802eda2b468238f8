// Memory in huge pages for many buffers that are freed together. A buffer that is smaller than a huge page shares one with others, so
// reading all of them in every step needs few address translations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/aligned.h"

namespace llmi {

// One thread at a time may call it.
class HugeArena final : public MemorySource {
 public:
  HugeArena() = default;
  ~HugeArena() override;

  void* Allocate(size_t num_bytes, const char* what) override;
  void Free(void*) noexcept override {}  // the arena frees all its memory at its end

 private:
  struct Region {
    void* mapping;
    size_t mapped_bytes;
  };
  std::vector<Region> regions_;
  uint8_t* next_ = nullptr;
  size_t left_ = 0;  // bytes left in the last region
};

}  // namespace llmi
