// Matrix products of bf16 or fp16 by cuBLASLt, a library of the machine that is loaded when an option names it (DeviceOptions::cublas_lt).
// Its order of sums is its own: bits may depend on the number of rows, the GPU and the library's version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "kernels/cuda/half_format.h"

namespace llmi::cuda {

// out [num_rows, num_outputs] fp32, rows out_stride apart, = x W^T, or += with accumulate. Memory of the device.
struct FreeProduct {
  HalfFormat format;        // of weights and x
  const uint16_t* weights;  // [num_outputs, num_cols]
  const uint16_t* x;        // [num_rows, num_cols]
  float* out;
  int64_t num_rows;
  int64_t num_outputs;
  int64_t num_cols;
  int64_t out_stride;
  bool accumulate;
  void* workspace;  // CublasLt::kWorkspaceBytes

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(weights);
    visit(x);
    visit(out);
    visit(workspace);
  }
};

class CublasLt {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  // library: a path, or a name that the linker finds. Throws Error(kDevice) with what is missing.
  explicit CublasLt(const std::string& library);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // On a stream of CUDA's, asynchronously; may be recorded. Throws Error(kDevice).
  void Multiply(const FreeProduct& product, void* stream);

 private:
  struct Library;
  struct Plan;
  // Format, sizes, and how pointers are aligned.
  using Shape = std::tuple<HalfFormat, int64_t, int64_t, int64_t, int64_t, uint32_t, uint32_t, uint32_t>;

  const Plan& PlanOf(const FreeProduct& product);

  std::unique_ptr<Library> library_;
  void* handle_ = nullptr;
  std::map<Shape, Plan> plans_;
};

}  // namespace llmi::cuda
