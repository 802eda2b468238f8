// The tensors that a quantised checkpoint stores for one matrix, and what to say of those that do not fit.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "io/tensor_file.h"

namespace llmi::checkpoints {

// Throws Error(kModelFile) that names the tensor.
[[noreturn]] void FailTensor(const TensorView& view, const std::string& problem);

std::string ShapeText(const std::vector<uint64_t>& shape);

// Throws Error(kModelFile) unless the tensor is of one of these types.
void RequireType(const TensorView& view, std::initializer_list<DType> types);
// Throws Error(kModelFile) unless the tensor has one of these shapes. why: where the shape comes from, for the message.
void RequireShape(const TensorView& view, const std::vector<std::vector<uint64_t>>& shapes, const std::string& why);
// Throws Error(kModelFile) unless it is a matrix with values.
void RequireMatrix(const TensorView& view);

// All bytes, or all values, of a tensor. ReadFloats takes F32, F16, BF16 and F8_E4M3, ReadIntegers I8, U8, I32 and I64.
std::vector<uint8_t> ReadBytes(const TensorView& view);
std::vector<float> ReadFloats(const TensorView& view);
std::vector<int64_t> ReadIntegers(const TensorView& view);

// The values of the codes 0 to 15 of fp4 (e2m1), and of 0 to 255 of fp8 (e4m3).
std::vector<float> Float4Values();
std::vector<float> Float8Values();

// The values of F8_E8M0, or of bytes that mean it: 2^(code - 127), of code 255 NaN.
std::vector<float> ReadPowersOfTwo(const TensorView& view);

// The parts of one module's weight, by what follows the module's name: "qweight" of "model.layers.0.mlp.up_proj.qweight".
class ModuleParts {
 public:
  explicit ModuleParts(std::string module) : module_(std::move(module)) {}

  const std::string& module() const { return module_; }
  void Add(const std::string& part, const TensorView* view) { parts_[part] = view; }
  const std::map<std::string, const TensorView*>& all() const { return parts_; }

  // The part. Throws Error(kModelFile) naming the tensor if it is missing.
  const TensorView& Required(const std::string& part) const;
  // nullptr if the module has no such part.
  const TensorView* Optional(const std::string& part) const;
  // Throws Error(kUnsupportedModel) naming a part that was not looked up. scheme: for the message.
  void CheckAllUsed(const std::string& scheme) const;

 private:
  std::string module_;
  std::map<std::string, const TensorView*> parts_;
  mutable std::set<std::string> used_;
};

}  // namespace llmi::checkpoints
