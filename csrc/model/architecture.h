// The model families that llmi knows. A family maps metadata to a ModelConfig and tensors to their names; it
// contains no arithmetic.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "core/json_fields.h"
#include "io/gguf_fields.h"
#include "io/tensor_file.h"
#include "model/config.h"

namespace llmi {

enum class TensorRole {
  kEmbedding,
  kFinalNorm,
  kHead,
  kAttentionNorm,
  kQuery,
  kKey,
  kValue,
  kAttentionOutput,
  kQueryNorm,
  kKeyNorm,
  kPostAttentionNorm,
  kMlpNorm,
  kGate,
  kUp,
  kDown,
  kPostMlpNorm,
  kCount
};

// Names by role, without ".weight" or ".bias"; "{}" stands for the layer's number. Empty: the family has no such tensor.
using TensorNames = std::array<std::string, static_cast<size_t>(TensorRole::kCount)>;

struct Architecture {
  const char* name;                           // also GGUF's general.architecture
  std::vector<std::string> hf_architectures;  // config.json: architectures
  std::string model_type;                     // config.json: model_type
  TensorNames gguf_names;
  TensorNames hf_names;
  // A field that these functions do not read must be inert (inert.h), or the file is refused.
  ModelConfig (*from_gguf)(const GgufFields& fields, const TensorFile& tensors);
  ModelConfig (*from_json)(const JsonFields& config);
};

// The family that a file names; throws Error(kUnsupportedModel) listing the known ones.
const Architecture& ArchitectureOf(const GgufFields& fields);
const Architecture& ArchitectureOf(const JsonFields& config);
std::vector<std::string> KnownArchitectures();

std::string TensorName(const TensorNames& names, TensorRole role, int64_t layer);

// Families, one file each.
extern const Architecture kLlamaArchitecture;
extern const Architecture kGemma3Architecture;

// Fields that families share.
namespace architectures {
// GGUF: sizes, heads, norm epsilon, vocabulary, one RoPE, full attention in every layer.
ModelConfig CommonFromGguf(const GgufFields& fields, const TensorFile& tensors, const std::string& prefix);
// config.json: the same, except RoPE and whether the head is tied to the embedding.
ModelConfig CommonFromJson(const JsonFields& config);
TensorNames GgufNames();
TensorNames HfNames();
}  // namespace architectures

}  // namespace llmi
