// Reads safetensors: one file, or the shards of a model, as checked views of tensors. Specification: the format's README (an 8-byte header
// length, a JSON header, data without gaps and overlaps).
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
  // A tensor's name must be unique in all files. Throws Error(kModelFile) with the tensor or field that is wrong, Error(kUnsupportedModel)
  // for a dtype other than F32, F16, BF16 and those of a quantised checkpoint's parts (core/dtype.h).
  explicit SafetensorsFiles(const std::vector<std::shared_ptr<const InputFile>>& files);

  // Throws Error(kModelFile) if some tensor of the index is not in the file that the index gives for it.
  void CheckIndex(const InputFile& index) const;

  const TensorView* Find(const std::string& name) const override;
  std::vector<const TensorView*> Tensors() const override;

 private:
  void Add(const std::shared_ptr<const InputFile>& file);

  std::vector<std::shared_ptr<const InputFile>> files_;
  std::map<std::string, TensorView> tensors_;
};

// The weight_map of a model.safetensors.index.json: for each tensor's name the name of its file, in the index's directory.
// Throws Error(kModelFile).
std::map<std::string, std::string> ReadShardIndex(const InputFile& index);

}  // namespace llmi
