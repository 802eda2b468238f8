#include "model/spec.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "core/errors.h"
#include "core/json.h"

namespace llmi {
namespace {

// An object of the spec. Fields are read by name; the rest is refused by CheckAllRead.
class SpecObject {
 public:
  // path: of the object, with the dot before its fields; empty for the whole spec.
  SpecObject(const Json& object, std::string path, const std::string& source) : object_(object), path_(std::move(path)), source_(source) {
    if (!object.IsObject()) Fail(path_.substr(0, path_.size() - (path_.empty() ? 0 : 1)), "is not an object");
  }

  // Reads the field into *value; an absent one leaves it as it is.
  template <typename T>
  void Read(const char* name, T* value) {
    known_.insert(name);
    const auto& fields = object_.AsObject(path_);
    const auto found = fields.find(name);
    if (found != fields.end()) Convert(found->second, path_ + name, value);
  }

  void CheckAllRead() const {
    for (const auto& [name, value] : object_.AsObject(path_)) {
      if (!known_.contains(name)) Fail(path_ + name, "is no field of a model's spec");
    }
  }

 private:
  [[noreturn]] void Fail(const std::string& path, const std::string& what) const {
    throw Error(ErrorKind::kModelFile, source_ + ": " + (path.empty() ? "the spec" : "the spec's " + path) + " " + what, path);
  }

  void Convert(const Json& json, const std::string& path, bool* value) const { *value = json.AsBool(path); }
  void Convert(const Json& json, const std::string& path, int64_t* value) const { *value = json.AsInteger(path); }
  void Convert(const Json& json, const std::string& path, int* value) const {
    const int64_t wide = json.AsInteger(path);
    if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) Fail(path, "is out of range");
    *value = static_cast<int>(wide);
  }
  void Convert(const Json& json, const std::string& path, double* value) const { *value = json.AsNumber(path); }
  void Convert(const Json& json, const std::string& path, float* value) const {
    const double wide = json.AsNumber(path);
    if (!(wide >= -static_cast<double>(std::numeric_limits<float>::max()) &&
          wide <= static_cast<double>(std::numeric_limits<float>::max()))) {
      Fail(path, "is out of range");
    }
    *value = static_cast<float>(wide);
  }
  void Convert(const Json& json, const std::string& path, std::string* value) const { *value = json.AsString(path); }

  template <typename T>
  void Convert(const Json& json, const std::string& path, std::vector<T>* values) const {
    values->clear();
    for (const Json& item : json.AsArray(path)) {
      T value{};
      Convert(item, path + "[" + std::to_string(values->size()) + "]", &value);
      values->push_back(std::move(value));
    }
  }

  template <typename Enum, size_t kCount>
  void Choose(const Json& json, const std::string& path, const std::array<const char*, kCount>& names, Enum* value) const {
    const std::string& name = json.AsString(path);
    std::string listed;
    for (size_t i = 0; i < kCount; ++i) {
      if (name == names[i]) {
        *value = static_cast<Enum>(i);
        return;
      }
      listed += (i == 0 ? "" : ", ") + std::string(names[i]);
    }
    Fail(path, "is '" + name.substr(0, 64) + "', none of " + listed);
  }
  // Names in the order of the enums.
  void Convert(const Json& json, const std::string& path, NormKind* value) const { Choose(json, path, std::array{"rms", "layer"}, value); }
  void Convert(const Json& json, const std::string& path, HeadNormSpan* value) const {
    Choose(json, path, std::array{"head", "projection"}, value);
  }
  void Convert(const Json& json, const std::string& path, GateKind* value) const {
    Choose(json, path, std::array{"none", "element", "head"}, value);
  }
  void Convert(const Json& json, const std::string& path, MixerKind* value) const {
    Choose(json, path, std::array{"attention", "short_conv", "gated_delta", "mamba2"}, value);
  }
  void Convert(const Json& json, const std::string& path, LayerOrder* value) const {
    Choose(json, path, std::array{"sequential", "parallel"}, value);
  }
  void Convert(const Json& json, const std::string& path, Activation* value) const {
    Choose(json, path, std::array{"silu", "gelu_tanh", "gelu", "relu", "relu2", "xielu", "swiglu_clamped"}, value);
  }
  void Convert(const Json& json, const std::string& path, RouterScore* value) const {
    Choose(json, path, std::array{"softmax", "softmax_chosen", "sigmoid", "sparse_mixer"}, value);
  }
  void Convert(const Json& json, const std::string& path, GroupScore* value) const { Choose(json, path, std::array{"max", "top2"}, value); }

