#include "model/tensor_slots.h"

#include <string_view>
#include <utility>

#include "model/recurrence_layer.h"

namespace llmi {
namespace {

// Collects slots.
class Collector {
 public:
  explicit Collector(const ModelSpec& spec) : spec_(spec) {}

  void AddLayer(const LayerSpec& layer, const std::string& place, LayerWeights* weights) {
    const int64_t hidden = spec_.hidden_size;
    Add(layer.attention_norm, place + "attention_norm", hidden, &weights->attention_norm);
    Add(layer.post_attention_norm, place + "post_attention_norm", hidden, &weights->post_attention_norm);
    Add(layer.mlp_norm, place + "mlp_norm", hidden, &weights->mlp_norm);
    Add(layer.post_mlp_norm, place + "post_mlp_norm", hidden, &weights->post_mlp_norm);
    Add(layer.attention_sum_norm, place + "attention_sum_norm", hidden, &weights->attention_sum_norm);
    Add(layer.mlp_sum_norm, place + "mlp_sum_norm", hidden, &weights->mlp_sum_norm);
    if (layer.has_attention()) AddAttention(layer.attention, place + "attention.", weights);
    if (layer.mixer == MixerKind::kShortConv) AddShortConv(layer.short_conv, place + "short_conv.", weights);
    if (layer.has_recurrence()) AddRecurrence(layer, place + "recurrence.", weights);
    AddMlp(layer.mlp, place + "mlp.", &weights->mlp);
    if (layer.has_experts()) AddMoe(layer.moe, place + "moe.", weights);
    const int64_t size = spec_.layer_embedding.size;
    Add(layer.input.gate, place + "input.gate", size, hidden, &weights->input_gate);
    Add(layer.input.projection, place + "input.projection", hidden, size, &weights->input_projection);
    Add(layer.input.norm, place + "input.norm", hidden, &weights->input_norm);
    if (!layer.output_scale.name.empty()) AddValue(layer.output_scale, place + "output_scale", &weights->output_scale);
  }

  void Add(const NormSpec& norm, const std::string& place, int64_t size, NormWeights* weights) {
    if (!norm.present) return;
    AddVector(norm.weight, place + ".weight", size, &weights->weight);
    AddVector(norm.bias, place + ".bias", size, &weights->bias);
  }

  void Add(const LayerEmbeddingSpec& embedding, ModelWeights* weights) {
    const int64_t values = embedding.num_places * embedding.size;
    AddMatrix(embedding.weight, "layer_embedding.weight", spec_.vocab_size, values, &weights->layer_embedding);
    Add(embedding.projection, "layer_embedding.projection", values, spec_.hidden_size, &weights->layer_projection);
    Add(embedding.norm, "layer_embedding.norm", embedding.size, &weights->layer_norm);
  }

  void AddMatrix(const TensorBinding& binding, const std::string& place, int64_t num_rows, int64_t num_cols, PackedMatrix* matrix) {
    if (!binding.name.empty())
      slots_.push_back({.place = place, .binding = binding, .num_rows = num_rows, .num_cols = num_cols, .matrix = matrix});
  }

  void AddVector(const TensorBinding& binding, const std::string& place, int64_t size, WeightVector* vector) {
    if (!binding.name.empty()) slots_.push_back({.place = place, .binding = binding, .num_rows = size, .vector = vector});
  }

  void AddValue(const TensorBinding& binding, const std::string& place, float* value) {
    slots_.push_back({.place = place, .binding = binding, .num_rows = 1, .value = value});
  }

  void AddValues(const std::string& name, const std::string& place, int64_t size, std::vector<float>* values) {
    TensorBinding binding;
    binding.name = name;
    if (!name.empty()) slots_.push_back({.place = place, .binding = binding, .num_rows = size, .values = values});
  }

  std::vector<TensorSlot> Take() { return std::move(slots_); }

 private:
  void Add(const LinearSpec& linear, const std::string& place, int64_t num_rows, int64_t num_cols, LinearWeights* weights) {
    AddMatrix(linear.weight, place + ".weight", num_rows, num_cols, &weights->matrix);
    AddVector(linear.bias, place + ".bias", num_rows, &weights->bias);
  }

