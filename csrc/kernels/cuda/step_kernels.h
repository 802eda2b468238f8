// What a step does before and behind its layers.
#pragma once

#include "kernels/cuda/block.h"
#include "kernels/dispatch/device.h"

namespace llmi::cuda {

// Device::ReadTable. Block x: a row.
struct ReadTableKernel {
  const float* table;
  const TableColumn* columns;
  int64_t width;
  const int32_t* positions;
  int64_t num_rows;
  float* out;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(table);
    visit(columns);
    visit(positions);
    visit(out);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      const float* from = table + positions[block.x] * width;
      for (int64_t i = thread; i < width; i += block.num_threads) {
        const TableColumn column = columns[i];
        out[column.begin * num_rows + block.x * column.size + i - column.begin] = from[i];
      }
    });
  }
};

// Device::GatherRows. Block x: a row.
struct GatherRowsKernel {
  const float* x;
  int64_t size;
  const int32_t* rows;
  float* out;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(x);
    visit(rows);
    visit(out);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      const float* row = x + rows[block.x] * size;
      for (int64_t i = thread; i < size; i += block.num_threads) out[block.x * size + i] = row[i];
    });
  }
};

}  // namespace llmi::cuda
