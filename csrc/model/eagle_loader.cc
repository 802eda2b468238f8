// Loads an EAGLE layer from its file.
#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "core/errors.h"
#include "io/recorded_tensors.h"
#include "model/checkpoints/checkpoint.h"
#include "model/dequantize.h"
#include "model/drafter_tensors.h"
#include "model/eagle.h"
#include "model/tensor_slots.h"

namespace llmi {
namespace {

constexpr const char* kFcWeight = "fc.weight";
constexpr const char* kFcBias = "fc.bias";
// Parts of published files that do not change the result: tables of the rotation.
constexpr const char* kInert[] = {"layers.0.self_attn.rotary_emb.inv_freq", "midlayer.self_attn.rotary_emb.inv_freq"};

// A part of the columns of a matrix, as a tensor of its own in memory: in the matrix's type, or in fp32 where the part ends inside a block.
class Columns {
 public:
  Columns(const TensorView& view, uint64_t begin, uint64_t count, std::string name) {
    const bool whole_blocks = begin % Info(view.dtype).block_size == 0 && count % Info(view.dtype).block_size == 0;
    const DType dtype = whole_blocks ? view.dtype : DType::kF32;
    const auto bytes_of = [](DType type, uint64_t values) { return values / Info(type).block_size * Info(type).block_bytes; };
    const uint64_t row_bytes = bytes_of(view.dtype, view.shape[1]), part_bytes = bytes_of(dtype, count);
    std::vector<uint8_t> row(row_bytes);
    std::vector<float> values(whole_blocks ? 0 : view.shape[1]);
    bytes_.resize(view.shape[0] * part_bytes);
    for (uint64_t r = 0; r < view.shape[0]; ++r) {
      view.Read(r * row_bytes, row_bytes, row.data());
      const uint8_t* from = row.data();
      if (!whole_blocks) {
        DequantizeRow(view.dtype, row.data(), static_cast<int64_t>(values.size()), values.data());
        from = reinterpret_cast<const uint8_t*>(values.data());
      }
      std::copy_n(from + bytes_of(dtype, begin), part_bytes, bytes_.data() + r * part_bytes);
    }
    source_ = std::make_unique<MemoryBytes>(bytes_.data(), bytes_.size());
    view_ = {std::move(name), dtype, {view.shape[0], count}, bytes_.size(), 0, source_.get()};
  }
  const TensorView& view() const { return view_; }

 private:
  std::vector<uint8_t> bytes_;
  std::unique_ptr<MemoryBytes> source_;
  TensorView view_;
};

// Matrices in Q4_0 are stored as bytes [rows, columns / 32 * 18], under the matrix's name with this behind it (llmi.training.packed).
constexpr std::string_view kPackedSuffix = ".q4_0";

// The matrix in Q4_0 that the bytes of `stored` are. Throws Error(kModelFile) if they are none.
TensorView PackedQ4(const std::string& path, const TensorView& stored) {
  const DTypeInfo& info = Info(DType::kQ4_0);
  const auto refuse = [&](const std::string& problem) {
    throw Error(ErrorKind::kModelFile, path + ": tensor '" + stored.name + "' " + problem, stored.name);
  };
  const bool fits = stored.dtype == DType::kU8 && stored.shape.size() == 2 && stored.shape[1] % info.block_bytes == 0;
  if (!fits) refuse("must be U8 [rows, columns / 32 * 18]");
  std::vector<uint8_t> row(stored.shape[1]);
  for (uint64_t r = 0; r < stored.shape[0]; ++r) {
    stored.Read(r * row.size(), row.size(), row.data());
    for (size_t block = 0; block < row.size(); block += info.block_bytes) {
      if ((row[block + 1] & 0x7C) == 0x7C)
        refuse("holds NaN or infinity: the scale of block " + std::to_string(block / info.block_bytes) + " of row " + std::to_string(r));
    }
  }
  TensorView view = stored;
  view.name.resize(view.name.size() - kPackedSuffix.size());
  view.dtype = DType::kQ4_0;
  view.shape[1] = stored.shape[1] / info.block_bytes * info.block_size;
  return view;
}

// A drafter's tensors under the names that they have unpacked, where matrices that read [embedding; hidden row] are two: the first half of
// the columns under the name with kOfEmbedding behind it, the second under its own.
constexpr const char* kOfEmbedding = "#embedding";
class DrafterTensors : public TensorFile {
 public:
  DrafterTensors(const std::string& path, const TensorFile& file, const std::vector<std::string>& halved, uint64_t hidden_size) {
    for (const TensorView* view : file.Tensors()) {
      const bool is_packed = view->name.ends_with(kPackedSuffix);
      TensorView plain = is_packed ? PackedQ4(path, *view) : *view;
      if (is_packed && file.Find(plain.name) != nullptr) {
        throw Error(ErrorKind::kModelFile,
                    path + ": tensor '" + view->name + "' has another form, '" + plain.name + "': the file must have one of them",
                    view->name);
      }
      tensors_.emplace(plain.name, std::move(plain));
    }
    for (const std::string& name : halved) {
      const auto found = tensors_.find(name);
      if (found == tensors_.end() || IsCheckpointPart(found->second.dtype)) continue;  // refused where it is located
      const TensorView& view = found->second;
      if (view.shape.size() != 2 || view.shape[1] != 2 * hidden_size) continue;
      halves_[name] = std::make_unique<Columns>(view, hidden_size, hidden_size, name);
      halves_[name + kOfEmbedding] = std::make_unique<Columns>(view, 0, hidden_size, name + kOfEmbedding);
    }
  }
  const TensorView* Find(const std::string& name) const override {
    if (const auto half = halves_.find(name); half != halves_.end()) return &half->second->view();
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }
  std::vector<const TensorView*> Tensors() const override {
    std::vector<const TensorView*> views;
    for (const auto& [name, view] : tensors_) views.push_back(&view);
    return views;
  }

