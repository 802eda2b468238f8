// kv_write over 16 lanes. Definition: kernels/ops/attention.h and cpu/reference/kv_write.cc.
#pragma once

#include "kernels/cpu/kv_heads.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// Stores 16 elements of a head. Elements of V are stored one after the other, those of K in the slot's lane of 16 rows of the tile.
template <bool kIsKey, typename Element>
void Spread(const Element* row, int lane, Element* out) {
  for (int i = 0; i < 16; ++i) {
    if constexpr (kIsKey) {
      SetLane(out + i * kSlotsPerTile, lane, row[i]);
    } else {
      out[i] = row[i];
    }
  }
}

// Stores one head's K or V as int8. For K, code d goes to row d of the tile and scale b to row b of its scales; for V, codes and scales are
// stored one after the other.
template <bool kIsKey>
void WriteInt8(const float* x, int64_t head_dim, int lane, int8_t* codes, uint16_t* scales) {
  constexpr int64_t kStride = kIsKey ? kSlotsPerTile : 1;
  static_assert(kKvScaleBlock == 16);
  for (int64_t d = 0; d < head_dim; d += kKvScaleBlock) {
    const F32x16 values = Load(x + d);
    const AbsMax absmax = FoldAbsMax(Abs(values), Fma(values, Zero(), Zero()));
    int8_t row[16];
    StoreInt8(row, absmax.finite ? Mul(values, absmax.inverse) : Zero());
    Spread<kIsKey>(row, lane, codes + d * kStride);
    uint16_t scale[16];
    StoreHalf(scale, Set1(absmax.scale));
    uint16_t* own = scales + d / kKvScaleBlock * kStride;
    if constexpr (kIsKey) {
      SetLane(own, lane, scale[0]);
    } else {
      *own = scale[0];
    }
  }
}

// Stores one head's K or V as fp16.
template <bool kIsKey>
void WriteHalf(const float* x, int64_t head_dim, int lane, uint16_t* out) {
  for (int64_t d = 0; d < head_dim; d += 16) {
    uint16_t row[16];
    StoreHalf(row, Load(x + d));
    Spread<kIsKey>(row, lane, out + d * (kIsKey ? kSlotsPerTile : 1));
  }
}

// Stores one head's K and V as bf16 in pairs: pairs of dimensions in K, of slots in V.
void WriteBfloat16(const KvHead& head, int64_t head_dim) {
  auto* k_tile = reinterpret_cast<uint32_t*>(head.k_tile);
  auto* v_tile = reinterpret_cast<uint16_t*>(head.v_tile);
  for (int64_t d = 0; d < head_dim; d += 16) {
    uint32_t pairs[8];
    StoreBfloat16(reinterpret_cast<uint16_t*>(pairs), Load(head.k + d));
    for (int64_t i = 0; i < 8; ++i) SetLane(k_tile + (d / 2 + i) * kSlotsPerTile, static_cast<int>(head.lane), pairs[i]);
    uint16_t row[16];
    StoreBfloat16(row, Load(head.v + d));
    for (int64_t i = 0; i < 16; ++i) v_tile[KvValueIndex(true, head_dim, head.lane, d + i)] = row[i];
  }
}

}  // namespace

void kv_write(const KvWriteArgs& args, const AttentionSegment& segment, const KvRange& range) {
  const KvView& kv = args.kv;
  if (kv.type == KvType::kF32 || kv.type == KvType::kF8) {
    reference::kv_write(args, segment, range);
    return;
  }
  ForEachKvHead(args, segment, range, [&](const KvHead& head) {
    const int lane = static_cast<int>(head.lane);
    if (kv.type == KvType::kF16) {
      WriteHalf<true>(head.k, kv.head_dim, lane, reinterpret_cast<uint16_t*>(head.k_tile));
      WriteHalf<false>(head.v, kv.head_dim, lane, reinterpret_cast<uint16_t*>(head.v_tile) + lane * kv.head_dim);
    } else if (kv.type == KvType::kBF16) {
      WriteBfloat16(head, kv.head_dim);
    } else {
      WriteInt8<true>(head.k, kv.head_dim, lane, reinterpret_cast<int8_t*>(head.k_tile), KvTileScales(kv, head.k_tile));
      WriteInt8<false>(head.v, kv.head_dim, lane, reinterpret_cast<int8_t*>(head.v_tile) + lane * kv.head_dim,
                       KvTileScales(kv, head.v_tile) + lane * KvNumScales(kv.head_dim));
    }
  });
}

}  // namespace llmi::LLMI_ISA_NAMESPACE
