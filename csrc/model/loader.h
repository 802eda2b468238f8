// Loads a decoder from a model's files by its spec. Each tensor of the files is read, or known to be inert (inert.h, the spec's
// ignored_tensors), or refused by an error that names it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/model_files.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "model/spec.h"

namespace llmi {

// Called before any weight is packed. plan(format) gives the memory that the weights take in that format. An exception ends the loading.
using Admission = std::function<void(const std::function<WeightPlan(WeightFormat)>& plan)>;

// spec: of the whole model; valid (ParseSpec). layers: those to load, ascending; empty: all. Throws Error(kInvalidArgument) for a layer
// that the model lacks, Error(kModelFile, kUnsupportedModel, kOutOfMemory). The caller checks whether the files changed while they were
// read. dropped: as for LoadWeights. ranks: as for Decoder; the part of this one is loaded.
std::unique_ptr<Decoder> LoadDecoder(const KernelContext& context, const ModelFiles& files, ModelSpec spec, WeightFormat format,
                                     const std::vector<int64_t>& layers = {}, const Admission& admit = nullptr,
                                     const std::atomic<bool>* dropped = nullptr, std::unique_ptr<Ranks> ranks = nullptr);

// Leaves these layers, ascending, in the spec; empty: all. Throws Error(kInvalidArgument).
void KeepLayers(const std::vector<int64_t>& layers, ModelSpec* spec);

}  // namespace llmi
