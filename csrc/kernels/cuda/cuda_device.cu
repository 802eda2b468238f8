// The runtime of CUDA: one stream of a GPU.
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "kernels/cuda/cuda_launcher.cuh"
#include "kernels/cuda/gpu_device.h"

namespace llmi {
namespace {

using cuda::Check;

class CudaRuntime : public cuda::CudaLauncher {
 public:
  using Launcher = CudaLauncher;

  // A gather by the host, in the order of the stream.
  struct HostGather {
    std::function<void(uint8_t*)> gather;
    uint8_t* bytes;
  };
  using HostGathers = std::vector<std::unique_ptr<HostGather>>;

  // A graph of launches, copies and gathers.
  class Recording {
   public:
    Recording(cudaGraph_t graph, const CudaRuntime& runtime, HostGathers gathers) : gathers_(std::move(gathers)) {
      size_t num_nodes = 0;
      cudaGraphGetNodes(graph, nullptr, &num_nodes);
      const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
      cudaGraphDestroy(graph);
      if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        const uint64_t free = runtime.free_bytes();
        throw Error::OutOfMemory("a recording of " + std::to_string(num_nodes) +
                                     " launches has no room: " + std::to_string(free / 1000000) + " MB of " + runtime.name() +
                                     " are free; lower gpu_memory_utilization or kv_cache_memory_bytes",
                                 0, free);
      }
      Check(status, "a graph");
    }
    ~Recording() {
      if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    }
    Recording(Recording&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)), gathers_(std::move(other.gathers_)) {}
    Recording& operator=(Recording&&) = delete;
    cudaGraphExec_t get() const { return executable_; }

   private:
    cudaGraphExec_t executable_ = nullptr;
    HostGathers gathers_;
  };

  explicit CudaRuntime(int ordinal) {
    int count = 0;
    Check(cudaGetDeviceCount(&count), "the number of GPUs");
    if (ordinal >= count) {
      throw Error(ErrorKind::kDevice,
                  "rank " + std::to_string(ordinal) + " needs a GPU of its own, and " + std::to_string(count) +
                      " are visible: tensor_parallel_size is at most as large",
                  "tensor_parallel_size");
    }
    Check(cudaSetDevice(ordinal), "this GPU");
    cudaDeviceProp properties;
    Check(cudaGetDeviceProperties(&properties, ordinal), "its properties");
    name_ = properties.name;
    architecture_ = "sm_" + std::to_string(properties.major * 10 + properties.minor);
    num_multiprocessors_ = properties.multiProcessorCount;
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    for (cudaEvent_t& mark : marks_) Check(cudaEventCreate(&mark), "a mark");
    for (Staged& staged : stages_) Check(cudaEventCreateWithFlags(&staged.copied, cudaEventDisableTiming), "a mark");
  }
  ~CudaRuntime() {
    cudaStreamSynchronize(stream_);
    for (const HostCopy& copy : copies_) cudaFreeHost(copy.bytes);
    cudaFreeHost(exchanged_.bytes);
    for (const Staged& staged : stages_) {
      cudaFreeHost(staged.host.bytes);
      cudaEventDestroy(staged.copied);
    }
    for (cudaEvent_t mark : marks_) cudaEventDestroy(mark);
    cudaStreamDestroy(stream_);
  }
  CudaRuntime(const CudaRuntime&) = delete;
  CudaRuntime& operator=(const CudaRuntime&) = delete;

  std::string name() const { return name_; }
  std::string architecture() const { return architecture_; }
  static cuda::MatrixInstruction matrix_instruction() { return cuda::CudaMatrixInstruction(); }
  int num_multiprocessors() const { return num_multiprocessors_; }
  uint64_t total_bytes() const { return Memory().second; }
  uint64_t free_bytes() const { return Memory().first; }

