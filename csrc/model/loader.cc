#include "model/loader.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/errors.h"
#include "core/json_fields.h"
#include "io/gguf.h"
#include "io/gguf_fields.h"
#include "io/model_files.h"
#include "io/recorded_tensors.h"
#include "model/architecture.h"
#include "model/checkpoints/checkpoint.h"
#include "model/file_kind.h"
#include "model/inert.h"
#include "model/name_prefix.h"
#include "model/overrides.h"

namespace llmi {
namespace {

struct OpenedModel {
  std::unique_ptr<Checkpoint> checkpoint;    // of a directory: its tensors as plain ones
  std::unique_ptr<TensorFile> renamed;       // the tensors by the family's names; null if the files use these names
  std::unique_ptr<RecordedTensors> tensors;  // a view of `renamed`, of `checkpoint`, or of a GGUF file
  const Architecture* architecture = nullptr;
  ModelConfig config;
  TensorNames names;
};

constexpr size_t kMaxNamed = 8;  // names in one message

std::string Listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxNamed); ++i) text += (i > 0 ? ", " : "") + names[i];
  return names.size() > kMaxNamed ? text + " and " + std::to_string(names.size() - kMaxNamed) + " more" : text;
}

// The key that an override of this field must name: rope_scaling for "rope_scaling.factor", as an override replaces whole objects.
std::string OverridableKey(FieldSource source, const std::string& name) {
  return source == FieldSource::kConfigJson ? name.substr(0, name.find('.')) : name;
}

// Throws Error(kUnsupportedModel) that names all fields that are neither read nor inert.
template <typename Fields>
void RefuseUnread(const Fields& fields, FieldSource source, const std::string& architecture) {
  std::vector<std::string> unknown;
  std::string first;
  for (const UnreadField& field : fields.Unread()) {
    if (InertReason(source, architecture, field) != nullptr) continue;
    if (unknown.empty()) first = field.name;
    unknown.push_back("'" + field.name + "' = " + field.value.Text());
  }
  if (unknown.empty()) return;
  throw Error(ErrorKind::kUnsupportedModel,
              fields.source() + ": the " + architecture + " family does not read " + Listed(unknown) +
                  ": the numbers might be wrong without it. To load the model anyway, set or remove (None) the key: hf_overrides={\"" +
                  OverridableKey(source, first) + "\": None}",
              first);
}

[[noreturn]] void RefuseHead(const std::string& path, const std::string& name) {
  throw Error(ErrorKind::kUnsupportedModel,
              path + ": tensor '" + name + "' differs from the embedding, to which the config ties the head: " +
                  "hf_overrides={\"tie_word_embeddings\": False} takes the tensor, hf_overrides={\"" + name + "\": None} the embedding",
              name);
}

// The same for tensors. Throws Error(kInvalidArgument) for an override that matches nothing.
void RefuseUnread(const std::string& path, const OpenedModel& model, Overrides* overrides) {
  const std::string head = TensorName(model.names, TensorRole::kHead, 0) + ".weight";
  std::vector<std::string> unknown;
  for (const TensorView* view : model.tensors->Unread()) {
    if (InertTensorReason(view->name) != nullptr || overrides->LeavesOut(view->name)) continue;
    if (model.config.tied_embeddings && view->name == head) {
      if (!IsEmbeddingAgain(*view, *model.tensors, model.names, model.config)) RefuseHead(path, head);
      continue;
    }
    unknown.push_back("'" + view->name + "'");
  }
  if (!unknown.empty()) {
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
  overrides->CheckMet();
}

OpenedModel Open(const ModelFiles& files, Overrides* overrides) {
  OpenedModel model;
  if (files.gguf() == nullptr) {
    const std::string& config_path = files.config()->path();
    Json json = ReadConfigJson(*files.config());
    overrides->Apply(&json);
    const JsonFields fields(json, config_path);
    for (const char* key : {"quantization_config", "compression_config"}) fields.Find(key);  // OpenCheckpoint has read them
    model.architecture = &ArchitectureOf(fields);
    model.config = model.architecture->from_json(fields);
    overrides->CheckRead(fields, FieldSource::kConfigJson, model.architecture->name);
    RefuseUnread(fields, FieldSource::kConfigJson, model.architecture->name);
    model.names = model.architecture->hf_names;
    model.checkpoint = OpenCheckpoint(files.tensors(), json, config_path);
    model.renamed = WithModelPrefix(files.path(), *model.checkpoint);
    model.tensors = std::make_unique<RecordedTensors>(model.renamed != nullptr ? *model.renamed : *model.checkpoint);
  } else {
    RequireModel(*files.gguf());
    GgufFields fields(*files.gguf());
    overrides->Apply(&fields);
    model.tensors = std::make_unique<RecordedTensors>(*files.gguf());
    model.architecture = &ArchitectureOf(fields);
    model.config = model.architecture->from_gguf(fields, *model.tensors);
    overrides->CheckRead(fields, FieldSource::kGguf, model.architecture->name);
    RefuseUnread(fields, FieldSource::kGguf, model.architecture->name);
    model.names = model.architecture->gguf_names;
  }
  model.config.Validate(files.path());
  return model;
}

void KeepLayers(const std::vector<int64_t>& layers, ModelConfig* config) {
  if (layers.empty()) return;
  std::vector<LayerConfig> kept;
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool ascends = i == 0 || layers[i] > layers[i - 1];
    if (layers[i] < 0 || layers[i] >= config->num_layers || !ascends) {
      throw Error(ErrorKind::kInvalidArgument,
                  "layers must ascend and lie in [0, " + std::to_string(config->num_layers) + "), not " + std::to_string(layers[i]),
                  "layers");
    }
    kept.push_back(config->layers[static_cast<size_t>(layers[i])]);
  }
  config->layers = std::move(kept);
  config->num_layers = static_cast<int64_t>(config->layers.size());
}

}  // namespace

std::unique_ptr<Decoder> LoadDecoder(const KernelContext& context, const ModelFiles& files, WeightFormat format,
                                     const std::vector<int64_t>& layers, const std::string& overrides, const Admission& admit,
                                     const std::atomic<bool>* dropped) {
  Overrides changes(overrides);
  OpenedModel model = Open(files, &changes);
  // Locates the tensors of all layers. So tensors of layers that are not loaded do not count as unknown.
  LocateWeights(*model.tensors, model.names, model.config);
  RefuseUnread(files.path(), model, &changes);
  KeepLayers(layers, &model.config);
  if (admit) {
    admit([&](WeightFormat wanted) { return PlanWeights(context, *model.tensors, model.names, model.config, wanted, layers); });
  }
  ModelWeights weights = LoadWeights(context, *model.tensors, model.names, model.config, format, layers, dropped);
  return std::make_unique<Decoder>(std::move(model.config), std::move(weights));
}

ModelConfig LoadConfig(const ModelFiles& files, const std::vector<int64_t>& layers, const std::string& overrides) {
  Overrides changes(overrides);
  ModelConfig config = Open(files, &changes).config;
  KeepLayers(layers, &config);
  return config;
}

std::vector<ExpectedTensor> LoadExpectedTensors(const ModelFiles& files, const std::string& overrides) {
  Overrides changes(overrides);
  const OpenedModel model = Open(files, &changes);
  return ExpectedTensors(model.names, model.config);
}

}  // namespace llmi
