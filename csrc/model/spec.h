// A model as plain numbers and tensor bindings: everything that tells one family from another. A family's card in Python writes it as JSON
// (python/llmi/families); ParseSpec reads it as hostile input. The loader, the decoder and the engine read nothing else about a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/activation.h"
#include "kernels/ops/conv_step.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/route.h"

namespace llmi {

// What a tensor of the file is to a role: which of its rows, in which order. Row r of the role's matrix (or element r of its vector) is the
// file's row
//   first_row + (r / head_rows) * head_stride + Place(r % head_rows)
// Place is the identity, or, where the first `adjacent_pairs` rows of each head are stored as adjacent pairs (interleaved RoPE), the order
// that makes halves of them. head_rows 0: the rows are consecutive. head_stride 0: head_rows.
struct RowOrder {
  int64_t first_row = 0;
  int64_t head_rows = 0;
  int64_t head_stride = 0;
  int64_t adjacent_pairs = 0;

  bool operator==(const RowOrder&) const = default;
};

struct TensorBinding {
  std::string name;  // empty: the model has no such tensor
  RowOrder order;
  bool transposed = false;  // a matrix stored as [columns, rows]
  double times = 1.0;       // each element of a vector is multiplied by it
  double plus = 0.0;        // and added to: 1 where the file stores weight - 1
};

struct LinearSpec {
  TensorBinding weight;
  TensorBinding bias;
};

// out = norm(x) * weight + bias. Not `present`: x itself.
struct NormSpec {
  bool present = false;
  NormKind kind = NormKind::kRms;
  double eps = 1e-5;
  TensorBinding weight;  // no name: all ones
  TensorBinding bias;    // no name: none
};

enum class HeadNormSpan : uint8_t { kHead, kProjection };

// Norms of queries, keys and values; `value`'s is always of each head by itself. kHead: each head by itself, with one weight for all heads,
// or with own_weights one for each head: a tensor [heads, head_dim], or tensors [head_dim] whose names have the head's number where the
// binding's has "{head}". kProjection: all heads as one vector.
struct HeadNormsSpec {
  NormSpec query;
  NormSpec key;
  NormSpec value;
  HeadNormSpan span = HeadNormSpan::kHead;
  bool own_weights = false;
  bool after_rope = false;
};

// A factor for queries that grows with the position: 1 + beta * log(1 + floor(position / original)). beta 0: none. (Ministral 3)
struct QueryTemperatureSpec {
  double beta = 0.0;
  int64_t original = 0;
};

// attention output * sigmoid(gate): kElement has num_heads * head_dim gates, kHead one for each head.
enum class GateKind : uint8_t { kNone, kElement, kHead };

// Its rows in the cache and in activations: filled up with zeros to a multiple of 16.
inline int64_t PaddedHeadDim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Latent attention (DeepSeek-AI, DeepSeek-V2, 2024) in its absorbed form (latent_attention.h). The cache has one head for all query heads:
// the rotated part, and the latent, which are head_dim = rotary_size + rank values together.
struct LatentSpec {
  int64_t rank = 0;                // of the latent; 0: the layer has keys and values of its own
  int64_t key_size = 0;            // of a head's key, without the rotated part
  int64_t rotary_size = 0;         // of the rotated part, which all heads share
  int64_t value_size = 0;          // of a head's value
  int64_t query_rank = 0;          // of the latent of queries; 0: they are made of the row itself
  LinearSpec query_down;           // [query_rank, hidden]
  NormSpec query_norm;             // [query_rank]
  LinearSpec query, query_rotary;  // [num_heads * key_size or rotary_size, query_rank or hidden]
  LinearSpec latent, rotary;       // [rank, hidden], [rotary_size, hidden]
  NormSpec latent_norm;            // [rank]
  // For each head a matrix, all in one tensor, side by side or as a third dimension: [rank, key_size], [value_size, rank]. Where key_up is
  // transposed, a head has [key_size, rank], and its order is that of these rows.
  TensorBinding key_up, value_up;
};

struct AttentionSpec {
  // 0: those of the ModelSpec, which ParseSpec writes here.
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  // The layer before this one whose keys and values it reads; -1: it has its own. It then has neither key nor value, nor a norm of keys.
  int kv_donor = -1;
  // The value is the projected key, before norms and rotation: there is no `value`, and norms.value is needed.
  bool value_is_key = false;
  LinearSpec query, key, value, output;  // with a latent the output alone
  LatentSpec latent;
  double clip = 0.0;  // queries, keys and values are no farther from 0, before norms and rotation; 0: no limit (OLMo)
  HeadNormsSpec norms;
  NormSpec output_norm;  // before `output`, over all heads (BitNet)
  int rope = -1;         // index into ModelSpec::ropes; -1: no rotation
  int64_t window = 0;    // tokens that a query sees, itself included; 0: all
  double scale = 0.0;
  double soft_cap = 0.0;
  TensorBinding sinks;               // [num_heads]: a logit that takes part in the softmax and has no value
  std::vector<float> linear_biases;  // ALiBi: [num_heads] slopes, or empty
  QueryTemperatureSpec query_temperature;
  GateKind gate_kind = GateKind::kNone;
  LinearSpec gate;