  // The same, and each head gets zero rows.
  void AddHeads(const LinearSpec& linear, const std::string& place, int64_t num_heads, int64_t head_dim, LinearWeights* weights) {
    const size_t begin = slots_.size();
    Add(linear, place, num_heads * head_dim, spec_.hidden_size, weights);
    for (size_t i = begin; i < slots_.size(); ++i) {
      slots_[i].head_rows = head_dim;
      slots_[i].padded_head_rows = PaddedHeadDim(head_dim);
    }
  }

  void AddAttention(const AttentionSpec& attention, const std::string& place, LayerWeights* weights) {
    const int64_t heads = attention.num_heads;
    const int64_t head_dim = attention.head_dim;
    AddHeads(attention.query, place + "query", heads, head_dim, &weights->query);
    AddHeads(attention.key, place + "key", attention.num_kv_heads, head_dim, &weights->key);
    AddHeads(attention.value, place + "value", attention.num_kv_heads, head_dim, &weights->value);
    AddLatent(attention, place + "latent.", &weights->latent);
    const int64_t value_size = attention.has_latent() ? attention.latent.value_size : head_dim;
    Add(attention.output, place + "output", spec_.hidden_size, heads * value_size, &weights->attention_output);
    const HeadNormsSpec& norms = attention.norms;
    const bool many = norms.span == HeadNormSpan::kProjection || norms.own_weights;
    Add(norms.value, place + "norms.value", head_dim, &weights->value_norm);
    const size_t begin = slots_.size();
    Add(norms.query, place + "norms.query", (many ? heads : 1) * head_dim, &weights->query_norm);
    Add(norms.key, place + "norms.key", (many ? attention.num_kv_heads : 1) * head_dim, &weights->key_norm);
    for (size_t i = begin; i < slots_.size(); ++i) slots_[i].row_size = norms.own_weights ? head_dim : 0;
    Add(attention.output_norm, place + "output_norm", heads * head_dim, &weights->attention_output_norm);
    AddVector(attention.sinks, place + "sinks", heads, &weights->sinks);
    LinearWeights* gate = &weights->attention_gate;
    if (attention.gate_kind == GateKind::kElement) AddHeads(attention.gate, place + "gate", heads, head_dim, gate);
    if (attention.gate_kind == GateKind::kHead) Add(attention.gate, place + "gate", heads, spec_.hidden_size, gate);
  }

  void AddShortConv(const ShortConvSpec& mixer, const std::string& place, LayerWeights* weights) {
    const int64_t hidden = spec_.hidden_size;
    Add(mixer.input, place + "input", 3 * hidden, hidden, &weights->mixer_input);
    Add(mixer.output, place + "output", hidden, hidden, &weights->mixer_output);
    AddConv(mixer.conv, place + "conv.", hidden, weights);
  }

  void AddRecurrence(const LayerSpec& layer, const std::string& place, LayerWeights* weights) {
    const RecurrenceSpec& mixer = layer.recurrence;
    const RecurrenceShape shape = ShapeOf(layer);
    const int64_t hidden = spec_.hidden_size;
    MixerWeights* own = &weights->recurrence;
    Add(mixer.query, place + "query", shape.query_floats(), hidden, &own->query);
    Add(mixer.key, place + "key", shape.query_floats(), hidden, &own->key);
    Add(mixer.value, place + "value", shape.value_floats(), hidden, &own->value);
    Add(mixer.gate, place + "gate", shape.value_floats(), hidden, &own->gate);
    Add(mixer.time, place + "time", mixer.num_heads, hidden, &own->time);
    Add(mixer.write, place + "write", mixer.num_heads, hidden, &own->write);
    AddConv(mixer.conv, place + "conv.", shape.channels(), weights);
    const size_t begin = slots_.size();
    AddVector(mixer.time_bias, place + "time_bias", mixer.num_heads, &own->time_bias);
    AddVector(mixer.decay, place + "decay", mixer.num_heads, &own->decay);
    slots_.back().decay = mixer.decay_is_log ? DecayForm::kLog : DecayForm::kNegative;
    AddVector(mixer.skip, place + "skip", mixer.num_heads, &own->skip);
    for (size_t i = begin; i < slots_.size(); ++i) slots_[i].row_size = 1;  // a GGUF has matrices of one column
    const int64_t norm_begin = static_cast<int64_t>(slots_.size());
    Add(mixer.norm, place + "norm", shape.is_delta ? mixer.value_size : shape.value_floats(), &own->norm);
    for (size_t i = static_cast<size_t>(norm_begin); i < slots_.size(); ++i) {
      if (!shape.is_delta) slots_[i].row_size = shape.value_floats() / mixer.norm_groups;  // a GGUF has a row for each group
    }
    Add(mixer.output, place + "output", hidden, shape.value_floats(), &weights->mixer_output);
  }

