// The open files of one model: weights, and the config.json and index of a directory.
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

  // path: the model's, for messages. Without a config the weights are the parts of a GGUF, else safetensors, none of them where only the
  // config is needed. index: null, or what the shards are checked by. Throws as GgufFile and SafetensorsFiles do.
  ModelFiles(std::string path, const std::vector<File>& weights, File config, File index);
  // A GGUF file, or a directory with config.json and model.safetensors.
  explicit ModelFiles(const std::string& path);

  const std::string& path() const { return path_; }
  // Null for a directory.
  const std::shared_ptr<const GgufFile>& gguf() const { return gguf_; }
  const TensorFile& tensors() const;
  const InputFile* config() const { return config_.get(); }

 private:
  std::string path_;
  std::vector<File> weights_;
  File config_, index_;
  std::shared_ptr<const GgufFile> gguf_;
  std::unique_ptr<const SafetensorsFiles> safetensors_;
};

}  // namespace llmi
