// What the two readers have in common: named tensors, each a checked view into a mapped file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "io/mapped_file.h"

namespace llmi {

// shape is row-major, slowest first: [out_features, in_features] for a linear layer. `data` holds num_bytes
// bytes, checked to lie inside `file`.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  const uint8_t* data = nullptr;
  uint64_t num_bytes = 0;
  const MappedFile* file = nullptr;
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;
  // The tensor `name`, or nullptr. Valid as long as the file object lives.
  virtual const TensorView* Find(const std::string& name) const = 0;
  virtual std::vector<const TensorView*> Tensors() const = 0;
};

}  // namespace llmi
