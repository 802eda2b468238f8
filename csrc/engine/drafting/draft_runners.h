// The engine's parts of the drafters that were loaded with the model. Engine thread only.
#pragma once

#include "cache/kv_cache.h"
#include "engine/drafting/drafting.h"
#include "engine/drafting/eagle_runner.h"
#include "engine/drafting/medusa_runner.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"

namespace llmi {

class DraftRunners {
 public:
  DraftRunners(const KernelContext& context, Decoder& decoder, KvCache& cache)
      : decoder_(decoder), context_(OfDrafts(context)), eagle_(context_, decoder, cache), medusa_(context_, decoder) {}

  // Those for which something was loaded.
  DraftHeads heads() { return {decoder_.eagle() == nullptr ? nullptr : &eagle_, decoder_.medusa() == nullptr ? nullptr : &medusa_}; }
  // Call it when the step's new tokens are committed and before its rows are processed.
  void BeforeRows(const LaunchedStep& step) {
    eagle_.BeforeRows(step);
    medusa_.BeforeRows(step);
  }
  // Call it after the walks over drafts, before they end.
  void AfterRows(const LaunchedStep& step) {
    eagle_.AfterRows(step);
    medusa_.AfterRows(step);
  }

 private:
  // Heads only propose, and each step waits for them: they read one-byte codes whatever the target reads, as draft models do.
  static KernelContext OfDrafts(KernelContext context) {
    context.wide_activations = false;
    return context;
  }

  const Decoder& decoder_;
  const KernelContext context_;
  EagleRunner eagle_;
  MedusaRunner medusa_;
};

}  // namespace llmi
