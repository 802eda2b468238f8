// The thread pool, for the tests.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "bindings/bind_testing.h"
#include "bindings/gil.h"
#include "core/thread_pool.h"

namespace py = pybind11;

namespace llmi {
namespace {

// For each region, the thread that ran each task, numbered in the order of its first task: -1 for a task that did not run exactly once.
// Task 0 waits until all other tasks have run, at most first_waits_s seconds; if they have not, its entry is -1.
std::vector<std::vector<int64_t>> ThreadsOfTasks(int num_threads, const std::vector<int64_t>& sizes, double first_waits_s) {
  const GilReleased released;
  ThreadPool pool(num_threads);
  std::vector<std::vector<int64_t>> regions;
  for (const int64_t size : sizes) {
    std::vector<std::thread::id> ran_by(static_cast<size_t>(size));
    std::vector<int64_t> counts(static_cast<size_t>(size));
    std::atomic<int64_t> num_others{0};
    pool.ParallelFor(size, num_threads, [&](int64_t task) {
      const auto start = std::chrono::steady_clock::now();
      while (first_waits_s > 0 && task == 0 && num_others < size - 1) {
        if (std::chrono::steady_clock::now() - start > std::chrono::duration<double>(first_waits_s)) return;
        std::this_thread::yield();
      }
      ran_by[static_cast<size_t>(task)] = std::this_thread::get_id();
      ++counts[static_cast<size_t>(task)];
      if (task != 0) ++num_others;
    });
    std::map<std::thread::id, int64_t> names;
    std::vector<int64_t>& threads = regions.emplace_back();
    for (size_t task = 0; task < counts.size(); ++task) {
      const int64_t name = names.emplace(ran_by[task], static_cast<int64_t>(names.size())).first->second;
      threads.push_back(counts[task] == 1 ? name : -1);
    }
  }
  return regions;
}

}  // namespace

void RegisterTestingThreads(py::module_& module) {
  module.def("threads_of_tasks", &ThreadsOfTasks, py::arg("num_threads"), py::arg("sizes"), py::arg("first_waits_s"));
}

}  // namespace llmi