  void* Allocate(size_t num_bytes, const char* what) {
    void* address = nullptr;
    const cudaError_t status = cudaMalloc(&address, num_bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      const uint64_t free = free_bytes();
      throw Error::OutOfMemory(std::string(what) + " needs " + std::to_string(num_bytes / 1000000) + " MB of " + name_ + ", " +
                                   std::to_string(free / 1000000) + " MB are free",
                               num_bytes, free);
    }
    Check(status, "memory");
    Check(cudaMemsetAsync(address, 0, num_bytes, stream_), "memory");
    return address;
  }
  void Free(void* address) noexcept { cudaFree(address); }

  void Upload(void* to, const void* from, size_t num_bytes) {
    Check(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyHostToDevice, stream_), "a copy to the device");
  }
  // Pinned memory of the host to be written, then uploaded. It takes what the copy of kNumStages calls ago has read.
  uint8_t* Stage(size_t num_bytes) {
    stage_ = (stage_ + 1) % cuda::kNumStages;
    Staged& staged = stages_[stage_];
    Check(cudaEventSynchronize(staged.copied), "a step");
    Grow(&staged.host, num_bytes);
    return static_cast<uint8_t*>(staged.host.bytes);
  }
  void UploadStaged(void* to, size_t num_bytes) {
    const Staged& staged = stages_[stage_];
    Upload(to, staged.host.bytes, num_bytes);
    Check(cudaEventRecord(staged.copied, stream_), "a mark");
  }
  void Download(void* to, const void* from, size_t num_bytes) {
    Check(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToHost, stream_), "a copy from the device");
    Check(cudaStreamSynchronize(stream_), "a step");
  }
  void Copy(void* to, const void* from, size_t num_bytes) {
    Check(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToDevice, stream_), "a copy");
  }

  void CopyRows(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t row_bytes, int64_t num_rows) {
    if (num_rows == 1) return Copy(to, from, static_cast<size_t>(row_bytes));
    Check(cudaMemcpy2DAsync(to, static_cast<size_t>(to_stride), from, static_cast<size_t>(from_stride), static_cast<size_t>(row_bytes),
                            static_cast<size_t>(num_rows), cudaMemcpyDeviceToDevice, stream_),
          "a copy of rows");
  }

  // Memory of the host for exchanges of up to num_bytes.
  void ReserveForHost(size_t num_bytes) {
    Check(cudaStreamSynchronize(stream_), "a step");  // nothing is on its way there
    Grow(&exchanged_, num_bytes);
  }
  // gather(bytes on the host) is called when the stream has come there.
  void ExchangeByHost(const cuda::RankExchange& exchange, int rank, std::function<void(uint8_t*)> gather) {
    auto* host = static_cast<uint8_t*>(exchanged_.bytes);
    const auto copy = [&](bool own) {
      for (const RankGroup::Block& part : exchange.parts) {
        if ((part.owner == rank) != own) continue;
        uint8_t* there = exchange.packed + part.offset;
        Check(cudaMemcpyAsync(own ? host + part.offset : there, own ? there : host + part.offset, static_cast<size_t>(part.row_bytes),
                              own ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream_),
              "a gather");
      }
    };
    copy(true);
    host_gathers_.push_back(std::make_unique<HostGather>(HostGather{std::move(gather), host}));
    const auto call = [](void* given) { static_cast<HostGather*>(given)->gather(static_cast<HostGather*>(given)->bytes); };
    Check(cudaLaunchHostFunc(stream_, call, host_gathers_.back().get()), "a gather");
    if (rank == 0 || !exchange.to_first) copy(false);
  }
  void Exchange(cuda::Nccl& nccl, const cuda::RankExchange& exchange) { nccl.Exchange(exchange, stream_); }
  // Waits for all work, and calls check meanwhile.
  void Finish(const std::function<void()>& check) {
    constexpr auto kLook = std::chrono::milliseconds(20);
    auto next = std::chrono::steady_clock::now() + kLook;
    cudaError_t status = cudaStreamQuery(stream_);
    for (; status == cudaErrorNotReady; status = cudaStreamQuery(stream_)) {
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() < next) continue;
      check();
      next = std::chrono::steady_clock::now() + kLook;
    }
    Check(status, "a step");
    host_gathers_.clear();
  }

  // Starts a copy to the slot's host memory and returns while it runs; the bytes stay there until the slot's next fetch.
  void Fetch(int slot, const void* from, size_t num_bytes) {
    HostCopy& copy = copies_[slot];
    if (copy.num_bytes < num_bytes) {
      Check(cudaStreamSynchronize(stream_), "a step");  // nothing is on its way there
      Grow(&copy, num_bytes);
    }
    Check(cudaMemcpyAsync(copy.bytes, from, num_bytes, cudaMemcpyDeviceToHost, stream_), "a copy from the device");
  }
  const void* Fetched(int slot) const { return copies_[slot].bytes; }

  // A mark separates the work launched before it from the work launched after it.
  void Mark(int mark) { Check(cudaEventRecord(marks_[mark], stream_), "a mark"); }
  void WaitForMark(int mark) { Check(cudaEventSynchronize(marks_[mark]), "a step"); }
  double SecondsBetween(int first, int second) {
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, marks_[first], marks_[second]), "a mark");
    return 1e-3 * static_cast<double>(milliseconds);
  }

  template <typename Ops>
  Recording Record(const Ops& ops) {
    Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "a recording");
    cudaGraph_t graph = nullptr;
    HostGathers before = std::exchange(host_gathers_, {});
    try {
      ops();
    } catch (...) {
      host_gathers_ = std::move(before);
      cudaStreamEndCapture(stream_, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    HostGathers recorded = std::exchange(host_gathers_, std::move(before));
    Check(cudaStreamEndCapture(stream_, &graph), "a recording");
    return Recording(graph, *this, std::move(recorded));
  }
  void Play(const Recording& recording) { Check(cudaGraphLaunch(recording.get(), stream_), "a replay"); }

  void Multiply(cuda::CublasLt& library, const cuda::FreeProduct& product) { library.Multiply(product, stream_); }

 private:
  struct HostCopy {
    void* bytes = nullptr;
    size_t num_bytes = 0;
  };
  struct Staged {
    HostCopy host;
    cudaEvent_t copied = nullptr;  // what was uploaded last
  };

  // Makes room for num_bytes; what was there is lost if there is not enough.
  static void Grow(HostCopy* copy, size_t num_bytes) {
    if (copy->num_bytes >= num_bytes) return;
    Check(cudaFreeHost(std::exchange(copy->bytes, nullptr)), "memory of the host");
    copy->num_bytes = 0;
    Check(cudaMallocHost(&copy->bytes, 2 * num_bytes), "memory of the host");
    copy->num_bytes = 2 * num_bytes;
  }

  // Free and total bytes.
  static std::pair<uint64_t, uint64_t> Memory() {
    size_t free = 0;
    size_t total = 0;
    Check(cudaMemGetInfo(&free, &total), "free memory");
    return {free, total};
  }

  std::string name_;
  std::string architecture_;
  int num_multiprocessors_ = 0;
  HostCopy copies_[2];
  HostCopy exchanged_;
  HostGathers host_gathers_;  // that are under way and not recorded
  Staged stages_[cuda::kNumStages];
  int stage_ = 0;
  cudaEvent_t marks_[cuda::kNumMarks] = {};
};

}  // namespace

std::string WhyNoCuda() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (status != cudaSuccess) return std::string("no CUDA device can be used: ") + cudaGetErrorString(status);
  return count > 0 ? "" : "this machine has no CUDA device";
}

std::unique_ptr<Device> OpenCudaDevice(const DeviceOptions& options) {
  if (const std::string why = WhyNoCuda(); !why.empty()) throw Error(ErrorKind::kDevice, why, "device");
  return std::make_unique<cuda::GpuDevice<CudaRuntime>>(options);
}

}  // namespace llmi
