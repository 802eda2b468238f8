// Llama 2 and 3, SmolLM2 and what else follows them. Touvron et al., 2023; Grattafiori et al., 2024.
#include "core/errors.h"
#include "model/architecture.h"

namespace llmi {
namespace {

ModelConfig FromGguf(const GgufFile& file) {
  ModelConfig config = architectures::CommonFromGguf(file, "llama");
  config.interleaved_qk = true;
  // Llama 3's scaled frequencies are stored as divisors.
  if (const TensorView* divisors = file.Find("rope_freqs.weight"); divisors != nullptr) {
    if (divisors->dtype != DType::kF32 || static_cast<int64_t>(divisors->num_bytes / 4) != config.ropes[0].rotary_dim / 2) {
      throw Error(ErrorKind::kModelFile, file.path() + ": tensor 'rope_freqs.weight' has the wrong type or size", "rope_freqs.weight");
    }
    config.ropes[0].frequency_divisors.resize(divisors->num_bytes / 4);
    __builtin_memcpy(config.ropes[0].frequency_divisors.data(), divisors->data, divisors->num_bytes);
  }
  return config;
}

ModelConfig FromJson(const Json& json, const std::string& source) {
  ModelConfig config = architectures::CommonFromJson(json, source);
  config.architecture = "llama";
  if (const Json* act = json.Find("hidden_act"); act != nullptr && act->AsString("hidden_act") != "silu") {
    throw Error(ErrorKind::kUnsupportedModel, source + ": hidden_act '" + act->AsString("hidden_act") + "' in a Llama model (silu is run)",
                "hidden_act");
  }
  if (const Json* bias = json.Find("attention_bias"); bias != nullptr)
    config.qkv_bias = config.output_bias = bias->AsBool("attention_bias");
  if (const Json* bias = json.Find("mlp_bias"); bias != nullptr) config.mlp_bias = bias->AsBool("mlp_bias");
  return config;
}

}  // namespace

const Architecture kLlamaArchitecture = {"llama", {"LlamaForCausalLM"}, architectures::GgufNames(), architectures::HfNames(), FromGguf,
                                         FromJson};

}  // namespace llmi
