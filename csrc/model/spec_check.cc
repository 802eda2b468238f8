#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/errors.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/recurrence.h"
#include "model/recurrence_layer.h"
#include "model/spec.h"
#include "model/tensor_slots.h"

namespace llmi {
namespace {

constexpr double kLargestFactor = 1e30;   // of factors: their products with values of usual size stay finite in fp32
constexpr double kSmallestFactor = 1e-6;  // of those by which angles are divided: fp32 holds every angle
constexpr int64_t kMostRows = int64_t{1} << 32;

class Checker {
 public:
  Checker(const ModelSpec& spec, const std::string& source) : spec_(spec), source_(source) {}

  void Check() const {
    CheckSizes();
    CheckEmbeddingAndHead();
    CheckLayerEmbedding();
    for (size_t i = 0; i < spec_.ropes.size(); ++i) CheckRope(spec_.ropes[i], "ropes[" + std::to_string(i) + "].");
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const std::string path = "layers[" + std::to_string(i) + "].";
      if (spec_.layers[i].attention.kv_donor != -1) CheckDonor(static_cast<int64_t>(i), path + "attention.");
      CheckLayer(spec_.layers[i], path);
    }
    for (const TensorSlot& slot : TensorSlotsOf(spec_)) CheckSlot(slot);
    for (size_t i = 0; i < spec_.ignored_tensors.size(); ++i) {
      if (spec_.ignored_tensors[i].empty()) Fail("ignored_tensors[" + std::to_string(i) + "]", "is empty");
    }
  }

 private:
  [[noreturn]] void Fail(const std::string& path, const std::string& what, ErrorKind kind = ErrorKind::kModelFile) const {
    throw Error(kind, source_ + ": the spec's " + path + " " + what, path);
  }

  void Range(const std::string& path, int64_t value, int64_t low, int64_t high) const {
    if (value >= low && value <= high) return;
    Fail(path, "= " + std::to_string(value) + " is outside [" + std::to_string(low) + ", " + std::to_string(high) + "]");
  }
  // low < value <= kLargestFactor
  void Above(const std::string& path, double value, double low = 0.0) const {
    if (!(value > low && value <= kLargestFactor))
      Fail(path, "= " + std::to_string(value) + " must be finite and above " + std::to_string(low));
  }
  void Finite(const std::string& path, double value) const {
    if (!(std::fabs(value) <= kLargestFactor)) Fail(path, "= " + std::to_string(value) + " must be finite");
  }
  void NotNegative(const std::string& path, double value) const {
    if (!(value >= 0 && value <= kLargestFactor)) Fail(path, "= " + std::to_string(value) + " must be finite, and 0 or more");
  }
  template <typename T>
  void Count(const std::string& path, const std::vector<T>& values, int64_t wanted) const {
    if (static_cast<int64_t>(values.size()) == wanted) return;
    Fail(path, "has " + std::to_string(values.size()) + " entries where " + std::to_string(wanted) + " fit");
  }
  void Needed(const std::string& path, const TensorBinding& binding) const {
    if (binding.name.empty()) Fail(path + ".name", "is missing");
  }
  void Absent(const std::string& path, const TensorBinding& binding, const std::string& why) const {
    if (!binding.name.empty()) Fail(path + ".name", "= '" + binding.name.substr(0, 64) + "' names a tensor, but " + why);
  }

  void CheckSizes() const {
    if (spec_.family.empty()) Fail("family", "is missing");
    Range("hidden_size", spec_.hidden_size, 16, 1 << 20);
    CheckHeads("", spec_);
    Range("vocab_size", spec_.vocab_size, 1, 1 << 24);
    Range("max_position", spec_.max_position, 1, 1 << 24);
    if (spec_.layers.empty() || spec_.layers.size() > 1024)
      Fail("layers", "must be 1 to 1,024, not " + std::to_string(spec_.layers.size()));
    if (spec_.ropes.size() > 1024) Fail("ropes", "must be at most 1,024, not " + std::to_string(spec_.ropes.size()));
    if (spec_.hidden_size % 16 != 0) Fail("hidden_size", "must be a multiple of 16", ErrorKind::kUnsupportedModel);
  }

