// Gemma 3, text. Gemma Team, Gemma 3 Technical Report, 2025: five local layers to one global, QK norm, norms
// around each block, scaled embeddings, two RoPE bases.
#include <cmath>
#include <optional>

#include "core/errors.h"
#include "model/architecture.h"
#include "model/rope_fields.h"

namespace llmi {
namespace {

constexpr int64_t kPattern = 6;           // each sixth layer is global
constexpr double kGlobalTheta = 1000000;  // RoPE bases, if the file does not give them
constexpr double kLocalTheta = 10000;
constexpr int64_t kLayersOf27B = 62;  // the only size whose attention scale is not 1/sqrt(head_dim)

// Sets the fields that all Gemma 3 models share. config->ropes: [of global layers, of local ones].
void Finish(ModelConfig* config) {
  config->activation = Activation::kGeluTanh;
  config->qk_norm = true;
  config->sandwich_norms = true;
  config->embedding_scale = static_cast<double>(std::sqrt(static_cast<float>(config->hidden_size)));
}

void SetLayer(ModelConfig* config, size_t layer, bool global, int64_t window) {
  config->layers[layer].window = global ? 0 : window;
  config->layers[layer].rope = global ? 0 : 1;
}

// pattern: each pattern-th layer is global; 0: no layer is.
void SetPattern(ModelConfig* config, int64_t pattern, int64_t window) {
  for (size_t i = 0; i < config->layers.size(); ++i) {
    SetLayer(config, i, pattern > 0 && (static_cast<int64_t>(i) + 1) % pattern == 0, window);
  }
}

[[noreturn]] void RefuseLength(const std::string& source, const std::string& field, size_t found, int64_t num_layers) {
  throw Error(ErrorKind::kModelFile,
              source + ": " + field + " has " + std::to_string(found) + " entries for " + std::to_string(num_layers) + " layers", field);
}

int64_t Window(const std::string& source, const std::string& field, int64_t window) {
  if (window < 1) throw Error(ErrorKind::kModelFile, source + ": " + field + " must be positive", field);
  return window;
}

int64_t Pattern(const std::string& source, const std::string& field, int64_t pattern, int64_t lowest) {
  if (pattern < lowest) {
    throw Error(ErrorKind::kModelFile,
                source + ": " + field + " = " + std::to_string(pattern) + " must be " + std::to_string(lowest) + " or more", field);
  }
  return pattern;
}

// 0 if the value is null.
double SoftCap(const JsonFields& json, const char* key) {
  const std::optional<double> cap = json.OptionalNumber(key);
  if (cap && !(*cap > 0)) throw Error(ErrorKind::kModelFile, json.source() + ": " + key + " must be positive, or null for none", key);
  return cap.value_or(0.0);
}

ModelConfig FromGguf(const GgufFields& fields, const TensorFile& tensors) {
  ModelConfig config = architectures::CommonFromGguf(fields, tensors, "gemma3");
  if (config.num_layers == kLayersOf27B) {
    config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.hidden_size) / static_cast<double>(config.num_heads));
  }
  config.final_soft_cap = fields.Number("gemma3.final_logit_softcapping", 0.0);
  RopeConfig local;
  local.theta = fields.Number("gemma3.rope.freq_base_swa", kLocalTheta);
  local.rotary_dim = config.ropes[0].rotary_dim;
  config.ropes.push_back(local);
  Finish(&config);
  const std::string window_key = "gemma3.attention.sliding_window";
  const int64_t window = Window(fields.source(), window_key, fields.Integer(window_key));
  // The key holds a number, or for each layer whether it is local.
  const std::string pattern_key = "gemma3.attention.sliding_window_pattern";
  const Json* pattern = fields.Find(pattern_key);
  if (pattern == nullptr || !pattern->IsArray()) {
    SetPattern(&config, Pattern(fields.source(), pattern_key, fields.Integer(pattern_key, kPattern), 0), window);
    return config;
  }
  const std::vector<Json>& local_layers = pattern->AsArray(pattern_key);
  if (local_layers.size() != config.layers.size()) RefuseLength(fields.source(), pattern_key, local_layers.size(), config.num_layers);
  for (size_t i = 0; i < local_layers.size(); ++i) SetLayer(&config, i, !local_layers[i].AsBool(pattern_key), window);
  return config;
}

// Sets the kind of each layer: by layer_types if the config has it, else each sliding_window_pattern-th layer is global.
void ReadLayers(const JsonFields& json, ModelConfig* config) {
  const int64_t window = Window(json.source(), "sliding_window", json.Integer("sliding_window", 4096));
  const int64_t pattern = Pattern(json.source(), "sliding_window_pattern", json.Integer("sliding_window_pattern", kPattern), 1);
  // transformers writes this key together with layer_types, and ignores it without them.
  const int64_t noted = json.Integer("_sliding_window_pattern", pattern);
  const Json* types = json.Find("layer_types");
  if (types == nullptr) {
    if (noted != pattern) {
      throw Error(ErrorKind::kUnsupportedModel,
                  json.source() + ": _sliding_window_pattern = " + std::to_string(noted) +
                      " without layer_types, which transformers reads as a pattern of " + std::to_string(pattern),
                  "_sliding_window_pattern");
    }
    return SetPattern(config, pattern, window);
  }
  const std::vector<Json>& list = types->AsArray("layer_types");
  if (list.size() != config->layers.size()) RefuseLength(json.source(), "layer_types", list.size(), config->num_layers);
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string& kind = list[i].AsString("layer_types");
    if (kind != "full_attention" && kind != "sliding_attention") {
      throw Error(ErrorKind::kUnsupportedModel,
                  json.source() + ": layer_types holds '" + kind + "' (full_attention and sliding_attention are run)", "layer_types");
    }
    SetLayer(config, i, kind == "full_attention", window);
  }
}

ModelConfig FromJson(const JsonFields& json) {
  ModelConfig config = architectures::CommonFromJson(json);
  config.architecture = "gemma3";
  config.norm_weight_plus_one = true;
  // Keys whose defaults differ from other families'.
  config.tied_embeddings = json.Bool("tie_word_embeddings", true);
  config.max_position = json.Integer("max_position_embeddings", 131072);
  config.num_kv_heads = json.Integer("num_key_value_heads", 4);
  config.head_dim = json.Integer("head_dim", 256);
  config.ropes = RopesByLayerKind(json, config.head_dim, kGlobalTheta, kLocalTheta);
  config.attention_scale = 1.0 / std::sqrt(json.Number("query_pre_attn_scalar", 256.0));
  config.final_soft_cap = SoftCap(json, "final_logit_softcapping");
  const std::string act = json.String("hidden_activation", "gelu_pytorch_tanh");
  if (act != "gelu_pytorch_tanh") {
    throw Error(ErrorKind::kUnsupportedModel,
                json.source() + ": hidden_activation '" + act + "' in a Gemma 3 model (gelu_pytorch_tanh is run)", "hidden_activation");
  }
  Finish(&config);
  ReadLayers(json, &config);
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

const Architecture kGemma3Architecture = {"gemma3", {"Gemma3ForCausalLM"}, "gemma3_text", architectures::GgufNames(), HfNames(), FromGguf,
                                          FromJson};

}  // namespace llmi
