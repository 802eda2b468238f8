// The open files of one model: its weights, and for a directory its config.json and its index.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "io/input_file.h"
#include "io/safetensors.h"

namespace llmi {

class ModelFiles {
 public:
  using File = std::shared_ptr<const InputFile>;

  // path: the model's path, for messages. weights: the parts of a GGUF model if config is null, else safetensors files; empty if only the
  // config is needed. index: the shards are checked against it; null: they are not. Throws as GgufFile and SafetensorsFiles do.
  ModelFiles(std::string path, const std::vector<File>& weights, File config, File index);
  // path: a GGUF file, or a directory with config.json and model.safetensors.
  explicit ModelFiles(const std::string& path);

  const std::string& path() const { return path_; }
  // Null for a directory.
  const std::shared_ptr<const GgufFile>& gguf() const { return gguf_; }
  const TensorFile& tensors() const;
  // Null for a GGUF file.
  const File& config_file() const { return config_; }

 private:
  std::string path_;
  std::vector<File> weights_;
  File config_, index_;
  std::shared_ptr<const GgufFile> gguf_;
  std::unique_ptr<const SafetensorsFiles> safetensors_;
};

}  // namespace llmi
