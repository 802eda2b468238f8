// The runtime that keeps memory and runs no kernel.
#include "kernels/cuda/null_device.h"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/errors.h"
#include "kernels/cuda/device_work.h"
#include "kernels/cuda/emulated_matrix.h"
#include "kernels/cuda/gpu_device.h"

namespace llmi {
namespace {

class NullRuntime {
 public:
  using Launcher = NullRuntime;

  explicit NullRuntime(int /*ordinal*/) {}
  ~NullRuntime() {
    for (const auto& [address, size] : used_) munmap(address, size);
  }
  NullRuntime(const NullRuntime&) = delete;
  NullRuntime& operator=(const NullRuntime&) = delete;

  std::string name() const { return "null"; }
  std::string architecture() const { return "null"; }
  static cuda::MatrixInstruction matrix_instruction() { return cuda::EmulatedMatrixInstruction(); }
  int num_multiprocessors() const { return 132; }  // as many as an H100 has
  uint64_t total_bytes() const { return kTotalBytes; }
  uint64_t free_bytes() const {
    uint64_t used = 0;
    for (const auto& [address, size] : used_) used += size;
    return kTotalBytes - used;
  }
  void* Allocate(size_t num_bytes, const char* what) {
    void* address = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED || free_bytes() < num_bytes) {
      throw Error::OutOfMemory(std::string(what) + " needs " + std::to_string(num_bytes / 1000000) + " MB of the null device", num_bytes,
                               free_bytes());
    }
    used_[address] = num_bytes;
    return address;
  }
  void Free(void* address) noexcept {
    const auto found = used_.find(address);
    munmap(address, found->second);
    used_.erase(found);
  }

  void Upload(void* to, const void* from, size_t num_bytes) {
    std::memcpy(to, from, num_bytes);
    Work([&](cuda::DeviceWork& work) { ++work.uploads, work.upload_bytes += static_cast<int64_t>(num_bytes); });
  }
  uint8_t* Stage(size_t num_bytes) {
    staged_.resize(num_bytes);
    return staged_.data();
  }
  void UploadStaged(void* to, size_t num_bytes) { Upload(to, staged_.data(), num_bytes); }
  void Download(void* to, const void* from, size_t num_bytes) {
    std::memcpy(to, from, num_bytes);
    Work([](cuda::DeviceWork& work) { ++work.waits; });
  }
  void Copy(void* to, const void* from, size_t num_bytes) {
    if (is_recording_) {
      ++num_recorded_;
      return;
    }
    std::memcpy(to, from, num_bytes);
    Work([](cuda::DeviceWork& work) { ++work.copies; });
  }
  void Fetch(int slot, const void* from, size_t num_bytes) {
    fetched_[slot].resize(num_bytes);
    std::memcpy(fetched_[slot].data(), from, num_bytes);
  }
  const void* Fetched(int slot) const { return fetched_[slot].data(); }
  void Mark(int /*mark*/) {}
  void WaitForMark(int /*mark*/) {
    Work([](cuda::DeviceWork& work) { ++work.waits; });
  }
  double SecondsBetween(int /*first*/, int /*second*/) const { return 0; }

  using Recording = int64_t;  // its launches and copies
  template <typename Ops>
  Recording Record(const Ops& ops) {
    is_recording_ = true;
    num_recorded_ = 0;
    ops();
    is_recording_ = false;
    return num_recorded_;
  }
  void Play(Recording num_nodes) {
    Work([&](cuda::DeviceWork& work) { ++work.replays, work.graph_nodes += num_nodes; });
  }
  void CopyRows(void* to, int64_t /*to_stride*/, const void* from, int64_t /*from_stride*/, int64_t row_bytes, int64_t /*num_rows*/) {
    Copy(to, from, static_cast<size_t>(row_bytes));
  }
  static void ReserveForHost(size_t /*num_bytes*/) {}
  template <typename Gather>
  static void ExchangeByHost(const cuda::RankExchange& /*exchange*/, int /*rank*/, const Gather& /*gather*/) {}
  static void Exchange(cuda::Nccl& /*nccl*/, const cuda::RankExchange& /*exchange*/) {}
  template <typename Check>
  static void Finish(const Check& check) {
    check();
  }
  void Multiply(cuda::CublasLt& /*library*/, const cuda::FreeProduct& /*product*/) { Launch(1, 1, 1, 0, 0); }
  template <typename Kernel>
  void Launch(int64_t /*grid_x*/, int64_t /*grid_y*/, int /*num_threads*/, size_t /*shared_bytes*/, const Kernel& /*kernel*/) {
    if (is_recording_) {
      ++num_recorded_;
    } else {
      Work([](cuda::DeviceWork& work) { ++work.launches; });
    }
  }

 private:
  static constexpr uint64_t kTotalBytes = uint64_t{80} << 30;

  template <typename Change>
  static void Work(const Change& change) {
    cuda::WorkCounter::Shared().Count(change);
  }

  std::map<void*, size_t> used_;
  std::vector<uint8_t> staged_;
  std::vector<uint8_t> fetched_[2];
  bool is_recording_ = false;
  int64_t num_recorded_ = 0;
};

}  // namespace

std::unique_ptr<Device> OpenNullDevice(const DeviceOptions& options) { return std::make_unique<cuda::GpuDevice<NullRuntime>>(options); }

}  // namespace llmi
