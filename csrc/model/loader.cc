#include "model/loader.h"

#include <sys/stat.h>

#include <string_view>
#include <utility>

#include "core/errors.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "model/architecture.h"

namespace llmi {
namespace {

bool IsDirectory(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

Json ReadConfigJson(const std::string& path) {
  constexpr uint64_t kMaxConfigBytes = 1 << 22;
  const MappedFile file(path);
  if (file.size() > kMaxConfigBytes) throw Error(ErrorKind::kModelFile, path + ": larger than 4 MiB", "config.json");
  return Json::Parse(std::string_view(reinterpret_cast<const char*>(file.data()), file.size()), path);
}

struct OpenedModel {
  std::unique_ptr<TensorFile> file;
  const Architecture* architecture = nullptr;
  ModelConfig config;
  TensorNames names;
};

OpenedModel Open(const std::string& path, bool with_tensors) {
  OpenedModel model;
  if (IsDirectory(path)) {
    const std::string config_path = path + "/config.json";
    const Json json = ReadConfigJson(config_path);
    model.architecture = &ArchitectureOf(json, config_path);
    model.config = model.architecture->from_json(json, config_path);
    model.names = model.architecture->hf_names;
    if (with_tensors) model.file = SafetensorsFile::OpenDirectory(path);
  } else {
    auto gguf = std::make_unique<GgufFile>(path);
    model.architecture = &ArchitectureOf(*gguf);
    model.config = model.architecture->from_gguf(*gguf);
    model.names = model.architecture->gguf_names;
    model.file = std::move(gguf);
  }
  model.config.Validate(path);
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

std::unique_ptr<Decoder> LoadDecoder(const KernelContext& context, const std::string& path, WeightFormat format,
                                     const std::vector<int64_t>& layers) {
  OpenedModel model = Open(path, true);
  KeepLayers(layers, &model.config);
  ModelWeights weights = LoadWeights(context, *model.file, model.names, model.config, format, layers);
  return std::make_unique<Decoder>(std::move(model.config), std::move(weights));
}

ModelConfig LoadConfig(const std::string& path, const std::vector<int64_t>& layers) {
  ModelConfig config = Open(path, false).config;
  KeepLayers(layers, &config);
  return config;
}

}  // namespace llmi
