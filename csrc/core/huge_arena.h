// Memory for many buffers that live as long as each other, in huge pages: what every step reads costs few address translations
// then, wherever a buffer of its own would be too small for one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/aligned.h"

namespace llmi {

// One thread at a time.
class HugeArena final : public MemorySource {
 public:
  HugeArena() = default;
  ~HugeArena() override;

  void* Allocate(size_t num_bytes, const char* what) override;
  void Free(void*) noexcept override {}  // memory goes back with the arena

 private:
  struct Region {
    void* mapping;
    size_t mapped_bytes;
  };
  std::vector<Region> regions_;
  uint8_t* next_ = nullptr;
  size_t left_ = 0;  // of the last region
};

}  // namespace llmi
