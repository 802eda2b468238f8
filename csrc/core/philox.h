// Philox4x32-10, a counter-based generator of random numbers: the same counter and key give the same four words on every machine. Salmon,
// Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace llmi {

struct PhiloxWords {
  uint32_t words[4];
  LLMI_HD uint32_t operator[](int64_t i) const { return words[i]; }
};

// counter: 4 words; key: 2 words (low, high of a 64-bit seed). Ten rounds.
LLMI_HD static inline PhiloxWords Philox4x32(PhiloxWords counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace llmi
