// What a GPU can do, before anything is tuned for it: a native program that needs the CUDA runtime alone, so that it runs while the package
// builds (benchmarks/gpu_first.sh). A JSON object a line on stdout; exit status 1 if a probe of exactness fails.
//
//   nvcc -std=c++20 -O3 -arch=native benchmarks/native/gpu_probes.cu -o gpu_probes && ./gpu_probes
#include <cooperative_groups.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

namespace {

constexpr int kRounds = 7;
constexpr int kThreads = 256;
constexpr int kNodes = 1000;             // of a chain of kernels, and of grid barriers
constexpr int kDepth = 1024;             // columns of the products whose exactness is asked
constexpr float kMagic = 12'582'912.0F;  // 0x4B400000: a float whose unit in the last place is 1

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "gpu_probes: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}

template <typename T>
class Buffer {
 public:
  explicit Buffer(size_t count) { Check(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc"); }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) {
    Check(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "an upload");
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() { return data_; }
  std::vector<T> Fetch(size_t count) const {
    std::vector<T> values(count);
    Check(cudaMemcpy(values.data(), data_, count * sizeof(T), cudaMemcpyDeviceToHost), "a download");
    return values;
  }

 private:
  T* data_ = nullptr;
};

// The least seconds of kRounds runs after one that warms up, as the device's clock has them.
double LeastSeconds(cudaStream_t stream, const std::function<void()>& run) {
  cudaEvent_t begin;
  cudaEvent_t end;
  Check(cudaEventCreate(&begin), "cudaEventCreate");
  Check(cudaEventCreate(&end), "cudaEventCreate");
  run();
  float least = 1e30F;
  for (int round = 0; round < kRounds; ++round) {
    Check(cudaEventRecord(begin, stream), "cudaEventRecord");
    run();
    Check(cudaEventRecord(end, stream), "cudaEventRecord");
    Check(cudaEventSynchronize(end), "a probe");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    least = std::min(least, milliseconds);
  }
  Check(cudaEventDestroy(begin), "cudaEventDestroy");
  Check(cudaEventDestroy(end), "cudaEventDestroy");
  return least / 1e3;
}

__global__ void Read(const uint4* values, size_t count, uint32_t* sink) {
  uint32_t seen = 0;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {  // four loads of 16 bytes in flight
    uint4 word[4];
#pragma unroll
    for (int part = 0; part < 4; ++part) word[part] = __ldcs(values + i + part * stride);
#pragma unroll
    for (int part = 0; part < 4; ++part) seen ^= word[part].x ^ word[part].y ^ word[part].z ^ word[part].w;
  }
  for (; i < count; i += stride) seen ^= values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
  if (seen == 0x12345678) *sink = seen;  // keeps the loads
}

__global__ void Add(uint32_t* counter) {
  if (threadIdx.x == 0 && blockIdx.x == 0) *counter += 1;
}

// As Add, behind an edge that lets it start before the kernel in front has ended.
__global__ void AddAfterWait(uint32_t* counter) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  if (threadIdx.x == 0 && blockIdx.x == 0) *counter += 1;
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

__global__ void Barriers(int count) {
  const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  for (int i = 0; i < count; ++i) grid.sync();
}

// D [16][8] = A [16][kDepth] B [8][kDepth]^T of integers in fp16, fp32 sums, one warp.
__global__ void HalfProduct(const __half* a, const __half* b, float* d) {
  const int group = threadIdx.x / 4;
  const int lane = threadIdx.x % 4;
  float sum[4] = {};
  for (int depth = 0; depth < kDepth; depth += 16) {
    uint32_t left[4];
    uint32_t right[2];
    for (int i = 0; i < 4; ++i) {
      std::memcpy(&left[i], a + (group + i % 2 * 8) * kDepth + depth + 2 * lane + i / 2 * 8, 4);
    }
    for (int i = 0; i < 2; ++i) std::memcpy(&right[i], b + group * kDepth + depth + 2 * lane + i * 8, 4);
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
  }
  for (int i = 0; i < 4; ++i) d[(group + i / 2 * 8) * 8 + 2 * lane + i % 2] = sum[i];
}

// The same of int8 with int32 sums that begin at the bits of kMagic, read as floats.
__global__ void ByteProduct(const int8_t* a, const int8_t* b, float* d) {
  const int group = threadIdx.x / 4;
  const int lane = threadIdx.x % 4;
  int32_t sum[4];
  for (int32_t& value : sum) value = 0x4B400000;
  for (int depth = 0; depth < kDepth; depth += 32) {
    uint32_t left[4];
    uint32_t right[2];
    for (int i = 0; i < 4; ++i) {
      std::memcpy(&left[i], a + (group + i % 2 * 8) * kDepth + depth + 4 * lane + i / 2 * 16, 4);
    }
    for (int i = 0; i < 2; ++i) std::memcpy(&right[i], b + group * kDepth + depth + 4 * lane + i * 16, 4);
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
  }
  for (int i = 0; i < 4; ++i) d[(group + i / 2 * 8) * 8 + 2 * lane + i % 2] = __int_as_float(sum[i]) - kMagic;
}

void ProbeReads(cudaStream_t stream, int num_processors) {
  for (const size_t bytes : {size_t{64} << 20, size_t{512} << 20, size_t{4} << 30}) {
    Buffer<uint4> values(bytes / sizeof(uint4));
    Buffer<uint32_t> sink(1);
    Check(cudaMemset(values.data(), 1, bytes), "cudaMemset");
    double least = 1e30;
    int best = 0;
    for (const int blocks : {1, 2, 4, 8}) {
      const double seconds = LeastSeconds(
          stream, [&] { Read<<<num_processors * blocks, kThreads, 0, stream>>>(values.data(), bytes / sizeof(uint4), sink.data()); });
      if (seconds < least) best = blocks;
      least = std::min(least, seconds);
    }
    std::printf("{\"probe\": \"read\", \"bytes\": %zu, \"blocks_per_processor\": %d, \"bytes_per_s\": %.4g}\n", bytes, best,
                static_cast<double>(bytes) / least);
  }
}

// A chain of kernels: by stream, as a graph, and with programmatic edges.
void ProbeEdges(cudaStream_t stream, int num_processors, bool programmatic) {
  Buffer<uint32_t> counter(1);
  const auto launch_all = [&](bool early) {
    for (int i = 0; i < kNodes; ++i) {
      cudaLaunchAttribute attribute{};
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
      cudaLaunchConfig_t config{};
      config.gridDim = static_cast<unsigned>(num_processors);
      config.blockDim = kThreads;
      config.stream = stream;
      config.attrs = &attribute;
      config.numAttrs = early ? 1 : 0;
      Check(cudaLaunchKernelEx(&config, early ? AddAfterWait : Add, counter.data()), "a launch");
    }
  };
  const auto report = [&](const char* how, double seconds, uint32_t runs) {
    const bool exact = counter.Fetch(1)[0] == runs * kNodes;
    std::printf("{\"probe\": \"edge\", \"how\": \"%s\", \"us_per_kernel\": %.3f, \"in_order\": %s}\n", how, seconds / kNodes * 1e6,
                exact ? "true" : "false");
  };
  Check(cudaMemset(counter.data(), 0, 4), "cudaMemset");
  report("stream", LeastSeconds(stream, [&] { launch_all(false); }), kRounds + 1);
  for (const bool early : {false, true}) {
    if (early && !programmatic) continue;
    cudaGraph_t graph;
    cudaGraphExec_t played;
    Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a recording");
    launch_all(early);
    Check(cudaStreamEndCapture(stream, &graph), "a recording");
    Check(cudaGraphInstantiate(&played, graph, 0), "a graph");
    Check(cudaMemset(counter.data(), 0, 4), "cudaMemset");
    report(early ? "graph, programmatic" : "graph", LeastSeconds(stream, [&] { Check(cudaGraphLaunch(played, stream), "a graph"); }),
           kRounds + 1);
    Check(cudaGraphExecDestroy(played), "a graph");
    Check(cudaGraphDestroy(graph), "a graph");
  }
}

void ProbeBarriers(cudaStream_t stream, int num_processors) {
  int count = kNodes;
  void* arguments[] = {&count};
  const double seconds = LeastSeconds(stream, [&] {
    Check(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(Barriers), static_cast<unsigned>(num_processors), kThreads, arguments,
                                      0, stream),
          "a cooperative launch");
  });
  std::printf("{\"probe\": \"grid barrier\", \"us\": %.3f}\n", seconds / kNodes * 1e6);
}

// Whether sums of integers that stay below 2^22 come out exact, whatever their order inside an instruction.
bool ProbeExactness(cudaStream_t stream) {
  std::vector<int> left(16 * kDepth);
  std::vector<int> right(8 * kDepth);
  uint32_t state = 1;
  const auto next = [&](int least, int count) {
    state = state * 1'664'525 + 1'013'904'223;
    return least + static_cast<int>((state >> 8) % static_cast<uint32_t>(count));
  };
  for (int& value : left) value = next(-8, 16);
  for (int& value : right) value = next(-127, 255);
  std::fill_n(left.begin(), kDepth, -8);  // the largest sum: 2^20
  std::fill_n(right.begin(), kDepth, -127);
  std::vector<float> expected(16 * 8);
  for (int i = 0; i < 16 * 8; ++i) {
    int sum = 0;
    for (int k = 0; k < kDepth; ++k) sum += left[i / 8 * kDepth + k] * right[i % 8 * kDepth + k];
    expected[i] = static_cast<float>(sum);
  }
  Buffer<__half> half_left(std::vector<__half>(left.begin(), left.end()));
  Buffer<__half> half_right(std::vector<__half>(right.begin(), right.end()));
  Buffer<int8_t> byte_left(std::vector<int8_t>(left.begin(), left.end()));
  Buffer<int8_t> byte_right(std::vector<int8_t>(right.begin(), right.end()));
  Buffer<float> d(16 * 8);
  HalfProduct<<<1, 32, 0, stream>>>(half_left.data(), half_right.data(), d.data());
  Check(cudaStreamSynchronize(stream), "a product of fp16");
  const bool half = d.Fetch(16 * 8) == expected;
  ByteProduct<<<1, 32, 0, stream>>>(byte_left.data(), byte_right.data(), d.data());
  Check(cudaStreamSynchronize(stream), "a product of int8");
  const bool bytes = d.Fetch(16 * 8) == expected;
  std::printf("{\"probe\": \"integers are exact\", \"fp16, fp32 sums\": %s, \"int8 from 0x4B400000\": %s}\n", half ? "true" : "false",
              bytes ? "true" : "false");
  return half && bytes;
}

}  // namespace

int main() {
  cudaDeviceProp properties{};
  Check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  cudaStream_t stream;
  Check(cudaStreamCreate(&stream), "cudaStreamCreate");
  std::printf(
      "{\"probe\": \"device\", \"name\": \"%s\", \"architecture\": \"sm_%d%d\", \"multiprocessors\": %d, \"l2_bytes\": %d, "
      "\"shared_bytes_per_block\": %zu}\n",
      properties.name, properties.major, properties.minor, properties.multiProcessorCount, properties.l2CacheSize,
      properties.sharedMemPerBlockOptin);
  ProbeReads(stream, properties.multiProcessorCount);
  ProbeEdges(stream, properties.multiProcessorCount, properties.major >= 9);
  ProbeBarriers(stream, properties.multiProcessorCount);
  const bool exact = ProbeExactness(stream);
  Check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return exact ? 0 : 1;
}
