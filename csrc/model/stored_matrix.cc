#include "model/stored_matrix.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/half.h"
#include "model/dequantize.h"

namespace llmi {
namespace {

uint64_t RowBytes(DType dtype, uint64_t num_cols) {
  const auto block_size = static_cast<uint64_t>(Info(dtype).block_size);
  return num_cols / block_size * static_cast<uint64_t>(Info(dtype).block_bytes);
}

// Types whose values W8 holds exactly: a scale for each 16 columns in fp32, and codes of 8 bits.
bool FitsW8(DType dtype) { return dtype == DType::kQ4_0 || dtype == DType::kQ8_0 || dtype == DType::kW8; }

// A row of Q4_0 or Q8_0 as W8.
void WidenRow(DType dtype, const uint8_t* from, uint64_t num_cols, uint8_t* out) {
  for (uint64_t block = 0; block < num_cols / 32; ++block, from += Info(dtype).block_bytes, out += Info(DType::kW8).block_bytes) {
    uint16_t half = 0;
    std::memcpy(&half, from, sizeof half);
    const float scales[2] = {HalfToFloat(half), HalfToFloat(half)};
    std::memcpy(out, scales, sizeof scales);
    const uint8_t* codes = from + sizeof half;
    uint8_t* to = out + sizeof scales;
    for (int i = 0; i < 32; ++i) {
      to[i] = dtype == DType::kQ8_0 ? codes[i] : static_cast<uint8_t>((i < 16 ? codes[i] & 15 : codes[i - 16] >> 4) - 8);
    }
  }
}

// Matrices of one shape as one, in one type.
class Stack : public ByteSource {
 public:
  Stack(std::vector<const TensorView*> views, DType dtype)
      : views_(std::move(views)), dtype_(dtype), num_cols_(views_[0]->shape[1]), row_bytes_(RowBytes(dtype, num_cols_)) {}

  uint64_t num_bytes() const { return views_.size() * views_[0]->shape[0] * row_bytes_; }

  void Read(uint64_t offset, uint64_t num_bytes, void* out) const override {
    CheckInternal(offset % row_bytes_ == 0 && num_bytes % row_bytes_ == 0, "whole rows of experts");
    const uint64_t rows = views_[0]->shape[0];
    auto* to = static_cast<uint8_t*>(out);
    for (uint64_t row = offset / row_bytes_, end = row + num_bytes / row_bytes_; row < end;) {
      const uint64_t count = std::min(end - row, rows - row % rows);
      ReadRows(*views_[row / rows], row % rows, count, to);
      to += count * row_bytes_;
      row += count;
    }
  }

 private:
  void ReadRows(const TensorView& view, uint64_t begin, uint64_t count, uint8_t* out) const {
    const uint64_t stored_bytes = RowBytes(view.dtype, num_cols_);
    if (view.dtype == dtype_) return view.Read(begin * stored_bytes, count * stored_bytes, out);
    std::vector<uint8_t> stored(count * stored_bytes);
    view.Read(begin * stored_bytes, stored.size(), stored.data());
    std::vector<float> values(num_cols_);
    for (uint64_t row = 0; row < count; ++row) {
      const uint8_t* from = stored.data() + row * stored_bytes;
      if (dtype_ == DType::kW8) {
        WidenRow(view.dtype, from, num_cols_, out + row * row_bytes_);
      } else {
        DequantizeRow(view.dtype, from, static_cast<int64_t>(num_cols_), values.data());
        std::memcpy(out + row * row_bytes_, values.data(), row_bytes_);
      }
    }
  }

