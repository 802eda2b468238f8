#include "io/model_files.h"

#include <sys/stat.h>

#include <utility>

namespace llmi {
namespace {

bool IsDirectory(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

ModelFiles::ModelFiles(std::string path, const std::vector<File>& weights, File config, File index)
    : path_(std::move(path)), weights_(weights), config_(std::move(config)), index_(std::move(index)) {
  if (config_ == nullptr) {
    gguf_ = std::make_shared<const GgufFile>(weights_);
    return;
  }
  safetensors_ = std::make_unique<const SafetensorsFiles>(weights_);
  if (index_ != nullptr) safetensors_->CheckIndex(*index_);
}

ModelFiles::ModelFiles(const std::string& path)
    : ModelFiles(path, {std::make_shared<const InputFile>(IsDirectory(path) ? path + "/model.safetensors" : path)},
                 IsDirectory(path) ? std::make_shared<const InputFile>(path + "/config.json") : nullptr, nullptr) {}

const TensorFile& ModelFiles::tensors() const {
  if (gguf_ != nullptr) return *gguf_;
  return *safetensors_;
}

}  // namespace llmi
