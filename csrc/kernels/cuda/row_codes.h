// quantize_rows by warps: a warp takes four blocks of 32 values at once, a lane four values of one.
#pragma once

#include <cstdint>

#include "kernels/cpu/reference/int8_codes.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/warp.h"
#include "kernels/layout/packed_weights.h"
#include "kernels/ops/quantize_rows.h"

namespace llmi::cuda {

constexpr int kLaneValues = 4;
constexpr int kBlockLanes = static_cast<int>(kBlockSize) / kLaneValues;
constexpr int kWarpBlocks = kWarpLanes / kBlockLanes;

struct alignas(16) FourFloats {
  float values[kLaneValues];
};

template <typename Visit>
void VisitPointers(const QuantizedRows& rows, const Visit& visit) {
  visit(rows.codes);
  visit(rows.scales);
  visit(rows.sums);
  visit(rows.half_sums);
  visit(rows.low);
}

// From the largest bits of any magnitude: those of numbers that are not finite are the largest.
LLMI_HD inline reference::AbsMax AbsMaxOf(uint32_t largest) {
  const float maximum = __builtin_bit_cast(float, largest);
  return {maximum, maximum > 0x1p-100f ? 127.0f / maximum : 0.0f, largest < 0x7F800000u ? 0.0f : __builtin_nanf("")};
}

// Lanes 8 i to 8 i + 7 have the values of one block, which becomes block blocks[lane] of `out`; below zero: none. Half sums and sums that
// are null are not stored.
template <typename Warp>
LLMI_HD void QuantizeBlocks(const Warp& warp, const typename Warp::template PerLane<FourFloats>& x,
                            const typename Warp::template PerLane<int64_t>& blocks, const QuantizedRows& out) {
  typename Warp::template PerLane<uint32_t> largest;
  warp.ForEachLane([&](int lane) {
    uint32_t most = 0;
    LLMI_UNROLL
    for (const float value : x[lane].values) {
      const uint32_t magnitude = __builtin_bit_cast(uint32_t, value) & 0x7FFFFFFFu;
      most = magnitude > most ? magnitude : most;
    }
    largest[lane] = most;
  });
  LLMI_UNROLL
  for (int bits = 1; bits < kBlockLanes; bits *= 2) {
    if (out.fine && bits == kBlockLanes / 2) break;  // each half of the block has its own scale
    const auto others = warp.Exchanged(largest, bits);
    warp.ForEachLane([&](int lane) { largest[lane] = others[lane] > largest[lane] ? others[lane] : largest[lane]; });
  }
  typename Warp::template PerLane<int32_t> sums;
  typename Warp::template PerLane<float> scales;
  warp.ForEachLane([&](int lane) {
    const reference::AbsMax absmax = AbsMaxOf(largest[lane]);
    uint32_t high = 0;
    uint32_t low = 0;
    int32_t sum = 0;
    LLMI_UNROLL
    for (int i = 0; i < kLaneValues; ++i) {
      const float value = x[lane].values[i];
      int32_t code = reference::Int8Code(absmax, value);
      high |= (static_cast<uint32_t>(code) & 255u) << (8 * i);
      if (out.low != nullptr) {
        const int32_t rest = absmax.poison == 0.0f ? reference::LowCode(value * absmax.inverse, code) : 0;
        low |= (static_cast<uint32_t>(rest) & 255u) << (8 * i);
        code = 256 * code + rest;
      }
      sum += code;
    }
    sums[lane] = sum;
    scales[lane] = out.low != nullptr ? reference::Int8Scale(absmax) * kLowStep : reference::Int8Scale(absmax);
    if (blocks[lane] < 0) return;
    const int64_t at = blocks[lane] * kBlockSize + lane % kBlockLanes * kLaneValues;
    *reinterpret_cast<uint32_t*>(out.codes + at) = high;
    if (out.low != nullptr) *reinterpret_cast<uint32_t*>(out.low + at) = low;
  });
  LLMI_UNROLL
  for (int bits = 1; bits < kBlockLanes / 2; bits *= 2) {
    const auto others = warp.Exchanged(sums, bits);
    warp.ForEachLane([&](int lane) { sums[lane] += others[lane]; });
  }
  const auto other_sums = warp.Exchanged(sums, kBlockLanes / 2);
  const auto other_scales = warp.Exchanged(scales, kBlockLanes / 2);
  warp.ForEachLane([&](int lane) {
    const int64_t block = blocks[lane];
    if (block < 0 || lane % (kBlockLanes / 2) != 0) return;
    const int half = lane % kBlockLanes / (kBlockLanes / 2);
    if (out.half_sums != nullptr) out.half_sums[2 * block + half] = sums[lane];
    if (out.fine) out.scales[2 * block + half] = scales[lane];
    if (half != 0) return;
    if (!out.fine) out.scales[block] = scales[lane];
    if (out.sums == nullptr) return;
    out.sums[block] = out.fine ? scales[lane] * static_cast<float>(sums[lane]) + other_scales[lane] * static_cast<float>(other_sums[lane])
                               : scales[lane] * static_cast<float>(sums[lane] + other_sums[lane]);
  });
}

// Blocks of 32 values from x on, by the warps of a block; they become blocks `first` and on of `out`. values(at): four values of x.
template <typename Block, typename Values>
LLMI_HD void QuantizeBy(const Block& block, int64_t num_blocks, int64_t first, const QuantizedRows& out, const Values& values) {
  using Warp = typename Block::Warp;
  block.ForEachWarp([&](const Warp& warp) {
    for (int64_t begin = int64_t{warp.index} * kWarpBlocks; begin < num_blocks; begin += block.num_threads / kWarpLanes * kWarpBlocks) {
      typename Warp::template PerLane<FourFloats> x;
      typename Warp::template PerLane<int64_t> blocks;
      warp.ForEachLane([&](int lane) {
        const int64_t own = begin + lane / kBlockLanes;
        blocks[lane] = own < num_blocks ? first + own : -1;
        if (own < num_blocks) x[lane] = values(own * kBlockSize + lane % kBlockLanes * kLaneValues);
      });
      QuantizeBlocks(warp, x, blocks, out);
    }
  });
}

}  // namespace llmi::cuda
