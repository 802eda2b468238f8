// The runtime without a GPU: blocks run one after the other, memory is in a region that is closed to all but kernels and copies. Work is
// put off until somebody waits for it, so what the host changes too early shows.
#include <cxxabi.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <typeinfo>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "kernels/cuda/device_work.h"
#include "kernels/cuda/emulated_matrix.h"
#include "kernels/cuda/gpu_device.h"
#include "kernels/cuda/null_device.h"

namespace llmi {
namespace {

constexpr size_t kRegionBytes = size_t{4} << 30;  // reserved addresses; the system gives memory when they are touched
constexpr size_t kMostSharedBytes = 99 * 1024;    // of a block on the smallest GPU that builds are for
constexpr size_t kAlignment = 4096;               // allocations are whole pages, so each can be given back by itself

// Without namespaces, as LinearKernel<Int8Rows>.
template <typename Kernel>
const std::string& NameOf() {
  static const std::string name = [] {
    char* plain = abi::__cxa_demangle(typeid(Kernel).name(), nullptr, nullptr, nullptr);
    std::string text = plain;
    std::free(plain);
    constexpr std::string_view kNamespace = "llmi::cuda::";
    for (size_t at = text.find(kNamespace); at != std::string::npos; at = text.find(kNamespace)) text.erase(at, kNamespace.size());
    return text;
  }();
  return name;
}

class EmulatedRuntime {
 public:
  using Launcher = EmulatedRuntime;

  explicit EmulatedRuntime(int /*ordinal*/) {
    void* address = mmap(nullptr, kRegionBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) throw Error::OutOfMemory("the emulated device needs 4,295 MB of addresses", kRegionBytes, 0);
    region_ = static_cast<uint8_t*>(address);
  }
  ~EmulatedRuntime() { munmap(region_, kRegionBytes); }
  EmulatedRuntime(const EmulatedRuntime&) = delete;
  EmulatedRuntime& operator=(const EmulatedRuntime&) = delete;

  std::string name() const { return "emulated"; }
  std::string architecture() const { return "emulated"; }
  static cuda::MatrixInstruction matrix_instruction() { return cuda::EmulatedMatrixInstruction(); }
  int num_multiprocessors() const { return 1; }
  uint64_t total_bytes() const { return kRegionBytes; }
  uint64_t free_bytes() const {
    uint64_t used = 0;
    for (const auto& [offset, size] : used_) used += size;
    return kRegionBytes - used;
  }

  void* Allocate(size_t num_bytes, const char* what) {
    CheckNotRecording();
    const size_t size = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    size_t offset = 0;  // the first gap that is large enough
    for (const auto& [begin, length] : used_) {
      if (begin - offset >= size) break;
      offset = begin + length;
    }
    if (kRegionBytes - offset < size) {
      throw Error::OutOfMemory(std::string(what) + " needs " + std::to_string(num_bytes / 1000000) + " MB of the device, " +
                                   std::to_string(free_bytes() / 1000000) + " MB are free",
                               num_bytes, free_bytes());
    }
    used_[offset] = size;
    return region_ + offset;  // zero, as fresh pages are
  }
  // A series of launches and copies, in order.
  using Ops = std::vector<std::function<void()>>;
  using Recording = std::shared_ptr<const Ops>;
  template <typename Function>
  Recording Record(const Function& ops) {
    Ops recording;
    recording_ = &recording;
    try {
      ops();
    } catch (...) {
      recording_ = nullptr;
      throw;
    }
    recording_ = nullptr;
    return std::make_shared<const Ops>(std::move(recording));
  }
  void Play(const Recording& recording) {
    Work([&](cuda::DeviceWork& work) { ++work.replays, work.graph_nodes += static_cast<int64_t>(recording->size()); });
    Do([this, recording] {
      is_playing_ = true;
      for (const auto& op : *recording) op();
      is_playing_ = false;
    });
  }

  void Free(void* address) noexcept {
    try {
      RunAll();
    } catch (...) {  // who waits for the work next is told
    }
    const auto found = used_.find(static_cast<size_t>(static_cast<uint8_t*>(address) - region_));
    madvise(address, found->second, MADV_DONTNEED);
    used_.erase(found);
  }

