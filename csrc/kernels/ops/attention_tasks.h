// Divides a batch's attention into tasks of the CPU.
#pragma once

#include <vector>

#include "kernels/ops/attention.h"

namespace llmi {

// The tasks in the order in which threads take them. AttentionTask::next of each points to the next task in the vector.
std::vector<AttentionTask> AttentionTasks(const AttentionArgs& args);

}  // namespace llmi
