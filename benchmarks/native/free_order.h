// Variants of kernels that may add in any order, for benchmarks/promise.py alone: no engine runs them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/attention.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/norm.h"

namespace llmi {

using LinearVariant = void (*)(const LinearArgs& args, const LinearPart& part, int64_t num_tiles);
using NormVariant = void (*)(const NormArgs& args);
using AttentionVariant = void (*)(const AttentionArgs& args, const AttentionTask& task);

// The variants that exist for the type; the caller times all of them and takes the fastest.
std::vector<LinearVariant> FreeLinears(PackedType type, bool fine);
std::vector<NormVariant> FreeNorms();
std::vector<AttentionVariant> FreeAttentions();  // fp16 cache, contexts up to kFreeContext, chains
constexpr int64_t kFreeContext = 2048;

}  // namespace llmi
