// The ops that look at one row at a time. Order of every sum: the op's own header.
#pragma once

#include <cstddef>

#include "core/scalar_math.h"
#include "kernels/cpu/reference/elementwise.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/cpu/reference/packed_block.h"
#include "kernels/cpu/reference/quantize_block.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/chunk_value.h"
#include "kernels/cuda/half_format.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/row_ops.h"

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
        const float value = weights.in_chunks ? ChunkValue(weights, id, k) : reference::WeightValue(weights, id, k);
        out[block.x * weights.num_cols + k] = value * scale;
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
struct NormKernel {
  struct Shared {
    float lanes[16];
    float mean;
    float inverse;
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
  NormArgs args;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(args.x);
    visit(args.out);
    visit(args.weight);
    visit(args.bias);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const float* x = args.x + block.x * args.x_stride + block.y * NormGroupStride(args);
    float* out = args.out + block.x * args.out_stride + block.y * NormGroupStride(args);
    const auto size = static_cast<float>(args.size);
    const bool is_layer = args.kind == NormKind::kLayer;
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    if (is_layer) {
      AddLanes(block, [&](int64_t i, float sum) { return sum + x[i]; });
      block.ForEachThread([&](int thread) {
        if (thread == 0) shared.mean = reference::FoldSum(shared.lanes) / size;
      });
    }
    AddLanes(block, [&](int64_t i, float sum) {
      const float value = is_layer ? x[i] - shared.mean : x[i];
      return Fma(value, value, sum);
    });
    block.ForEachThread([&](int thread) {
      if (thread == 0) shared.inverse = 1.0f / SqrtF32(reference::FoldSum(shared.lanes) / size + args.eps);
    });
    block.ForEachThread([&](int thread) {
      reference::NormedGroup normed = reference::NormedGroupOf(args, block.y);
      if (is_layer) normed.mean = shared.mean;
      normed.inverse = shared.inverse;
      for (int64_t i = thread; i < args.size; i += block.num_threads) normed.Store(i, x[i], out);
    });
  }

 private:
  // Each lane's sum: sum = add(i, sum) from zero over its values.
  template <typename Block, typename Add>
  LLMI_HD void AddLanes(const Block& block, const Add& add) const {
    block.ForEachThread([&](int thread) {
      if (thread >= 16) return;
      float sum = 0.0f;
      for (int64_t i = thread; i < args.size; i += 16) sum = add(i, sum);
      reinterpret_cast<Shared*>(block.shared)->lanes[thread] = sum;
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
        float* head = args.x + block.x * args.x_stride + pair / half * RopeHeadStride(args);
        reference::RotatePair(head + i, head + i + half, args.cosine[block.x * half + i], args.sine[block.x * half + i]);
      }
    });
  }
};

// Block x: a row.
struct ActivationKernel {
  ActivationArgs args;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(args.x);
    visit(args.out);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      const float* x = args.x + block.x * (args.gated ? 2 : 1) * args.size;
      for (int64_t i = thread; i < args.size; i += block.num_threads) {
        args.out[block.x * args.size + i] =
            args.gated ? reference::GatedActivated(args, x[i], x[args.size + i]) : reference::Activated(args, x[i]);
      }
    });
  }
};

// A thread adds to one value.
struct AddScaledKernel {
  const float* x;
  int64_t count;
  float scale;
  float* out;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(x);
    visit(out);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      const int64_t i = block.x * block.num_threads + thread;
      if (i < count) out[i] = Fma(scale, x[i], out[i]);
    });
  }
};

// A thread scales one value.
struct ScaleKernel {
  float* x;
  int64_t count;
  float scale;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(x);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      const int64_t i = block.x * block.num_threads + thread;
      if (i < count) x[i] = x[i] * scale;
    });
  }
};

// Block x: a row.
struct ScaleRowsKernel {
  float* x;
  int64_t x_stride;
  int64_t size;
  const float* factors;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(x);
    visit(factors);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      float* row = x + block.x * x_stride;
      for (int64_t i = thread; i < size; i += block.num_threads) row[i] = row[i] * factors[block.x];
    });
  }
};

// Block x: a row.
struct ClipRowsKernel {
  float* x;
  int64_t x_stride;
  int64_t size;
  float limit;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(x);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      float* row = x + block.x * x_stride;
      for (int64_t i = thread; i < size; i += block.num_threads) {
        row[i] = row[i] < -limit ? -limit : row[i] > limit ? limit : row[i];
      }
    });
  }
};

// Block x: a row.
struct GateKernel {
  GateArgs args;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(args.x);
    visit(args.gate);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      for (int64_t i = thread; i < args.num_heads * args.head_dim; i += block.num_threads) reference::GateValue(args, block.x, i);
    });
  }
};

// Block x: a head of a row.
struct PackHeadsKernel {
  const float* x;
  int64_t from_dim;
  int64_t to_dim;
  float* out;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(x);
    visit(out);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      for (int64_t i = thread; i < to_dim; i += block.num_threads) out[block.x * to_dim + i] = x[block.x * from_dim + i];
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
