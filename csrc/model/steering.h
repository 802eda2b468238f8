// Steering: vectors that are added, in fp32, to the residual stream after some layers, at every position of a sequence (Turner et al.,
// 2023).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/layout/sparse_view.h"

namespace llmi {

struct Steering {
  std::vector<int> layers;    // ascending; 0 is the embedding's output, i that of layer i
  std::vector<float> values;  // [num_layers, hidden_size]
  std::string digest;         // of layers and values, kDigestLen characters: equal digests mean equal steering
  static constexpr size_t kDigestLen = 64;
};

inline bool SteersAlike(const Steering* a, const Steering* b) { return a == nullptr || b == nullptr ? a == b : a->digest == b->digest; }

// The first character of a salt without steering and view.
constexpr char kUnsteered = 'u';

// The salt of the prefix cache for a sequence with this steering and view whose user gave `salt`. Two sequences have one salt only if all
// three are equal: what is cached with steering, or with a view, serves nothing else.
inline std::string SaltWith(const Steering* steering, const SparseView& view, const std::string& salt) {
  if (view != SparseView{}) {
    return 'v' + std::to_string(view.sinks) + ',' + std::to_string(view.recent) + ',' + std::to_string(view.num_best) + ';' +
           SaltWith(steering, {}, salt);
  }
  if (steering != nullptr) return 's' + steering->digest + salt;
  return salt.empty() ? salt : kUnsteered + salt;
}

// Throws Error(kInvalidArgument) unless layers, values and digest fit a model of these sizes.
void CheckSteering(const Steering& steering, int64_t num_layers, int64_t hidden_size);

}  // namespace llmi
