// Gemma 3, text. Gemma Team, Gemma 3 Technical Report, 2025: five local layers to one global, QK norm, norms
// around each block, scaled embeddings, two RoPE bases.
#include <cmath>

#include "core/errors.h"
#include "model/architecture.h"

namespace llmi {
namespace {

constexpr int64_t kPattern = 6;          // each sixth layer is global
constexpr double kLocalTheta = 10000.0;  // RoPE base of local layers, where the file does not say
constexpr int64_t kLayersOf27B = 62;     // the one size whose attention scale is not 1/sqrt(head_dim)

void Finish(ModelConfig* config, int64_t window, int64_t pattern, double local_theta) {
  config->activation = Activation::kGeluTanh;
  config->qk_norm = true;
  config->sandwich_norms = true;
  config->embedding_scale = static_cast<double>(std::sqrt(static_cast<float>(config->hidden_size)));
  RopeConfig local;
  local.theta = local_theta;
  local.rotary_dim = config->head_dim;
  config->ropes.push_back(local);
  for (size_t i = 0; i < config->layers.size(); ++i) {
    const bool global = (static_cast<int64_t>(i) + 1) % pattern == 0;
    config->layers[i].window = global ? 0 : window;
    config->layers[i].rope = global ? 0 : 1;
  }
}

ModelConfig FromGguf(const GgufFile& file) {
  ModelConfig config = architectures::CommonFromGguf(file, "gemma3");
  if (config.num_layers == kLayersOf27B) {
    config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.hidden_size) / static_cast<double>(config.num_heads));
  }
  const char* local_key = "gemma3.rope.freq_base_swa";
  Finish(&config, file.Integer("gemma3.attention.sliding_window"), kPattern, file.Has(local_key) ? file.Number(local_key) : kLocalTheta);
  return config;
}

ModelConfig FromJson(const Json& json, const std::string& source) {
  ModelConfig config = architectures::CommonFromJson(json, source);
  config.architecture = "gemma3";
  config.norm_weight_plus_one = true;
  if (json.Find("tie_word_embeddings") == nullptr) config.tied_embeddings = true;
  config.head_dim = architectures::OptionalInteger(json, "head_dim", 256);
  config.ropes[0].rotary_dim = config.head_dim;
  config.ropes[0].theta = architectures::OptionalNumber(json, "rope_theta", 1000000.0);
  config.attention_scale = 1.0 / std::sqrt(architectures::OptionalNumber(json, "query_pre_attn_scalar", 256.0));
  config.attention_soft_cap = architectures::OptionalNumber(json, "attn_logit_softcapping", 0.0);
  config.final_soft_cap = architectures::OptionalNumber(json, "final_logit_softcapping", 0.0);
  const int64_t pattern = architectures::OptionalInteger(json, "sliding_window_pattern",
                                                         architectures::OptionalInteger(json, "_sliding_window_pattern", kPattern));
  if (pattern < 1) throw Error(ErrorKind::kModelFile, source + ": sliding_window_pattern must be positive", "sliding_window_pattern");
  const int64_t window = architectures::OptionalInteger(json, "sliding_window", 4096);
  if (window < 1) throw Error(ErrorKind::kModelFile, source + ": sliding_window must be positive", "sliding_window");
  Finish(&config, window, pattern, architectures::OptionalNumber(json, "rope_local_base_freq", kLocalTheta));
  // Newer files list the kind of each layer; the list rules.
  if (const Json* types = json.Find("layer_types"); types != nullptr) {
    const std::vector<Json>& list = types->AsArray("layer_types");
    if (list.size() != config.layers.size())
      throw Error(ErrorKind::kModelFile, source + ": layer_types does not match num_hidden_layers", "layer_types");
    for (size_t i = 0; i < list.size(); ++i) {
      const bool global = list[i].AsString("layer_types") == "full_attention";
      config.layers[i].window = global ? 0 : window;
      config.layers[i].rope = global ? 0 : 1;
    }
  }
  return config;
}

TensorNames HfNames() {
  TensorNames names = architectures::HfNames();
  const auto set = [&](TensorRole role, const char* name) { names[static_cast<size_t>(role)] = name; };
  set(TensorRole::kPostAttentionNorm, "model.layers.{}.post_attention_layernorm");
  set(TensorRole::kMlpNorm, "model.layers.{}.pre_feedforward_layernorm");
  set(TensorRole::kPostMlpNorm, "model.layers.{}.post_feedforward_layernorm");
  return names;
}

}  // namespace

const Architecture kGemma3Architecture = {"gemma3", {"Gemma3ForCausalLM"}, architectures::GgufNames(), HfNames(), FromGguf, FromJson};

}  // namespace llmi