  void AddConv(const ConvSpec& conv, const std::string& place, int64_t channels, LayerWeights* weights) {
    const size_t begin = slots_.size();
    AddVector(conv.weight, place + "weight", channels * conv.length, &weights->conv_weight);
    for (size_t i = begin; i < slots_.size(); ++i) slots_[i].row_size = slots_[i].turned_cols = conv.length;
    AddVector(conv.bias, place + "bias", channels, &weights->conv_bias);
  }

  void AddLatent(const AttentionSpec& attention, const std::string& place, LatentWeights* weights) {
    const LatentSpec& latent = attention.latent;
    const int64_t heads = attention.num_heads, hidden = spec_.hidden_size;
    const int64_t query_cols = latent.query_rank > 0 ? latent.query_rank : hidden;
    Add(latent.query_down, place + "query_down", latent.query_rank, hidden, &weights->query_down);
    Add(latent.query_norm, place + "query_norm", latent.query_rank, &weights->query_norm);
    Add(latent.query, place + "query", heads * latent.key_size, query_cols, &weights->query);
    Add(latent.query_rotary, place + "query_rotary", heads * latent.rotary_size, query_cols, &weights->query_rotary);
    Add(latent.rotary, place + "rotary", latent.rotary_size, hidden, &weights->rotary);
    Add(latent.latent, place + "latent", latent.rank, hidden, &weights->latent);
    Add(latent.latent_norm, place + "latent_norm", latent.rank, &weights->latent_norm);
    const size_t begin = slots_.size();
    AddMatrix(latent.key_up, place + "key_up", latent.rank, latent.key_size, &weights->key_up.matrix);
    AddMatrix(latent.value_up, place + "value_up", latent.value_size, latent.rank, &weights->value_up.matrix);
    for (size_t i = begin; i < slots_.size(); ++i) {
      SetExperts(heads, &slots_[i]);
      slots_[i].of_heads = true;
      slots_[i].by_columns = slots_[i].binding.transposed;
    }
  }

  void AddMoe(const MoeSpec& moe, const std::string& place, LayerWeights* weights) {
    size_t begin = slots_.size();
    Add(moe.router.linear, place + "router.linear", moe.num_experts, spec_.hidden_size, &weights->router);
    Add(moe.shared_gate, place + "shared_gate", 1, spec_.hidden_size, &weights->shared_gate);
    for (size_t i = begin; i < slots_.size(); ++i) slots_[i].in_floats = true;
    Add(moe.router.norm, place + "router.norm", spec_.hidden_size, &weights->router_norm);
    Add(moe.norm, place + "norm", spec_.hidden_size, &weights->expert_norm);
    Add(moe.post_norm, place + "post_norm", spec_.hidden_size, &weights->post_expert_norm);
    Add(moe.shared_post_norm, place + "shared_post_norm", spec_.hidden_size, &weights->post_shared_norm);
    AddVector(moe.router.expert_scales, place + "router.expert_scales", moe.num_experts, &weights->expert_scales);
    begin = slots_.size();
    AddVector(moe.router.choice_bias, place + "router.choice_bias", moe.num_experts, &weights->choice_bias);
    for (size_t i = begin; i < slots_.size(); ++i) slots_[i].row_size = moe.num_experts;  // it may be stored as a matrix of one row
    begin = slots_.size();
    AddMlp(moe.expert, place + "expert.", &weights->experts);
    for (size_t i = begin; i < slots_.size(); ++i) SetExperts(moe.num_experts, &slots_[i]);
  }

  // Makes the slot of one expert's tensor that of all experts, each filled up to whole tiles.
  static void SetExperts(int64_t num_experts, TensorSlot* slot) {
    if (slot->value != nullptr) return;  // of the activation
    slot->num_experts = num_experts;
    slot->head_rows = slot->num_rows;
    slot->padded_head_rows = NumTiles(slot->num_rows) * kTileRows;
    slot->num_rows *= num_experts;
  }

