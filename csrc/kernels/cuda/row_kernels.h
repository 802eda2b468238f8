// The ops that look at one row at a time. Order of every sum: the op's own header.
#pragma once

#include <cstddef>

#include "core/scalar_math.h"
#include "kernels/cpu/reference/elementwise.h"
#include "kernels/cpu/reference/packed_block.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/chunk_value.h"
#include "kernels/cuda/half_format.h"
#include "kernels/cuda/half_fragments.h"
#include "kernels/cuda/norm_sums.h"
#include "kernels/cuda/row_codes.h"
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
  static constexpr size_t kSharedBytes = sizeof(NormSums);
  NormArgs args;
  QuantizedRows forms;  // of out; codes null: not wanted
  HalfRows halves;      // likewise; of whole rows

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(args.x);
    visit(args.out);
    visit(args.weight);
    visit(args.bias);
    VisitPointers(forms, visit);
    visit(halves.fragments);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const float* x = args.x + block.x * args.x_stride + block.y * NormGroupStride(args);
    float* out = args.out + block.x * args.out_stride + block.y * NormGroupStride(args);
    auto* sums = reinterpret_cast<NormSums*>(block.shared);
    FindNorms(block, args, 1, [&](int, int64_t i) { return x[i]; }, sums);
    block.ForEachThread([&](int thread) {
      const reference::NormedGroup normed = sums->Group(args, block.y);
      for (int64_t i = thread; i < args.size; i += block.num_threads) normed.Store(i, x[i], out);
    });
    if (halves.fragments != nullptr) StoreFragments(block, out, block.x, 0, args.size, halves);
    if (forms.codes == nullptr) return;
    const int64_t num_blocks = args.size / kBlockSize;
    QuantizeBy(block, num_blocks, (block.x * args.num_groups + block.y) * num_blocks, forms,
               [&](int64_t at) { return *reinterpret_cast<const FourFloats*>(out + at); });
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

// Block x: a row; y: kColumns of its columns.
struct ActivationKernel {
  static constexpr int64_t kColumns = 1024;
  ActivationArgs args;
  QuantizedRows forms;  // of out; codes null: not wanted
  HalfRows halves;      // likewise

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(args.x);
    visit(args.up);
    visit(args.out);
    VisitPointers(forms, visit);
    visit(halves.fragments);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const int64_t begin = block.y * kColumns;
    const int64_t left = args.size - begin;
    const int64_t count = left < kColumns ? left : kColumns;
    const bool has_both = args.gated && args.up == nullptr;
    const float* x = args.x + block.x * (has_both ? 2 : 1) * args.size + begin;
    const float* up = has_both ? x + args.size : args.up + block.x * args.up_stride + begin;
    float* out = args.out + block.x * args.size + begin;
    block.ForEachThread([&](int thread) {
      for (int64_t i = thread; i < count; i += block.num_threads) {
        out[i] = args.gated ? reference::GatedActivated(args, x[i], up[i]) : reference::Activated(args, x[i]);
      }
    });
    if (halves.fragments != nullptr) StoreFragments(block, args.out + block.x * args.size, block.x, begin, begin + count, halves);
    if (forms.codes == nullptr) return;
    QuantizeBy(block, count / kBlockSize, (block.x * args.size + begin) / kBlockSize, forms,
               [&](int64_t at) { return *reinterpret_cast<const FourFloats*>(out + at); });
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

// Block x: a row; y: a head.
struct CopyHeadsKernel {
  HeadCopy copy;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(copy.x);
    visit(copy.out);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const float* from = copy.x + block.x * copy.row + block.y * copy.head;
    float* to = copy.out + block.x * copy.out_row + block.y * copy.out_head;
    block.ForEachThread([&](int thread) {
      for (int64_t i = thread; i < copy.size; i += block.num_threads) to[i] = from[i];
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

// Block x: kBlocks of 32 values.
struct QuantizeRowsKernel {
  static constexpr int64_t kBlocks = 64;
  const float* x;
  int64_t num_blocks;
  QuantizedRows out;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(x);
    VisitPointers(out, visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const int64_t begin = block.x * kBlocks;
    const int64_t left = num_blocks - begin;
    const float* from = x + begin * kBlockSize;
    QuantizeBy(block, left < kBlocks ? left : kBlocks, begin, out,
               [&](int64_t at) { return *reinterpret_cast<const FourFloats*>(from + at); });
  }
};

}  // namespace llmi::cuda
