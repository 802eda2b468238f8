#include "kernels/ops/row_ops.h"

#include <algorithm>
#include <functional>

#include "core/errors.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/row_tasks.h"

namespace llmi {
namespace {

constexpr int64_t kMinValues = 16384;  // of a task

}  // namespace

void AddScaled(const KernelContext& context, const float* x, int64_t count, float scale, float* out) {
  if (context.device != nullptr) return context.device->AddScaled(x, count, scale, out);
  ParallelRows(context, count, kMinValues,
               [&](int64_t begin, int64_t end) { context.table->add_scaled(x + begin, end - begin, scale, out + begin); });
}

void Scale(const KernelContext& context, float* x, int64_t count, float scale) {
  if (context.device != nullptr) return context.device->Scale(x, count, scale);
  ParallelRows(context, count, kMinValues, [&](int64_t begin, int64_t end) { context.table->scale(x + begin, end - begin, scale); });
}

void ScaleRows(const KernelContext& context, float* x, int64_t x_stride, int64_t num_rows, int64_t size, const float* factors) {
  CheckArgument(size >= 0 && x_stride >= size, "scale_rows: rows may not overlap");
  if (context.device != nullptr) return context.device->ScaleRows(x, x_stride, num_rows, size, factors);
  ParallelRows(context, num_rows, kMinValues / std::max<int64_t>(1, size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) context.table->scale(x + row * x_stride, size, factors[row]);
  });
}

void ClipRows(const KernelContext& context, float* x, int64_t x_stride, int64_t num_rows, int64_t size, float limit) {
  CheckArgument(size >= 0 && x_stride >= size, "clip_rows: rows may not overlap");
  CheckArgument(limit > 0, "clip_rows: the limit must be positive");
  if (context.device != nullptr) return context.device->ClipRows(x, x_stride, num_rows, size, limit);
  ParallelRows(context, num_rows, kMinValues / std::max<int64_t>(1, size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* values = x + row * x_stride;
      std::transform(values, values + size, values, [limit](float value) { return std::clamp(value, -limit, limit); });
    }
  });
}

void MultiplyRows(const KernelContext& context, const StridedRows& a, const StridedRows& b, int64_t num_rows, int64_t size, float* out,
                  int64_t out_stride) {
  CheckArgument(size >= 0 && out_stride >= size, "multiply_rows: rows may not overlap");
  if (context.device != nullptr) return context.device->MultiplyRows(a, b, num_rows, size, false, out, out_stride);
  ParallelRows(context, num_rows, kMinValues / std::max<int64_t>(1, size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* first = a.values + row * a.stride;
      std::transform(first, first + size, b.values + row * b.stride, out + row * out_stride, std::multiplies<>());
    }
  });
}

void GateRows(const KernelContext& context, const StridedRows& gates, int64_t num_rows, int64_t size, float* x) {
  if (context.device != nullptr) return context.device->MultiplyRows(gates, {x, size}, num_rows, size, true, x, size);
  ActivationArgs silu = {};
  silu.activation = Activation::kSilu;
  silu.gated = true;
  ParallelRows(context, num_rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* values = x + row * size;
      context.table->activate(silu, gates.values + row * gates.stride, values, size, values);
    }
  });
}

void GatherRows(const KernelContext& context, const float* x, int64_t size, const int32_t* rows, int64_t num_rows, float* out) {
  if (context.device != nullptr) return context.device->GatherRows(x, size, rows, num_rows, out);
  ParallelRows(context, num_rows, kMinValues / std::max<int64_t>(1, size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) std::copy_n(x + rows[row] * size, size, out + row * size);
  });
}

void Gate(const KernelContext& context, const GateArgs& args) {
  if (context.device != nullptr) return context.device->Gate(args);
  ParallelRows(context, args.num_rows, kMinValues / 4 / std::max<int64_t>(1, args.num_heads * args.head_dim),
               [&](int64_t begin, int64_t end) { context.table->gate(args, begin, end); });
}

void CopyHeads(const KernelContext& context, const HeadCopy& copy) {
  CheckArgument(copy.size > 0 && copy.num_heads > 0, "copy_heads: heads have values");
  if (context.device != nullptr) return context.device->CopyHeads(copy);
  ParallelRows(context, copy.num_rows, std::max<int64_t>(1, kMinValues / (copy.num_heads * copy.size)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t head = 0; head < copy.num_heads; ++head) {
        std::copy_n(copy.x + row * copy.row + head * copy.head, copy.size, copy.out + row * copy.out_row + head * copy.out_head);
      }
    }
  });
}

}  // namespace llmi
