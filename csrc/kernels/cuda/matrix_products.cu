// Products by single instructions, only for matrix_probe.h: mma.sync, and wgmma of six widths if the GPU has it.
#include <cuda_runtime.h>

#include <cmath>
#include <memory>

#include "core/errors.h"
#include "kernels/cuda/matrix_probe.h"
#include "kernels/dispatch/device.h"

namespace llmi::cuda {
namespace {

constexpr int kThreads = 128;  // four warps, each with 16 rows of A

void Check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw Error(ErrorKind::kDevice, std::string("CUDA: the matrix probe: ") + what + ": " + cudaGetErrorString(status));
}

// A lane's A of a call (kernels/cuda/warp.h): rows lane / 4 and 8 further of the warp's, two columns each, here and 8 further.
__device__ void LoadA(const uint16_t* a, int64_t k, uint32_t (&words)[4]) {
  const int64_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  for (int i = 0; i < 4; ++i) {
    const int64_t column = k + threadIdx.x % 4 * 2 + i / 2 * 8;
    words[i] = *reinterpret_cast<const uint32_t*>(a + (row + i % 2 * 8) * kAskedDepth + column);
  }
}

// The four sums of a lane for columns [first, first + 8) of D.
__device__ void StoreD(const float* sums, int64_t num_columns, int64_t first, float* d) {
  const int64_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  for (int i = 0; i < 4; ++i) d[(row + i / 2 * 8) * num_columns + first + threadIdx.x % 4 * 2 + i % 2] = sums[i];
}

__global__ void ByMma(const uint16_t* a, const uint16_t* b, int64_t num_columns, float* d) {
  for (int64_t first = 0; first < num_columns; first += 8) {
    float sums[4] = {};
    for (int64_t k = 0; k < kAskedDepth; k += kCallDepth) {
      uint32_t rows[4];
      LoadA(a, k, rows);
      const uint16_t* column = b + (first + threadIdx.x % 32 / 4) * kAskedDepth + k + threadIdx.x % 4 * 2;
      const uint32_t columns[2] = {*reinterpret_cast<const uint32_t*>(column), *reinterpret_cast<const uint32_t*>(column + 8)};
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                   : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                   : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(columns[0]), "r"(columns[1]));
    }
    StoreD(sums, num_columns, first, d);
  }
}

// wgmma exists in code for sm_90a alone; elsewhere the kernel below leaves D as it was.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LLMI_HAS_WGMMA 1
#else
#define LLMI_HAS_WGMMA 0
#endif

// D += A B of N columns: A in registers, B in shared memory where `b` says.
template <int N>
__device__ void Wgmma(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b);

