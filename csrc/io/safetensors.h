// safetensors: one file, or the shards of an index, as checked views. Specification: the format's README
// (8-byte header length, JSON header, data without gaps or overlaps).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/tensor_file.h"

namespace llmi {

class SafetensorsFile : public TensorFile {
 public:
  // One file. Throws Error(kModelFile) with the tensor or field that is wrong, Error(kUnsupportedModel) for a
  // dtype that is none of F32, F16, BF16.
  explicit SafetensorsFile(const std::string& path);

  // The files of a model directory: model.safetensors.index.json if it is there, else model.safetensors.
  static std::unique_ptr<TensorFile> OpenDirectory(const std::string& directory);

  const TensorView* Find(const std::string& name) const override;
  std::vector<const TensorView*> Tensors() const override;

 private:
  MappedFile file_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace llmi