  int64_t padded_head_dim() const { return PaddedHeadDim(head_dim); }
  int64_t query_size() const { return num_heads * padded_head_dim(); }
  bool has_latent() const { return latent.rank != 0; }
};

// A causal convolution of each channel over the last `length` rows.
struct ConvSpec {
  int64_t length = 0;
  TensorBinding weight;  // [channels, length], or [channels, 1, length]
  TensorBinding bias;    // [channels]
};

// output(c * conv(b * x)), where b, c and x, each of hidden_size values, are what `input` makes of a row, in this order. (LFM2)
struct ShortConvSpec {
  LinearSpec input, output;
  ConvSpec conv;
};

// A recurrence (kernels/ops/recurrence.h) behind a convolution with SiLU over its channels, which come in the order of RecurrenceShape.
//   kGatedDelta  output(norm(r) * silu(gate)), the norm for each head of value_size, with one weight for all (Qwen3-Next, Qwen3.5)
//   kMamba2      output(norm(r * silu(gate))), the norm for each of norm_groups parts of r, with weights for all of r (Granite 4)
struct RecurrenceSpec {
  int64_t num_heads = 0;
  int64_t num_groups = 0;
  bool tiled_groups = false;
  int64_t key_size = 0;
  int64_t value_size = 0;
  LinearSpec query, key;   // [num_groups * key_size, hidden]
  LinearSpec value, gate;  // [num_heads * value_size, hidden]
  LinearSpec time, write;  // [num_heads, hidden]; write: of kGatedDelta
  ConvSpec conv;
  TensorBinding time_bias;  // [num_heads]
  TensorBinding decay;      // [num_heads], below 0; with decay_is_log a tensor of log(-decay)
  bool decay_is_log = false;
  TensorBinding skip;  // [num_heads]; of kMamba2; no name: none
  double least_step = 0.0;
  double most_step = 0.0;  // 0: no limit
  NormSpec norm;
  int64_t norm_groups = 1;  // of kMamba2
  LinearSpec output;
};

// What a layer mixes the rows of a sequence with. All but attention have a state (kernels/ops/state.h) instead of K and V.
enum class MixerKind : uint8_t { kAttention, kShortConv, kGatedDelta, kMamba2 };

struct MlpSpec {
  bool gated = true;  // act(gate x) * (up x); else act(up x)
  Activation activation = Activation::kSilu;
  std::vector<TensorBinding> activation_scalars;  // xIELU: alpha_p, alpha_n, beta, eps, each a tensor of one value
  std::vector<double> activation_values;          // or the values themselves; of kSwigluClamped limit, alpha and what is added to up
  int64_t size = 0;
  LinearSpec gate, up, down;
  NormSpec inner_norm;  // before `down` (BitNet)
};

// Which experts a row uses, and with which weights (kernels/ops/route.h).
struct RouterSpec {
  NormSpec norm;      // of the stream; not present: it reads what the experts read
  LinearSpec linear;  // [num_experts, hidden]; multiplied in fp32, whatever the file stores
  RouterScore score = RouterScore::kSoftmax;
  TensorBinding choice_bias;  // [num_experts], for the choice alone
  int64_t num_groups = 1;
  int64_t used_groups = 1;
  GroupScore group_score = GroupScore::kMax;
  bool renormalise = false;
  double least_sum = 0.0;
  double sum_epsilon = 0.0;
  double factor = 1.0;
  double mixer_threshold = 0.0;
  TensorBinding expert_scales;  // [num_experts]: what the weight of each is multiplied by
};

// The experts of a layer, whose outputs are added in ascending order of their numbers, each times its weight; then comes the shared expert,
// LayerSpec::mlp, times sigmoid(shared_gate) if that has a weight. Bindings of `expert` name a tensor for each expert where the name has
// "{expert}", or one tensor [num_experts, rows, columns], whose rows of all experts RowOrder counts.
struct MoeSpec {
  int64_t num_experts = 0;  // 0: the layer has none, and its MLP is LayerSpec::mlp
  int64_t num_used = 0;
  RouterSpec router;
  MlpSpec expert;
  LinearSpec shared_gate;  // [1, hidden]; multiplied in fp32
  // For a layer with both experts and an MLP (Gemma 4): the experts read this norm of the stream instead of mlp_norm.
  NormSpec norm;
  NormSpec post_norm;         // of the sum of the experts
  NormSpec shared_post_norm;  // of what LayerSpec::mlp returns
};

// x += norm(projection(act(gate x) * e)), e the layer's values in ModelSpec::layer_embedding, at the end of a layer.
struct LayerInputSpec {
  bool present = false;
  int64_t place = 0;  // of those values
  Activation activation = Activation::kGeluTanh;
  LinearSpec gate;        // [size, hidden]
  LinearSpec projection;  // [hidden, size]
  NormSpec norm;
};

// x = x + residual_scale * f(x) for attention and for the MLP.
// kSequential: x += post(attend(norm(x))), then x += post(mlp(norm(x))). kParallel: both read the same x and are added to it.
enum class LayerOrder : uint8_t { kSequential, kParallel };

struct LayerSpec {
  LayerOrder order = LayerOrder::kSequential;
  NormSpec attention_norm, post_attention_norm;
  NormSpec mlp_norm, post_mlp_norm;
  NormSpec attention_sum_norm, mlp_sum_norm;  // of the stream, after attention or the MLP was added to it (BERT)
  bool mlp_reads_attention_norm = false;      // kParallel with one norm: the MLP reads attention_norm's output
  double residual_scale = 1.0;
  MixerKind mixer = MixerKind::kAttention;  // attention_norm, post_attention_norm and `order` are those of any mixer
  AttentionSpec attention;                  // of kAttention
  ShortConvSpec short_conv;                 // of kShortConv
  RecurrenceSpec recurrence;                // of kGatedDelta and kMamba2
  MlpSpec mlp;                              // beside experts: the shared one, or of size 0
  MoeSpec moe;
  LayerInputSpec input;
  TensorBinding output_scale;  // [1]: what the stream is multiplied by at the end of the layer; no name: 1

