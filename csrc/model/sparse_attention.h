// Which models and engines can compute a sequence's view (kernels/layout/sparse_view.h).
#pragma once

#include "kernels/layout/sparse_view.h"
#include "model/spec.h"

namespace llmi {

// The most first positions that a row may see apart from its window: they are one span of attention.
constexpr int64_t kMostSinks = 256;

// Throws Error(kInvalidArgument), which says what to do, for a view that is out of range, or of a model or place that has none.
void CheckView(const SparseView& view, const ModelSpec& spec, bool on_device, bool on_ranks);

}  // namespace llmi