  // heads: those of the model, or of a layer.
  template <typename Heads>
  void CheckHeads(const std::string& path, const Heads& heads) const {
    Range(path + "num_heads", heads.num_heads, 1, 4096);
    Range(path + "num_kv_heads", heads.num_kv_heads, 1, heads.num_heads);
    Range(path + "head_dim", heads.head_dim, 16, kMaxHeadDim);
    if (heads.head_dim % 4 != 0) Fail(path + "head_dim", "must be a multiple of 4", ErrorKind::kUnsupportedModel);
    if (heads.num_heads % heads.num_kv_heads != 0) {
      Fail(path + "num_kv_heads",
           "= " + std::to_string(heads.num_kv_heads) + " does not divide num_heads = " + std::to_string(heads.num_heads));
    }
  }

  void CheckEmbeddingAndHead() const {
    const EmbeddingSpec& embedding = spec_.embedding;
    Needed("embedding.weight", embedding.weight);
    Above("embedding.scale", embedding.scale);
    CheckNorm(embedding.norm, "embedding.norm");
    Range("embedding.position_offset", embedding.position_offset, 0, 1 << 20);
    Range("embedding.num_token_types", embedding.num_token_types, embedding.token_types.name.empty() ? 0 : 1,
          embedding.token_types.name.empty() ? 0 : 1 << 10);
    if (spec_.two_sided && spec_.generates) Fail("generates", "= true needs rows that do not see those behind them: two_sided is true");
    CheckNorm(spec_.final_norm, "final_norm");
    Above("head.scale", spec_.head.scale);
    NotNegative("head.soft_cap", spec_.head.soft_cap);
  }

  void CheckLayerEmbedding() const {
    const LayerEmbeddingSpec& embedding = spec_.layer_embedding;
    Range("layer_embedding.size", embedding.size, 0, 1 << 16);
    const bool present = embedding.size > 0;
    Range("layer_embedding.num_places", embedding.num_places, present ? 1 : 0, present ? 1024 : 0);
    if (embedding.size % 16 != 0) Fail("layer_embedding.size", "must be a multiple of 16", ErrorKind::kUnsupportedModel);
    Above("layer_embedding.scale", embedding.scale);
    CheckNorm(embedding.norm, "layer_embedding.norm");
    if (present && !embedding.norm.present) Fail("layer_embedding.norm.present", "must be true", ErrorKind::kUnsupportedModel);
    CheckLinear(embedding.projection, "layer_embedding.projection", present, "its size is 0");
    if (present) return Needed("layer_embedding.weight", embedding.weight);
    Absent("layer_embedding.weight", embedding.weight, "its size is 0");
  }

  void CheckInput(const LayerInputSpec& input, const std::string& path) const {
    if (input.present && spec_.layer_embedding.size == 0) Fail(path + "present", "is true, but the model has no layer_embedding");
    Range(path + "place", input.place, 0, std::max<int64_t>(0, input.present ? spec_.layer_embedding.num_places - 1 : 0));
    CheckLinear(input.gate, path + "gate", input.present, "the input is not present");
    CheckLinear(input.projection, path + "projection", input.present, "the input is not present");
    CheckNorm(input.norm, path + "norm");
    const bool has_values = input.activation == Activation::kXielu || input.activation == Activation::kSwigluClamped;
    if (has_values) Fail(path + "activation", "is one without parameters", ErrorKind::kUnsupportedModel);
  }

  void CheckNorm(const NormSpec& norm, const std::string& path) const {
    Above(path + ".eps", norm.eps);
    if (norm.present) return;
    Absent(path + ".weight", norm.weight, "the norm is not present");
    Absent(path + ".bias", norm.bias, "the norm is not present");
  }

