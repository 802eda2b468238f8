#include "model/architecture.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/errors.h"
#include "model/rope_fields.h"

namespace llmi {
namespace {

const std::array<const Architecture*, 2> kArchitectures = {&kLlamaArchitecture, &kGemma3Architecture};

[[noreturn]] void Unknown(const std::string& source, const std::string& name) {
  std::string known;
  for (const std::string& architecture : KnownArchitectures()) known += (known.empty() ? "" : ", ") + architecture;
  throw Error(ErrorKind::kUnsupportedModel, source + ": unknown architecture '" + name + "' (llmi runs: " + known + ")", "architecture");
}

}  // namespace

const Architecture& ArchitectureOf(const GgufFields& fields) {
  const std::string name = fields.String("general.architecture");
  for (const Architecture* architecture : kArchitectures) {
    if (name == architecture->name) return *architecture;
  }
  Unknown(fields.source(), name);
}

const Architecture& ArchitectureOf(const JsonFields& config) {
  const Json* names = config.Find("architectures");
  if (names == nullptr || names->AsArray("architectures").empty()) {
    throw Error(ErrorKind::kModelFile, config.source() + ": 'architectures' is missing", "architectures");
  }
  if (names->AsArray("architectures").size() > 1) {
    throw Error(ErrorKind::kUnsupportedModel, config.source() + ": 'architectures' names several: " + names->Text(), "architectures");
  }
  const std::string& name = names->AsArray("architectures")[0].AsString("architectures");
  for (const Architecture* architecture : kArchitectures) {
    for (const std::string& hf_name : architecture->hf_architectures) {
      if (name != hf_name) continue;
      const std::string type = config.String("model_type", architecture->model_type);
      if (type != architecture->model_type) {
        throw Error(ErrorKind::kUnsupportedModel,
                    config.source() + ": 'architectures' says " + name + ", 'model_type' says " + type + " where it would be " +
                        architecture->model_type,
                    "model_type");
      }
      return *architecture;
    }
  }
  if (config.Object("text_config")) {
    throw Error(ErrorKind::kUnsupportedModel,
                config.source() + ": " + name +
                    " holds a text model (text_config) and other towers, and llmi runs no part of such a file: " +
                    "take the text model alone, or a GGUF file of it",
                "text_config");
  }
  Unknown(config.source(), name);
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
namespace {

void CheckTokenId(const JsonFields& config, const std::string& key, const Json& value, int64_t lowest, int64_t vocab_size) {
  const int64_t id = value.AsInteger(key);
  if (id < lowest || id >= vocab_size) {
    throw Error(ErrorKind::kModelFile,
                config.source() + ": " + key + " holds token id " + std::to_string(id) + ", outside [" + std::to_string(lowest) +
                    ", vocab_size = " + std::to_string(vocab_size) + ")",
                key);
  }
}

// The tokenizer and requests use these ids as indices of logits.
void CheckTokenIds(const JsonFields& config, int64_t vocab_size) {
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    const Json* value = config.Find(key);
    if (value == nullptr) continue;
    if (!value->IsArray()) CheckTokenId(config, key, *value, 0, vocab_size);
    if (!value->IsArray()) continue;
    for (const Json& id : value->AsArray(key)) CheckTokenId(config, key, id, 0, vocab_size);
  }
  // llmi pads nothing; -1 stands for "none" in older files.
  if (const Json* pad = config.Find("pad_token_id"); pad != nullptr) CheckTokenId(config, "pad_token_id", *pad, -1, vocab_size);
}

void SetNumLayers(ModelConfig* config) {
  config->layers.assign(static_cast<size_t>(config->num_layers < 0 || config->num_layers > 1024 ? 0 : config->num_layers), LayerConfig{});
}

}  // namespace

ModelConfig CommonFromGguf(const GgufFields& fields, const TensorFile& tensors, const std::string& prefix) {
  ModelConfig config;
  config.architecture = prefix;
  const auto key = [&](const char* name) { return prefix + "." + name; };
  config.num_layers = fields.Integer(key("block_count"));
  config.hidden_size = fields.Integer(key("embedding_length"));
  config.num_heads = fields.Integer(key("attention.head_count"));
  config.num_kv_heads = fields.Integer(key("attention.head_count_kv"), config.num_heads);
  config.intermediate_size = fields.Integer(key("feed_forward_length"));
  config.max_position = fields.Integer(key("context_length"));
  config.norm_eps = static_cast<double>(static_cast<float>(fields.Number(key("attention.layer_norm_rms_epsilon"))));
  if (config.num_heads < 1)
    throw Error(ErrorKind::kModelFile, fields.source() + ": attention.head_count must be positive", key("attention.head_count"));
  config.head_dim = fields.Integer(key("attention.key_length"), config.hidden_size / config.num_heads);
  if (fields.Integer(key("attention.value_length"), config.head_dim) != config.head_dim) {
    throw Error(ErrorKind::kUnsupportedModel, fields.source() + ": key and value heads of different sizes", key("attention.value_length"));
  }
  config.num_experts = fields.Integer(key("expert_count"), 0);
  const TensorView* embedding = tensors.Find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    throw Error(ErrorKind::kModelFile, fields.source() + ": tensor 'token_embd.weight' is missing or no matrix", "token_embd.weight");
  }
  config.vocab_size = fields.Integer(key("vocab_size"), static_cast<int64_t>(embedding->shape[0]));
  config.tied_embeddings = tensors.Find("output.weight") == nullptr;
  config.ropes.push_back(RopeOf(fields, prefix, config.head_dim));
  config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  SetNumLayers(&config);
  return config;
}

ModelConfig CommonFromJson(const JsonFields& json) {
  ModelConfig config;
  config.num_layers = json.Integer("num_hidden_layers");
  config.hidden_size = json.Integer("hidden_size");
  config.num_heads = json.Integer("num_attention_heads");
  config.num_kv_heads = json.OptionalInteger("num_key_value_heads").value_or(config.num_heads);
  config.intermediate_size = json.Integer("intermediate_size");
  config.vocab_size = json.Integer("vocab_size");
  config.max_position = json.Integer("max_position_embeddings", 2048);
  config.norm_eps = json.Number("rms_norm_eps", 1e-6);
  if (config.num_heads < 1) {
    throw Error(ErrorKind::kModelFile, json.source() + ": num_attention_heads must be positive", "num_attention_heads");
  }
  config.head_dim = json.OptionalInteger("head_dim").value_or(config.hidden_size / config.num_heads);
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}) {
    config.num_experts = std::max(config.num_experts, json.OptionalInteger(key).value_or(0));
  }
  config.qkv_bias = config.output_bias = json.Bool("attention_bias", false);
  config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  CheckTokenIds(json, config.vocab_size);
  SetNumLayers(&config);
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
