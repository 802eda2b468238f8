// How the CPU cuts a batch's attention into tasks.
#pragma once

#include <vector>

#include "kernels/ops/attention.h"

namespace llmi {

// In the order in which threads take them, each with what follows it in the same vector.
std::vector<AttentionTask> AttentionTasks(const AttentionArgs& args);

}  // namespace llmi