 private:
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::unique_ptr<Columns>> halves_;
};

// Quantised matrices stay as they are; with a target in fp32 they become the values that they stand for.
WeightFormat FormatOf(const TensorFile& file, const PackedMatrix& target) {
  const WeightFormat format = FormatLike(target);
  const std::vector<const TensorView*> views = file.Tensors();
  const bool is_packed = std::any_of(views.begin(), views.end(), [](const TensorView* view) { return IsQuantized(view->dtype); });
  return is_packed && format != WeightFormat::kF32 ? WeightFormat::kAsStored : format;
}

class EagleLoader {
 public:
  EagleLoader(const KernelContext& context, const ModelFiles& files, ModelSpec* spec, const EagleFile& file, const Decoder& target)
      : context_(context),
        spec_(*spec),
        path_(files.path()),
        drafter_(files.path(), files.tensors(), Halved(*spec, !file.form.taps.empty()), static_cast<uint64_t>(spec->hidden_size)),
        tensors_(drafter_),
        format_(FormatOf(drafter_, target.weights().layers[0].query_matrix())) {}

  EagleWeights Load(const EagleFile& file) {
    const bool is_eagle3 = !file.form.taps.empty();
    RefuseIntegers(file.inert);
    if (drafter_.Find(spec_.embedding.weight.name) == nullptr) spec_.embedding.weight = {};
    LocateWeights(tensors_, spec_);
    EagleWeights weights;
    if (!is_eagle3) {
      weights.from_embedding = Linear(std::string(kFcWeight) + kOfEmbedding, kFcWeight, spec_.hidden_size);
      weights.from_hidden = Linear(kFcWeight, kFcWeight, spec_.hidden_size);
      if (drafter_.Find(kFcBias) != nullptr) weights.from_embedding.bias = Bias(kFcBias);
    } else {
      LoadEagle3(file, &weights);
    }
    weights.model = LoadWeights(context_, tensors_, &spec_, format_);
    for (const std::string& name : file.inert) tensors_.Find(name);
    for (const char* name : kInert) tensors_.Find(name);
    RefuseUnreadDraft(path_, tensors_, "an EAGLE layer");
    return weights;
  }

 private:
  // Weights are floats or quantised; a list of tokens is none, and its name is among those that are not read here.
  void RefuseIntegers(const std::vector<std::string>& known) const {
    for (const TensorView* view : drafter_.Tensors()) {
      if (!IsCheckpointPart(view->dtype) || std::find(known.begin(), known.end(), view->name) != known.end()) continue;
      throw Error(
          ErrorKind::kUnsupportedModel,
          path_ + ": tensor '" + view->name + "' has dtype " + Info(view->dtype).name + ", which holds no weights of an EAGLE layer",
          view->name);
    }
  }

  static std::vector<std::string> Halved(const ModelSpec& spec, bool is_eagle3) {
    if (!is_eagle3) return {kFcWeight};
    const AttentionSpec& attention = spec.layers[0].attention;
    return {attention.query.weight.name, attention.key.weight.name, attention.value.weight.name};
  }

