// The decoder as numbers: everything that tells one model family from another. Filled by
// architectures/<family>.cc from GGUF metadata or config.json; the forward pass reads nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/activation.h"

namespace llmi {

struct RopeConfig {
  double theta = 10000.0;
  int64_t rotary_dim = 0;      // head_dim, or less (partial rotary)
  double linear_factor = 1.0;  // positions are divided by it
  // Llama 3's scaling of low frequencies; factor 1: none. GGUF files carry the factors themselves instead.
  double llama3_factor = 1.0;
  double llama3_low_freq_factor = 1.0;
  double llama3_high_freq_factor = 4.0;
  int64_t llama3_original_context = 8192;
  std::vector<float> frequency_divisors;  // [rotary_dim / 2] or empty

  bool operator==(const RopeConfig&) const = default;
};

struct LayerConfig {
  int64_t window = 0;  // tokens that a query sees; 0: all
  int rope = 0;        // index into ModelConfig::ropes
};

struct ModelConfig {
  std::string architecture;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t max_position = 0;
  double norm_eps = 1e-5;
  Activation activation = Activation::kSilu;
  bool qk_norm = false;               // RMS norm of each query and key head before RoPE
  bool sandwich_norms = false;        // norms also after attention and after the MLP (Gemma)
  bool norm_weight_plus_one = false;  // the file stores weight - 1
  bool interleaved_qk = false;        // the file stores query and key rows for adjacent-pair RoPE (GGUF llama)
  double embedding_scale = 1.0;
  double attention_scale = 0.0;
  double attention_soft_cap = 0.0;
  double final_soft_cap = 0.0;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool stored_biases = false;  // linear layers have every bias that the file holds, in addition to those above (GGUF)
  bool tied_embeddings = false;
  int64_t num_experts = 0;  // more than 0: a mixture of experts, which Validate refuses
  std::vector<LayerConfig> layers;
  std::vector<RopeConfig> ropes;

  // Throws an Error that names the field: kModelFile if a value is out of range, kUnsupportedModel if llmi cannot run it.
  void Validate(const std::string& source) const;
};

}  // namespace llmi
