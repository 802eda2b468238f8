#include "model/config.h"

#include <cmath>

#include "core/errors.h"
#include "kernels/ops/attention.h"

namespace llmi {
namespace {

void CheckRange(const std::string& source, const char* field, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw Error(
        ErrorKind::kModelFile,
        source + ": " + field + " = " + std::to_string(value) + " is outside [" + std::to_string(low) + ", " + std::to_string(high) + "]",
        field);
  }
}

void CheckPositive(const std::string& source, const char* field, double value) {
  if (!(value > 0) || !std::isfinite(value)) {
    throw Error(ErrorKind::kModelFile, source + ": " + field + " must be positive and finite", field);
  }
}

}  // namespace

void ModelConfig::Validate(const std::string& source) const {
  CheckRange(source, "num_hidden_layers", num_layers, 1, 1024);
  CheckRange(source, "hidden_size", hidden_size, 16, 1 << 20);
  CheckRange(source, "num_attention_heads", num_heads, 1, 4096);
  CheckRange(source, "num_key_value_heads", num_kv_heads, 1, num_heads);
  CheckRange(source, "head_dim", head_dim, 16, kMaxHeadDim);
  CheckRange(source, "intermediate_size", intermediate_size, 1, 1 << 24);
  CheckRange(source, "vocab_size", vocab_size, 1, 1 << 24);
  CheckRange(source, "max_position_embeddings", max_position, 1, int64_t{1} << 24);
  if (hidden_size % 16 != 0 || head_dim % 16 != 0) {
    throw Error(ErrorKind::kUnsupportedModel, source + ": hidden_size and head_dim must be multiples of 16", "head_dim");
  }
  if (num_heads % num_kv_heads != 0) {
    throw Error(ErrorKind::kModelFile,
                source + ": " + std::to_string(num_kv_heads) + " KV heads do not divide " + std::to_string(num_heads) + " heads",
                "num_key_value_heads");
  }
  CheckPositive(source, "rms_norm_eps", norm_eps);
  CheckPositive(source, "attention scale", attention_scale);
  CheckPositive(source, "embedding scale", embedding_scale);
  if (!(attention_soft_cap >= 0 && final_soft_cap >= 0) || !std::isfinite(attention_soft_cap) || !std::isfinite(final_soft_cap)) {
    throw Error(ErrorKind::kModelFile, source + ": a soft cap on logits is negative or not finite", "logit_softcapping");
  }
  CheckRange(source, "layers", static_cast<int64_t>(layers.size()), num_layers, num_layers);
  for (const LayerConfig& layer : layers) {
    CheckRange(source, "sliding_window", layer.window, 0, int64_t{1} << 30);
    CheckRange(source, "rope index", layer.rope, 0, static_cast<int64_t>(ropes.size()) - 1);
  }
  for (const RopeConfig& rope : ropes) {
    CheckPositive(source, "rope_theta", rope.theta);
    CheckPositive(source, "rope scaling factor", rope.linear_factor);
    CheckPositive(source, "rope scaling factor", rope.llama3_factor);
    CheckRange(source, "rotary dimensions", rope.rotary_dim, 2, head_dim);
    if (rope.rotary_dim % 2 != 0) throw Error(ErrorKind::kModelFile, source + ": the rotary dimension is odd", "rotary_dim");
    CheckPositive(source, "low_freq_factor", rope.llama3_low_freq_factor);
    CheckRange(source, "original_max_position_embeddings", rope.llama3_original_context, 1, int64_t{1} << 32);
    if (!(rope.llama3_high_freq_factor > rope.llama3_low_freq_factor)) {
      throw Error(ErrorKind::kModelFile, source + ": rope_scaling: high_freq_factor must exceed low_freq_factor", "rope_scaling");
    }
  }
  if (num_experts > 0) {
    throw Error(ErrorKind::kUnsupportedModel,
                source + ": mixture-of-experts models (" + std::to_string(num_experts) + " experts) are not run yet", "num_experts");
  }
}

}  // namespace llmi
