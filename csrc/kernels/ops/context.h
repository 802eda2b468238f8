// The place where an op runs: the kernel table, thread pool and number of threads, or the device. Every op takes one.
#pragma once

namespace llmi {

class Device;
class LinearTap;
class ThreadPool;
struct KernelTable;

struct KernelContext {
  const KernelTable* table = nullptr;
  ThreadPool* pool = nullptr;
  int num_threads = 1;
  Device* device = nullptr;  // null: ops run on the CPU; else on this device, and op arguments point into its memory
  bool bf16_dots = false;    // CPU: bf16 weights are multiplied with activations rounded to bf16, in pairs
  // Quantised weights are multiplied with activation codes of two bytes instead of one (quantize_rows.h).
  bool wide_activations = false;
  LinearTap* tap = nullptr;  // CPU: is told of each linear layer
};

}  // namespace llmi
