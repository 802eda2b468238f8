#include "model/checkpoints/matrix.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/errors.h"
#include "core/half.h"
#include "kernels/layout/packed_weights.h"
#include "model/checkpoints/parts.h"

namespace llmi::checkpoints {
namespace {

bool IsHalf(float scale) { return HalfToFloat(FloatToHalf(scale)) == scale; }
// Also 2^-127, which has no leading bit.
bool IsPowerOfTwo(float scale) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, scale);
  return bits == 0x00400000u || ((bits & 0x807FFFFFu) == 0 && bits != 0 && bits < 0x7F800000u);
}
bool IsExactHalved(float scale) { return scale / 2 * 2 == scale; }

// Appends a value; returns the place after it.
template <typename Value>
uint8_t* Put(Value value, uint8_t* out) {
  std::memcpy(out, &value, sizeof value);
  return out + sizeof value;
}

// Codes of a block in the order of ggml: i and i + 16 share a byte.
void PutNibbles(const uint8_t* codes, uint8_t* out) {
  for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>(codes[i] | codes[16 + i] << 4);
}

}  // namespace

std::shared_ptr<const LastLoaded::Contents> LastLoaded::Get(const void* owner, const std::function<Contents()>& load) {
  const std::lock_guard lock(mutex_);
  if (owner_ != owner) {
    owner_ = nullptr;
    contents_.reset();  // frees the memory of the last one before the next is read
    contents_ = std::make_shared<const Contents>(load());
    owner_ = owner;
  }
  return contents_;
}

QuantizedMatrix::QuantizedMatrix(MatrixForm form, std::shared_ptr<LastLoaded> last) : form_(std::move(form)), last_(std::move(last)) {
  view_.name = form_.name;
  view_.dtype = ChooseType();
  view_.shape = {static_cast<uint64_t>(form_.num_rows), static_cast<uint64_t>(form_.num_cols)};
  if (form_.num_experts > 0) {
    view_.shape[0] /= static_cast<uint64_t>(form_.num_experts);
    view_.shape.insert(view_.shape.begin(), static_cast<uint64_t>(form_.num_experts));
  }
  view_.num_bytes = static_cast<uint64_t>(form_.num_rows * RowBytes());
  view_.source = this;
}

DType QuantizedMatrix::ChooseType() const {
  if (!form_.group_of.empty() || form_.divisor != 1 || form_.num_cols % kBlockSize != 0 || form_.group_size % 16 != 0) return DType::kF32;
  const bool is_float4 = form_.table == Float4Values();
  if (!form_.table.empty() && !is_float4) return DType::kF32;
  const bool by_blocks = form_.group_size % kBlockSize == 0;
  const bool is_centred = form_.same_zero && form_.zero == 1 << (form_.bits - 1);
  // Codes less their zero have 8 bits with the sign if they have 4 or if the zero is in the middle.
  const DType wide = is_float4 || is_centred || form_.bits == 4 ? DType::kW8 : DType::kF32;
  if (!is_float4 && !(is_centred && by_blocks)) return wide;
  const std::vector<float> scales = form_.load_grid().scales;
  const auto all = [&](bool (*fits)(float)) { return std::all_of(scales.begin(), scales.end(), fits); };
  if (!is_float4) return !all(IsHalf) ? wide : form_.bits == 4 ? DType::kQ4_0 : DType::kQ8_0;
  if (by_blocks && all(IsPowerOfTwo)) return DType::kMXFP4;
  return all(IsExactHalved) ? wide : DType::kF32;
}

int64_t QuantizedMatrix::RowBytes() const {
  const DTypeInfo& info = Info(view_.dtype);
  return form_.num_cols / info.block_size * info.block_bytes;
}

LastLoaded::Contents QuantizedMatrix::Load() const {
  Contents contents;
  contents.grid = form_.load_grid();
  if (!IsRowMajor(form_.layout)) contents.codes = ReadBytes(*form_.codes);
  return contents;
}

void QuantizedMatrix::Read(uint64_t offset, uint64_t num_bytes, void* out) const {
  CheckInternal(offset <= view_.num_bytes && num_bytes <= view_.num_bytes - offset, "bytes beyond the matrix");
  const std::shared_ptr<const Contents> contents = last_->Get(this, [this] { return Load(); });
  const auto row_bytes = static_cast<uint64_t>(RowBytes());
  const uint64_t begin = offset / row_bytes, end = (offset + num_bytes + row_bytes - 1) / row_bytes;
  if (offset % row_bytes == 0 && num_bytes % row_bytes == 0) {
    return DecodeRows(*contents, static_cast<int64_t>(begin), static_cast<int64_t>(end), static_cast<uint8_t*>(out));
  }
  std::vector<uint8_t> rows((end - begin) * row_bytes);
  DecodeRows(*contents, static_cast<int64_t>(begin), static_cast<int64_t>(end), rows.data());
  std::memcpy(out, rows.data() + (offset - begin * row_bytes), num_bytes);
}