  void CheckLinear(const LinearSpec& linear, const std::string& path, bool present = true, const std::string& why = "") const {
    if (present) return Needed(path + ".weight", linear.weight);
    Absent(path + ".weight", linear.weight, why);
    Absent(path + ".bias", linear.bias, why);
  }

  void CheckRope(const RopeSpec& rope, const std::string& path) const {
    Above(path + "theta", rope.theta, kSmallestFactor);
    int64_t largest = 0;
    for (const LayerSpec& layer : spec_.layers) largest = std::max(largest, layer.attention.head_dim);
    Range(path + "rotary_dim", rope.rotary_dim, 2, largest);
    if (rope.rotary_dim % 2 != 0) Fail(path + "rotary_dim", "= " + std::to_string(rope.rotary_dim) + " is odd");
    Above(path + "linear_factor", rope.linear_factor, kSmallestFactor);
    Above(path + "llama3_factor", rope.llama3_factor, kSmallestFactor);
    Above(path + "llama3_low_freq_factor", rope.llama3_low_freq_factor);
    Above(path + "llama3_high_freq_factor", rope.llama3_high_freq_factor);
    if (!(rope.llama3_high_freq_factor > rope.llama3_low_freq_factor)) {
      Fail(path + "llama3_high_freq_factor", "must exceed llama3_low_freq_factor");
    }
    Range(path + "llama3_original_context", rope.llama3_original_context, 1, int64_t{1} << 32);
    Above(path + "yarn_factor", rope.yarn_factor, kSmallestFactor);
    Finite(path + "yarn_low", rope.yarn_low);
    Finite(path + "yarn_high", rope.yarn_high);
    if (!(rope.yarn_low <= rope.yarn_high)) Fail(path + "yarn_high", "must not be below yarn_low");
    Above(path + "magnitude", rope.magnitude);
    const std::string divisors = path + "frequency_divisors";
    if (rope.frequency_divisors.empty()) return;
    if (!rope.divisors_tensor.empty()) Fail(divisors, "are given, and divisors_tensor as well");
    Count(divisors, rope.frequency_divisors, rope.rotary_dim / 2);
    for (size_t i = 0; i < rope.frequency_divisors.size(); ++i) {
      Above(divisors + "[" + std::to_string(i) + "]", static_cast<double>(rope.frequency_divisors[i]), kSmallestFactor);
    }
  }

  void CheckLayer(const LayerSpec& layer, const std::string& path) const {
    CheckNorm(layer.attention_norm, path + "attention_norm");
    CheckNorm(layer.post_attention_norm, path + "post_attention_norm");
    CheckNorm(layer.mlp_norm, path + "mlp_norm");
    CheckNorm(layer.post_mlp_norm, path + "post_mlp_norm");
    CheckNorm(layer.attention_sum_norm, path + "attention_sum_norm");
    CheckNorm(layer.mlp_sum_norm, path + "mlp_sum_norm");
    if (layer.order == LayerOrder::kParallel && (layer.attention_sum_norm.present || layer.mlp_sum_norm.present)) {
      Fail(path + "order", "= 'parallel' adds attention and MLP at once: it has no norms after the sums");
    }
    if (layer.mlp_reads_attention_norm && (layer.order != LayerOrder::kParallel || layer.mlp_norm.present)) {
      Fail(path + "mlp_reads_attention_norm", "needs the order 'parallel', and no mlp_norm");
    }
    if (spec_.two_sided && !layer.has_attention()) Fail(path + "mixer", "carries a state from left to right: two_sided is true");
    Above(path + "residual_scale", layer.residual_scale);
    CheckMixer(layer, path);
    if (!layer.has_experts() || layer.mlp.size != 0) CheckMlp(layer.mlp, path + "mlp.");
    CheckMoe(layer, path + "moe.");
    CheckInput(layer.input, path + "input.");
  }

