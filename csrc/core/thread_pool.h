// The process's one pool of worker threads. Work is split into numbered tasks. Each thread first runs a range of its own, so that it reads
// memory in one stream; then it takes tasks from the ends of the others' ranges, so that a thread that loses its core delays only one task.
// Results never depend on which thread runs a task. Between regions (calls of ParallelFor) workers spin briefly, then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace llmi {

class ThreadPool {
 public:
  // The pool, created at first use. After fork the child process creates its own.
  static ThreadPool& Shared();

  // LLMI_NUM_THREADS, else OMP_NUM_THREADS, else the number of CPUs in the affinity mask, limited by the control groups' quota. root: as
  // for CgroupCpus. Throws Error(kInvalidArgument) if a variable holds no number of threads.
  static int DefaultNumThreads(const std::string& root = "");

  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Calls body(task) once for each task in [0, num_tasks), on at most max_threads threads, the caller among
  // them; returns when all are done. Callers on several threads take turns. body must not throw.
  template <typename Body>
  void ParallelFor(int64_t num_tasks, int max_threads, Body&& body) {
    if (num_tasks <= 0) return;
    if (num_tasks == 1 || max_threads <= 1) {
      for (int64_t task = 0; task < num_tasks; ++task) body(task);
      return;
    }
    Run(
        num_tasks, max_threads, [](void* context, int64_t task) { (*static_cast<std::remove_reference_t<Body>*>(context))(task); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using TaskFunction = void (*)(void* context, int64_t task);
  void Run(int64_t num_tasks, int max_threads, TaskFunction function, void* context);
  void RunRegion(int64_t first_task, int64_t num_tasks);
  void WorkerLoop(int worker_index, uint32_t seen_epoch);
  void EnsureWorkers(int num_workers);
  void TakeTasks(int self);

  std::mutex region_mutex_;  // one region at a time
  std::vector<std::thread> workers_;
  std::atomic<bool> stopping_{false};

  // left: epoch << 32 | end << 16 | begin of the tasks that no thread has taken. Tasks are taken by compare-and-swap, so a worker that
  // slept through a region can neither take a task of it nor delay it.
  struct alignas(64) Range {
    std::atomic<uint64_t> left{0};
    bool TakeFirst(int64_t* task);
    bool TakeLast(int64_t* task);
  };
  std::vector<Range> ranges_;  // the caller's, then the workers'
  std::atomic<int> num_ranges_{0};

  // The current region. Only a thread that holds one of its tasks, and has not counted it as done yet, may read these.
  TaskFunction function_ = nullptr;
  void* context_ = nullptr;
  int64_t first_task_ = 0;
  uint32_t num_tasks_ = 0;
  alignas(64) std::atomic<uint32_t> num_done_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};
};

}  // namespace llmi