  bool has_experts() const { return moe.num_experts > 0; }
  bool has_attention() const { return mixer == MixerKind::kAttention; }
  bool has_recurrence() const { return mixer == MixerKind::kGatedDelta || mixer == MixerKind::kMamba2; }
};

// Frequencies by type: inverse_frequencies are worked out in Python or here from theta. See RopeTable.
struct RopeSpec {
  double theta = 10000.0;
  int64_t rotary_dim = 0;
  double linear_factor = 1.0;
  double llama3_factor = 1.0;
  double llama3_low_freq_factor = 1.0;
  double llama3_high_freq_factor = 4.0;
  int64_t llama3_original_context = 8192;
  // YaRN: factor 1: none. low and high are the corrected dimensions between which the two frequencies are blended.
  double yarn_factor = 1.0;
  double yarn_low = 0.0;
  double yarn_high = 0.0;
  std::vector<float> frequency_divisors;  // [rotary_dim / 2] or empty (llama3 of GGUF, longrope)
  std::string divisors_tensor;            // or a tensor [rotary_dim / 2] of the file that holds them (rope_freqs.weight); empty: none
  double magnitude = 1.0;                 // factor of cosine and sine (YaRN, longrope)
  bool reversed = false;                  // rotates the other way (nanochat)
};

struct EmbeddingSpec {
  TensorBinding weight;
  double scale = 1.0;
  NormSpec norm;
  TensorBinding positions;      // learned positions [max_position + position_offset, hidden]; no name: none
  int64_t position_offset = 0;  // row of position 0
  TensorBinding token_types;    // [num_token_types, hidden], added by a row's type (ForwardBatch::token_types); no name: none
  int64_t num_token_types = 0;
};

// Embeddings for the layers (Gemma 4): of each token and place `size` values,
//   scale * weight[token] + norm(projection x), each place normed by itself, x the row that the first layer reads
struct LayerEmbeddingSpec {
  int64_t size = 0;  // 0: there are none
  int64_t num_places = 0;
  TensorBinding weight;  // [vocab, num_places * size]
  double scale = 1.0;
  LinearSpec projection;  // [num_places * size, hidden]
  NormSpec norm;          // [size]
};

struct HeadSpec {
  TensorBinding weight;  // no name: tied to the embedding
  TensorBinding bias;
  double scale = 1.0;  // of the logits, before the soft cap
  double soft_cap = 0.0;
};

struct ModelSpec {
  std::string family;
  int64_t hidden_size = 0;
  // Of layers that do not say otherwise.
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_position = 0;
  bool two_sided = false;  // a row sees those behind it, too: its window is what it sees on each side, itself included
  bool generates = true;   // false: hidden states are all that it gives, there is no head
  EmbeddingSpec embedding;
  LayerEmbeddingSpec layer_embedding;
  std::vector<LayerSpec> layers;
  NormSpec final_norm;
  HeadSpec head;
  std::vector<RopeSpec> ropes;
  std::string rope_choice;                   // which of a model's tables was chosen, for the numerics id; empty: it has one
  std::string quantization;                  // of a quantised checkpoint: its quantization_config, as JSON; empty: none
  std::vector<std::string> ignored_tensors;  // patterns (*) of tensors that do not change the result

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  bool tied_head() const { return head.weight.name.empty(); }
  bool has_states() const;  // of any layer

  // Throws an Error that names the field: kModelFile if a value is out of range or does not fit the others, kUnsupportedModel if the core
  // cannot compute it.
  void Validate(const std::string& source) const;
};

// The spec that a card wrote (ModelSpec.to_json in python/llmi/families/spec.py). Field names are those of the structs; a field that is
// absent has its default; an unknown one is refused. Throws Error(kModelFile) naming the field, as in "layers[3].attention.scale".
ModelSpec ParseSpec(const std::string& json, const std::string& source);

}  // namespace llmi