  // Of a layer that reads another one's keys and values.
  void CheckDonor(int64_t layer, const std::string& path) const {
    const AttentionSpec& reader = spec_.layers[static_cast<size_t>(layer)].attention;
    const std::string number = std::to_string(reader.kv_donor);
    if (reader.kv_donor < 0 || reader.kv_donor >= layer) {
      Fail(path + "kv_donor", "= " + number + " is no layer before layer " + std::to_string(layer));
    }
    const LayerSpec& read = spec_.layers[static_cast<size_t>(reader.kv_donor)];
    const AttentionSpec& donor = read.attention;
    if (!read.has_attention() || donor.kv_donor != -1)
      Fail(path + "kv_donor", "= " + number + ", a layer that has no keys of its own either");
    if (donor.window != reader.window || donor.num_kv_heads != reader.num_kv_heads || donor.head_dim != reader.head_dim) {
      const auto text = [](const AttentionSpec& attention) {
        return "window " + std::to_string(attention.window) + ", " + std::to_string(attention.num_kv_heads) + " KV heads of " +
               std::to_string(attention.head_dim);
      };
      Fail(path + "kv_donor", "= " + number + ", a layer of another KV group (" + text(donor) + "; this one: " + text(reader) + ")");
    }
    if (reader.norms.key.present) Fail(path + "norms.key.present", "is true, but the keys are those of layer " + number);
    if (reader.norms.value.present) Fail(path + "norms.value.present", "is true, but the values are those of layer " + number);
    if (reader.value_is_key) Fail(path + "value_is_key", "is true, but keys and values are those of layer " + number);
  }

  // The norm of the value is what copies it.
  void CheckValueIsKey(const AttentionSpec& attention, const std::string& path) const {
    if (!attention.norms.value.present) Fail(path, "needs norms.value", ErrorKind::kUnsupportedModel);
    if (attention.gate_kind != GateKind::kNone) Fail(path, "is for attention without a gate", ErrorKind::kUnsupportedModel);
    if (attention.padded_head_dim() != attention.head_dim) {
      Fail(path, "needs a head_dim that is a multiple of 16", ErrorKind::kUnsupportedModel);
    }
  }

  void CheckMixer(const LayerSpec& layer, const std::string& path) const {
    if (layer.has_attention()) {
      CheckAttention(layer.attention, path + "attention.");
    } else {
      const AttentionSpec& attention = layer.attention;
      for (const LinearSpec* linear : {&attention.query, &attention.key, &attention.value, &attention.output}) {
        CheckLinear(*linear, path + "attention", false, "the layer's mixer is another one");
      }
    }
    const bool is_conv = layer.mixer == MixerKind::kShortConv;
    const ShortConvSpec& conv = layer.short_conv;
    for (const LinearSpec* linear : {&conv.input, &conv.output}) {
      CheckLinear(*linear, path + (linear == &conv.input ? "short_conv.input" : "short_conv.output"), is_conv,
                  "the layer's mixer is another one");
    }
    if (is_conv) CheckConv(conv.conv, path + "short_conv.conv.");
    CheckRecurrence(layer, path + "recurrence.");
  }

