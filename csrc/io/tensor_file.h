// The interface of both readers of tensor files: named tensors, each with the checked position of its bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "io/byte_source.h"

namespace llmi {

// shape: row-major, the slowest dimension first: [out_features, in_features] for a linear layer. The bytes [offset, offset + num_bytes) are
// inside `source`; this was checked when it was opened.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  uint64_t num_bytes = 0;
  uint64_t offset = 0;
  const ByteSource* source = nullptr;

  // Reads `count` bytes of the tensor, from its byte `begin` on. Throws Error(kModelFile) if they cannot be read.
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
