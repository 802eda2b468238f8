#include "core/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>

#include "core/errors.h"
#include "core/fp_env.h"
#include "core/system_limits.h"

namespace llmi {
namespace {

constexpr int kMaxThreads = 256;
// About 20 us of spinning: longer than the serial gaps between two ops of a step (1 to 5 us), too short
// to slow another process noticeably.
constexpr int kSpinIterations = 2000;

void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The number in an environment variable; 0 if it is unset or empty. is_list, for OMP_NUM_THREADS, which other programs read, too: the
// variable may be a list with one number for each level, of which the first is used, and the number may exceed the pool's maximum.
int EnvironmentThreads(const char* name, bool is_list) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (end == text || (*end != '\0' && !(is_list && *end == ',')) || value < 1 || (value > kMaxThreads && !is_list)) {
    throw Error(
        ErrorKind::kInvalidArgument,
        std::string(name) + " = \"" + text + "\" in the environment is no number of threads from 1 to " + std::to_string(kMaxThreads),
        name);
  }
  return static_cast<int>(std::min<long>(value, kMaxThreads));
}

std::atomic<ThreadPool*> shared_pool{nullptr};
std::mutex shared_mutex;

}  // namespace

ThreadPool& ThreadPool::Shared() {
  ThreadPool* pool = shared_pool.load(std::memory_order_acquire);
  if (pool != nullptr) return *pool;
  const std::lock_guard lock(shared_mutex);
  pool = shared_pool.load(std::memory_order_acquire);
  if (pool == nullptr) {
    // A child process of fork has none of the workers. It drops the parent's pool without destroying it, since it cannot join its threads.
    static const int registered = pthread_atfork([] { shared_mutex.lock(); }, [] { shared_mutex.unlock(); },
                                                 [] {
                                                   shared_pool.store(nullptr);
                                                   shared_mutex.unlock();
                                                 });
    static_cast<void>(registered);
    pool = new ThreadPool(1);  // grows when a call wants more threads
    shared_pool.store(pool, std::memory_order_release);
  }
  return *pool;
}

int ThreadPool::DefaultNumThreads(const std::string& root) {
  if (const int threads = EnvironmentThreads("LLMI_NUM_THREADS", false); threads > 0) return threads;
  if (const int threads = EnvironmentThreads("OMP_NUM_THREADS", true); threads > 0) return threads;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  int cpus = 1;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) cpus = CPU_COUNT(&mask);
  return std::clamp(std::min(cpus, CgroupCpus(kMaxThreads, root)), 1, kMaxThreads);
}

ThreadPool::ThreadPool(int num_threads) : ranges_(kMaxThreads) { EnsureWorkers(num_threads - 1); }

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::EnsureWorkers(int num_workers) {
  num_workers = std::min(num_workers, kMaxThreads - 1);
  while (static_cast<int>(workers_.size()) < num_workers) {
    const int index = static_cast<int>(workers_.size());
    workers_.emplace_back([this, index, epoch = epoch_.load()] { WorkerLoop(index, epoch); });
  }
}

bool ThreadPool::Range::TakeFirst(int64_t* task) {
  uint64_t range = left.load(std::memory_order_acquire);
  do {
    *task = static_cast<int64_t>(range & 0xFFFFu);
    if (*task >= static_cast<int64_t>((range >> 16) & 0xFFFFu)) return false;
  } while (!left.compare_exchange_weak(range, range + 1, std::memory_order_acq_rel, std::memory_order_acquire));
  return true;
}

bool ThreadPool::Range::TakeLast(int64_t* task) {
  uint64_t range = left.load(std::memory_order_acquire);
  do {
    *task = static_cast<int64_t>((range >> 16) & 0xFFFFu) - 1;
    if (*task < static_cast<int64_t>(range & 0xFFFFu)) return false;
  } while (!left.compare_exchange_weak(range, range - (uint64_t{1} << 16), std::memory_order_acq_rel, std::memory_order_acquire));
  return true;
}

void ThreadPool::TakeTasks(int self) {
  const int num_ranges = num_ranges_.load(std::memory_order_acquire);
  int64_t task = 0;
  // A thread counts its tasks and adds them up once: a shared counter that is written after each task would move its cache line from core
  // to core all the time.
  uint32_t num_own = 0;
  const auto run = [&] {
    function_(context_, first_task_ + task);
    ++num_own;
  };
  while (ranges_[static_cast<size_t>(self)].TakeFirst(&task)) run();
  for (int i = 1; i < num_ranges; ++i) {
    Range& other = ranges_[static_cast<size_t>((self + i) % num_ranges)];
    while (other.TakeLast(&task)) run();
  }
  if (num_own == 0) return;
  const uint32_t num_tasks = num_tasks_;  // read before the tasks are counted: afterwards the next region may change it
  if (num_done_.fetch_add(num_own, std::memory_order_acq_rel) + num_own == num_tasks) num_done_.notify_all();
}

void ThreadPool::Run(int64_t num_tasks, int max_threads, TaskFunction function, void* context) {
  const std::lock_guard lock(region_mutex_);
  const int num_threads = std::min(max_threads, kMaxThreads);
  EnsureWorkers(num_threads - 1);
  function_ = function;
  context_ = context;
  num_ranges_.store(num_threads, std::memory_order_release);
  constexpr int64_t kMaxTasks = 0xFFFF;
  for (int64_t first = 0; first < num_tasks; first += kMaxTasks) RunRegion(first, std::min(kMaxTasks, num_tasks - first));
}

void ThreadPool::RunRegion(int64_t first_task, int64_t num_tasks) {
  first_task_ = first_task;
  num_tasks_ = static_cast<uint32_t>(num_tasks);
  num_done_.store(0, std::memory_order_relaxed);
  const uint64_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  const int64_t num_ranges = num_ranges_.load(std::memory_order_relaxed);
  for (int64_t i = 0; i < num_ranges; ++i) {
    const auto begin = static_cast<uint64_t>(num_tasks * i / num_ranges);
    const auto end = static_cast<uint64_t>(num_tasks * (i + 1) / num_ranges);
    ranges_[static_cast<size_t>(i)].left.store((epoch << 32) | (end << 16) | begin, std::memory_order_release);
  }
  epoch_.store(static_cast<uint32_t>(epoch), std::memory_order_release);
  epoch_.notify_all();
  {
    const FloatEnvironmentGuard guard;
    TakeTasks(0);
  }
  for (int spin = 0;; ++spin) {
    const uint32_t done = num_done_.load(std::memory_order_acquire);
    if (done == static_cast<uint32_t>(num_tasks)) return;
    if (spin < kSpinIterations) {
      CpuRelax();
    } else {
      num_done_.wait(done, std::memory_order_acquire);
    }
  }
}

void ThreadPool::WorkerLoop(int worker_index, uint32_t seen_epoch) {
  const FloatEnvironmentGuard guard;
  for (;;) {
    for (int spin = 0; epoch_.load(std::memory_order_acquire) == seen_epoch; ++spin) {
      if (spin < kSpinIterations) {
        CpuRelax();
      } else {
        epoch_.wait(seen_epoch, std::memory_order_acquire);
      }
    }
    if (stopping_.load()) return;
    seen_epoch = epoch_.load(std::memory_order_acquire);
    if (worker_index + 1 < num_ranges_.load(std::memory_order_acquire)) TakeTasks(worker_index + 1);
  }
}

}  // namespace llmi