  void CheckRecurrence(const LayerSpec& layer, const std::string& path) const {
    const RecurrenceSpec& mixer = layer.recurrence;
    const bool is_here = layer.has_recurrence();
    const bool is_delta = layer.mixer == MixerKind::kGatedDelta;
    const std::string why = "the layer's mixer is another one";
    CheckLinear(mixer.query, path + "query", is_here, why);
    CheckLinear(mixer.key, path + "key", is_here, why);
    CheckLinear(mixer.value, path + "value", is_here, why);
    CheckLinear(mixer.gate, path + "gate", is_here, why);
    CheckLinear(mixer.time, path + "time", is_here, why);
    CheckLinear(mixer.write, path + "write", is_delta, "mixer is not 'gated_delta'");
    CheckLinear(mixer.output, path + "output", is_here, why);
    if (!is_here) return;
    Range(path + "num_heads", mixer.num_heads, 1, 4096);
    Range(path + "num_groups", mixer.num_groups, 1, mixer.num_heads);
    Range(path + "key_size", mixer.key_size, 1, kMostKeySize);
    Range(path + "value_size", mixer.value_size, 1, 4096);
    if (mixer.num_heads % mixer.num_groups != 0) {
      Fail(path + "num_groups",
           "= " + std::to_string(mixer.num_groups) + " does not divide the " + std::to_string(mixer.num_heads) + " heads");
    }
    if (ShapeOf(layer).channels() % 16 != 0) {
      Fail(path + "conv", "has " + std::to_string(ShapeOf(layer).channels()) + " channels, which is no multiple of 16",
           ErrorKind::kUnsupportedModel);
    }
    CheckConv(mixer.conv, path + "conv.");
    Needed(path + "time_bias", mixer.time_bias);
    Needed(path + "decay", mixer.decay);
    if (is_delta) Absent(path + "skip", mixer.skip, "mixer is 'gated_delta'");
    NotNegative(path + "least_step", mixer.least_step);
    NotNegative(path + "most_step", mixer.most_step);
    if (mixer.most_step > 0 && mixer.most_step < mixer.least_step) Fail(path + "most_step", "is below least_step");
    CheckNorm(mixer.norm, path + "norm");
    Range(path + "norm_groups", mixer.norm_groups, 1, 4096);
    if (ShapeOf(layer).value_floats() % mixer.norm_groups != 0) {
      Fail(path + "norm_groups",
           "= " + std::to_string(mixer.norm_groups) + " does not divide the " + std::to_string(ShapeOf(layer).value_floats()) + " values");
    }
  }

  void CheckConv(const ConvSpec& conv, const std::string& path) const {
    Range(path + "length", conv.length, 2, 64);
    Needed(path + "weight", conv.weight);
    if (conv.weight.plus != 0) Fail(path + "weight.plus", "is for vectors");
  }

  void CheckLatent(const AttentionSpec& attention, const std::string& path) const {
    const LatentSpec& latent = attention.latent;
    const bool present = attention.has_latent();
    const std::string why = "rank is 0";
    const auto check_size = [&](const char* name, int64_t value, bool needed) {
      Range(path + name, value, needed ? 1 : 0, present ? 1 << 16 : 0);
      if (value % 16 != 0) Fail(path + name, "must be a multiple of 16", ErrorKind::kUnsupportedModel);
    };
    check_size("rank", latent.rank, present);
    check_size("key_size", latent.key_size, present);
    check_size("rotary_size", latent.rotary_size, present);
    check_size("value_size", latent.value_size, present);
    check_size("query_rank", latent.query_rank, false);
    CheckLinear(latent.query_down, path + "query_down", latent.query_rank > 0, "query_rank is 0");
    CheckNorm(latent.query_norm, path + "query_norm");
    if (latent.query_norm.present && latent.query_rank == 0) Fail(path + "query_norm", "is present, but query_rank is 0");
    CheckLinear(latent.query, path + "query", present, why);
    CheckLinear(latent.query_rotary, path + "query_rotary", present, why);
    CheckLinear(latent.latent, path + "latent", present, why);
    CheckLinear(latent.rotary, path + "rotary", present, why);
    CheckNorm(latent.latent_norm, path + "latent_norm");
    if (!present) {
      if (latent.latent_norm.present) Fail(path + "latent_norm", "is present, but " + why);
      Absent(path + "key_up", latent.key_up, why);
      return Absent(path + "value_up", latent.value_up, why);
    }
    Needed(path + "key_up", latent.key_up);
    Needed(path + "value_up", latent.value_up);
    if (latent.value_up.transposed) Fail(path + "value_up.transposed", "is for key_up");
    if (attention.num_kv_heads != 1) {
      Fail(path + "rank", "= " + std::to_string(latent.rank) + " needs num_kv_heads = 1, not " + std::to_string(attention.num_kv_heads));
    }
    if (latent.rank + latent.rotary_size != attention.head_dim) {
      Fail(path + "rank", "= " + std::to_string(latent.rank) + " and rotary_size = " + std::to_string(latent.rotary_size) +
                              " must make head_dim = " + std::to_string(attention.head_dim));
    }
    if (attention.rope >= 0 && spec_.ropes[static_cast<size_t>(attention.rope)].rotary_dim > latent.rotary_size) {
      Fail(path + "rotary_size", "= " + std::to_string(latent.rotary_size) + " is less than the rotary_dim of its rope");
    }
  }

