#include "model/weights.h"

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

class Loader {
 public:
  Loader(const KernelContext& context, const TensorFile& file, const TensorNames& names, const ModelConfig& config, WeightFormat format,
         const std::vector<int64_t>& source_layers)
      : context_(context), file_(file), names_(names), config_(config), format_(format), source_layers_(source_layers) {}

  ModelWeights Load() {
    ModelWeights weights;
    weights.arena = std::make_unique<HugeArena>();
    arena_ = weights.arena.get();
    const auto hidden = static_cast<uint64_t>(config_.hidden_size);
    const auto vocab = static_cast<uint64_t>(config_.vocab_size);
    weights.embedding = Matrix(Find(TensorRole::kEmbedding, 0, ".weight", {vocab, hidden}));
    weights.final_norm = Norm(TensorRole::kFinalNorm, 0, hidden);
    if (!config_.tied_embeddings) weights.head = Matrix(Find(TensorRole::kHead, 0, ".weight", {vocab, hidden}));
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      weights.layers.push_back(LoadLayer(source_layers_.empty() ? layer : source_layers_[static_cast<size_t>(layer)]));
    }
    return weights;
  }

 private:
  PackedMatrix Matrix(const TensorView& view, const std::function<int64_t(int64_t)>& source_row = nullptr) const {
    return {context_, view, format_, source_row, arena_};
  }

  LayerWeights LoadLayer(int64_t layer) {
    LayerWeights w;
    const auto hidden = static_cast<uint64_t>(config_.hidden_size);
    const auto head_dim = static_cast<uint64_t>(config_.head_dim);
    const uint64_t query_rows = static_cast<uint64_t>(config_.num_heads) * head_dim;
    const uint64_t kv_rows = static_cast<uint64_t>(config_.num_kv_heads) * head_dim;
    const auto intermediate = static_cast<uint64_t>(config_.intermediate_size);
    w.attention_norm = Norm(TensorRole::kAttentionNorm, layer, hidden);
    w.query = Linear(TensorRole::kQuery, layer, query_rows, hidden, config_.qkv_bias, config_.interleaved_qk);
    w.key = Linear(TensorRole::kKey, layer, kv_rows, hidden, config_.qkv_bias, config_.interleaved_qk);
    w.value = Linear(TensorRole::kValue, layer, kv_rows, hidden, config_.qkv_bias, false);
    w.attention_output = Linear(TensorRole::kAttentionOutput, layer, hidden, query_rows, config_.output_bias, false);
    w.mlp_norm = Norm(TensorRole::kMlpNorm, layer, hidden);
    w.gate = Linear(TensorRole::kGate, layer, intermediate, hidden, config_.mlp_bias, false);
    w.up = Linear(TensorRole::kUp, layer, intermediate, hidden, config_.mlp_bias, false);
    w.down = Linear(TensorRole::kDown, layer, hidden, intermediate, config_.mlp_bias, false);
    if (config_.qk_norm) {
      w.query_norm = Norm(TensorRole::kQueryNorm, layer, head_dim);
      w.key_norm = Norm(TensorRole::kKeyNorm, layer, head_dim);
    }
    if (config_.sandwich_norms) {
      w.post_attention_norm = Norm(TensorRole::kPostAttentionNorm, layer, hidden);
      w.post_mlp_norm = Norm(TensorRole::kPostMlpNorm, layer, hidden);
    }
    return w;
  }

  const TensorView& Find(TensorRole role, int64_t layer, const char* suffix, const std::vector<uint64_t>& shape) const {
    const std::string name = TensorName(names_, role, layer) + suffix;
    const TensorView* view = file_.Find(name);
    if (view == nullptr) throw Error(ErrorKind::kModelFile, "tensor '" + name + "' is missing", name);
    if (view->shape != shape) {
      throw Error(ErrorKind::kModelFile,
                  "tensor '" + name + "' has shape " + ShapeText(view->shape) + ", the config says " + ShapeText(shape), name);
    }
    return *view;
  }

  std::vector<float> Vector(TensorRole role, int64_t layer, const char* suffix, uint64_t size) const {
    const TensorView& view = Find(role, layer, suffix, {size});
    std::vector<float> values(size);
    DequantizeRow(view.dtype, view.data, static_cast<int64_t>(size), values.data());
    return values;
  }

  WeightVector Norm(TensorRole role, int64_t layer, uint64_t size) const {
    std::vector<float> values = Vector(role, layer, ".weight", size);
    if (config_.norm_weight_plus_one) {
      for (float& value : values) value = 1.0f + value;
    }
    return {context_, values};
  }

  LinearWeights Linear(TensorRole role, int64_t layer, uint64_t rows, uint64_t cols, bool bias, bool interleaved) const {
    const TensorView& view = Find(role, layer, ".weight", {rows, cols});
    // Adjacent-pair RoPE stores row 2i + j of a head where the halves convention has row j head_dim/2 + i.
    const int64_t head_dim = config_.head_dim;
    const auto source_row = [head_dim](int64_t row) {
      const int64_t within = row % head_dim;
      return row - within + 2 * (within % (head_dim / 2)) + within / (head_dim / 2);
    };
    LinearWeights weights;
    weights.matrix = interleaved ? Matrix(view, source_row) : Matrix(view);
    if (bias) weights.bias = {context_, Vector(role, layer, ".bias", rows)};
    return weights;
  }

  const KernelContext& context_;
  const TensorFile& file_;
  const TensorNames& names_;
  const ModelConfig& config_;
  WeightFormat format_;
  const std::vector<int64_t>& source_layers_;
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
    case PackedType::kQ6K: return "q6k";
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

}  // namespace

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

ModelWeights LoadWeights(const KernelContext& context, const TensorFile& file, const TensorNames& names, const ModelConfig& config,
                         WeightFormat format, const std::vector<int64_t>& source_layers) {
  return Loader(context, file, names, config, format, source_layers).Load();
}

}  // namespace llmi