void QuantizedMatrix::DecodeRows(const Contents& contents, int64_t begin, int64_t end, uint8_t* out) const {
  const CodeRows rows{form_.layout, form_.bits, form_.num_rows, form_.num_cols};
  std::vector<uint8_t> codes(static_cast<size_t>((end - begin) * form_.num_cols));
  if (IsRowMajor(form_.layout)) {
    std::vector<uint8_t> stored(static_cast<size_t>((end - begin) * rows.row_bytes()));
    form_.codes->Read(static_cast<uint64_t>(begin * rows.row_bytes()), stored.size(), stored.data());
    UnpackCodes(rows, stored.data(), begin, end, codes.data());
  } else {
    UnpackCodes(rows, contents.codes.data(), begin, end, codes.data());
  }
  std::vector<float> values(static_cast<size_t>(form_.num_cols));
  for (int64_t row = begin; row < end; ++row) {
    const uint8_t* row_codes = codes.data() + (row - begin) * form_.num_cols;
    uint8_t* row_out = out + (row - begin) * RowBytes();
    if (view_.dtype != DType::kF32) {
      BlockRow(contents.grid, row, row_codes, row_out);
    } else {
      FloatRow(contents.grid, row, row_codes, values.data());
      std::memcpy(row_out, values.data(), values.size() * sizeof(float));
    }
  }
}

void QuantizedMatrix::FloatRow(const Grid& grid, int64_t row, const uint8_t* codes, float* out) const {
  for (int64_t col = 0; col < form_.num_cols; ++col) {
    const int64_t group = form_.group_of.empty() ? col / form_.group_size : form_.group_of[static_cast<size_t>(col)];
    const size_t index = GridIndex(row, group);
    const int32_t zero = grid.zeros.empty() ? form_.zero : grid.zeros[index];
    const float unscaled = form_.table.empty() ? static_cast<float>(codes[col] - zero) : form_.table[codes[col]];
    const float value = unscaled * grid.scales[index];
    out[col] = form_.divisor == 1 ? value : value / form_.divisor;
  }
}

void QuantizedMatrix::BlockRow(const Grid& grid, int64_t row, const uint8_t* codes, uint8_t* out) const {
  for (int64_t col = 0; col < form_.num_cols; col += kBlockSize) {
    const size_t indices[2] = {GridIndex(row, col / form_.group_size), GridIndex(row, (col + 16) / form_.group_size)};
    const uint8_t* block = codes + col;
    const float scale = grid.scales[indices[0]];
    switch (view_.dtype) {
      case DType::kQ4_0: PutNibbles(block, Put(FloatToHalf(scale), out)); break;
      case DType::kMXFP4: PutNibbles(block, Put(static_cast<uint8_t>(__builtin_bit_cast(uint32_t, scale) >> 23), out)); break;
      case DType::kQ8_0: {
        uint8_t* to = Put(FloatToHalf(scale), out);
        for (int i = 0; i < 32; ++i) to[i] = static_cast<uint8_t>(block[i] ^ 0x80);
        break;
      }
      default: WideBlock(grid, indices, block, out);
    }
    out += Info(view_.dtype).block_bytes;
  }
}

void QuantizedMatrix::WideBlock(const Grid& grid, const size_t* indices, const uint8_t* codes, uint8_t* out) const {
  const bool is_float4 = !form_.table.empty();
  uint8_t* to = out + 2 * sizeof(float);
  for (int half = 0; half < 2; ++half) {
    const size_t index = indices[half];
    out = Put(is_float4 ? grid.scales[index] / 2 : grid.scales[index], out);
    const int32_t zero = grid.zeros.empty() ? form_.zero : grid.zeros[index];
    for (int i = 16 * half; i < 16 * half + 16; ++i) {
      to[i] = static_cast<uint8_t>(is_float4 ? static_cast<int32_t>(2 * form_.table[codes[i]]) : codes[i] - zero);
    }
  }
}

}  // namespace llmi::checkpoints
