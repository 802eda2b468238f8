#include "model/architecture.h"

#include <cmath>

#include "core/errors.h"

namespace llmi {
namespace {

const std::array<const Architecture*, 2> kArchitectures = {&kLlamaArchitecture, &kGemma3Architecture};

[[noreturn]] void Unknown(const std::string& source, const std::string& name) {
  std::string known;
  for (const std::string& architecture : KnownArchitectures()) known += (known.empty() ? "" : ", ") + architecture;
  throw Error(ErrorKind::kUnsupportedModel, source + ": unknown architecture '" + name + "' (llmi runs: " + known + ")", "architecture");
}

}  // namespace

const Architecture& ArchitectureOf(const GgufFile& file) {
  const std::string name = file.String("general.architecture");
  for (const Architecture* architecture : kArchitectures) {
    if (name == architecture->name) return *architecture;
  }
  Unknown(file.path(), name);
}

const Architecture& ArchitectureOf(const Json& config, const std::string& source) {
  const Json* names = config.IsObject() ? config.Find("architectures") : nullptr;
  if (names == nullptr || names->AsArray("architectures").empty()) {
    throw Error(ErrorKind::kModelFile, source + ": 'architectures' is missing", "architectures");
  }
  const std::string& name = names->AsArray("architectures")[0].AsString("architectures");
  for (const Architecture* architecture : kArchitectures) {
    for (const std::string& hf_name : architecture->hf_architectures) {
      if (name == hf_name) return *architecture;
    }
  }
  Unknown(source, name);
}

std::vector<std::string> KnownArchitectures() {
  std::vector<std::string> names;
  for (const Architecture* architecture : kArchitectures) {
    names.emplace_back(architecture->name);
    names.insert(names.end(), architecture->hf_architectures.begin(), architecture->hf_architectures.end());
  }
  return names;
}

std::string TensorName(const TensorNames& names, TensorRole role, int64_t layer) {
  std::string name = names[static_cast<size_t>(role)];
  const size_t hole = name.find("{}");
  if (hole != std::string::npos) name.replace(hole, 2, std::to_string(layer));
  return name;
}

namespace architectures {

ModelConfig CommonFromGguf(const GgufFile& file, const std::string& prefix) {
  ModelConfig config;
  config.architecture = prefix;
  const auto integer = [&](const char* key) { return file.Integer(prefix + "." + key); };
  config.num_layers = integer("block_count");
  config.hidden_size = integer("embedding_length");
  config.num_heads = integer("attention.head_count");
  config.num_kv_heads = file.Has(prefix + ".attention.head_count_kv") ? integer("attention.head_count_kv") : config.num_heads;
  config.intermediate_size = integer("feed_forward_length");
  config.max_position = integer("context_length");
  config.norm_eps = static_cast<double>(static_cast<float>(file.Number(prefix + ".attention.layer_norm_rms_epsilon")));
  if (config.num_heads < 1)
    throw Error(ErrorKind::kModelFile, file.path() + ": attention.head_count must be positive", "attention.head_count");
  config.head_dim = file.Has(prefix + ".attention.key_length") ? integer("attention.key_length") : config.hidden_size / config.num_heads;
  if (file.Has(prefix + ".attention.value_length") && integer("attention.value_length") != config.head_dim) {
    throw Error(ErrorKind::kUnsupportedModel, file.path() + ": key and value heads of different sizes", prefix + ".attention.value_length");
  }
  if (file.Has(prefix + ".expert_count")) config.num_experts = integer("expert_count");
  const TensorView* embedding = file.Find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    throw Error(ErrorKind::kModelFile, file.path() + ": tensor 'token_embd.weight' is missing or no matrix", "token_embd.weight");
  }
  config.vocab_size = static_cast<int64_t>(embedding->shape[0]);
  config.tied_embeddings = file.Find("output.weight") == nullptr;
  RopeConfig rope;
  rope.theta = file.Has(prefix + ".rope.freq_base") ? file.Number(prefix + ".rope.freq_base") : 10000.0;
  rope.rotary_dim = file.Has(prefix + ".rope.dimension_count") ? integer("rope.dimension_count") : config.head_dim;
  if (file.Has(prefix + ".rope.scaling.type")) {
    const std::string type = file.String(prefix + ".rope.scaling.type");
    if (type == "linear") {
      rope.linear_factor = file.Number(prefix + ".rope.scaling.factor");
    } else if (type != "none") {
      throw Error(ErrorKind::kUnsupportedModel, file.path() + ": RoPE scaling '" + type + "' is not run (linear and llama3 are)",
                  prefix + ".rope.scaling.type");
    }
  }
  config.ropes.push_back(rope);
  config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  config.layers.assign(static_cast<size_t>(config.num_layers < 0 || config.num_layers > 1024 ? 0 : config.num_layers), LayerConfig{});
  return config;
}

int64_t OptionalInteger(const Json& config, const char* key, int64_t fallback) {
  const Json* value = config.Find(key);
  return value == nullptr ? fallback : value->AsInteger(key);
}

double OptionalNumber(const Json& config, const char* key, double fallback) {
  const Json* value = config.Find(key);
  return value == nullptr ? fallback : value->AsNumber(key);
}

namespace {
int64_t RequiredInteger(const Json& config, const char* key, const std::string& source) {
  const Json* value = config.Find(key);
  if (value == nullptr) throw Error(ErrorKind::kModelFile, source + ": '" + key + "' is missing", key);
  return value->AsInteger(key);
}

void ReadRopeScaling(const Json& config, const std::string& source, RopeConfig* rope) {
  const Json* scaling = config.Find("rope_scaling");
  if (scaling == nullptr) return;
  if (!scaling->IsObject()) throw Error(ErrorKind::kModelFile, source + ": rope_scaling is not an object", "rope_scaling");
  const Json* type_field = scaling->Find("rope_type") != nullptr ? scaling->Find("rope_type") : scaling->Find("type");
  const std::string type = type_field == nullptr ? "default" : type_field->AsString("rope_type");
  if (type == "linear") {
    rope->linear_factor = OptionalNumber(*scaling, "factor", 1.0);
  } else if (type == "llama3") {
    rope->llama3_factor = OptionalNumber(*scaling, "factor", 8.0);
    rope->llama3_low_freq_factor = OptionalNumber(*scaling, "low_freq_factor", 1.0);
    rope->llama3_high_freq_factor = OptionalNumber(*scaling, "high_freq_factor", 4.0);
    rope->llama3_original_context = OptionalInteger(*scaling, "original_max_position_embeddings", 8192);
  } else if (type != "default") {
    throw Error(ErrorKind::kUnsupportedModel, source + ": RoPE scaling '" + type + "' is not run (linear and llama3 are)", "rope_scaling");
  }
}
}  // namespace

ModelConfig CommonFromJson(const Json& json, const std::string& source) {
  ModelConfig config;
  config.num_layers = RequiredInteger(json, "num_hidden_layers", source);
  config.hidden_size = RequiredInteger(json, "hidden_size", source);
  config.num_heads = RequiredInteger(json, "num_attention_heads", source);
  config.num_kv_heads = OptionalInteger(json, "num_key_value_heads", config.num_heads);
  config.intermediate_size = RequiredInteger(json, "intermediate_size", source);
  config.vocab_size = RequiredInteger(json, "vocab_size", source);
  config.max_position = OptionalInteger(json, "max_position_embeddings", 2048);
  config.norm_eps = OptionalNumber(json, "rms_norm_eps", 1e-6);
  if (config.num_heads < 1) throw Error(ErrorKind::kModelFile, source + ": num_attention_heads must be positive", "num_attention_heads");
  config.head_dim = OptionalInteger(json, "head_dim", config.hidden_size / config.num_heads);
  const Json* tied = json.Find("tie_word_embeddings");
  config.tied_embeddings = tied != nullptr && tied->AsBool("tie_word_embeddings");
  config.num_experts = OptionalInteger(json, "num_local_experts", 0);
  RopeConfig rope;
  rope.theta = OptionalNumber(json, "rope_theta", 10000.0);
  rope.rotary_dim = static_cast<int64_t>(static_cast<double>(config.head_dim) * OptionalNumber(json, "partial_rotary_factor", 1.0));
  ReadRopeScaling(json, source, &rope);
  config.ropes.push_back(rope);
  config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  config.layers.assign(static_cast<size_t>(config.num_layers < 0 || config.num_layers > 1024 ? 0 : config.num_layers), LayerConfig{});
  return config;
}

TensorNames GgufNames() {
  return {"token_embd",
          "output_norm",
          "output",
          "blk.{}.attn_norm",
          "blk.{}.attn_q",
          "blk.{}.attn_k",
          "blk.{}.attn_v",
          "blk.{}.attn_output",
          "blk.{}.attn_q_norm",
          "blk.{}.attn_k_norm",
          "blk.{}.post_attention_norm",
          "blk.{}.ffn_norm",
          "blk.{}.ffn_gate",
          "blk.{}.ffn_up",
          "blk.{}.ffn_down",
          "blk.{}.post_ffw_norm"};
}

TensorNames HfNames() {
  return {"model.embed_tokens",
          "model.norm",
          "lm_head",
          "model.layers.{}.input_layernorm",
          "model.layers.{}.self_attn.q_proj",
          "model.layers.{}.self_attn.k_proj",
          "model.layers.{}.self_attn.v_proj",
          "model.layers.{}.self_attn.o_proj",
          "model.layers.{}.self_attn.q_norm",
          "model.layers.{}.self_attn.k_norm",
          "",
          "model.layers.{}.post_attention_layernorm",
          "model.layers.{}.mlp.gate_proj",
          "model.layers.{}.mlp.up_proj",
          "model.layers.{}.mlp.down_proj",
          ""};
}

}  // namespace architectures
}  // namespace llmi