  // Parts of an attention that its latent stands for, or has no place for.
  void CheckBesideLatent(const AttentionSpec& attention, const std::string& path) const {
    const std::string why = "the layer has a latent";
    CheckLinear(attention.query, path + "query", false, why);
    CheckLinear(attention.key, path + "key", false, why);
    CheckLinear(attention.value, path + "value", false, why);
    const HeadNormsSpec& norms = attention.norms;
    const bool has_norms = norms.query.present || norms.key.present || norms.value.present || attention.output_norm.present;
    if (has_norms || attention.clip != 0 || attention.gate_kind != GateKind::kNone || attention.kv_donor != -1 || attention.value_is_key) {
      Fail(path + "latent", "is for attention without norms, clip, gate_kind, kv_donor and value_is_key", ErrorKind::kUnsupportedModel);
    }
  }

  void CheckAttention(const AttentionSpec& attention, const std::string& path) const {
    CheckHeads(path, attention);
    const bool has_keys = attention.kv_donor == -1;
    if (attention.has_latent()) {
      CheckBesideLatent(attention, path);
    } else {
      CheckLinear(attention.query, path + "query");
      CheckLinear(attention.key, path + "key", has_keys, "the keys are a donor's");
      CheckLinear(attention.value, path + "value", has_keys && !attention.value_is_key,
                  has_keys ? "the value is the key" : "the values are a donor's");
    }
    if (attention.value_is_key) CheckValueIsKey(attention, path + "value_is_key");
    CheckLinear(attention.output, path + "output");
    CheckNorm(attention.norms.query, path + "norms.query");
    CheckNorm(attention.norms.key, path + "norms.key");
    CheckNorm(attention.norms.value, path + "norms.value");
    CheckNorm(attention.output_norm, path + "output_norm");
    if (attention.norms.own_weights && attention.norms.span == HeadNormSpan::kProjection) {
      Fail(path + "norms.own_weights", "is for norms of heads, not of the projection");
    }
    if (attention.norms.span == HeadNormSpan::kProjection && attention.padded_head_dim() != attention.head_dim) {
      Fail(path + "norms.span", "= 'projection' needs a head_dim that is a multiple of 16", ErrorKind::kUnsupportedModel);
    }
    Range(path + "rope", attention.rope, -1, static_cast<int64_t>(spec_.ropes.size()) - 1);
    if (attention.rope >= 0) {
      const int64_t rotary_dim = spec_.ropes[static_cast<size_t>(attention.rope)].rotary_dim;
      Range("ropes[" + std::to_string(attention.rope) + "].rotary_dim", rotary_dim, 2, attention.head_dim);
    }
    Range(path + "window", attention.window, 0, int64_t{1} << 30);
    Above(path + "scale", attention.scale);
    NotNegative(path + "clip", attention.clip);
    NotNegative(path + "soft_cap", attention.soft_cap);
    if (!attention.linear_biases.empty()) Count(path + "linear_biases", attention.linear_biases, attention.num_heads);
    for (size_t i = 0; i < attention.linear_biases.size(); ++i) {
      Finite(path + "linear_biases[" + std::to_string(i) + "]", static_cast<double>(attention.linear_biases[i]));
    }
    NotNegative(path + "query_temperature.beta", attention.query_temperature.beta);
    Range(path + "query_temperature.original", attention.query_temperature.original, attention.query_temperature.beta > 0 ? 1 : 0,
          int64_t{1} << 32);
    CheckLatent(attention, path + "latent.");
    CheckLinear(attention.gate, path + "gate", attention.gate_kind != GateKind::kNone, "gate_kind is 'none'");
  }