#if LLMI_HAS_WGMMA
#define LLMI_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LLMI_SUMS_16(i) LLMI_SUMS_4(i), LLMI_SUMS_4(i + 4), LLMI_SUMS_4(i + 8), LLMI_SUMS_4(i + 12)
#define LLMI_SUMS_64(i) LLMI_SUMS_16(i), LLMI_SUMS_16(i + 16), LLMI_SUMS_16(i + 32), LLMI_SUMS_16(i + 48)
// The instruction's text, its sums' places and operands, the places of A, and of B's descriptor.
#define LLMI_WGMMA(N, PLACES, SUMS, A_PLACES, B_PLACE)                                                                             \
  template <>                                                                                                                      \
  __device__ void Wgmma<N>(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {                                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" PLACES "}, {" A_PLACES "}, " B_PLACE ", 1, 1, 1, 0;" \
                 : SUMS                                                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                            \
  }
#define LLMI_PLACES_4 "%0, %1, %2, %3"
#define LLMI_PLACES_8 \
  LLMI_PLACES_4       \
  ", "                \
  "%4, %5, %6, %7"
#define LLMI_PLACES_16 \
  LLMI_PLACES_8        \
  ", "                 \
  "%8, %9, %10, %11, %12, %13, %14, %15"
#define LLMI_PLACES_32 \
  LLMI_PLACES_16       \
  ", "                 \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LLMI_PLACES_64                                                               \
  LLMI_PLACES_32                                                                     \
  ", "                                                                               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LLMI_PLACES_128                                                                          \
  LLMI_PLACES_64                                                                                 \
  ", "                                                                                           \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define LLMI_LIST(...) __VA_ARGS__
LLMI_WGMMA(8, LLMI_PLACES_4, LLMI_LIST(LLMI_SUMS_4(0)), "%4, %5, %6, %7", "%8")
LLMI_WGMMA(16, LLMI_PLACES_8, LLMI_LIST(LLMI_SUMS_4(0), LLMI_SUMS_4(4)), "%8, %9, %10, %11", "%12")
LLMI_WGMMA(32, LLMI_PLACES_16, LLMI_LIST(LLMI_SUMS_16(0)), "%16, %17, %18, %19", "%20")
LLMI_WGMMA(64, LLMI_PLACES_32, LLMI_LIST(LLMI_SUMS_16(0), LLMI_SUMS_16(16)), "%32, %33, %34, %35", "%36")
LLMI_WGMMA(128, LLMI_PLACES_64, LLMI_LIST(LLMI_SUMS_64(0)), "%64, %65, %66, %67", "%68")
LLMI_WGMMA(256, LLMI_PLACES_128, LLMI_LIST(LLMI_SUMS_64(0), LLMI_SUMS_64(64)), "%128, %129, %130, %131", "%132")
#endif

// B in shared memory as blocks of 8 rows by 8 columns, 128 bytes each; a call's two are k_bytes apart, the next 8 rows row_bytes.
constexpr uint32_t kBlockBytes = 128;

// leading and stride: the descriptor's two distances, whose meaning the probe finds out.
template <int N>
__global__ void ByWgmma(const uint16_t* a, const uint16_t* b, uint32_t leading, uint32_t stride, float* d) {
#if LLMI_HAS_WGMMA
  __shared__ __align__(128) uint16_t columns[N * kCallDepth];
  float sums[N / 2] = {};
  for (int64_t k = 0; k < kAskedDepth; k += kCallDepth) {
    __syncthreads();
    for (int i = threadIdx.x; i < N * kCallDepth; i += kThreads) {
      const int row = i / kCallDepth;
      const int column = i % kCallDepth;
      columns[(row / 8 * 2 + column / 8) * 64 + row % 8 * 8 + column % 8] = b[row * kAskedDepth + k + column];
    }
    uint32_t rows[4];
    LoadA(a, k, rows);
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    const auto address = static_cast<uint64_t>(__cvta_generic_to_shared(columns));
    const uint64_t descriptor = (address >> 4 & 0x3FFF) | uint64_t{leading >> 4} << 16 | uint64_t{stride >> 4} << 32;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    Wgmma<N>(sums, rows, descriptor);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  for (int i = 0; i < N / 8; ++i) StoreD(sums + 4 * i, N, 8 * i, d);
#endif
}

// Memory of the GPU with these values.
template <typename T>
class Memory {
 public:
  explicit Memory(std::span<const T> values) : size_(values.size()) {
    void* address = nullptr;
    Check(cudaMalloc(&address, size_ * sizeof(T)), "memory");
    address_.reset(static_cast<T*>(address));
    Check(cudaMemcpy(address, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "a copy to the device");
  }
  T* data() const { return address_.get(); }
  std::vector<T> Download() const {
    std::vector<T> values(size_);
    Check(cudaMemcpy(values.data(), data(), size_ * sizeof(T), cudaMemcpyDeviceToHost), "a product");
    return values;
  }

 private:
  struct Free {
    void operator()(T* address) const { cudaFree(address); }
  };
  size_t size_;
  std::unique_ptr<T, Free> address_;
};

// D of one launch; NaN where it wrote nothing.
template <typename Launch>
std::vector<float> Multiply(std::span<const uint16_t> a, std::span<const uint16_t> b, const Launch& launch) {
  const std::vector<float> nothing(static_cast<size_t>(kAskedRows) * (b.size() / kAskedDepth), std::nanf(""));
  const Memory<uint16_t> left(a);
  const Memory<uint16_t> right(b);
  const Memory<float> d(nothing);
  launch(left.data(), right.data(), d.data());
  Check(cudaGetLastError(), "a launch");
  return d.Download();
}

template <int N>
MatrixInstruction WgmmaOf(bool leading_is_k) {
  // The distance of a call's two blocks, and of 8 rows of B from the next 8.
  const uint32_t k_bytes = kBlockBytes;
  const uint32_t row_bytes = 2 * kBlockBytes;
  const uint32_t leading = leading_is_k ? k_bytes : row_bytes;
  const uint32_t stride = leading_is_k ? row_bytes : k_bytes;
  return {"wgmma.m64n" + std::to_string(N) + "k16", N, [=](std::span<const uint16_t> a, std::span<const uint16_t> b) {
            return Multiply(a, b, [&](const uint16_t* left, const uint16_t* right, float* d) {
              ByWgmma<N><<<1, kThreads>>>(left, right, leading, stride, d);
            });
          }};
}

}  // namespace

MatrixInstruction CudaMatrixInstruction() {
  return {"mma.m16n8k16", kAskedColumns, [](std::span<const uint16_t> a, std::span<const uint16_t> b) {
            return Multiply(a, b, [&](const uint16_t* left, const uint16_t* right, float* d) {
              ByMma<<<1, kThreads>>>(left, right, static_cast<int64_t>(b.size()) / kAskedDepth, d);
            });
          }};
}

std::vector<MatrixInstruction> CudaMatrixInstructions() {
  if (const std::string why = WhyNoCuda(); !why.empty()) throw Error(ErrorKind::kDevice, why, "device");
  std::vector<MatrixInstruction> instructions = {CudaMatrixInstruction()};
  // The manual names the descriptor's distances for each layout; the right way round is the one that multiplies.
  constexpr double kRightError = 4096;
  for (const bool leading_is_k : {true, false}) {
    const double error = AskMatrixInstruction(WgmmaOf<16>(leading_is_k)).error;
    if (!(error < kRightError)) continue;
    instructions.insert(instructions.end(), {WgmmaOf<8>(leading_is_k), WgmmaOf<16>(leading_is_k), WgmmaOf<32>(leading_is_k),
                                             WgmmaOf<64>(leading_is_k), WgmmaOf<128>(leading_is_k), WgmmaOf<256>(leading_is_k)});
    break;
  }
  return instructions;
}

}  // namespace llmi::cuda