  void LoadEagle3(const EagleFile& file, EagleWeights* weights) {
    const auto width = static_cast<int64_t>(file.form.taps.size()) * spec_.hidden_size;
    weights->form = file.form;
    weights->from_taps = Linear(kFcWeight, kFcWeight, width);
    LoadTapNorms(file.tap_norms, width, weights);
    if (drafter_.Find(kFcBias) != nullptr) weights->from_taps.bias = Bias(kFcBias);
    weights->embedding_norm.weight = Bias(file.embedding_norm);
    if (!file.stream_norm.empty()) weights->stream_norm.weight = Bias(file.stream_norm);
    const AttentionSpec& attention = spec_.layers[0].attention;
    const std::pair<LinearWeights*, const LinearSpec*> halves[] = {
        {&weights->query, &attention.query}, {&weights->key, &attention.key}, {&weights->value, &attention.value}};
    for (const auto& [to, from] : halves) {
      const int64_t heads = to == &weights->query ? attention.num_heads : attention.num_kv_heads;
      *to = Heads(from->weight, heads);
    }
    if (file.head.empty()) return;
    const std::vector<uint64_t> shape = {file.shortlist.size(), static_cast<uint64_t>(spec_.hidden_size)};
    weights->head = {context_, FoundTensor(path_, tensors_, file.head, shape), format_};
  }

  void LoadTapNorms(const std::vector<std::string>& names, int64_t width, EagleWeights* weights) {
    if (names.empty()) return;
    weights->num_tap_norms = static_cast<int64_t>(names.size());
    std::vector<float> all;
    for (const std::string& name : names) {
      const uint64_t size = static_cast<uint64_t>(width) / names.size();
      const std::vector<float> values = FloatVector(FoundTensor(path_, tensors_, name, {size}));
      all.insert(all.end(), values.begin(), values.end());
    }
    weights->tap_norm.weight = {context_, all};
  }

  // A matrix of hidden_size rows. file_name: in messages.
  LinearWeights Linear(const std::string& name, const std::string& file_name, int64_t num_cols) {
    tensors_.Find(file_name);
    const TensorView* half = tensors_.Find(name);
    const std::vector<uint64_t> shape = {static_cast<uint64_t>(spec_.hidden_size), static_cast<uint64_t>(num_cols)};
    if (half == nullptr) FoundTensor(path_, tensors_, file_name, {shape[0], name == file_name ? shape[1] : 2 * shape[1]});
    LinearWeights weights;
    weights.matrix = {context_, FoundTensor(path_, tensors_, name, shape), format_};
    return weights;
  }

  // The columns of a projection that read the embedding: rows of heads, filled up with rows of zeros.
  LinearWeights Heads(const TensorBinding& binding, int64_t num_heads) {
    const AttentionSpec& attention = spec_.layers[0].attention;
    TensorSlot slot;
    slot.binding = binding;
    slot.num_rows = num_heads * attention.head_dim;
    slot.num_cols = spec_.hidden_size;
    slot.head_rows = attention.head_dim;
    slot.padded_head_rows = attention.padded_head_dim();
    const std::vector<uint64_t> shape = {static_cast<uint64_t>(slot.num_rows), static_cast<uint64_t>(slot.num_cols)};
    const TensorView& view = FoundTensor(path_, tensors_, binding.name + kOfEmbedding, shape);
    const RowMap rows = {slot.packed_rows(), [&](int64_t row) { return slot.FileRow(row); }};
    LinearWeights weights;
    weights.matrix = {context_, view, format_, &rows};
    return weights;
  }

  WeightVector Bias(const std::string& name) {
    return {context_, FloatVector(FoundTensor(path_, tensors_, name, {static_cast<uint64_t>(spec_.hidden_size)}))};
  }

  const KernelContext& context_;
  ModelSpec& spec_;
  const std::string path_;
  const DrafterTensors drafter_;
  const RecordedTensors tensors_;
  const WeightFormat format_;
};

}  // namespace

std::unique_ptr<EagleDecoder> LoadEagle(const KernelContext& context, const EagleFile& file, const ModelFiles& target_files,
                                        const Decoder& target) {
  ModelSpec spec = ParseSpec(file.spec, file.files->path());
  CheckArgument(std::ranges::none_of(spec.layers, &LayerSpec::has_experts), "an EAGLE layer has no experts");
  CheckArgument(spec.num_layers() == 1 && spec.hidden_size == target.spec().hidden_size, "an EAGLE layer has the width of its target");
  EagleLoader loader(context, *file.files, &spec, file, target);
  EagleWeights weights = loader.Load(file);
  if (file.form.taps.empty() && !file.shortlist.empty()) weights.head = HeadRows(context, file.shortlist, target_files, target);
  if (weights.head.num_bytes() > 0) weights.shortlist = file.shortlist;
  return std::make_unique<EagleDecoder>(std::move(spec), std::move(weights));
}

}  // namespace llmi
