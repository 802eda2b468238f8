// safetensors: one file, or the shards of a model, as checked views. Specification: the format's README
// (8-byte header length, JSON header, data without gaps or overlaps).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/input_file.h"
#include "io/tensor_file.h"

namespace llmi {

class SafetensorsFiles : public TensorFile {
 public:
  // One name space of all the files' tensors. Throws Error(kModelFile) with the tensor or field that is wrong, Error(kUnsupportedModel) for
  // a dtype that is none of F32, F16, BF16.
  explicit SafetensorsFiles(const std::vector<std::shared_ptr<const InputFile>>& files);

  // Throws Error(kModelFile) if a tensor that the index names is not in the file that it names.
  void CheckIndex(const InputFile& index) const;

  const TensorView* Find(const std::string& name) const override;
  std::vector<const TensorView*> Tensors() const override;

 private:
  void Add(const std::shared_ptr<const InputFile>& file);

  std::vector<std::shared_ptr<const InputFile>> files_;
  std::map<std::string, TensorView> tensors_;
};

// The weight_map of a model.safetensors.index.json: names of files by names of tensors. A file's name is one in the same directory.
// Throws Error(kModelFile).
std::map<std::string, std::string> ReadShardIndex(const InputFile& index);

}  // namespace llmi
