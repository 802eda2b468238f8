// A model's packed weights, read once from a tensor file.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/huge_arena.h"
#include "io/tensor_file.h"
#include "model/pack.h"
#include "model/spec.h"

namespace llmi {

struct TensorSlot;

// A vector of weights (a norm or a bias) in fp32.
class WeightVector {
 public:
  WeightVector() = default;
  WeightVector(const KernelContext& context, const std::vector<float>& values)
      : data_(PlaceWeights(context, values.data(), values.size() * sizeof(float))) {}
  bool empty() const { return data_.size() == 0; }
  // Null if it is empty.
  const float* data() const { return empty() ? nullptr : data_.as<float>(); }

 private:
  AlignedBuffer data_;
};

struct LinearWeights {
  PackedMatrix matrix;
  WeightVector bias;  // of all rows of the model's matrix, or empty

  // Of the matrix's rows; null: none.
  const float* bias_data() const { return bias.empty() ? nullptr : bias.data() + matrix.first_row(); }
};

// Both empty where the spec has no norm, or one without weights.
struct NormWeights {
  WeightVector weight, bias;
};

// Of several experts, each filled up to whole tiles of rows, one after the other.
struct MlpWeights {
  LinearWeights gate, up;                         // [size, hidden]
  float activation_parameters[4] = {0, 0, 0, 0};  // as Activate reads them
  NormWeights inner_norm;                         // [size]
  LinearWeights down;                             // [hidden, size]
};

// Of a recurrence (RecurrenceSpec).
struct MixerWeights {
  LinearWeights query, key, value, gate, time, write;
  WeightVector time_bias, decay, skip;  // [num_heads]
  NormWeights norm;                     // [value_size], or of all heads

  template <typename Visit>
  void VisitLinears(const Visit& visit) const {
    for (const LinearWeights* linear : {&query, &key, &value, &gate, &time, &write}) visit(*linear);
  }
};

// Empty where the spec has no latent. key_up and value_up: of all heads, each filled up to whole tiles of rows.
struct LatentWeights {
  LinearWeights query_down;           // [query_rank, hidden]
  NormWeights query_norm;             // [query_rank]
  LinearWeights query, query_rotary;  // [num_heads * key_size or rotary_size, query_rank or hidden]
  LinearWeights rotary, latent;       // [rotary_size, hidden], [rank, hidden]
  NormWeights latent_norm;            // [rank]
  LinearWeights key_up, value_up;     // [rank, key_size], [value_size, rank] for each head
};

// Heads of query, key and value, and of a gate for each element, are AttentionSpec::padded_head_dim() rows each: the last ones are zero.
struct LayerWeights {
  NormWeights attention_norm, post_attention_norm;  // [hidden]
  NormWeights mlp_norm, post_mlp_norm;              // [hidden]
  NormWeights attention_sum_norm, mlp_sum_norm;     // [hidden]
  LinearWeights query, key, value;                  // [heads * padded_head_dim, hidden]
  LinearWeights attention_gate;                     // [num_heads * padded_head_dim or num_heads, hidden]
  NormWeights value_norm;                           // [head_dim]
  NormWeights query_norm, key_norm;                 // [head_dim], or [heads * head_dim] with own_weights or over the projection
  WeightVector sinks;                               // [num_heads]
  WeightVector linear_biases;                       // [num_heads], those of the spec where the ops run
  NormWeights attention_output_norm;                // [num_heads * head_dim]
  LinearWeights attention_output;                   // [hidden, num_heads * head_dim or value_size]
  LatentWeights latent;
  LinearWeights mixer_input;   // of mixers that are no attention: [rows of the mixer, hidden]
  LinearWeights mixer_output;  // [hidden, ...]
  WeightVector conv_weight;    // [length, channels]
  WeightVector conv_bias;      // [channels]
  MixerWeights recurrence;
  MlpWeights mlp;
  LinearWeights router;      // [num_experts, hidden], in fp32
  WeightVector choice_bias;  // [num_experts]
  MlpWeights experts;
  LinearWeights shared_gate;                                                 // [1, hidden], in fp32
  NormWeights router_norm, expert_norm, post_expert_norm, post_shared_norm;  // [hidden]
  WeightVector expert_scales;                                                // [num_experts]
  LinearWeights input_gate, input_projection;                                // [size, hidden], [hidden, size] of a layer's embedding
  NormWeights input_norm;                                                    // [hidden]
  float output_scale = 1.0f;

