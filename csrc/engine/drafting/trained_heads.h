// The engine's parts of the drafters that were loaded with the model. Engine thread only.
#pragma once

#include "cache/kv_cache.h"
#include "engine/drafting/eagle_runner.h"
#include "engine/drafting/medusa_runner.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"

namespace llmi {

class TrainedHeads {
 public:
  TrainedHeads(const KernelContext& context, Decoder& decoder, KvCache& cache)
      : decoder_(decoder), context_(OfDrafts(context)), eagle_(context_, decoder, cache), medusa_(context_, decoder) {}

  // Null: the model was loaded without.
  EagleRunner* eagle() { return decoder_.eagle() == nullptr ? nullptr : &eagle_; }
  MedusaRunner* medusa() { return decoder_.medusa() == nullptr ? nullptr : &medusa_; }

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
