// The tensors of a model as they are loaded, for reports, and their values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "io/model_files.h"
#include "io/tensor_file.h"

namespace llmi {

struct ListedTensor {
  std::string name;
  DType dtype = DType::kF32;  // as it is loaded
  std::vector<uint64_t> shape;
  uint64_t num_bytes = 0;       // in that type
  uint64_t stored_bytes = 0;    // in the file; of a quantised matrix, those of all its parts
  uint64_t unpacked_bytes = 0;  // in memory, if that is more than one type of the file's takes; else 0
  std::string stored_as;        // the type's name; of an unpacked matrix of a checkpoint, its scheme and the form that it takes
};

// quantization: ModelSpec::quantization. Reads no values but the scales and zeros of a quantised checkpoint.
// Throws Error(kModelFile, kUnsupportedModel).
std::vector<ListedTensor> ListTensors(const ModelFiles& files, const std::string& quantization);

struct NamedValues {
  std::vector<uint64_t> shape;
  std::vector<float> values;
};

// The values of one of these tensors, as the file has them. Throws Error(kInvalidArgument) if none has the name or it holds no weights.
NamedValues ReadTensor(const ModelFiles& files, const std::string& quantization, const std::string& name);

// Bytes in memory of a matrix whose type is unpacked at load; 0 of others.
uint64_t UnpackedSize(const TensorView& view);

}  // namespace llmi
