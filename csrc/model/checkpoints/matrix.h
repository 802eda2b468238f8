// A quantised matrix of a checkpoint whose plain values, or blocks of them, are made when they are read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io/byte_source.h"
#include "io/tensor_file.h"
#include "model/checkpoints/codes.h"

namespace llmi::checkpoints {

// The numbers that codes are scaled by. zeros: what is subtracted from a code; empty: the same for all (MatrixForm::zero).
struct Grid {
  std::vector<float> scales;
  std::vector<int32_t> zeros;
};

// How the values of a matrix [num_rows, num_cols] come from its codes. With g the group of a column,
//   value = (code - zero) scale / divisor,   or   table[code] scale / divisor,
// in fp32 from left to right. The scale and zero of row r and group g are at index r / row_block * row_step + g * group_step of the grid.
struct MatrixForm {
  std::string name;  // of the plain tensor
  int64_t num_rows = 0, num_cols = 0;
  int64_t num_experts = 0;  // whose rows follow each other; 0: of no experts
  const TensorView* codes = nullptr;
  CodeLayout layout = CodeLayout::kBytes;
  int bits = 8;
  std::vector<float> table;  // of 16 or 256 values; empty: none
  int32_t zero = 0;
  float divisor = 1;
  int64_t group_size = 0;         // columns in a group
  std::vector<int32_t> group_of;  // of each column; empty: column / group_size
  int64_t row_block = 1, row_step = 0, group_step = 0;
  std::function<Grid()> load_grid;  // reads the file; may throw
  bool same_zero = true;            // whether all zeros of the grid equal `zero`; load_grid throws if not
  uint64_t stored_bytes = 0;        // of all its tensors
};

// The loaded parts of the matrix that was read last: one object for all matrices of a file, so that memory holds one.
class LastLoaded {
 public:
  struct Contents {
    Grid grid;
    std::vector<uint8_t> codes;  // empty if the layout is row by row
  };
  std::shared_ptr<const Contents> Get(const void* owner, const std::function<Contents()>& load);

 private:
  std::mutex mutex_;
  const void* owner_ = nullptr;
  std::shared_ptr<const Contents> contents_;
};

class QuantizedMatrix : public ByteSource {
 public:
  // last: shared with other matrices.
  QuantizedMatrix(MatrixForm form, std::shared_ptr<LastLoaded> last);

  // The plain tensor. Its type is the smallest of Q4_0, MXFP4, Q8_0, W8 and F32 whose blocks hold exactly the same values.
  const TensorView& view() const { return view_; }
  uint64_t stored_bytes() const { return form_.stored_bytes; }

  void Read(uint64_t offset, uint64_t num_bytes, void* out) const override;

 private:
  using Contents = LastLoaded::Contents;
  DType ChooseType() const;
  Contents Load() const;
  int64_t RowBytes() const;
  void DecodeRows(const Contents& contents, int64_t begin, int64_t end, uint8_t* out) const;
  void FloatRow(const Grid& grid, int64_t row, const uint8_t* codes, float* out) const;
  void BlockRow(const Grid& grid, int64_t row, const uint8_t* codes, uint8_t* out) const;
  void WideBlock(const Grid& grid, const size_t* indices, const uint8_t* codes, uint8_t* out) const;
  size_t GridIndex(int64_t row, int64_t group) const {
    return static_cast<size_t>(row / form_.row_block * form_.row_step + group * form_.group_step);
  }

  MatrixForm form_;
  std::shared_ptr<LastLoaded> last_;
  TensorView view_;
};

}  // namespace llmi::checkpoints
