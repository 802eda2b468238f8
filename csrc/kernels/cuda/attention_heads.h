// Projected heads as attention reads them: queries and keys normed and rotated, queries times their factor (kernels/ops/attention_step.h).
//
// A span's kernel makes them from what the projections left, element by element, wherever it needs them. Where it cannot, HeadsKernel makes
// them in memory first, and writes K and V to the cache.
#pragma once

#include <cstddef>

#include "core/scalar_math.h"
#include "kernels/cpu/reference/elementwise.h"
#include "kernels/cpu/reference/kv_store.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/cuda/block.h"
#include "kernels/ops/attention_step.h"

namespace llmi::cuda {

// One head of one row.
struct ProjectedHead {
  const float* x;
  int64_t num_normed;  // values, from the first on
  const float* weight;
  const float* bias;
  float inverse;
  const float* cosine;
  const float* sine;
  int64_t half;  // rotated pairs
  float factor;

  LLMI_HD float At(int64_t d) const {
    if (d >= 2 * half) return Normed(d) * factor;
    const int64_t i = d < half ? d : d - half;
    const reference::Pair rotated = reference::Rotated(Normed(i), Normed(i + half), cosine[i], sine[i]);
    return (d < half ? rotated.first : rotated.second) * factor;
  }
  // The norm's sum of squares in lane `lane` of 16.
  LLMI_HD float SquaresOf(int lane) const {
    float sum = 0.0f;
    for (int64_t d = lane; d < num_normed; d += 16) sum = Fma(x[d], x[d], sum);
    return sum;
  }

 private:
  LLMI_HD float Normed(int64_t d) const {
    if (d >= num_normed) return x[d];
    return reference::NormedGroup{weight, bias, false, false, 0.0f, inverse}.Normed(d, x[d]);
  }
};

// Heads of a step's rows, as the projections left them.
struct ProjectedRows {
  const float* q = nullptr;  // row r, head h at q + r * q_stride + h * head_dim
  int64_t q_stride = 0;
  const float* k = nullptr;  // row r, head h at k + r * stride + h * head_dim; v likewise
  const float* v = nullptr;
  int64_t stride = 0;
  int64_t head_dim = 0;
  NormArgs query_norm{};  // without a mean, of each head alone; size 0: none
  NormArgs key_norm{};
  const float* cosine = nullptr;
  const float* sine = nullptr;
  int64_t half = 0;
  const float* factors = nullptr;

  ProjectedRows() = default;
  ProjectedRows(const AttentionArgs& attention, const KvWriteArgs& written, const HeadSteps& heads)
      : q(attention.q),
        q_stride(attention.q_stride),
        k(written.k),
        v(written.v),
        stride(written.stride),
        head_dim(attention.kv.head_dim),
        query_norm(heads.query_norm),
        key_norm(heads.key_norm),
        cosine(heads.rope.cosine),
        sine(heads.rope.sine),
        half(heads.rope.rotary_dim / 2),
        factors(heads.query_factors) {}

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    for (const NormArgs* norm : {&query_norm, &key_norm}) {
      visit(norm->weight);
      visit(norm->bias);
    }
    visit(q);
    visit(k);
    visit(v);
    visit(cosine);
    visit(sine);
    visit(factors);
  }

  LLMI_HD bool is_normed() const { return query_norm.size > 0 || key_norm.size > 0; }
  // inverse: of a head's norm, if there is one.
  LLMI_HD ProjectedHead Query(int64_t row, int64_t head, float inverse) const {
    return Head(q + row * q_stride, query_norm, row, head, inverse, factors != nullptr ? factors[row] : 1.0f);
  }
  LLMI_HD ProjectedHead Key(int64_t row, int64_t head, float inverse) const {
    return Head(k + row * stride, key_norm, row, head, inverse, 1.0f);
  }
  LLMI_HD const float* Value(int64_t row, int64_t head) const { return v + row * stride + head * head_dim; }
  LLMI_HD static float Inverse(const NormArgs& norm, const float* lanes) {
    return 1.0f / SqrtF32(reference::FoldSum(lanes) / static_cast<float>(norm.size) + norm.eps);
  }

 private:
  LLMI_HD ProjectedHead Head(const float* heads, const NormArgs& norm, int64_t row, int64_t head, float inverse, float factor) const {
    const reference::NormedGroup group = reference::NormedGroupOf(norm, head);
    return {heads + head * head_dim, norm.size, group.weight, group.bias, inverse, cosine + row * half, sine + row * half, half, factor};
  }
};

// 16 values of one head's K or V in one slot, in the cache.
LLMI_HD inline void StoreInCache(const KvView& kv, const AttentionSegment& segment, int64_t row, int64_t kv_head, int64_t part,
                                 const float* values, bool is_key) {
  const int64_t slot = segment.base_len + row - segment.row_begin;
  uint8_t* k_tile = KvTile(kv, segment.block_table, kv_head, slot);
  if (is_key) {
    reference::StoreKeys(kv, values, part, slot % kSlotsPerTile, k_tile);
  } else {
    reference::StoreValues(kv, values, part, slot % kSlotsPerTile, k_tile + KvValueOffset(kv));
  }
}

// Makes queries in place, and K and V in the cache. Block x: a row; y: a query head, or a KV head behind all of them.
struct HeadsKernel {
  struct Shared {
    float lanes[16];
    Array<float, kMaxHeadDim> made;
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
  static constexpr int kThreads = 64;
  ProjectedRows rows;
  KvView kv;
  const AttentionSegment* segments;
  const int32_t* row_segments;
  float* queries;
  int64_t num_heads;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    rows.ForEachPointer(visit);
    visit(kv.base);
    visit(segments);
    visit(row_segments);
    visit(queries);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    if (row_segments[block.x] < 0) return;
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    const bool is_key = block.y >= num_heads;
    const int64_t kv_head = block.y - num_heads;
    const NormArgs& norm = is_key ? rows.key_norm : rows.query_norm;
    const auto head = [&](float inverse) { return is_key ? rows.Key(block.x, kv_head, inverse) : rows.Query(block.x, block.y, inverse); };
    if (norm.size > 0) {
      block.ForEachThread([&](int lane) {
        if (lane < 16) shared.lanes[lane] = head(0.0f).SquaresOf(lane);
      });
    }
    block.ForEachThread([&](int thread) {
      const ProjectedHead from = head(norm.size > 0 ? ProjectedRows::Inverse(norm, shared.lanes) : 0.0f);
      for (int d = thread; d < kv.head_dim; d += block.num_threads) shared.made[d] = from.At(d);
    });
    block.ForEachThread([&](int thread) {
      if (!is_key) {
        float* query = queries + block.x * rows.q_stride + block.y * kv.head_dim;
        for (int d = thread; d < kv.head_dim; d += block.num_threads) query[d] = shared.made[d];
        return;
      }
      const AttentionSegment& segment = segments[row_segments[block.x]];
      const int num_parts = static_cast<int>(kv.head_dim / kKvScaleBlock);
      for (int i = thread; i < 2 * num_parts; i += block.num_threads) {
        const int64_t part = i % num_parts;
        const float* values = i < num_parts ? shared.made : rows.Value(block.x, kv_head);
        StoreInCache(kv, segment, block.x, kv_head, part, values + part * kKvScaleBlock, i < num_parts);
      }
    });
  }
};

}  // namespace llmi::cuda
