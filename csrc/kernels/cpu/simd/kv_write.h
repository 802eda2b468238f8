// kv_write over 16 lanes. Definition: kernels/attention.h and cpu/reference/kv_write.cc.
#pragma once

#include "kernels/cpu/kv_heads.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// 16 elements of a head, in a row or, of K, in 16 rows of the tile.
template <bool kIsKey, typename Element>
void Spread(const Element* row, Element* out) {
  for (int i = 0; i < 16; ++i) out[kIsKey ? i * kSlotsPerTile : i] = row[i];
}

// One head's K or V as int8: code d of K lies at codes[16 d] and scale b at scales[16 b], those of V side by side.
template <bool kIsKey>
void WriteInt8(const float* x, int64_t head_dim, int8_t* codes, uint16_t* scales) {
  constexpr int64_t kStride = kIsKey ? kSlotsPerTile : 1;
  static_assert(kKvScaleBlock == 16);
  for (int64_t d = 0; d < head_dim; d += kKvScaleBlock) {
    const F32x16 values = Load(x + d);
    const AbsMax absmax = FoldAbsMax(Abs(values), Fma(values, Zero(), Zero()));
    int8_t row[16];
    StoreInt8(row, absmax.finite ? Mul(values, absmax.inverse) : Zero());
    Spread<kIsKey>(row, codes + d * kStride);
    uint16_t scale[16];
    StoreHalf(scale, Set1(absmax.scale));
    scales[d / kKvScaleBlock * kStride] = scale[0];
  }
}

// One head's K or V as fp16.
template <bool kIsKey>
void WriteHalf(const float* x, int64_t head_dim, uint16_t* out) {
  for (int64_t d = 0; d < head_dim; d += 16) {
    uint16_t row[16];
    StoreHalf(row, Load(x + d));
    Spread<kIsKey>(row, out + d * (kIsKey ? kSlotsPerTile : 1));
  }
}

// One head's K or V as bf16, in pairs.
template <bool kIsKey>
void WriteBfloat16(const float* x, int64_t head_dim, int64_t lane, uint16_t* tile) {
  for (int64_t d = 0; d < head_dim; d += 16) {
    uint16_t row[16];
    StoreBfloat16(row, Load(x + d));
    for (int64_t i = 0; i < 16; ++i) tile[kIsKey ? KvKeyIndex(true, lane, d + i) : KvValueIndex(true, head_dim, lane, d + i)] = row[i];
  }
}

}  // namespace

void kv_write(const KvWriteArgs& args, const AttentionSegment& segment, int64_t row_begin, int64_t row_end) {
  const KvView& kv = args.kv;
  if (kv.type == KvType::kF32 || kv.type == KvType::kF8) {
    reference::kv_write(args, segment, row_begin, row_end);
    return;
  }
  ForEachKvHead(args, segment, row_begin, row_end, [&](const KvHead& head) {
    if (kv.type == KvType::kF16) {
      WriteHalf<true>(head.k, kv.head_dim, reinterpret_cast<uint16_t*>(head.k_tile) + head.lane);
      WriteHalf<false>(head.v, kv.head_dim, reinterpret_cast<uint16_t*>(head.v_tile) + head.lane * kv.head_dim);
    } else if (kv.type == KvType::kBF16) {
      WriteBfloat16<true>(head.k, kv.head_dim, head.lane, reinterpret_cast<uint16_t*>(head.k_tile));
      WriteBfloat16<false>(head.v, kv.head_dim, head.lane, reinterpret_cast<uint16_t*>(head.v_tile));
    } else {
      WriteInt8<true>(head.k, kv.head_dim, reinterpret_cast<int8_t*>(head.k_tile) + head.lane, KvTileScales(kv, head.k_tile) + head.lane);
      WriteInt8<false>(head.v, kv.head_dim, reinterpret_cast<int8_t*>(head.v_tile) + head.lane * kv.head_dim,
                       KvTileScales(kv, head.v_tile) + head.lane * KvNumScales(kv.head_dim));
    }
  });
}

}  // namespace llmi::LLMI_ISA_NAMESPACE
