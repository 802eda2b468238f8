// Loads a decoder from a model's files. Each field and tensor of the files is read, or known to be inert (inert.h), or refused by an
// error that names it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/model_files.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"

namespace llmi {

// Called before any weight is packed. plan(format) gives the memory that the weights take in that format. An exception ends the loading.
using Admission = std::function<void(const std::function<WeightPlan(WeightFormat)>& plan)>;

// Throws Error(kModelFile, kUnsupportedModel, kOutOfMemory). The caller checks whether the files changed while they were read.
// layers: the layers to load, ascending; empty: all. Throws Error(kInvalidArgument) for a layer that the model lacks.
// overrides: the user's changes to the metadata, as JSON (overrides.h). Throws Error(kInvalidArgument) for one that changes nothing.
// dropped: as for LoadWeights.
std::unique_ptr<Decoder> LoadDecoder(const KernelContext& context, const ModelFiles& files, WeightFormat format,
                                     const std::vector<int64_t>& layers = {}, const std::string& overrides = "",
                                     const Admission& admit = nullptr, const std::atomic<bool>* dropped = nullptr);

// The tensors that a model of this config has. Reads no weights.
std::vector<ExpectedTensor> LoadExpectedTensors(const ModelFiles& files, const std::string& overrides = "");

// The config alone, without reading weights.
ModelConfig LoadConfig(const ModelFiles& files, const std::vector<int64_t>& layers = {}, const std::string& overrides = "");

}  // namespace llmi
