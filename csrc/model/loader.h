// From a path to a decoder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/context.h"
#include "model/decoder.h"

namespace llmi {

// path: a .gguf file, or a directory with config.json and safetensors. Throws Error(kModelFile,
// kUnsupportedModel, kOutOfMemory).
// layers: only these of the model's layers, ascending; empty: all. Throws Error(kInvalidArgument) for one that it lacks.
std::unique_ptr<Decoder> LoadDecoder(const KernelContext& context, const std::string& path, WeightFormat format,
                                     const std::vector<int64_t>& layers = {});

// The config alone, without reading weights.
ModelConfig LoadConfig(const std::string& path, const std::vector<int64_t>& layers = {});

}  // namespace llmi
