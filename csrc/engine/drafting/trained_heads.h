// The engine's parts of the drafters that were loaded with the model. Engine thread only.
#pragma once

#include <optional>
#include <utility>

#include "cache/kv_cache.h"
#include "engine/drafting/eagle_runner.h"
#include "engine/drafting/medusa_runner.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "model/draft_heads.h"

namespace llmi {

class TrainedHeads {
 public:
  TrainedHeads(const KernelContext& context, Decoder& decoder, KvCache& cache, DraftHeads heads, int64_t max_num_seqs)
      : context_(OfDrafts(context)) {
    if (heads.eagle != nullptr) eagle_.emplace(context_, decoder, cache, std::move(heads.eagle), max_num_seqs);
    if (heads.medusa != nullptr) medusa_.emplace(context_, decoder, std::move(heads.medusa));
  }

  // Null: the model was loaded without.
  EagleRunner* eagle() { return eagle_ ? &*eagle_ : nullptr; }
  MedusaRunner* medusa() { return medusa_ ? &*medusa_ : nullptr; }

 private:
  // Heads only propose, and each step waits for them: they read one-byte codes whatever the target reads, as draft models do.
  static KernelContext OfDrafts(KernelContext context) {
    context.wide_activations = false;
    return context;
  }

  const KernelContext context_;
  std::optional<EagleRunner> eagle_;
  std::optional<MedusaRunner> medusa_;
};

}  // namespace llmi