  // Structs.
  template <typename T>
  void Convert(const Json& json, const std::string& path, T* value) const;

  const Json& object_;
  std::string path_;
  const std::string& source_;
  std::set<std::string_view> known_;
};

void ReadFields(SpecObject& object, RowOrder* order) {
  object.Read("first_row", &order->first_row);
  object.Read("head_rows", &order->head_rows);
  object.Read("head_stride", &order->head_stride);
  object.Read("adjacent_pairs", &order->adjacent_pairs);
}

void ReadFields(SpecObject& object, TensorBinding* binding) {
  object.Read("name", &binding->name);
  object.Read("order", &binding->order);
  object.Read("transposed", &binding->transposed);
  object.Read("times", &binding->times);
  object.Read("plus", &binding->plus);
}

void ReadFields(SpecObject& object, LinearSpec* linear) {
  object.Read("weight", &linear->weight);
  object.Read("bias", &linear->bias);
}

void ReadFields(SpecObject& object, NormSpec* norm) {
  object.Read("present", &norm->present);
  object.Read("kind", &norm->kind);
  object.Read("eps", &norm->eps);
  object.Read("weight", &norm->weight);
  object.Read("bias", &norm->bias);
}

void ReadFields(SpecObject& object, HeadNormsSpec* norms) {
  object.Read("query", &norms->query);
  object.Read("key", &norms->key);
  object.Read("value", &norms->value);
  object.Read("span", &norms->span);
  object.Read("own_weights", &norms->own_weights);
  object.Read("after_rope", &norms->after_rope);
}

void ReadFields(SpecObject& object, QueryTemperatureSpec* temperature) {
  object.Read("beta", &temperature->beta);
  object.Read("original", &temperature->original);
}

void ReadFields(SpecObject& object, LatentSpec* latent) {
  object.Read("rank", &latent->rank);
  object.Read("key_size", &latent->key_size);
  object.Read("rotary_size", &latent->rotary_size);
  object.Read("value_size", &latent->value_size);
  object.Read("query_rank", &latent->query_rank);
  object.Read("query_down", &latent->query_down);
  object.Read("query_norm", &latent->query_norm);
  object.Read("query", &latent->query);
  object.Read("query_rotary", &latent->query_rotary);
  object.Read("latent", &latent->latent);
  object.Read("rotary", &latent->rotary);
  object.Read("latent_norm", &latent->latent_norm);
  object.Read("key_up", &latent->key_up);
  object.Read("value_up", &latent->value_up);
}

void ReadFields(SpecObject& object, AttentionSpec* attention) {
  object.Read("num_heads", &attention->num_heads);
  object.Read("num_kv_heads", &attention->num_kv_heads);
  object.Read("head_dim", &attention->head_dim);
  object.Read("kv_donor", &attention->kv_donor);
  object.Read("value_is_key", &attention->value_is_key);
  object.Read("query", &attention->query);
  object.Read("key", &attention->key);
  object.Read("value", &attention->value);
  object.Read("output", &attention->output);
  object.Read("latent", &attention->latent);
  object.Read("clip", &attention->clip);
  object.Read("norms", &attention->norms);
  object.Read("output_norm", &attention->output_norm);
  object.Read("rope", &attention->rope);
  object.Read("window", &attention->window);
  object.Read("scale", &attention->scale);
  object.Read("soft_cap", &attention->soft_cap);
  object.Read("sinks", &attention->sinks);
  object.Read("linear_biases", &attention->linear_biases);
  object.Read("query_temperature", &attention->query_temperature);
  object.Read("gate_kind", &attention->gate_kind);
  object.Read("gate", &attention->gate);
}

void ReadFields(SpecObject& object, ConvSpec* conv) {
  object.Read("length", &conv->length);
  object.Read("weight", &conv->weight);
  object.Read("bias", &conv->bias);
}

void ReadFields(SpecObject& object, ShortConvSpec* mixer) {
  object.Read("input", &mixer->input);
  object.Read("output", &mixer->output);
  object.Read("conv", &mixer->conv);
}

void ReadFields(SpecObject& object, RecurrenceSpec* mixer) {
  object.Read("num_heads", &mixer->num_heads);
  object.Read("num_groups", &mixer->num_groups);
  object.Read("tiled_groups", &mixer->tiled_groups);
  object.Read("key_size", &mixer->key_size);
  object.Read("value_size", &mixer->value_size);
  object.Read("query", &mixer->query);
  object.Read("key", &mixer->key);
  object.Read("value", &mixer->value);
  object.Read("gate", &mixer->gate);
  object.Read("time", &mixer->time);
  object.Read("write", &mixer->write);
  object.Read("conv", &mixer->conv);
  object.Read("time_bias", &mixer->time_bias);
  object.Read("decay", &mixer->decay);
  object.Read("decay_is_log", &mixer->decay_is_log);
  object.Read("skip", &mixer->skip);
  object.Read("least_step", &mixer->least_step);
  object.Read("most_step", &mixer->most_step);
  object.Read("norm", &mixer->norm);
  object.Read("norm_groups", &mixer->norm_groups);
  object.Read("output", &mixer->output);
}

void ReadFields(SpecObject& object, MlpSpec* mlp) {
  object.Read("gated", &mlp->gated);
  object.Read("activation", &mlp->activation);
  object.Read("activation_scalars", &mlp->activation_scalars);
  object.Read("activation_values", &mlp->activation_values);
  object.Read("size", &mlp->size);
  object.Read("gate", &mlp->gate);
  object.Read("up", &mlp->up);
  object.Read("down", &mlp->down);
  object.Read("inner_norm", &mlp->inner_norm);
}

void ReadFields(SpecObject& object, RouterSpec* router) {
  object.Read("norm", &router->norm);
  object.Read("linear", &router->linear);
  object.Read("score", &router->score);
  object.Read("choice_bias", &router->choice_bias);
  object.Read("num_groups", &router->num_groups);
  object.Read("used_groups", &router->used_groups);
  object.Read("group_score", &router->group_score);
  object.Read("renormalise", &router->renormalise);
  object.Read("least_sum", &router->least_sum);
  object.Read("sum_epsilon", &router->sum_epsilon);
  object.Read("factor", &router->factor);
  object.Read("mixer_threshold", &router->mixer_threshold);
  object.Read("expert_scales", &router->expert_scales);
}

void ReadFields(SpecObject& object, MoeSpec* moe) {
  object.Read("num_experts", &moe->num_experts);
  object.Read("num_used", &moe->num_used);
  object.Read("router", &moe->router);
  object.Read("expert", &moe->expert);
  object.Read("shared_gate", &moe->shared_gate);
  object.Read("norm", &moe->norm);
  object.Read("post_norm", &moe->post_norm);
  object.Read("shared_post_norm", &moe->shared_post_norm);
}

void ReadFields(SpecObject& object, LayerInputSpec* input) {
  object.Read("present", &input->present);
  object.Read("place", &input->place);
  object.Read("activation", &input->activation);
  object.Read("gate", &input->gate);
  object.Read("projection", &input->projection);
  object.Read("norm", &input->norm);
}

void ReadFields(SpecObject& object, LayerSpec* layer) {
  object.Read("order", &layer->order);
  object.Read("attention_norm", &layer->attention_norm);
  object.Read("post_attention_norm", &layer->post_attention_norm);
  object.Read("mlp_norm", &layer->mlp_norm);
  object.Read("post_mlp_norm", &layer->post_mlp_norm);
  object.Read("attention_sum_norm", &layer->attention_sum_norm);
  object.Read("mlp_sum_norm", &layer->mlp_sum_norm);
  object.Read("mlp_reads_attention_norm", &layer->mlp_reads_attention_norm);
  object.Read("residual_scale", &layer->residual_scale);
  object.Read("mixer", &layer->mixer);
  object.Read("attention", &layer->attention);
  object.Read("short_conv", &layer->short_conv);
  object.Read("recurrence", &layer->recurrence);
  object.Read("mlp", &layer->mlp);
  object.Read("moe", &layer->moe);
  object.Read("input", &layer->input);
  object.Read("output_scale", &layer->output_scale);
}

void ReadFields(SpecObject& object, RopeSpec* rope) {
  object.Read("theta", &rope->theta);
  object.Read("rotary_dim", &rope->rotary_dim);
  object.Read("linear_factor", &rope->linear_factor);
  object.Read("llama3_factor", &rope->llama3_factor);
  object.Read("llama3_low_freq_factor", &rope->llama3_low_freq_factor);
  object.Read("llama3_high_freq_factor", &rope->llama3_high_freq_factor);
  object.Read("llama3_original_context", &rope->llama3_original_context);
  object.Read("yarn_factor", &rope->yarn_factor);
  object.Read("yarn_low", &rope->yarn_low);
  object.Read("yarn_high", &rope->yarn_high);
  object.Read("frequency_divisors", &rope->frequency_divisors);
  object.Read("divisors_tensor", &rope->divisors_tensor);
  object.Read("magnitude", &rope->magnitude);
  object.Read("reversed", &rope->reversed);
}

void ReadFields(SpecObject& object, EmbeddingSpec* embedding) {
  object.Read("weight", &embedding->weight);
  object.Read("scale", &embedding->scale);
  object.Read("norm", &embedding->norm);
  object.Read("positions", &embedding->positions);
  object.Read("position_offset", &embedding->position_offset);
  object.Read("token_types", &embedding->token_types);
  object.Read("num_token_types", &embedding->num_token_types);
}

void ReadFields(SpecObject& object, LayerEmbeddingSpec* embedding) {
  object.Read("size", &embedding->size);
  object.Read("num_places", &embedding->num_places);
  object.Read("weight", &embedding->weight);
  object.Read("scale", &embedding->scale);
  object.Read("projection", &embedding->projection);
  object.Read("norm", &embedding->norm);
}

void ReadFields(SpecObject& object, HeadSpec* head) {
  object.Read("weight", &head->weight);
  object.Read("bias", &head->bias);
  object.Read("scale", &head->scale);
  object.Read("soft_cap", &head->soft_cap);
}

void ReadFields(SpecObject& object, ModelSpec* spec) {
  object.Read("family", &spec->family);
  object.Read("hidden_size", &spec->hidden_size);
  object.Read("num_heads", &spec->num_heads);
  object.Read("num_kv_heads", &spec->num_kv_heads);
  object.Read("head_dim", &spec->head_dim);
  object.Read("vocab_size", &spec->vocab_size);
  object.Read("max_position", &spec->max_position);
  object.Read("two_sided", &spec->two_sided);
  object.Read("generates", &spec->generates);
  object.Read("embedding", &spec->embedding);
  object.Read("layer_embedding", &spec->layer_embedding);
  object.Read("layers", &spec->layers);
  object.Read("final_norm", &spec->final_norm);
  object.Read("head", &spec->head);
  object.Read("ropes", &spec->ropes);
  object.Read("rope_choice", &spec->rope_choice);
  object.Read("quantization", &spec->quantization);
  object.Read("ignored_tensors", &spec->ignored_tensors);
}

template <typename T>
void SpecObject::Convert(const Json& json, const std::string& path, T* value) const {
  SpecObject object(json, path + ".", source_);
  ReadFields(object, value);
  object.CheckAllRead();
}

}  // namespace

bool ModelSpec::has_states() const {
  return std::ranges::any_of(layers, [](const LayerSpec& layer) { return layer.mixer != MixerKind::kAttention; });
}

ModelSpec ParseSpec(const std::string& json, const std::string& source) {
  const Json parsed = Json::Parse(json, source + ": the spec");
  ModelSpec spec;
  SpecObject object(parsed, "", source);
  ReadFields(object, &spec);
  object.CheckAllRead();
  for (LayerSpec& layer : spec.layers) {
    AttentionSpec& attention = layer.attention;
    if (attention.num_heads == 0) attention.num_heads = spec.num_heads;
    if (attention.num_kv_heads == 0) attention.num_kv_heads = spec.num_kv_heads;
    if (attention.head_dim == 0) attention.head_dim = spec.head_dim;
  }
  spec.Validate(source);
  return spec;
}

}  // namespace llmi
