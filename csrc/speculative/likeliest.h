// The likeliest tokens of a row of logits, for drafters that learn from them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace llmi {

// The ids of the `count` largest finite logits, or of fewer if there are fewer: the largest first, of equal ones the smallest id first.
std::vector<int32_t> LikeliestTokens(std::span<const float> logits, int64_t count);

}  // namespace llmi
