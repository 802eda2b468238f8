// From a path to a decoder. What the files say is read, known to be inert, or refused by name: nothing is passed over.
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
// overrides: the user's changes to the metadata, as JSON (overrides.h). Throws Error(kInvalidArgument) for one that changes nothing.
std::unique_ptr<Decoder> LoadDecoder(const KernelContext& context, const std::string& path, WeightFormat format,
                                     const std::vector<int64_t>& layers = {}, const std::string& overrides = "");

// The config alone, without reading weights.
ModelConfig LoadConfig(const std::string& path, const std::vector<int64_t>& layers = {}, const std::string& overrides = "");

}  // namespace llmi