  void Upload(void* to, const void* from, size_t num_bytes) {
    CheckNotRecording();
    CheckInside(to, num_bytes);
    CountUpload(num_bytes);
    RunAll();
    const Open open(*this);
    std::memcpy(to, from, num_bytes);
  }
  uint8_t* Stage(size_t num_bytes) {
    stage_ = (stage_ + 1) % cuda::kNumStages;
    Staged& staged = stages_[stage_];
    RunUntil(staged.end);
    staged.bytes.assign(num_bytes, 0xFF);  // as what is not written may be
    return staged.bytes.data();
  }
  void UploadStaged(void* to, size_t num_bytes) {
    CheckNotRecording();
    CheckInside(to, num_bytes);
    CountUpload(num_bytes);
    Do([=, this, from = stages_[stage_].bytes.data()] {
      const Open open(*this);
      std::memcpy(to, from, num_bytes);
    });
    stages_[stage_].end = NumGiven();
  }
  void Download(void* to, const void* from, size_t num_bytes) {
    Work([](cuda::DeviceWork& work) { ++work.waits; });
    CheckNotRecording();
    CheckInside(from, num_bytes);
    RunAll();
    const Open open(*this);
    std::memcpy(to, from, num_bytes);
  }
  void Fetch(int slot, const void* from, size_t num_bytes) {
    CheckNotRecording();
    CheckInside(from, num_bytes);
    Do([=, this] {
      fetched_[slot].resize(num_bytes);
      const Open open(*this);
      std::memcpy(fetched_[slot].data(), from, num_bytes);
    });
  }
  const void* Fetched(int slot) const { return fetched_[slot].data(); }
  void Mark(int mark) {
    CheckNotRecording();
    Do([=, this] { marks_[mark].time = std::chrono::steady_clock::now(); });
    marks_[mark].end = NumGiven();
  }
  void WaitForMark(int mark) {
    Work([](cuda::DeviceWork& work) { ++work.waits; });
    RunUntil(marks_[mark].end);
  }
  double SecondsBetween(int first, int second) const {
    return std::chrono::duration<double>(marks_[second].time - marks_[first].time).count();
  }
  void Copy(void* to, const void* from, size_t num_bytes) {
    CheckInside(to, num_bytes);
    CheckInside(from, num_bytes);
    Do([=, this] {
      if (!is_playing_) Work([](cuda::DeviceWork& work) { ++work.copies; });
      const Open open(*this);
      std::memcpy(to, from, num_bytes);
    });
  }

  void CopyRows(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t row_bytes, int64_t num_rows) {
    CheckInside(to, static_cast<size_t>((num_rows - 1) * to_stride + row_bytes));
    CheckInside(from, static_cast<size_t>((num_rows - 1) * from_stride + row_bytes));
    Do([=, this] {
      if (!is_playing_) Work([](cuda::DeviceWork& work) { ++work.copies; });
      const Open open(*this);
      for (int64_t row = 0; row < num_rows; ++row) {
        std::memcpy(static_cast<uint8_t*>(to) + row * to_stride, static_cast<const uint8_t*>(from) + row * from_stride,
                    static_cast<size_t>(row_bytes));
      }
    });
  }
  static void ReserveForHost(size_t /*num_bytes*/) {}
  template <typename Gather>
  void ExchangeByHost(const cuda::RankExchange& exchange, int /*rank*/, const Gather& gather) {
    CheckInside(exchange.packed, static_cast<size_t>(exchange.num_bytes));
    Do([this, gather, packed = exchange.packed] {
      const Open open(*this);
      gather(packed);
    });
  }
  void Exchange(cuda::Nccl& nccl, const cuda::RankExchange& exchange) {
    CheckInside(exchange.packed, static_cast<size_t>(exchange.num_bytes));
    Do([this, &nccl, exchange] {
      const Open open(*this);
      nccl.Exchange(exchange, nullptr);
    });
  }
  template <typename Check>
  void Finish(const Check& check) {
    check();
    RunAll();
  }

  // Calls a library that runs on the host (tests/native/cublas_lt.cc).
  void Multiply(cuda::CublasLt& library, const cuda::FreeProduct& product) {
    CheckPointers(product);
    Do([=, this, &library] {
      CountLaunch("cuBLASLt", product.num_outputs * product.num_cols * static_cast<int64_t>(sizeof(uint16_t)));
      const Open open(*this);
      library.Multiply(product, nullptr);
    });
  }

  template <typename Kernel>
  void Launch(int64_t grid_x, int64_t grid_y, int num_threads, size_t shared_bytes, const Kernel& kernel) {
    CheckInternal(grid_x > 0 && grid_x < INT32_MAX && grid_y > 0 && grid_y < 65536 && shared_bytes <= kMostSharedBytes &&
                      num_threads <= cuda::kMostThreads,
                  "a launch that a GPU refuses");
    CheckPointers(kernel);
    Do([=, this] { Run(grid_x, grid_y, num_threads, shared_bytes, kernel); });
  }

