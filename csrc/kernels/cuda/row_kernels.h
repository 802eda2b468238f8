// The ops that look at one row at a time. Order of every sum: the op's own header.
#pragma once

#include <cstddef>

#include "core/scalar_math.h"
#include "kernels/cpu/reference/elementwise.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/cpu/reference/packed_block.h"
#include "kernels/cpu/reference/quantize_block.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/half_format.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"

namespace llmi::cuda {

constexpr int kRowThreads = 128;

// Block x: a row.
struct EmbeddingKernel {
  PackedView weights;
  const int32_t* ids;
  const int32_t* drawn;  // tokens that ids below zero name
  float scale;
  float* out;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(weights.data);
    visit(ids);
    visit(drawn);
    visit(out);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      int32_t id = ids[block.x];
      if (id < 0) id = drawn[~id];
      if (id < 0) id = 0;  // no token could be drawn, and the row's result is not used
      for (int64_t k = thread; k < weights.num_cols; k += block.num_threads) {
        out[block.x * weights.num_cols + k] = reference::WeightValue(weights, id, k) * scale;
      }
    });
  }
};

// Rounds x to 16 bits. Block x: a row.
struct RoundRowsKernel {
  HalfFormat format;
  const float* x;  // rows x_stride apart
  int64_t x_stride;
  int64_t num_cols;
  uint16_t* out;  // [rows, num_cols]

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(x);
    visit(out);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      for (int64_t k = thread; k < num_cols; k += block.num_threads) {
        const float value = x[block.x * x_stride + k];
        out[block.x * num_cols + k] =
            format == HalfFormat::kBF16 ? RoundedTo<HalfFormat::kBF16>(value) : RoundedTo<HalfFormat::kF16>(value);
      }
    });
  }
};

// out += bias, row by row. Block x: a row.
struct AddBiasKernel {
  const float* bias;  // [num_cols]
  int64_t num_cols;
  float* out;  // rows out_stride apart
  int64_t out_stride;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(bias);
    visit(out);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      float* row = out + block.x * out_stride;
      for (int64_t column = thread; column < num_cols; column += block.num_threads) row[column] = row[column] + bias[column];
    });
  }
};

// Block x: a row; y: a group.
struct RmsNormKernel {
  static constexpr size_t kSharedBytes = 17 * sizeof(float);
  RmsNormArgs args;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(args.x);
    visit(args.out);
    visit(args.weight);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const float* x = args.x + block.x * args.x_stride + block.y * args.size;
    float* out = args.out + block.x * args.out_stride + block.y * args.size;
    float* lanes = reinterpret_cast<float*>(block.shared);
    float* inverse = lanes + 16;
    block.ForEachThread([&](int thread) {
      if (thread >= 16) return;
      float sum = 0.0f;
      for (int64_t i = thread; i < args.size; i += 16) sum = Fma(x[i], x[i], sum);
      lanes[thread] = sum;
    });
    block.ForEachThread([&](int thread) {
      if (thread == 0) *inverse = 1.0f / SqrtF32(reference::FoldSum(lanes) / static_cast<float>(args.size) + args.eps);
    });
    block.ForEachThread([&](int thread) {
      for (int64_t i = thread; i < args.size; i += block.num_threads) {
        const float value = (x[i] * *inverse) * args.weight[i];
        out[i] = args.accumulate ? out[i] + value : value;
      }
    });
  }
};

// Block x: a row.
struct RopeKernel {
  RopeArgs args;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(args.x);
    visit(args.cosine);
    visit(args.sine);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      const int64_t half = args.rotary_dim / 2;
      for (int64_t pair = thread; pair < args.num_heads * half; pair += block.num_threads) {
        const int64_t i = pair % half;
        float* head = args.x + block.x * args.x_stride + pair / half * args.head_dim;
        reference::RotatePair(head + i, head + i + half, args.cosine[block.x * half + i], args.sine[block.x * half + i]);
      }
    });
  }
};

// Block x: a row.
struct GatedActivationKernel {
  Activation activation;
  const float* gate_up;
  int64_t size;
  float* out;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(gate_up);
    visit(out);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      const float* gate = gate_up + block.x * 2 * size;
      for (int64_t i = thread; i < size; i += block.num_threads) {
        out[block.x * size + i] = reference::GatedValue(activation, gate[i], gate[size + i]);
      }
    });
  }
};

// A thread caps one value.
struct SoftCapKernel {
  float* x;
  int64_t count;
  float cap;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(x);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      const int64_t i = block.x * block.num_threads + thread;
      if (i < count) x[i] = SoftCapF32(x[i], cap);
    });
  }
};

// A thread quantises one block of 32 values.
struct QuantizeRowsKernel {
  const float* x;
  int64_t num_blocks;
  QuantizedRows out;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(x);
    visit(out.codes);
    visit(out.scales);
    visit(out.sums);
    visit(out.half_sums);
    visit(out.low);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      const int64_t index = block.x * block.num_threads + thread;
      if (index < num_blocks) reference::QuantizeBlock(x, index, out);
    });
  }
};

}  // namespace llmi::cuda
