// What an op needs to run: which table, which pool, how many threads. Passed to every op.
#pragma once

namespace llmi {

class ThreadPool;
struct KernelTable;

struct KernelContext {
  const KernelTable* table = nullptr;
  ThreadPool* pool = nullptr;
  int num_threads = 1;
};

}  // namespace llmi
