// What the linear layers of a model read, summed over rows: squares by column, and products of all pairs of columns (a Gram matrix).
// Rows are added in the order in which they are computed: squares in fp64; products in pieces of kRows rows, each piece and the sum of
// pieces in fp32, in the order of linear.h. So neither threads nor instruction sets nor how rows are cut into steps change a bit.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/aligned.h"
#include "kernels/ops/linear_tap.h"
#include "model/tensor_slots.h"

namespace llmi {

// A part of a file in memory: the system may write it out and take its memory at any time.
class MappedRegion {
 public:
  // Makes the file this much longer. Throws Error(kOutOfMemory).
  MappedRegion(int file, int64_t num_bytes);
  ~MappedRegion();
  MappedRegion(const MappedRegion&) = delete;
  MappedRegion& operator=(const MappedRegion&) = delete;

  float* floats() { return static_cast<float*>(data_); }
  int64_t offset() const { return offset_; }

 private:
  void* data_;
  size_t num_bytes_;
  int64_t offset_;
};

class InputSums : public LinearTap {
 public:
  static constexpr int64_t kRows = 128;

  // What some matrices read.
  struct Input {
    std::vector<std::pair<std::string, int64_t>> readers;  // tensor, and which of its matrices reads this; -1: all, each its own rows
    int64_t num_cols = 0;
    std::vector<double> squares;  // [num_matrices, num_cols]
    std::vector<int64_t> counts;  // rows, [num_matrices]
    // [num_cols, num_cols], of which the upper triangle is right; null: no products
    std::unique_ptr<MappedRegion> products;
    std::vector<float> rows;  // [less than kRows, num_cols], not in `products` yet
    std::vector<float> kept;  // all rows, of `only`
  };

  // slots: of the model whose layers are told. file: where products go; negative: none. Experts have squares alone. only: a tensor whose
  // input alone is summed, and its rows are kept; empty: all tensors, and no rows.
  InputSums(const std::vector<TensorSlot>& slots, int file, const std::string& only);

  void Take(const KernelContext& context, const LinearArgs& args, const ExpertPairs* pairs) override;
  // Adds the rows that wait. No row may follow.
  void Finish(const KernelContext& context);
  const std::vector<Input>& inputs() const { return inputs_; }

 private:
  using Readers = std::vector<std::pair<std::string, int64_t>>;
  struct Matrices {
    Readers readers;
    int64_t count;
  };

  Input& InputOf(const LinearArgs& args, const Matrices& first);
  void AddRows(const KernelContext& context, const float* x, int64_t num_rows, Input& input);
  void AddProducts(const KernelContext& context, Input& input);

  const int file_;
  const bool keeps_rows_;
  std::map<const uint8_t*, Matrices> matrices_;  // by where their weights are
  std::map<const uint8_t*, size_t> places_;      // of their inputs, by the first matrix of a layer
  std::vector<Input> inputs_;
  AlignedBuffer packed_, turned_;  // of a piece: as weights, and as rows
};

}  // namespace llmi