 private:
  struct Staged {
    std::vector<uint8_t> bytes;
    int64_t end = 0;  // of the work whose last piece copies them
  };
  struct Marked {
    std::chrono::steady_clock::time_point time;
    int64_t end = 0;
  };

  void Do(std::function<void()> op) { recording_ != nullptr ? recording_->push_back(std::move(op)) : given_.push_back(std::move(op)); }
  int64_t NumGiven() const { return num_run_ + static_cast<int64_t>(given_.size()); }
  void RunAll() { RunUntil(NumGiven()); }
  // Carries out the first `end` pieces of work since the beginning. After a fault no later piece is carried out.
  void RunUntil(int64_t end) {
    if (fault_) std::rethrow_exception(fault_);
    try {
      for (; num_run_ < end; ++num_run_) {
        const std::function<void()> op = std::move(given_.front());
        given_.pop_front();
        op();
      }
    } catch (...) {
      fault_ = std::current_exception();
      throw;
    }
  }

  template <typename Kernel>
  void Run(int64_t grid_x, int64_t grid_y, int num_threads, size_t shared_bytes, const Kernel& kernel) {
    if (cuda::failing_launch > 0 && --cuda::failing_launch == 0) {
      throw Error(ErrorKind::kDevice, "emulated device: " + NameOf<Kernel>() + " has stopped");
    }
    shared_.resize(shared_bytes / sizeof(uint64_t) + 1);
    int64_t streamed_bytes = 0;
    const Open open(*this);
    for (int64_t y = 0; y < grid_y; ++y) {
      for (int64_t x = 0; x < grid_x; ++x) {
        std::fill(shared_.begin(), shared_.end(), ~uint64_t{0});  // NaN: nothing may be read before it was written
        kernel(cuda::HostBlock{x, y, num_threads, reinterpret_cast<uint8_t*>(shared_.data()), &streamed_bytes});
      }
    }
    CountLaunch(NameOf<Kernel>(), streamed_bytes);
  }

  // While an object of it lives, the region may be touched.
  class Open {
   public:
    explicit Open(const EmulatedRuntime& runtime) : region_(runtime.region_) { mprotect(region_, kRegionBytes, PROT_READ | PROT_WRITE); }
    ~Open() { mprotect(region_, kRegionBytes, PROT_NONE); }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    uint8_t* region_;
  };

  template <typename Change>
  static void Work(const Change& change) {
    cuda::WorkCounter::Shared().Count(change);
  }
  static void CountUpload(size_t num_bytes) {
    Work([&](cuda::DeviceWork& work) { ++work.uploads, work.upload_bytes += static_cast<int64_t>(num_bytes); });
  }
  void CountLaunch(const std::string& kernel, int64_t streamed_bytes) const {
    Work([&](cuda::DeviceWork& work) {
      if (!is_playing_) ++work.launches;
      ++work.kernels[kernel];
      work.streamed_bytes += streamed_bytes;
    });
  }

  bool Inside(uintptr_t address) const {
    const auto begin = reinterpret_cast<uintptr_t>(region_);
    return address >= begin && address <= begin + kRegionBytes;
  }
  void CheckInside(const void* address, size_t num_bytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(address);
    CheckInternal(Inside(begin) && Inside(begin + num_bytes), "a copy of memory that is not the device's");
  }
  template <typename Kernel>
  void CheckPointers(const Kernel& kernel) const {
    kernel.ForEachPointer([&](const void* pointer) {
      CheckInternal(pointer == nullptr || Inside(reinterpret_cast<uintptr_t>(pointer)),
                    "a kernel was given memory that is not the device's");
    });
  }
  void CheckNotRecording() const { CheckInternal(recording_ == nullptr, "a transfer or an allocation while a recording is made"); }

  uint8_t* region_ = nullptr;
  std::deque<std::function<void()>> given_;  // work that is not carried out yet
  int64_t num_run_ = 0;
  std::exception_ptr fault_;
  Ops* recording_ = nullptr;  // that is being made
  bool is_playing_ = false;
  std::map<size_t, size_t> used_;  // offset: size
  std::vector<uint64_t> shared_;
  std::vector<uint8_t> fetched_[2];
  Staged stages_[cuda::kNumStages];
  int stage_ = 0;
  Marked marks_[cuda::kNumMarks];
};

}  // namespace

std::unique_ptr<Device> OpenEmulatedDevice(const DeviceOptions& options) {
  if (opens_null_devices) return OpenNullDevice(options);
  return std::make_unique<cuda::GpuDevice<EmulatedRuntime>>(options);
}

}  // namespace llmi
