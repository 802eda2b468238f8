// The tensors that a spec binds, each with its shape in the model and its place in the weights: the one list by which tensors are checked,
// planned and loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/spec.h"
#include "model/weights.h"

namespace llmi {

// In the name of a binding: the number of a head.
inline constexpr const char* kHeadNumber = "{head}";
// The number of an expert.
inline constexpr const char* kExpertNumber = "{expert}";
// The places of learned positions and token types.
inline constexpr const char* kPositionsPlace = "embedding.positions";
inline constexpr const char* kTokenTypesPlace = "embedding.token_types";

// Decays of a recurrence, which must be below 0: as they are, or as the logarithms of their negatives.
enum class DecayForm : uint8_t { kNone, kNegative, kLog };

struct TensorSlot {
  std::string place;  // the binding's path in the spec, as in "layers[3].attention.query.weight"
  TensorBinding binding;
  int64_t num_rows = 0;          // of the matrix; number of values of a vector
  int64_t num_cols = 0;          // 0: a vector
  int64_t head_rows = 0;         // rows of the matrix, or values of the bias, of one head; 0: it is not filled up
  int64_t padded_head_rows = 0;  // the same after zero rows are added to each head
  int64_t row_size = 0;          // a vector of rows, which may be a matrix with this many columns, or several tensors; 0: neither
  int64_t num_experts = 0;       // the rows of so many experts, one after the other; 0: it is of no experts
  int64_t turned_cols =
      0;  // a vector that is stored as a matrix with this many columns, and goes where it goes column by column; 0: it is not
  DecayForm decay = DecayForm::kNone;
  bool in_floats = false;          // a matrix that is packed in fp32, whatever the format
  bool of_heads = false;           // its experts are heads, whose matrices may be side by side in two dimensions
  bool by_columns = false;         // the file's rows are the columns of the experts' matrices, and the order is theirs
  PackedMatrix* matrix = nullptr;  // where it goes
  WeightVector* vector = nullptr;
  float* value = nullptr;                // a single value
  std::vector<float>* values = nullptr;  // values that the host reads

  bool is_matrix() const { return num_cols > 0; }
  // Whether the tensor is stored as [columns, rows].
  bool is_turned() const { return binding.transposed && !by_columns; }
  // Rows and columns of the tensor that it reads, if it is a matrix of one tensor.
  int64_t file_rows() const { return by_columns ? num_experts * num_cols : num_rows; }
  int64_t file_cols() const { return by_columns ? num_rows / num_experts : num_cols; }
  int64_t packed_rows() const { return head_rows == 0 ? num_rows : num_rows / head_rows * padded_head_rows; }
  // The row of the role's matrix that is packed as row `row`; -1: a row of zeros.
  int64_t RoleRow(int64_t row) const {
    if (head_rows == 0) return row;
    const int64_t within = row % padded_head_rows;
    return within < head_rows ? row / padded_head_rows * head_rows + within : -1;
  }
  // The names of its tensors: one, or one for each row or expert.
  std::vector<std::string> TensorNames() const;
  // Rows of each of them, if there are several.
  int64_t rows_of_each() const { return num_experts > 0 ? num_rows / num_experts : row_size; }
  // Whether the rows of a tensor that has this many are packed as they are, all of them.
  bool keeps_rows(int64_t stored_rows) const {
    return (by_columns || binding.order == RowOrder{}) && packed_rows() == num_rows && stored_rows == num_rows;
  }
  // The row of the file's tensor that is row `row` in the binding's order.
  int64_t Ordered(int64_t row) const;
  // The row of the file's tensor, or of the matrix by columns that was made of it, that is packed as row `row`; -1: a row of zeros.
  int64_t FileRow(int64_t row) const {
    const int64_t role_row = RoleRow(row);
    return role_row < 0 || by_columns ? role_row : Ordered(role_row);
  }
};

// All slots that have a binding. Makes the weights' layers; divisors of frequencies go into spec->ropes. The slots point into both.
std::vector<TensorSlot> TensorSlotsOf(ModelSpec* spec, ModelWeights* weights);
// The same for reading alone: matrix, vector, value and values are null.
std::vector<TensorSlot> TensorSlotsOf(const ModelSpec& spec);

}  // namespace llmi
