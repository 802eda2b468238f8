#include "model/loader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/errors.h"
#include "io/recorded_tensors.h"
#include "model/checkpoints/checkpoint.h"
#include "model/file_kind.h"
#include "model/inert.h"
#include "model/rank_mixers.h"
#include "model/weights.h"

namespace llmi {
namespace {

constexpr size_t kMaxNamed = 8;  // names in one message

std::string Listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxNamed); ++i) text += (i > 0 ? ", " : "") + names[i];
  return names.size() > kMaxNamed ? text + " and " + std::to_string(names.size() - kMaxNamed) + " more" : text;
}

bool EqualBytes(const TensorView& a, const TensorView& b) {
  constexpr uint64_t kChunkBytes = 1 << 20;
  if (a.num_bytes != b.num_bytes) return false;
  std::vector<uint8_t> bytes_a(std::min(kChunkBytes, a.num_bytes)), bytes_b(bytes_a.size());
  for (uint64_t begin = 0; begin < a.num_bytes; begin += kChunkBytes) {
    const uint64_t count = std::min(kChunkBytes, a.num_bytes - begin);
    a.Read(begin, count, bytes_a.data());
    b.Read(begin, count, bytes_b.data());
    if (std::memcmp(bytes_a.data(), bytes_b.data(), count) != 0) return false;
  }
  return true;
}

// Throws if peft has wrapped a layer in an adapter.
void RefuseAdapters(const std::string& path, const TensorFile& tensors) {
  for (const TensorView* view : tensors.Tensors()) {
    if (view->name.find(".base_layer.") == std::string::npos) continue;
    throw Error(
        ErrorKind::kUnsupportedModel,
        path + ": tensor '" + view->name +
            "' is wrapped by an adapter (LoRA): merge the adapter into the model first (merge_and_unload of peft) and load what that saves",
        view->name);
  }
}

// Whether `view` is the head that a file stores although the spec ties the head to the embedding: it has the embedding's shape. Throws
// Error(kUnsupportedModel) if it is another matrix than the embedding.
bool IsTiedHead(const std::string& path, const TensorView& view, const TensorFile& tensors, const ModelSpec& spec) {
  const TensorView* embedding = tensors.Find(spec.embedding.weight.name);
  if (!spec.tied_head() || view.shape != embedding->shape) return false;
  if (view.dtype == embedding->dtype && EqualBytes(view, *embedding)) return true;
  throw Error(ErrorKind::kUnsupportedModel,
              path + ": tensor '" + view.name + "' differs from the embedding, to which the config ties the head: " +
                  "hf_overrides={\"tie_word_embeddings\": False} takes the tensor, hf_overrides={\"" + view.name +
                  "\": None} the embedding",
              view.name);
}

bool IsIgnored(const std::string& name, const ModelSpec& spec) {
  return InertTensorReason(name) != nullptr || std::any_of(spec.ignored_tensors.begin(), spec.ignored_tensors.end(),
                                                           [&](const std::string& pattern) { return Matches(pattern, name); });
}

// Throws Error(kUnsupportedModel) that names the tensors that no binding reads and that may matter.
void RefuseUnread(const std::string& path, const RecordedTensors& tensors, const ModelSpec& spec) {
  std::vector<std::string> unknown;
  for (const TensorView* view : tensors.Unread()) {
    if (!IsIgnored(view->name, spec) && !IsTiedHead(path, *view, tensors, spec)) unknown.push_back("'" + view->name + "'");
  }
  if (unknown.empty()) return;
  const std::string first = unknown[0].substr(1, unknown[0].size() - 2);
  throw Error(
      ErrorKind::kUnsupportedModel,
      path + ": " + std::to_string(unknown.size()) + " tensors have no place in the model: " + Listed(unknown) +
          (first.find(".lora_") == std::string::npos ? ""
                                                     : ". An adapter (LoRA): merge it into the model first (merge_and_unload of peft)") +
          ". The numbers might be wrong without them. To leave them out, name them (* stands for any text): hf_overrides={\"" + first +
          "\": None}",
      first);
}

}  // namespace

std::unique_ptr<Decoder> LoadDecoder(const KernelContext& context, const ModelFiles& files, ModelSpec spec, WeightFormat format,
                                     const std::vector<int64_t>& layers, const Admission& admit, const std::atomic<bool>* dropped,
                                     std::unique_ptr<Ranks> ranks) {
  if (files.gguf() != nullptr) RequireModel(*files.gguf());
  const std::unique_ptr<Checkpoint> checkpoint = OpenCheckpoint(files, spec.quantization);
  // All tensors of the model are read through this one object.
  const RecordedTensors tensors(*checkpoint);
  RefuseAdapters(files.path(), tensors);
  for (const TensorView* view : checkpoint->Tensors()) {
    if (!IsIgnored(view->name, spec)) RequireWeights(*view);
  }
  // Locates the tensors of all layers. So tensors of layers that are not loaded do not count as unknown.
  LocateWeights(tensors, spec);
  RefuseUnread(files.path(), tensors, spec);
  KeepLayers(layers, &spec);
  if (admit) admit([&](WeightFormat wanted) { return PlanWeights(context, tensors, spec, wanted); });
  RowsHere rows;
  if (ranks != nullptr) {
    rows = [&](const TensorSlot& slot) {
      const RowSpan here = ranks->plan().Rows(slot, ranks->rank());
      return std::pair(here.begin, here.size());
    };
  }
  ModelWeights weights = LoadWeights(context, tensors, &spec, format, dropped, rows);
  if (ranks != nullptr) TakeOwnHeads(context, *ranks, &spec, &weights);
  return std::make_unique<Decoder>(std::move(spec), std::move(weights), std::move(ranks));
}

void KeepLayers(const std::vector<int64_t>& layers, ModelSpec* spec) {
  if (layers.empty()) return;
  std::vector<LayerSpec> kept;
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool ascends = i == 0 || layers[i] > layers[i - 1];
    if (layers[i] < 0 || layers[i] >= spec->num_layers() || !ascends) {
      throw Error(ErrorKind::kInvalidArgument,
                  "layers must ascend and lie in [0, " + std::to_string(spec->num_layers()) + "), not " + std::to_string(layers[i]),
                  "layers");
    }
    kept.push_back(spec->layers[static_cast<size_t>(layers[i])]);
    int& donor = kept.back().attention.kv_donor;
    if (donor < 0) continue;
    const auto found = std::ranges::find(layers, donor);
    if (found == layers.end()) {
      throw Error(
          ErrorKind::kInvalidArgument,
          "layers leaves out layer " + std::to_string(donor) + ", whose keys and values layer " + std::to_string(layers[i]) + " reads",
          "layers");
    }
    donor = static_cast<int>(found - layers.begin());
  }
  spec->layers = std::move(kept);
}

}  // namespace llmi