  void CheckMlp(const MlpSpec& mlp, const std::string& path) const {
    Range(path + "size", mlp.size, 1, 1 << 24);
    CheckLinear(mlp.gate, path + "gate", mlp.gated, "gated is false");
    CheckLinear(mlp.up, path + "up");
    CheckLinear(mlp.down, path + "down");
    CheckNorm(mlp.inner_norm, path + "inner_norm");
    const bool is_xielu = mlp.activation == Activation::kXielu;
    const bool is_clamped = mlp.activation == Activation::kSwigluClamped;
    const bool from_tensors = !mlp.activation_scalars.empty();
    Count(path + "activation_scalars", mlp.activation_scalars, is_xielu && from_tensors ? 4 : 0);
    Count(path + "activation_values", mlp.activation_values, is_xielu && !from_tensors ? 4 : is_clamped ? 3 : 0);
    if (is_clamped && !mlp.gated) Fail(path + "activation", "= 'swiglu_clamped' needs gated");
    for (size_t i = 0; i < mlp.activation_scalars.size(); ++i) {
      Needed(path + "activation_scalars[" + std::to_string(i) + "]", mlp.activation_scalars[i]);
    }
    for (size_t i = 0; i < mlp.activation_values.size(); ++i) {
      Finite(path + "activation_values[" + std::to_string(i) + "]", mlp.activation_values[i]);
    }
    if (is_clamped) Above(path + "activation_values[0]", mlp.activation_values[0]);
  }

  void CheckMoe(const LayerSpec& layer, const std::string& path) const {
    const MoeSpec& moe = layer.moe;
    Range(path + "num_experts", moe.num_experts, 0, kMostExperts);
    const bool has_experts = layer.has_experts();
    Range(path + "num_used", moe.num_used, has_experts ? 1 : 0, std::min(moe.num_experts, kMostUsedExperts));
    CheckLinear(moe.router.linear, path + "router.linear", has_experts, "there are no experts");
    const bool has_shared = has_experts && layer.mlp.size > 0;
    if (!has_shared && moe.shared_post_norm.present) Fail(path + "shared_post_norm.present", "is true, but there is no shared expert");
    if (!has_shared) CheckLinear(moe.shared_gate, path + "shared_gate", false, "there is no shared expert");
    CheckNorm(moe.router.norm, path + "router.norm");
    CheckNorm(moe.norm, path + "norm");
    CheckNorm(moe.post_norm, path + "post_norm");
    CheckNorm(moe.shared_post_norm, path + "shared_post_norm");
    if (!has_experts) {
      for (const auto& [name, norm] : {std::pair{"router.norm", &moe.router.norm}, std::pair{"norm", &moe.norm},
                                       std::pair{"post_norm", &moe.post_norm}, std::pair{"shared_post_norm", &moe.shared_post_norm}}) {
        if (norm->present) Fail(path + name + ".present", "is true, but there are no experts");
      }
      Absent(path + "router.expert_scales", moe.router.expert_scales, "there are no experts");
      for (const LinearSpec* linear : {&moe.expert.gate, &moe.expert.up, &moe.expert.down})
        CheckLinear(*linear, path + "expert", false, "there are no experts");
      return Absent(path + "router.choice_bias", moe.router.choice_bias, "there are no experts");
    }
    CheckRouter(moe, path + "router.");
    CheckMlp(moe.expert, path + "expert.");
    if (moe.expert.inner_norm.present) Fail(path + "expert.inner_norm", "is for dense layers", ErrorKind::kUnsupportedModel);
    if (layer.order == LayerOrder::kParallel)
      Fail(path + "num_experts", "is for layers of the order 'sequential'", ErrorKind::kUnsupportedModel);
    if (has_shared) return;
    const MlpSpec& mlp = layer.mlp;
    for (const LinearSpec* linear : {&mlp.gate, &mlp.up, &mlp.down}) CheckLinear(*linear, path + "mlp", false, "its size is 0");
  }