  void AddMlp(const MlpSpec& mlp, const std::string& place, MlpWeights* weights) {
    Add(mlp.gate, place + "gate", mlp.size, spec_.hidden_size, &weights->gate);
    Add(mlp.up, place + "up", mlp.size, spec_.hidden_size, &weights->up);
    Add(mlp.down, place + "down", spec_.hidden_size, mlp.size, &weights->down);
    Add(mlp.inner_norm, place + "inner_norm", mlp.size, &weights->inner_norm);
    for (size_t i = 0; i < mlp.activation_scalars.size(); ++i) {
      AddValue(mlp.activation_scalars[i], place + "activation_scalars[" + std::to_string(i) + "]", &weights->activation_parameters[i]);
    }
  }

  const ModelSpec& spec_;
  std::vector<TensorSlot> slots_;
};

std::vector<TensorSlot> Collect(const ModelSpec& spec, ModelWeights* weights, std::vector<RopeSpec>* ropes) {
  Collector slots(spec);
  slots.AddMatrix(spec.embedding.weight, "embedding.weight", spec.vocab_size, spec.hidden_size, &weights->embedding);
  slots.AddMatrix(spec.embedding.positions, kPositionsPlace, spec.max_position + spec.embedding.position_offset, spec.hidden_size,
                  &weights->positions);
  slots.AddMatrix(spec.embedding.token_types, kTokenTypesPlace, spec.embedding.num_token_types, spec.hidden_size, &weights->token_types);
  slots.Add(spec.layer_embedding, weights);
  slots.Add(spec.embedding.norm, "embedding.norm", spec.hidden_size, &weights->embedding_norm);
  slots.Add(spec.final_norm, "final_norm", spec.hidden_size, &weights->final_norm);
  slots.AddMatrix(spec.head.weight, "head.weight", spec.vocab_size, spec.hidden_size, &weights->head);
  slots.AddVector(spec.head.bias, "head.bias", spec.vocab_size, &weights->head_bias);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    slots.AddLayer(spec.layers[i], "layers[" + std::to_string(i) + "].", &weights->layers[i]);
  }
  for (size_t i = 0; i < spec.ropes.size(); ++i) {
    slots.AddValues(spec.ropes[i].divisors_tensor, "ropes[" + std::to_string(i) + "].divisors_tensor", spec.ropes[i].rotary_dim / 2,
                    &(*ropes)[i].frequency_divisors);
  }
  return slots.Take();
}

}  // namespace

int64_t TensorSlot::Ordered(int64_t row) const {
  const RowOrder& order = binding.order;
  if (order.head_rows == 0) return order.first_row + row;
  const int64_t head = row / order.head_rows;
  int64_t within = row % order.head_rows;
  if (within < order.adjacent_pairs) {
    const int64_t half = order.adjacent_pairs / 2;
    within = 2 * (within % half) + within / half;
  }
  return order.first_row + head * (order.head_stride == 0 ? order.head_rows : order.head_stride) + within;
}

std::vector<std::string> TensorSlot::TensorNames() const {
  const std::string_view number = num_experts > 0 ? kExpertNumber : kHeadNumber;
  const size_t hole = binding.name.find(number);
  if (rows_of_each() == 0 || hole == std::string::npos) return {binding.name};
  std::vector<std::string> names;
  for (int64_t i = 0; i < num_rows / rows_of_each(); ++i) {
    names.push_back(binding.name);
    names.back().replace(hole, number.size(), std::to_string(i));
  }
  return names;
}

std::vector<TensorSlot> TensorSlotsOf(ModelSpec* spec, ModelWeights* weights) {
  weights->layers.resize(spec->layers.size());
  return Collect(*spec, weights, &spec->ropes);
}

std::vector<TensorSlot> TensorSlotsOf(const ModelSpec& spec) {
  ModelWeights no_weights;
  no_weights.layers.resize(spec.layers.size());
  std::vector<RopeSpec> no_ropes(spec.ropes.size());
  std::vector<TensorSlot> slots = Collect(spec, &no_weights, &no_ropes);
  for (TensorSlot& slot : slots) {
    slot.matrix = nullptr;
    slot.vector = nullptr;
    slot.value = nullptr;
    slot.values = nullptr;
  }
  return slots;
}

}  // namespace llmi
