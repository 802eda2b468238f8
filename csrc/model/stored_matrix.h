// A matrix of the model as its file stores it: one tensor, one that is transposed, or the experts' tensors one after the other.
#pragma once

#include <memory>
#include <string>

#include "core/aligned.h"
#include "io/tensor_file.h"
#include "model/tensor_slots.h"

namespace llmi {

// Throws Error(kModelFile) if the file has no such tensor.
const TensorView& FoundTensor(const TensorFile& file, const std::string& name);

// The type in which the matrix is read. Experts' tensors of different types are read as one that holds the same values; so is a quantised
// tensor whose rows are columns (TensorSlot::by_columns): blocks lie along the file's rows.
DType StoredMatrixType(const TensorFile& file, const TensorSlot& slot);
// Whether that is fp32 because the file's type has blocks that the matrix cannot keep.
bool LosesBlocks(const TensorFile& file, const TensorSlot& slot);

// The slot's matrix [rows, columns]; rows of experts follow each other. Where the slot is by columns, they are in the matrix's order, and
// else in the file's.
class StoredMatrix {
 public:
  // file: must outlive the matrix. Throws Error(kModelFile) naming a tensor that is missing, Error(kUnsupportedModel) naming a quantised
  // one that is transposed.
  StoredMatrix(const TensorFile& file, const TensorSlot& slot);
  const TensorView& view() const { return view_; }

 private:
  void Transpose();
  void TransposeHeads(const TensorSlot& slot);

  std::unique_ptr<ByteSource> stack_;
  AlignedBuffer buffer_;
  std::unique_ptr<ByteSource> bytes_;  // of the buffer
  TensorView view_;
};

}  // namespace llmi
