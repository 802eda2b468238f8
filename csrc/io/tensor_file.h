// What the two readers have in common: named tensors, each with the checked place of its bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "io/byte_source.h"

namespace llmi {

// shape is row-major, slowest first: [out_features, in_features] for a linear layer. The num_bytes bytes at `offset` were checked to be
// inside `source` when it was opened.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  uint64_t num_bytes = 0;
  uint64_t offset = 0;
  const ByteSource* source = nullptr;

  // `count` of the tensor's bytes, from `begin` on. Throws Error(kModelFile) if they cannot be read.
  void Read(uint64_t begin, uint64_t count, void* out) const { source->Read(offset + begin, count, out); }
};

class TensorFile {
 public:
  virtual ~TensorFile() = default;
  // The tensor `name`, or nullptr. Valid as long as the file object lives.
  virtual const TensorView* Find(const std::string& name) const = 0;
  virtual std::vector<const TensorView*> Tensors() const = 0;
};

}  // namespace llmi
