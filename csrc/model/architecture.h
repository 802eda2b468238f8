// The model families that llmi knows. A family maps metadata to a ModelConfig and tensors to their names; it
// contains no arithmetic.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "core/json.h"
#include "io/gguf.h"
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

// Names by role, without ".weight" or ".bias"; "{}" stands for the layer. Empty: the family has no such tensor.
using TensorNames = std::array<std::string, static_cast<size_t>(TensorRole::kCount)>;

struct Architecture {
  const char* name;                           // also GGUF's general.architecture
  std::vector<std::string> hf_architectures;  // config.json: architectures
  TensorNames gguf_names;
  TensorNames hf_names;
  ModelConfig (*from_gguf)(const GgufFile& file);
  ModelConfig (*from_json)(const Json& config, const std::string& source);
};

// The family that a file names; throws Error(kUnsupportedModel) listing the known ones.
const Architecture& ArchitectureOf(const GgufFile& file);
const Architecture& ArchitectureOf(const Json& config, const std::string& source);
std::vector<std::string> KnownArchitectures();

std::string TensorName(const TensorNames& names, TensorRole role, int64_t layer);

// Families, one file each.
extern const Architecture kLlamaArchitecture;
extern const Architecture kGemma3Architecture;

// Fields that families share.
namespace architectures {
// GGUF: sizes, heads, norm epsilon, vocabulary, one RoPE, full attention in every layer.
ModelConfig CommonFromGguf(const GgufFile& file, const std::string& prefix);
// config.json: the same.
ModelConfig CommonFromJson(const Json& config, const std::string& source);
int64_t OptionalInteger(const Json& config, const char* key, int64_t fallback);
double OptionalNumber(const Json& config, const char* key, double fallback);
TensorNames GgufNames();
TensorNames HfNames();
}  // namespace architectures

}  // namespace llmi
