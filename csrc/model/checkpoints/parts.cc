#include "model/checkpoints/parts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/errors.h"
#include "core/float8.h"
#include "model/dequantize.h"

namespace llmi::checkpoints {
namespace {

template <typename Stored>
std::vector<int64_t> Integers(const std::vector<uint8_t>& bytes) {
  std::vector<int64_t> values(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    values[i] = static_cast<int64_t>(value);
  }
  return values;
}

}  // namespace

void FailTensor(const TensorView& view, const std::string& problem) {
  throw Error(ErrorKind::kModelFile, "tensor '" + view.name + "' " + problem, view.name);
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (const uint64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

void RequireType(const TensorView& view, std::initializer_list<DType> types) {
  std::string names;
  for (const DType type : types) {
    if (view.dtype == type) return;
    names += (names.empty() ? "" : " or ") + std::string(Info(type).name);
  }
  FailTensor(view, std::string("is stored as ") + Info(view.dtype).name + ", its quantisation scheme stores " + names);
}

void RequireShape(const TensorView& view, const std::vector<std::vector<uint64_t>>& shapes, const std::string& why) {
  std::string texts;
  for (const std::vector<uint64_t>& shape : shapes) {
    if (view.shape == shape) return;
    texts += (texts.empty() ? "" : " or ") + ShapeText(shape);
  }
  FailTensor(view, "has shape " + ShapeText(view.shape) + ", " + why + " makes it " + texts);
}

void RequireMatrix(const TensorView& view) {
  const bool fits = view.shape.size() == 2 && view.shape[0] > 0 && view.shape[1] > 0;
  if (!fits) FailTensor(view, "has shape " + ShapeText(view.shape) + ", a matrix with values is expected");
}

std::vector<uint8_t> ReadBytes(const TensorView& view) {
  std::vector<uint8_t> bytes(view.num_bytes);
  view.Read(0, view.num_bytes, bytes.data());
  return bytes;
}

std::vector<float> ReadFloats(const TensorView& view) {
  RequireType(view, {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3});
  const std::vector<uint8_t> bytes = ReadBytes(view);
  std::vector<float> values(bytes.size() / Info(view.dtype).block_bytes);
  if (view.dtype == DType::kF8E4M3) {
    std::transform(bytes.begin(), bytes.end(), values.begin(), Float8ToFloat);
  } else {
    DequantizeRow(view.dtype, bytes.data(), static_cast<int64_t>(values.size()), values.data());
  }
  return values;
}

std::vector<int64_t> ReadIntegers(const TensorView& view) {
  RequireType(view, {DType::kI8, DType::kU8, DType::kI32, DType::kI64});
  const std::vector<uint8_t> bytes = ReadBytes(view);
  if (view.dtype == DType::kI8) return Integers<int8_t>(bytes);
  if (view.dtype == DType::kU8) return Integers<uint8_t>(bytes);
  if (view.dtype == DType::kI32) return Integers<int32_t>(bytes);
  return Integers<int64_t>(bytes);
}

std::vector<float> Float4Values() {
  return {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
}

std::vector<float> Float8Values() {
  std::vector<float> values(256);
  for (size_t code = 0; code < values.size(); ++code) values[code] = Float8ToFloat(static_cast<uint8_t>(code));
  return values;
}

std::vector<float> ReadPowersOfTwo(const TensorView& view) {
  RequireType(view, {DType::kU8, DType::kF8E8M0});
  const std::vector<uint8_t> codes = ReadBytes(view);
  std::vector<float> values(codes.size());
  std::transform(codes.begin(), codes.end(), values.begin(),
                 [](uint8_t code) { return code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, code - 127); });
  return values;
}

const TensorView& ModuleParts::Required(const std::string& part) const {
  const TensorView* view = Optional(part);
  if (view != nullptr) return *view;
  const std::string name = module_ + "." + part;
  std::string others;
  for (const auto& [other, unused] : parts_) others += (others.empty() ? "" : ", ") + other;
  throw Error(ErrorKind::kModelFile, "tensor '" + name + "' is missing: the file has of this quantised matrix only " + others, name);
}

const TensorView* ModuleParts::Optional(const std::string& part) const {
  used_.insert(part);
  const auto found = parts_.find(part);
  return found == parts_.end() ? nullptr : found->second;
}

void ModuleParts::CheckAllUsed(const std::string& scheme) const {
  for (const auto& [part, view] : parts_) {
    if (used_.contains(part)) continue;
    throw Error(ErrorKind::kUnsupportedModel,
                "tensor '" + view->name + "' has no place in a matrix quantised by " + scheme +
                    " as the config describes it: the numbers " + "might be wrong without it",
                view->name);
  }
}

}  // namespace llmi::checkpoints