  void CheckRouter(const MoeSpec& moe, const std::string& path) const {
    const RouterSpec& router = moe.router;
    Range(path + "num_groups", router.num_groups, 1, moe.num_experts);
    Range(path + "used_groups", router.used_groups, 1, router.num_groups);
    if (moe.num_experts % router.num_groups != 0) {
      Fail(path + "num_groups",
           "= " + std::to_string(router.num_groups) + " does not divide the " + std::to_string(moe.num_experts) + " experts");
    }
    const int64_t choice = moe.num_experts / router.num_groups * router.used_groups;
    if (moe.num_used > choice) {
      Fail(path + "used_groups", "= " + std::to_string(router.used_groups) + " groups hold " + std::to_string(choice) + " experts, and " +
                                     std::to_string(moe.num_used) + " are used");
    }
    NotNegative(path + "least_sum", router.least_sum);
    NotNegative(path + "sum_epsilon", router.sum_epsilon);
    Above(path + "factor", router.factor);
    NotNegative(path + "mixer_threshold", router.mixer_threshold);
    if (router.score != RouterScore::kSparseMixer) return;
    if (moe.num_used != 2) Fail(path + "score", "= 'sparse_mixer' needs num_used = 2");
    Absent(path + "choice_bias", router.choice_bias, "score is 'sparse_mixer'");
    if (router.num_groups > 1) Fail(path + "num_groups", "is for other scores than 'sparse_mixer'");
  }

  // Whether the binding's rows exist for the role is checked with the file's tensors (weights.cc).
  void CheckSlot(const TensorSlot& slot) const {
    const RowOrder& order = slot.binding.order;
    const std::string path = slot.place + ".order.";
    Range(path + "first_row", order.first_row, 0, kMostRows);
    Range(path + "head_rows", order.head_rows, 0, slot.file_rows());
    Range(path + "head_stride", order.head_stride, 0, kMostRows);
    if (order.head_rows > 0 && slot.file_rows() % order.head_rows != 0) {
      Fail(path + "head_rows",
           "= " + std::to_string(order.head_rows) + " does not divide the " + std::to_string(slot.file_rows()) + " rows");
    }
    if (order.head_stride > 0 && order.head_stride < std::max<int64_t>(1, order.head_rows)) {
      Fail(path + "head_stride", "= " + std::to_string(order.head_stride) + " is less than head_rows");
    }
    if (order.head_stride > 0 && order.head_rows == 0) Fail(path + "head_stride", "needs head_rows");
    Range(path + "adjacent_pairs", order.adjacent_pairs, 0, order.head_rows);
    if (order.adjacent_pairs % 2 != 0) Fail(path + "adjacent_pairs", "= " + std::to_string(order.adjacent_pairs) + " is odd");
    if (slot.binding.transposed && !slot.is_matrix()) Fail(slot.place + ".transposed", "is for matrices");
    const bool is_one = slot.TensorNames().size() == 1;
    if (!is_one && !(order == RowOrder{})) Fail(slot.place + ".order", "is for one tensor, not for one of each head or expert");
    Finite(slot.place + ".times", slot.binding.times);
    if (slot.binding.times != 1 && slot.is_matrix()) Fail(slot.place + ".times", "is for vectors");
    Finite(slot.place + ".plus", slot.binding.plus);
    if (slot.binding.plus != 0 && slot.is_matrix()) Fail(slot.place + ".plus", "is for vectors");
  }

  const ModelSpec& spec_;
  const std::string& source_;
};

}  // namespace

void ModelSpec::Validate(const std::string& source) const { Checker(*this, source).Check(); }

}  // namespace llmi
