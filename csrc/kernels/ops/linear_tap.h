// Who is told of the rows that linear layers read, before they run.
#pragma once

#include "kernels/ops/experts.h"
#include "kernels/ops/linear.h"

namespace llmi {

class LinearTap {
 public:
  LinearTap() = default;
  virtual ~LinearTap() = default;
  LinearTap(const LinearTap&) = delete;
  LinearTap& operator=(const LinearTap&) = delete;
  // args.x is there, whatever the type of the weights. pairs: those of an expert_linear; null: all rows are multiplied with one matrix.
  virtual void Take(const KernelContext& context, const LinearArgs& args, const ExpertPairs* pairs) = 0;
};

}  // namespace llmi
