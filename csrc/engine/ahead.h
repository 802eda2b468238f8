// A step that is launched before the tokens of the step before it are known: the device computes while the host takes those tokens. What
// the step computes for a sequence that has ended meanwhile is not used. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>

#include "cache/kv_cache.h"
#include "engine/rows/device_draws.h"
#include "engine/rows/plan.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "scheduler/scheduler.h"

namespace llmi {

class StepAhead {
 public:
  StepAhead(const KernelContext& context, Decoder& decoder, KvCache& cache, Scheduler& scheduler, DeviceDraws& draws,
            SchedulingPolicy policy, const RowSite& site);

  // Launches the step after this one, whose draws are under way, if it can be predicted.
  void LaunchAfter(const LaunchedStep& step);
  // The tokens of the step before are on the host. drew_all: each row has one; else the step ahead is dropped.
  void TokensTaken(bool drew_all);
  // The launched step, without the sequences that the tokens before it have ended. Null: no sequence is left.
  std::unique_ptr<LaunchedStep> Take();
  void Drop() { next_.reset(); }
  bool is_pending() const { return next_ != nullptr; }

  int64_t num_launched() const { return num_launched_; }

 private:
  bool MayLaunch(const LaunchedStep& step) const;
  bool MayAdmit(const LaunchedStep& step) const;

  const KernelContext& context_;
  Decoder& decoder_;
  KvCache& cache_;
  Scheduler& scheduler_;
  DeviceDraws& draws_;
  const SchedulingPolicy policy_;
  const RowSite site_;
  std::unique_ptr<LaunchedStep> next_;
  int64_t num_launched_ = 0;
};

}  // namespace llmi