  std::vector<const TensorView*> views_;
  DType dtype_;
  uint64_t num_cols_;
  uint64_t row_bytes_;
};

std::vector<const TensorView*> ViewsOf(const TensorFile& file, const TensorSlot& slot) {
  std::vector<const TensorView*> views;
  for (const std::string& name : slot.TensorNames()) views.push_back(&FoundTensor(file, name));
  return views;
}

DType CommonType(const std::vector<const TensorView*>& views) {
  const auto all = [&](const auto& fits) { return std::ranges::all_of(views, [&](const TensorView* view) { return fits(view->dtype); }); };
  if (all([&](DType dtype) { return dtype == views[0]->dtype; })) return views[0]->dtype;
  return all(FitsW8) ? DType::kW8 : DType::kF32;
}

}  // namespace

const TensorView& FoundTensor(const TensorFile& file, const std::string& name) {
  const TensorView* view = file.Find(name);
  if (view == nullptr) throw Error(ErrorKind::kModelFile, "tensor '" + name + "' is missing", name);
  return *view;
}

bool LosesBlocks(const TensorFile& file, const TensorSlot& slot) { return slot.by_columns && IsQuantized(CommonType(ViewsOf(file, slot))); }

DType StoredMatrixType(const TensorFile& file, const TensorSlot& slot) {
  return LosesBlocks(file, slot) ? DType::kF32 : CommonType(ViewsOf(file, slot));
}

StoredMatrix::StoredMatrix(const TensorFile& file, const TensorSlot& slot) {
  const std::vector<const TensorView*> views = ViewsOf(file, slot);
  view_ = *views[0];
  if (view_.shape.size() == 1) view_.shape.insert(view_.shape.begin(), 1);
  if (views.size() > 1) {
    auto stack = std::make_unique<Stack>(views, CommonType(views));
    view_ = {slot.binding.name, CommonType(views), {views.size(), view_.shape[0], view_.shape[1]}, stack->num_bytes(), 0, stack.get()};
    stack_ = std::move(stack);
  }
  if (slot.by_columns) {
    TransposeHeads(slot);
  } else if (slot.binding.transposed) {
    Transpose();
  }
  if (view_.shape.size() == 3) view_.shape = {view_.shape[0] * view_.shape[1], view_.shape[2]};
}

// Each matrix of the view, stored as [columns, rows], in memory as [rows, columns].
void StoredMatrix::Transpose() {
  if (IsQuantized(view_.dtype)) {
    throw Error(ErrorKind::kUnsupportedModel,
                "tensor '" + view_.name + "' is " + Info(view_.dtype).name + " and must be transposed, which llmi does with floats alone",
                view_.name);
  }
  buffer_ = AlignedBuffer(view_.num_bytes, ("tensor '" + view_.name + "', transposed").c_str());
  const auto value_bytes = static_cast<uint64_t>(Info(view_.dtype).block_bytes);
  std::vector<uint64_t>& shape = view_.shape;
  const uint64_t num_rows = shape.back(), num_cols = shape[shape.size() - 2];
  const uint64_t num_matrices = shape.size() == 3 ? shape[0] : 1;
  std::vector<uint8_t> line(num_rows * value_bytes);
  for (uint64_t i = 0; i < num_matrices * num_cols; ++i) {
    view_.Read(i * line.size(), line.size(), line.data());
    uint8_t* matrix = buffer_.data() + i / num_cols * num_rows * num_cols * value_bytes;
    for (uint64_t row = 0; row < num_rows; ++row) {
      std::copy_n(line.data() + row * value_bytes, value_bytes, matrix + (row * num_cols + i % num_cols) * value_bytes);
    }
  }
  std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  bytes_ = std::make_unique<MemoryBytes>(buffer_.data(), view_.num_bytes);
  view_.offset = 0;
  view_.source = bytes_.get();
}

// Each head's matrix, whose columns are rows of the file, in memory by rows; a quantised one in fp32.
void StoredMatrix::TransposeHeads(const TensorSlot& slot) {
  const DType dtype = view_.dtype;
  const bool unpacks = IsQuantized(dtype);
  const auto value_bytes = static_cast<size_t>(unpacks ? sizeof(float) : Info(dtype).block_bytes);
  const int64_t num_rows = slot.file_cols(), num_cols = slot.num_cols;  // of a head
  const uint64_t stored_bytes = RowBytes(dtype, static_cast<uint64_t>(num_rows));
  const auto num_bytes = static_cast<size_t>(slot.num_rows * num_cols) * value_bytes;
  buffer_ = AlignedBuffer(num_bytes, ("tensor '" + view_.name + "', transposed").c_str());
  std::vector<uint8_t> stored(stored_bytes);
  std::vector<float> values(unpacks ? static_cast<size_t>(num_rows) : 0);
  for (int64_t i = 0; i < slot.file_rows(); ++i) {
    view_.Read(static_cast<uint64_t>(slot.Ordered(i)) * stored_bytes, stored_bytes, stored.data());
    if (unpacks) DequantizeRow(dtype, stored.data(), num_rows, values.data());
    const auto* from = unpacks ? reinterpret_cast<const uint8_t*>(values.data()) : stored.data();
    uint8_t* head = buffer_.data() + static_cast<size_t>(i / num_cols * num_rows * num_cols) * value_bytes;
    for (int64_t row = 0; row < num_rows; ++row) {
      std::memcpy(head + static_cast<size_t>(row * num_cols + i % num_cols) * value_bytes, from + static_cast<size_t>(row) * value_bytes,
                  value_bytes);
    }
  }
  bytes_ = std::make_unique<MemoryBytes>(buffer_.data(), num_bytes);
  view_ = {
      view_.name,  unpacks ? DType::kF32 : dtype, {static_cast<uint64_t>(slot.num_rows), static_cast<uint64_t>(num_cols)}, num_bytes, 0,
      bytes_.get()};
}

}  // namespace llmi
