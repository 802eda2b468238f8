#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "core/errors.h"
#include "core/scalar_math.h"
#include "model/dequantize.h"
#include "model/stored_matrix.h"
#include "model/tensor_slots.h"

namespace llmi {
namespace {

std::string ShapeText(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (uint64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

// The format that a slot's matrix is packed in. Learned positions and token types are not quantised: they are added to the residual stream.
// Nor is a matrix again whose own blocks were lost.
WeightFormat FormatOf(const TensorFile& file, const TensorSlot& slot, WeightFormat format) {
  if (slot.in_floats) return WeightFormat::kF32;
  const bool quantizes = format == WeightFormat::kQ8_0 || format == WeightFormat::kQ4_0;
  if (quantizes && LosesBlocks(file, slot)) return WeightFormat::kF32;
  return (slot.place == kPositionsPlace || slot.place == kTokenTypesPlace) && quantizes ? WeightFormat::kAsStored : format;
}

class Loader {
 public:
  Loader(const KernelContext& context, const TensorFile& file, WeightFormat format, const std::atomic<bool>* dropped, const RowsHere& rows)
      : context_(context), file_(file), format_(format), dropped_(dropped), rows_(rows) {}

  ModelWeights Load(ModelSpec* spec) {
    ModelWeights weights;
    weights.arena = std::make_unique<HugeArena>();
    for (const TensorSlot& slot : TensorSlotsOf(spec, &weights)) {
      if (slot.is_matrix()) {
        *slot.matrix = Matrix(slot, weights.arena.get());
      } else {
        Store(slot);
      }
    }
    for (size_t i = 0; i < spec->layers.size(); ++i) {
      SetActivation(spec->layers[i].mlp, weights.layers[i].mlp.activation_parameters);
      SetActivation(spec->layers[i].moe.expert, weights.layers[i].experts.activation_parameters);
      const std::vector<float>& biases = spec->layers[i].attention.linear_biases;
      if (!biases.empty()) weights.layers[i].linear_biases = {context_, biases};
    }
    return weights;
  }

 private:
  PackedMatrix Matrix(const TensorSlot& slot, MemorySource* arena) const {
    if (dropped_ != nullptr && *dropped_) throw Error(ErrorKind::kInterrupted, "nobody waits for this model any more");
    const WeightFormat format = FormatOf(file_, slot, format_);
    const StoredMatrix stored(file_, slot);
    const TensorView& view = stored.view();
    const RowsOfSlot here = RowsOf(slot);
    const RowMap rows = {here.count(), [&](int64_t row) { return slot.FileRow(here.Row(row)); }};
    const bool as_stored = here.is_whole() && slot.keeps_rows(static_cast<int64_t>(view.shape[0]));
    PackedMatrix matrix(context_, view, format, as_stored ? nullptr : &rows, arena, slot.num_experts > 0);
    matrix.set_first_row(here.first);
    return matrix;
  }

  // The packed rows that are loaded: [first, first + size) of each of some pieces, filled up to `filled`; without experts one piece.
  struct RowsOfSlot {
    int64_t first, size, filled, of_piece, num_pieces;
    int64_t count() const { return num_pieces * filled; }
    bool is_whole() const { return first == 0 && size == of_piece; }
    int64_t Row(int64_t row) const { return row / filled * of_piece + first + row % filled; }
  };
  RowsOfSlot RowsOf(const TensorSlot& slot) const {
    const int64_t num_pieces = std::max<int64_t>(1, slot.num_experts);
    const int64_t of_piece = slot.packed_rows() / num_pieces;
    const auto [first, size] = rows_ ? rows_(slot) : std::pair(int64_t{0}, of_piece);
    return {first, size, slot.num_experts > 0 ? NumTiles(size) * kTileRows : size, of_piece, num_pieces};
  }

  void Store(const TensorSlot& slot) const {
    const std::vector<float> values = Values(slot);
    if (slot.vector != nullptr) *slot.vector = {context_, values};
    if (slot.value == nullptr && slot.values == nullptr) return;
    for (float value : values) {
      const bool fits = std::isfinite(value) && (slot.values == nullptr || value > 0);
      if (!fits) {
        const std::string& name = slot.binding.name;
        throw Error(ErrorKind::kModelFile, "tensor '" + name + "' holds " + std::to_string(value) + ", which cannot be", name);
      }
    }
    if (slot.value != nullptr && !values.empty()) *slot.value = values[0];  // empty: another stage's
    if (slot.values != nullptr) *slot.values = values;
  }

  // All values of a tensor in the order of the file.
  static void AppendStored(const TensorView& view, std::vector<float>* values) {
    uint64_t count = 1;
    for (uint64_t extent : view.shape) count *= extent;
    std::vector<uint8_t> bytes(view.num_bytes);
    view.Read(0, view.num_bytes, bytes.data());
    values->resize(values->size() + count);
    DequantizeRow(view.dtype, bytes.data(), static_cast<int64_t>(count), values->data() + values->size() - count);
  }

  // A vector in the order of the model.
  std::vector<float> Values(const TensorSlot& slot) const {
    std::vector<float> stored;
    for (const std::string& name : slot.TensorNames()) AppendStored(FoundTensor(file_, name), &stored);
    const RowsOfSlot here = RowsOf(slot);
    std::vector<float> values(static_cast<size_t>(here.count()), 0.0f);
    for (int64_t row = 0; row < here.count(); ++row) {
      const int64_t from = slot.FileRow(here.Row(row));
      if (from < 0) continue;
      const float value = stored[static_cast<size_t>(from)];
      float& to = values[static_cast<size_t>(row)];
      to = slot.binding.times == 1 ? value : static_cast<float>(slot.binding.times) * value;
      if (slot.binding.plus != 0) to = static_cast<float>(slot.binding.plus) + to;
    }
    if (slot.decay != DecayForm::kNone) SetDecays(slot, &values);
    return slot.turned_cols == 0 ? values : Turned(values, static_cast<size_t>(slot.turned_cols));
  }

  static void SetDecays(const TensorSlot& slot, std::vector<float>* values) {
    for (float& value : *values) {
      const auto stored = static_cast<double>(value);
      if (slot.decay == DecayForm::kLog && std::fabs(stored) < 88.0) value = static_cast<float>(-ExpF64(stored));
      if (std::isfinite(value) && value < 0 && (slot.decay == DecayForm::kNegative || std::fabs(stored) < 88.0)) continue;
      const std::string& name = slot.binding.name;
      throw Error(ErrorKind::kModelFile, "tensor '" + name + "' holds " + std::to_string(stored) + ": a decay must be negative and finite",
                  name);
    }
  }

  static std::vector<float> Turned(const std::vector<float>& values, size_t num_cols) {
    std::vector<float> turned;
    for (size_t column = 0; column < num_cols; ++column) {
      for (size_t i = column; i < values.size(); i += num_cols) turned.push_back(values[i]);
    }
    return turned;
  }

  // log(1 + e^x), and x itself where they are equal in fp32, as in torch.
  static double SoftPlus(double x) { return x > 20 ? x : LogF64(1.0 + ExpF64(x)); }

  // parameters: alpha_p, alpha_n, beta and eps of a spec that has tensors of them; becomes what Activate reads.
  static void SetActivation(const MlpSpec& mlp, float* parameters) {
    for (size_t i = 0; i < mlp.activation_values.size(); ++i) parameters[i] = static_cast<float>(mlp.activation_values[i]);
    if (mlp.activation != Activation::kXielu) return;
    parameters[0] = static_cast<float>(SoftPlus(static_cast<double>(parameters[0])));
    parameters[1] = parameters[2] + static_cast<float>(SoftPlus(static_cast<double>(parameters[1])));
  }

  const KernelContext& context_;
  const TensorFile& file_;
  WeightFormat format_;
  const std::atomic<bool>* dropped_;
  const RowsHere& rows_;
};

const char* PackedTypeName(PackedType type) {
  switch (type) {
    case PackedType::kF32: return "f32";
    case PackedType::kF16:
    case PackedType::kF16Rows: return "f16";
    case PackedType::kBF16:
    case PackedType::kBF16Rows: return "bf16";
    case PackedType::kQ4: return "q4";
    case PackedType::kQ4Min: return "q4m";
    case PackedType::kQ4K: return "q4k";
    case PackedType::kQ5: return "q5";
    case PackedType::kQ5Min: return "q5m";
    case PackedType::kQ5K: return "q5k";
    case PackedType::kQ2: return "q2";
    case PackedType::kQ2K: return "q2k";
    case PackedType::kQ3K: return "q3k";
    case PackedType::kQ6K: return "q6k";
    case PackedType::kTable: return "q4t";
    case PackedType::kTableK: return "q4tk";
    case PackedType::kTableExp: return "q4te";
    case PackedType::kW8: return "q8f";
    case PackedType::kQ8: return "q8";
  }
  return "";
}

template <typename Visit>
void VisitMatrices(const ModelWeights& weights, const Visit& visit) {
  const auto visit_present = [&](const PackedMatrix& matrix) {
    if (matrix.is_present()) visit(matrix);
  };
  visit(weights.embedding);
  visit_present(weights.positions);
  visit_present(weights.token_types);
  visit_present(weights.head);
  visit_present(weights.layer_embedding);
  visit_present(weights.layer_projection.matrix);
  for (const LayerWeights& layer : weights.layers) {
    const auto visit_linear = [&](const LinearWeights& linear) { visit_present(linear.matrix); };
    layer.VisitLinears(visit_linear);
    layer.VisitExperts(visit_linear);
  }
}

// Rows [begin, end) of a tensor.
using Rows = std::pair<int64_t, int64_t>;

// All bindings of one tensor.
struct TensorUse {
  const TensorSlot* first = nullptr;
  std::vector<Rows> read;
  // Bindings that read rows of each period: by its length and number of periods, the rows of the first one.
  std::map<std::pair<int64_t, int64_t>, std::vector<Rows>> periodic;
};

// A spec may cut its tensors into no more pieces than this in all: each takes time and memory to check, a tensor of its own more than rows.
constexpr int64_t kMostPieces = int64_t{1} << 23;
constexpr int64_t kPiecesOfName = 16;

void CountPieces(const TensorSlot& slot, int64_t count, int64_t* num_pieces) {
  *num_pieces += count;
  if (*num_pieces <= kMostPieces) return;
  throw Error(ErrorKind::kUnsupportedModel, "the spec's " + slot.place + " cuts tensors into too many pieces", slot.place);
}

void AddRows(const TensorSlot& slot, TensorUse* use) {
  const RowOrder& order = slot.binding.order;
  const bool whole = order.head_rows == 0 || order.head_stride == 0 || order.head_stride == order.head_rows;
  if (whole) return use->read.push_back({order.first_row, order.first_row + slot.file_rows()});
  use->periodic[{order.head_stride, slot.file_rows() / order.head_rows}].push_back({order.first_row, order.first_row + order.head_rows});
}

// Makes rows of all periods of what was read of the first one: one piece if that is the whole period.
void ReadPeriods(TensorUse* use, int64_t* num_pieces) {
  for (auto& [period, rows] : use->periodic) {
    const auto& [length, count] = period;
    std::sort(rows.begin(), rows.end());
    int64_t end = 0;
    for (const Rows& part : rows) end = part.first <= end ? std::max(end, part.second) : end;
    if (end == length && rows.back().second <= length) {
      use->read.emplace_back(0, count * length);
      continue;
    }
    CountPieces(*use->first, count * static_cast<int64_t>(rows.size()), num_pieces);
    for (int64_t i = 0; i < count; ++i) {
      for (const Rows& part : rows) use->read.emplace_back(part.first + i * length, part.second + i * length);
    }
  }
}

// The number of rows that the bindings read all together; each must be read by one.
int64_t NumRows(const std::string& name, std::vector<Rows>* read) {
  std::sort(read->begin(), read->end());
  int64_t end = 0;
  for (const Rows& rows : *read) {
    if (rows.first > end) {
      throw Error(ErrorKind::kModelFile,
                  "tensor '" + name + "': the spec reads no row from " + std::to_string(end) + " to " + std::to_string(rows.first - 1),
                  name);
    }
    end = std::max(end, rows.second);
  }
  return end;
}

// A matrix of one row may be stored as a vector.
bool FitsOneRow(const TensorSlot& slot, const std::vector<uint64_t>& shape) {
  return slot.num_rows == 1 && slot.binding.order == RowOrder{} && shape.size() == 1 && shape[0] == static_cast<uint64_t>(slot.num_cols);
}

// The matrices of all heads may be side by side in two dimensions.
bool FitsHeads(const TensorSlot& slot, const std::vector<uint64_t>& stored, const std::vector<uint64_t>& shape) {
  return slot.of_heads && shape.size() == 3 && stored == std::vector<uint64_t>{shape[0] * shape[1], shape[2]};
}

// A vector of some heads may be stored as a matrix with a row for each, a single value without a dimension.
bool FitsVector(const TensorSlot& slot, const std::vector<uint64_t>& shape, uint64_t size) {
  if (shape.empty()) return size == 1;
  const auto row = static_cast<uint64_t>(slot.row_size);
  const bool has_middle = slot.turned_cols > 0 && shape.size() == 3 && shape[1] == 1;  // as a convolution in one dimension has
  return row > 0 && (shape.size() == 2 || has_middle) && shape.back() == row && size % row == 0 && shape[0] == size / row;
}

// The shape of a tensor of which the bindings read num_rows rows.
std::vector<uint64_t> ShapeOf(const TensorSlot& slot, const std::string& name, int64_t num_rows) {
  const auto num_experts = static_cast<uint64_t>(slot.num_experts);
  const bool is_stack = num_experts > 0 && slot.binding.name == name;
  std::vector<uint64_t> shape = {static_cast<uint64_t>(num_rows)};
  if (is_stack) shape[0] /= num_experts;
  if (is_stack && shape[0] * num_experts != static_cast<uint64_t>(num_rows)) {
    throw Error(ErrorKind::kModelFile,
                "tensor '" + name + "': the spec's " + slot.place + " reads " + std::to_string(num_rows) + " rows of " +
                    std::to_string(num_experts) + " experts, which is no whole number for each",
                name);
  }
  if (slot.is_matrix()) shape.push_back(static_cast<uint64_t>(slot.file_cols()));
  if (slot.is_turned()) std::reverse(shape.begin(), shape.end());
  if (is_stack) shape.insert(shape.begin(), num_experts);
  return shape;
}

struct Expected {
  ExpectedTensor tensor;
  const TensorSlot* slot;
};

[[noreturn]] void RefuseTwoShapes(const std::string& name, const TensorSlot& one, const TensorSlot& other) {
  throw Error(ErrorKind::kModelFile,
              "tensor '" + name + "': the spec's " + one.place + " and " + other.place + " read it as different shapes", name);
}

// By name, in the order of the slots. Throws Error(kModelFile) if two bindings of a tensor do not fit each other.
std::vector<Expected> ExpectedOf(const std::vector<TensorSlot>& slots) {
  std::map<std::string, TensorUse> uses;
  std::vector<std::string> order;
  int64_t num_pieces = 0;
  for (const TensorSlot& slot : slots) {
    const std::vector<std::string> names = slot.TensorNames();
    for (const std::string& name : names) {
      TensorUse& use = uses[name];
      if (use.first == nullptr) {
        use.first = &slot;
        order.push_back(name);
      }
      if (use.first->file_cols() != slot.file_cols() || use.first->is_turned() != slot.is_turned() ||
          use.first->num_experts != slot.num_experts) {
        RefuseTwoShapes(name, *use.first, slot);
      }
      if (names.size() > 1) {
        CountPieces(slot, kPiecesOfName, &num_pieces);
        use.read.emplace_back(0, slot.rows_of_each());
      } else {
        AddRows(slot, &use);
      }
    }
  }
  std::vector<Expected> expected;
  for (const std::string& name : order) {
    TensorUse& use = uses[name];
    ReadPeriods(&use, &num_pieces);
    expected.push_back({{name, ShapeOf(*use.first, name, NumRows(name, &use.read))}, use.first});
  }
  return expected;
}

}  // namespace

uint64_t WeightPlan::num_bytes() const {
  uint64_t total = 0;
  for (const auto& [type, bytes] : bytes_by_type) total += bytes;
  return total;
}

WeightPlan PlanWeights(const KernelContext& context, const TensorFile& file, const ModelSpec& spec, WeightFormat format) {
  WeightPlan plan;
  for (const TensorSlot& slot : TensorSlotsOf(spec)) {
    if (!slot.is_matrix()) {
      plan.bytes_by_type[PackedTypeName(PackedType::kF32)] += static_cast<uint64_t>(slot.packed_rows()) * sizeof(float);
      continue;
    }
    const DType dtype = StoredMatrixType(file, slot);
    const PackedForm form =
        PackedFormOf(context, dtype, FormatOf(file, slot, format), slot.packed_rows(), slot.num_cols, slot.num_experts > 0);
    plan.bytes_by_type[PackedTypeName(form.type)] += form.num_bytes;
  }
  return plan;
}

std::vector<ExpectedTensor> ExpectedTensors(const ModelSpec& spec) {
  std::vector<ExpectedTensor> tensors;
  for (Expected& expected : ExpectedOf(TensorSlotsOf(spec))) tensors.push_back(std::move(expected.tensor));
  return tensors;
}

void LocateWeights(const TensorFile& file, const ModelSpec& spec) {
  const std::vector<TensorSlot> slots = TensorSlotsOf(spec);
  for (const Expected& expected : ExpectedOf(slots)) {
    const auto& [name, shape] = expected.tensor;
    const TensorView& view = FoundTensor(file, name);
    const bool fits = expected.slot->is_matrix() ? FitsOneRow(*expected.slot, view.shape) || FitsHeads(*expected.slot, view.shape, shape)
                                                 : FitsVector(*expected.slot, view.shape, shape[0]);
    if (view.shape == shape || fits) continue;
    throw Error(ErrorKind::kModelFile, "tensor '" + name + "' has shape " + ShapeText(view.shape) + ", the config says " + ShapeText(shape),
                name);
  }
}

uint64_t ModelWeights::num_bytes() const {
  uint64_t total = 0;
  VisitMatrices(*this, [&](const PackedMatrix& matrix) { total += matrix.num_bytes(); });
  return total;
}

std::string ModelWeights::TypeNames() const {
  std::set<std::string> names;
  VisitMatrices(*this, [&](const PackedMatrix& matrix) { names.insert(PackedTypeName(matrix.view().type)); });
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "+") + name;
  return text;
}

bool ModelWeights::HasQuantizedLayers() const {
  bool found = false;
  VisitMatrices(*this, [&](const PackedMatrix& matrix) {
    const bool is_looked_up =
        (&matrix == &embedding && head.is_present()) || &matrix == &positions || &matrix == &token_types || &matrix == &layer_embedding;
    found = found || (!is_looked_up && IsQuantizedPacked(matrix.view().type));
  });
  return found;
}

std::map<std::string, UnpackedBytes> ModelWeights::Unpacked() const {
  std::map<std::string, UnpackedBytes> unpacked;
  VisitMatrices(*this, [&](const PackedMatrix& matrix) {
    if (!matrix.is_unpacked()) return;
    UnpackedBytes& bytes = unpacked[Info(matrix.source_dtype()).name];
    bytes.in_file += matrix.source_bytes();
    bytes.in_memory += matrix.num_bytes();
  });
  return unpacked;
}

ModelWeights LoadWeights(const KernelContext& context, const TensorFile& file, ModelSpec* spec, WeightFormat format,
                         const std::atomic<bool>* dropped, const RowsHere& rows) {
  return Loader(context, file, format, dropped, rows).Load(spec);
}

}  // namespace llmi
