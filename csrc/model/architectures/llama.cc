// Llama 2 and 3, SmolLM2 and other models of their structure. Touvron et al., 2023; Grattafiori et al., 2024.
#include "core/errors.h"
#include "model/architecture.h"
#include "model/rope_fields.h"

namespace llmi {
namespace {

ModelConfig FromGguf(const GgufFields& fields, const TensorFile& tensors) {
  ModelConfig config = architectures::CommonFromGguf(fields, tensors, "llama");
  config.interleaved_qk = true;
  config.stored_biases = true;
  // Llama 3's scaled frequencies are stored as divisors.
  if (const TensorView* divisors = tensors.Find("rope_freqs.weight"); divisors != nullptr) {
    if (divisors->dtype != DType::kF32 || static_cast<int64_t>(divisors->num_bytes / 4) != config.ropes[0].rotary_dim / 2) {
      throw Error(ErrorKind::kModelFile, fields.source() + ": tensor 'rope_freqs.weight' has the wrong type or size", "rope_freqs.weight");
    }
    config.ropes[0].frequency_divisors.resize(divisors->num_bytes / 4);
    divisors->Read(0, divisors->num_bytes, config.ropes[0].frequency_divisors.data());
  }
  return config;
}

ModelConfig FromJson(const JsonFields& json) {
  ModelConfig config = architectures::CommonFromJson(json);
  config.architecture = "llama";
  config.tied_embeddings = json.Bool("tie_word_embeddings", false);
  config.ropes.push_back(RopeOf(json, config.head_dim, 10000.0));
  const std::string act = json.String("hidden_act", "silu");
  if (act != "silu" && act != "swish") {  // two names of one function
    throw Error(ErrorKind::kUnsupportedModel, json.source() + ": hidden_act '" + act + "' in a Llama model (silu is run)", "hidden_act");
  }
  config.mlp_bias = json.Bool("mlp_bias", false);
  if (json.Find("use_sliding_window") != nullptr && !json.Bool("use_sliding_window", false)) {
    json.Find("sliding_window");  // switched off
    json.Find("max_window_layers");
  }
  return config;
}

}  // namespace

const Architecture kLlamaArchitecture = {
    "llama", {"LlamaForCausalLM"}, "llama", architectures::GgufNames(), architectures::HfNames(), FromGguf, FromJson};

}  // namespace llmi
