// What an op needs to run: which table, which pool, how many threads, or which device. Passed to every op.
#pragma once

namespace llmi {

class Device;
class ThreadPool;
struct KernelTable;

struct KernelContext {
  const KernelTable* table = nullptr;
  ThreadPool* pool = nullptr;
  int num_threads = 1;
  Device* device = nullptr;  // where ops run, if not on the CPU; op arguments then point into its memory
  bool bf16_dots = false;    // on the CPU: bf16 weights meet activations rounded to bf16, in pairs
  // Quantised weights meet activations of two bytes, not one (quantize_rows.h).
  bool wide_activations = false;
};

}  // namespace llmi
