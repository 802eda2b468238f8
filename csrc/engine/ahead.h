// A step whose tokens are not known yet, launched after the one that draws them: on a device the host schedules, and takes tokens, while
// ops run. It is a step as any other, launched earlier; what it computes for a sequence that turns out to have ended is not used. Engine
// thread only.
#pragma once

#include <cstdint>
#include <memory>

#include "cache/kv_cache.h"
#include "engine/rows/device_draws.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "scheduler/scheduler.h"

namespace llmi {

class StepAhead {
 public:
  // batch_hook: there are engine-wide processors, which must see each step's rows on the host: none is launched ahead.
  StepAhead(const KernelContext& context, Decoder& decoder, KvCache& cache, Scheduler& scheduler, DeviceDraws& draws,
            SchedulingPolicy policy, bool batch_hook);

  // Launches the step after this one, whose draws are under way, if it can be predicted.
  void LaunchAfter(const LaunchedStep& step);
  // The tokens of the step before are on the host. drew_all: each row has one; else the step ahead is dropped.
  void TokensTaken(bool drew_all);
  // What is left of the launched step, now that the tokens before it are known: sequences that run on. Null: nothing.
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
  const bool batch_hook_;
  std::unique_ptr<LaunchedStep> next_;
  int64_t num_launched_ = 0;
};

}  // namespace llmi
