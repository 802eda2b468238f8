// From a path to a decoder.
#pragma once

#include <memory>
#include <string>

#include "kernels/context.h"
#include "model/decoder.h"

namespace llmi {

// path: a .gguf file, or a directory with config.json and safetensors. Throws Error(kModelFile,
// kUnsupportedModel, kOutOfMemory).
std::unique_ptr<Decoder> LoadDecoder(const KernelContext& context, const std::string& path, WeightFormat format);

// The config alone, without reading weights.
ModelConfig LoadConfig(const std::string& path);

}  // namespace llmi
