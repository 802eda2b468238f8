// From a model's files to a decoder. What the files say is read, known to be inert, or refused by name: nothing is passed over.
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

// Asked before any weight is packed, with what they would take in a format; throws to end the loading.
using Admission = std::function<void(const std::function<WeightPlan(WeightFormat)>& plan)>;

// Throws Error(kModelFile, kUnsupportedModel, kOutOfMemory). Whether the files changed meanwhile is the caller's to ask.
// layers: only these of the model's layers, ascending; empty: all. Throws Error(kInvalidArgument) for one that it lacks.
// overrides: the user's changes to the metadata, as JSON (overrides.h). Throws Error(kInvalidArgument) for one that changes nothing.
// dropped: as for LoadWeights.
std::unique_ptr<Decoder> LoadDecoder(const KernelContext& context, const ModelFiles& files, WeightFormat format,
                                     const std::vector<int64_t>& layers = {}, const std::string& overrides = "",
                                     const Admission& admit = nullptr, const std::atomic<bool>* dropped = nullptr);

// The tensors that a model of this config has; no weights are looked at.
std::vector<ExpectedTensor> LoadExpectedTensors(const ModelFiles& files, const std::string& overrides = "");

// The config alone, without reading weights.
ModelConfig LoadConfig(const ModelFiles& files, const std::vector<int64_t>& layers = {}, const std::string& overrides = "");

}  // namespace llmi
