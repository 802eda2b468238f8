#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/errors.h"
#include "model/dequantize.h"

namespace llmi {
namespace {

std::string ShapeText(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (uint64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

bool EqualBytes(const TensorView& a, const TensorView& b) {
  constexpr uint64_t kChunkBytes = 1 << 20;
  std::vector<uint8_t> bytes_a(std::min(kChunkBytes, a.num_bytes)), bytes_b(bytes_a.size());
  for (uint64_t begin = 0; begin < a.num_bytes; begin += kChunkBytes) {
    const uint64_t count = std::min(kChunkBytes, a.num_bytes - begin);
    a.Read(begin, count, bytes_a.data());
    b.Read(begin, count, bytes_b.data());
    if (std::memcmp(bytes_a.data(), bytes_b.data(), count) != 0) return false;
  }
  return a.num_bytes == b.num_bytes;
}

enum class Bias { kNone, kRequired, kIfStored };

// The shape that the config gives a role's tensor, and whether it has a bias.
struct TensorForm {
  std::vector<uint64_t> shape;
  Bias bias = Bias::kNone;
};

// Empty if the model has no such tensor.
std::optional<TensorForm> FormOf(TensorRole role, const ModelConfig& config) {
  const auto hidden = static_cast<uint64_t>(config.hidden_size);
  const auto head_dim = static_cast<uint64_t>(config.head_dim);
  const uint64_t query_rows = static_cast<uint64_t>(config.num_heads) * head_dim;
  const uint64_t kv_rows = static_cast<uint64_t>(config.num_kv_heads) * head_dim;
  const auto vocab = static_cast<uint64_t>(config.vocab_size);
  const auto intermediate = static_cast<uint64_t>(config.intermediate_size);
  const auto linear = [&](uint64_t rows, uint64_t cols, bool bias) {
    return TensorForm{{rows, cols}, bias ? Bias::kRequired : config.stored_biases ? Bias::kIfStored : Bias::kNone};
  };
  const auto norm = [](uint64_t size, bool there = true) { return there ? std::optional(TensorForm{{size}}) : std::nullopt; };
  switch (role) {
    case TensorRole::kEmbedding: return TensorForm{{vocab, hidden}};
    case TensorRole::kHead: return config.tied_embeddings ? std::nullopt : std::optional(TensorForm{{vocab, hidden}});
    case TensorRole::kFinalNorm:
    case TensorRole::kAttentionNorm:
    case TensorRole::kMlpNorm: return norm(hidden);
    case TensorRole::kPostAttentionNorm:
    case TensorRole::kPostMlpNorm: return norm(hidden, config.sandwich_norms);
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm: return norm(head_dim, config.qk_norm);
    case TensorRole::kQuery: return linear(query_rows, hidden, config.qkv_bias);
    case TensorRole::kKey:
    case TensorRole::kValue: return linear(kv_rows, hidden, config.qkv_bias);
    case TensorRole::kAttentionOutput: return linear(hidden, query_rows, config.output_bias);
    case TensorRole::kGate:
    case TensorRole::kUp: return linear(intermediate, hidden, config.mlp_bias);
    case TensorRole::kDown: return linear(hidden, intermediate, config.mlp_bias);
    case TensorRole::kCount: break;
  }
  return std::nullopt;
}

// A model's tensors by their roles.
class Tensors {
 public:
  Tensors(const TensorFile& file, const TensorNames& names, const ModelConfig& config) : file_(file), names_(names), config_(config) {}

  const TensorView& Weight(TensorRole role, int64_t layer) const {
    const std::string name = TensorName(names_, role, layer) + ".weight";
    const TensorView* view = Checked(name, FormOf(role, config_)->shape);
    if (view == nullptr) throw Error(ErrorKind::kModelFile, "tensor '" + name + "' is missing", name);
    return *view;
  }

  // nullptr if the layer has no bias.
  const TensorView* BiasOf(TensorRole role, int64_t layer) const {
    const std::optional<TensorForm> form = FormOf(role, config_);
    if (form->bias == Bias::kNone) return nullptr;
    const std::string name = TensorName(names_, role, layer) + ".bias";
    const TensorView* view = Checked(name, {form->shape[0]});
    if (view == nullptr && form->bias == Bias::kRequired) throw Error(ErrorKind::kModelFile, "tensor '" + name + "' is missing", name);
    return view;
  }

 private:
  const TensorView* Checked(const std::string& name, const std::vector<uint64_t>& shape) const {
    const TensorView* view = file_.Find(name);
    if (view != nullptr && view->shape != shape) {
      throw Error(ErrorKind::kModelFile,
                  "tensor '" + name + "' has shape " + ShapeText(view->shape) + ", the config says " + ShapeText(shape), name);
    }
    return view;
  }

  const TensorFile& file_;
  const TensorNames& names_;
  const ModelConfig& config_;
};

class Loader {
 public:
  Loader(const KernelContext& context, const TensorFile& file, const TensorNames& names, const ModelConfig& config, WeightFormat format,
         const std::vector<int64_t>& source_layers, const std::atomic<bool>* dropped)
      : context_(context),
        tensors_(file, names, config),
        config_(config),
        format_(format),
        source_layers_(source_layers),
        dropped_(dropped) {}

  ModelWeights Load() {
    ModelWeights weights;
    weights.arena = std::make_unique<HugeArena>();
    arena_ = weights.arena.get();
    weights.embedding = Matrix(tensors_.Weight(TensorRole::kEmbedding, 0));
    weights.final_norm = Norm(TensorRole::kFinalNorm, 0);
    if (!config_.tied_embeddings) weights.head = Matrix(tensors_.Weight(TensorRole::kHead, 0));
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      weights.layers.push_back(LoadLayer(source_layers_.empty() ? layer : source_layers_[static_cast<size_t>(layer)]));
    }
    return weights;
  }

 private:
  PackedMatrix Matrix(const TensorView& view, const std::function<int64_t(int64_t)>& source_row = nullptr) const {
    if (dropped_ != nullptr && *dropped_) throw Error(ErrorKind::kInterrupted, "nobody waits for this model any more");
    return {context_, view, format_, source_row, arena_};
  }

  LayerWeights LoadLayer(int64_t layer) {
    LayerWeights w;
    w.attention_norm = Norm(TensorRole::kAttentionNorm, layer);
    w.query = Linear(TensorRole::kQuery, layer, config_.interleaved_qk);
    w.key = Linear(TensorRole::kKey, layer, config_.interleaved_qk);
    w.value = Linear(TensorRole::kValue, layer);
    w.attention_output = Linear(TensorRole::kAttentionOutput, layer);
    w.mlp_norm = Norm(TensorRole::kMlpNorm, layer);
    w.gate = Linear(TensorRole::kGate, layer);
    w.up = Linear(TensorRole::kUp, layer);
    w.down = Linear(TensorRole::kDown, layer);
    w.query_norm = Norm(TensorRole::kQueryNorm, layer);
    w.key_norm = Norm(TensorRole::kKeyNorm, layer);
    w.post_attention_norm = Norm(TensorRole::kPostAttentionNorm, layer);
    w.post_mlp_norm = Norm(TensorRole::kPostMlpNorm, layer);
    return w;
  }

  static std::vector<float> Values(const TensorView& view) {
    std::vector<float> values(view.shape[0]);
    std::vector<uint8_t> bytes(view.num_bytes);
    view.Read(0, view.num_bytes, bytes.data());
    DequantizeRow(view.dtype, bytes.data(), static_cast<int64_t>(values.size()), values.data());
    return values;
  }

  // Empty if the model has no such norm.
  WeightVector Norm(TensorRole role, int64_t layer) const {
    if (!FormOf(role, config_)) return {};
    std::vector<float> values = Values(tensors_.Weight(role, layer));
    if (config_.norm_weight_plus_one) {
      for (float& value : values) value = 1.0f + value;
    }
    return {context_, values};
  }

  LinearWeights Linear(TensorRole role, int64_t layer, bool interleaved = false) const {
    // Row 2 i + j of a head's rotated part in the file (adjacent-pair RoPE) is row j * rotary_dim / 2 + i in the halves convention.
    const int64_t head_dim = config_.head_dim;
    const int64_t rotary_dim = config_.ropes[0].rotary_dim;
    const auto source_row = [head_dim, rotary_dim](int64_t row) {
      const int64_t within = row % head_dim;
      if (within >= rotary_dim) return row;
      return row - within + 2 * (within % (rotary_dim / 2)) + within / (rotary_dim / 2);
    };
    LinearWeights weights;
    const TensorView& view = tensors_.Weight(role, layer);
    weights.matrix = interleaved ? Matrix(view, source_row) : Matrix(view);
    if (const TensorView* bias = tensors_.BiasOf(role, layer); bias != nullptr) {
      const std::vector<float> stored = Values(*bias);
      std::vector<float> values = stored;
      for (size_t row = 0; interleaved && row < values.size(); ++row)
        values[row] = stored[static_cast<size_t>(source_row(static_cast<int64_t>(row)))];
      weights.bias = {context_, values};
    }
    return weights;
  }

  const KernelContext& context_;
  Tensors tensors_;
  const ModelConfig& config_;
  WeightFormat format_;
  const std::vector<int64_t>& source_layers_;
  const std::atomic<bool>* dropped_;
  MemorySource* arena_ = nullptr;
};

const char* PackedTypeName(PackedType type) {
  switch (type) {
    case PackedType::kF32: return "f32";
    case PackedType::kF16:
    case PackedType::kF16Rows: return "f16";
    case PackedType::kBF16:
    case PackedType::kBF16Rows: return "bf16";
    case PackedType::kQ4: return "q4";
    case PackedType::kQ4Min: return "q4m";
    case PackedType::kQ4K: return "q4k";
    case PackedType::kQ5: return "q5";
    case PackedType::kQ5Min: return "q5m";
    case PackedType::kQ5K: return "q5k";
    case PackedType::kQ2: return "q2";
    case PackedType::kQ2K: return "q2k";
    case PackedType::kQ3K: return "q3k";
    case PackedType::kQ6K: return "q6k";
    case PackedType::kTable: return "q4t";
    case PackedType::kTableK: return "q4tk";
    case PackedType::kTableExp: return "q4te";
    case PackedType::kW8: return "q8f";
    case PackedType::kQ8: return "q8";
  }
  return "";
}

template <typename Visit>
void VisitMatrices(const ModelWeights& weights, const Visit& visit) {
  visit(weights.embedding);
  if (weights.head.num_bytes() > 0) visit(weights.head);
  for (const LayerWeights& layer : weights.layers) {
    for (const LinearWeights* linear :
         {&layer.query, &layer.key, &layer.value, &layer.attention_output, &layer.gate, &layer.up, &layer.down}) {
      visit(linear->matrix);
    }
  }
}

// Calls visit(role, layer) for each tensor of the model.
template <typename Visit>
void VisitTensors(const TensorNames& names, const ModelConfig& config, const Visit& visit) {
  for (size_t i = 0; i < static_cast<size_t>(TensorRole::kCount); ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (!FormOf(role, config)) continue;
    const bool in_each_layer = names[i].find("{}") != std::string::npos;
    for (int64_t layer = 0; layer < (in_each_layer ? config.num_layers : 1); ++layer) visit(role, layer);
  }
}

}  // namespace

uint64_t WeightPlan::num_bytes() const {
  uint64_t total = 0;
  for (const auto& [type, bytes] : bytes_by_type) total += bytes;
  return total;
}

WeightPlan PlanWeights(const KernelContext& context, const TensorFile& file, const TensorNames& names, const ModelConfig& config,
                       WeightFormat format, const std::vector<int64_t>& source_layers) {
  const Tensors tensors(file, names, config);
  WeightPlan plan;
  VisitTensors(names, config, [&](TensorRole role, int64_t layer) {
    const int64_t source = source_layers.empty() ? layer : source_layers[static_cast<size_t>(layer)];
    const TensorView& view = tensors.Weight(role, source);
    if (view.shape.size() == 1) {
      plan.bytes_by_type[PackedTypeName(PackedType::kF32)] += view.shape[0] * sizeof(float);
      return;
    }
    const PackedForm form =
        PackedFormOf(context, view.dtype, format, static_cast<int64_t>(view.shape[0]), static_cast<int64_t>(view.shape[1]));
    plan.bytes_by_type[PackedTypeName(form.type)] += form.num_bytes;
  });
  return plan;
}

std::vector<ExpectedTensor> ExpectedTensors(const TensorNames& names, const ModelConfig& config) {
  std::vector<ExpectedTensor> tensors;
  VisitTensors(names, config, [&](TensorRole role, int64_t layer) {
    const TensorForm form = *FormOf(role, config);
    const std::string name = TensorName(names, role, layer);
    tensors.push_back({name + ".weight", form.shape});
    if (form.bias == Bias::kRequired) tensors.push_back({name + ".bias", {form.shape[0]}});
  });
  return tensors;
}

uint64_t ModelWeights::num_bytes() const {
  uint64_t total = 0;
  VisitMatrices(*this, [&](const PackedMatrix& matrix) { total += matrix.num_bytes(); });
  return total;
}

std::string ModelWeights::TypeNames() const {
  std::set<std::string> names;
  VisitMatrices(*this, [&](const PackedMatrix& matrix) { names.insert(PackedTypeName(matrix.view().type)); });
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "+") + name;
  return text;
}

bool ModelWeights::HasQuantizedLayers() const {
  bool found = false;
  VisitMatrices(*this, [&](const PackedMatrix& matrix) {
    const bool is_looked_up = &matrix == &embedding && head.num_bytes() > 0;
    found = found || (!is_looked_up && IsQuantizedPacked(matrix.view().type));
  });
  return found;
}

std::map<std::string, UnpackedBytes> ModelWeights::Unpacked() const {
  std::map<std::string, UnpackedBytes> unpacked;
  VisitMatrices(*this, [&](const PackedMatrix& matrix) {
    if (!matrix.is_unpacked()) return;
    UnpackedBytes& bytes = unpacked[Info(matrix.source_dtype()).name];
    bytes.in_file += matrix.source_bytes();
    bytes.in_memory += matrix.num_bytes();
  });
  return unpacked;
}

void LocateWeights(const TensorFile& file, const TensorNames& names, const ModelConfig& config) {
  const Tensors tensors(file, names, config);
  VisitTensors(names, config, [&](TensorRole role, int64_t layer) {
    tensors.Weight(role, layer);
    tensors.BiasOf(role, layer);
  });
}

bool IsEmbeddingAgain(const TensorView& head, const TensorFile& file, const TensorNames& names, const ModelConfig& config) {
  const TensorView& embedding = Tensors(file, names, config).Weight(TensorRole::kEmbedding, 0);
  return head.dtype == embedding.dtype && head.shape == embedding.shape && EqualBytes(head, embedding);
}

ModelWeights LoadWeights(const KernelContext& context, const TensorFile& file, const TensorNames& names, const ModelConfig& config,
                         WeightFormat format, const std::vector<int64_t>& source_layers, const std::atomic<bool>* dropped) {
  return Loader(context, file, names, config, format, source_layers, dropped).Load();
}

}  // namespace llmi
