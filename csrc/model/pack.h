// Packs a matrix on disk into the tiles that the linear kernels read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/aligned.h"
#include "io/tensor_file.h"
#include "kernels/layout/packed_weights.h"
#include "kernels/ops/context.h"
#include "model/dequantize.h"

namespace llmi {

// The format of weights in memory: as the file stores them, converted to one float type, or quantised while they are loaded.
enum class WeightFormat : uint8_t {
  kAsStored,
  kF32,
  kF16,
  kBF16,
  kQ8_0,  // float matrices; quantised ones stay as they are
  kQ4_0,  // matrices of more than five bits a weight in memory; others stay as they are
};

// "auto", "float32", "float16", "bfloat16", "q8_0", "q4_0"; throws Error(kInvalidArgument).
WeightFormat ParseWeightFormat(const std::string& name);

// Copies weights to the memory where the context's ops read them.
AlignedBuffer PlaceWeights(const KernelContext& context, const void* data, size_t num_bytes);

// The rows of a packed matrix: row r is the tensor's row source_row(r), or zeros if that is -1.
struct RowMap {
  int64_t num_rows;
  std::function<int64_t(int64_t)> source_row;
};

class PackedMatrix {
 public:
  PackedMatrix() = default;

  // Packs the rows of `source` [num_rows, num_cols] as `rows` says (null: as stored).
  // The file is read piece by piece, so that memory holds one copy.
  // arena: host memory to pack into; must outlive the matrix. Null: allocate. Ignored when the context has a device.
  // tiles: in the CPU's tiles on a device, too.
  // Throws Error(kOutOfMemory) with the arithmetic, Error(kModelFile) if the file cannot be read.
  PackedMatrix(const KernelContext& context, const TensorView& source, WeightFormat format, const RowMap* rows = nullptr,
               MemorySource* arena = nullptr, bool tiles = false);

  PackedView view() const { return {type_, num_rows_, num_cols_, data_.data(), table_, in_chunks_}; }
  uint64_t num_bytes() const { return data_.size(); }
  // Whether the model has it. A rank may hold no row of it.
  bool is_present() const { return num_cols_ > 0; }
  // The row of the model's matrix that is row 0 here: of a rank's part.
  int64_t first_row() const { return first_row_; }
  void set_first_row(int64_t row) { first_row_ = row; }
  DType source_dtype() const { return source_dtype_; }
  uint64_t source_bytes() const { return source_bytes_; }
  bool is_unpacked() const { return IsUnpacked(source_dtype_) && type_ == OwnPackedType(source_dtype_); }

 private:
  PackedType type_ = PackedType::kF32;
  bool in_chunks_ = false;
  int64_t num_rows_ = 0;
  int64_t num_cols_ = 0;
  int64_t first_row_ = 0;
  CodeTable table_;
  DType source_dtype_ = DType::kF32;
  uint64_t source_bytes_ = 0;
  AlignedBuffer data_;
};

// The packed type and size of a matrix of num_rows rows and num_cols columns.
struct PackedForm {
  PackedType type;
  bool in_chunks;
  uint64_t num_bytes;
};
PackedForm PackedFormOf(const KernelContext& context, DType dtype, WeightFormat format, int64_t num_rows, int64_t num_cols,
                        bool tiles = false);

// The type of a matrix before it is packed: its own, or the one that `format` quantises it to.
DType StoredType(DType dtype, WeightFormat format);
PackedType PackedTypeOf(DType dtype, WeightFormat format);

}  // namespace llmi