  // A matrix that makes queries.
  const PackedMatrix& query_matrix() const { return query.matrix.num_bytes() > 0 ? query.matrix : latent.query.matrix; }

  // Calls visit(LinearWeights) for each linear layer but those of experts; some are empty.
  template <typename Visit>
  void VisitLinears(const Visit& visit) const {
    for (const LinearWeights* linear : {&query,
                                        &key,
                                        &value,
                                        &attention_gate,
                                        &attention_output,
                                        &mixer_input,
                                        &mixer_output,
                                        &mlp.gate,
                                        &mlp.up,
                                        &mlp.down,
                                        &router,
                                        &shared_gate,
                                        &input_gate,
                                        &input_projection,
                                        &latent.query_down,
                                        &latent.query,
                                        &latent.query_rotary,
                                        &latent.rotary,
                                        &latent.latent,
                                        &latent.key_up,
                                        &latent.value_up})
      visit(*linear);
    recurrence.VisitLinears(visit);
  }
  template <typename Visit>
  void VisitExperts(const Visit& visit) const {
    for (const LinearWeights* linear : {&experts.gate, &experts.up, &experts.down}) visit(*linear);
  }
};

// The size of matrices that were unpacked at load.
struct UnpackedBytes {
  uint64_t in_file = 0;
  uint64_t in_memory = 0;
};

struct ModelWeights {
  std::unique_ptr<HugeArena> arena;  // host memory of the matrices
  PackedMatrix embedding;            // [vocab, hidden]
  PackedMatrix positions;            // [max_position + position_offset, hidden], or empty
  PackedMatrix token_types;          // [num_token_types, hidden], or empty
  PackedMatrix layer_embedding;      // [vocab, places * size], or empty
  LinearWeights layer_projection;    // [places * size, hidden]
  NormWeights layer_norm;            // [size]
  NormWeights embedding_norm;        // [hidden]
  NormWeights final_norm;            // [hidden]
  PackedMatrix head;                 // [vocab, hidden]; empty when tied to the embedding
  WeightVector head_bias;            // [vocab] or empty
  std::vector<LayerWeights> layers;

  uint64_t num_bytes() const;
  // The bytes that one step reads: an embedding that is only looked up is not among them.
  uint64_t num_step_bytes() const { return num_bytes() - layer_embedding.num_bytes() - (head.num_bytes() > 0 ? embedding.num_bytes() : 0); }
  // Names of the packed types in use, as in "q4_1+q8_0", for the numerics id.
  std::string TypeNames() const;
  // Whether some matrix that is multiplied is quantised. The embedding counts only if it is also the head; otherwise it is only looked up.
  bool HasQuantizedLayers() const;
  // The matrices that take more memory than the file does, since no kernel reads their type: by name of that type.
  std::map<std::string, UnpackedBytes> Unpacked() const;
};

// Finds every tensor of the model and reads none. Throws Error(kModelFile) naming the tensor that is missing, whose shape is not the one
// that the spec says, or of which no binding reads some row.
void LocateWeights(const TensorFile& file, const ModelSpec& spec);

// The memory that a model's weights will take, known before any is read.
struct WeightPlan {
  std::map<std::string, uint64_t> bytes_by_type;  // by name of the packed type
  uint64_t num_bytes() const;
};
WeightPlan PlanWeights(const KernelContext& context, const TensorFile& file, const ModelSpec& spec, WeightFormat format);

// A tensor that a model of this spec has: its name and shape.
struct ExpectedTensor {
  std::string name;
  std::vector<uint64_t> shape;
};
std::vector<ExpectedTensor> ExpectedTensors(const ModelSpec& spec);

// The packed rows of a matrix that are loaded (of experts: of each one), [first, first + second); empty: all.
using RowsHere = std::function<std::pair<int64_t, int64_t>(const TensorSlot& slot)>;

// Reads the weights of a spec whose tensors were located, and into the spec the divisors of its ropes that a tensor holds.
// dropped: checked before each matrix. True means that the caller no longer wants the model: throws Error(kInterrupted). May be null.
// Throws Error(kModelFile) naming a tensor that cannot be read or has a value out of range, Error(kUnsupportedModel) naming a quantised one
// that is transposed.
ModelWeights LoadWeights(const KernelContext& context, const TensorFile& file, ModelSpec* spec, WeightFormat format,
                         const std::atomic<bool>* dropped = nullptr, const RowsHere& rows = {});

}  // namespace llmi
