// kv_write over 16 lanes. Definition: kernels/attention.h and cpu/reference/kv_write.cc.
#pragma once

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
    const float maximum = FoldMax(Max(Abs(values), Zero()));
    const float poison = FoldSum(Fma(values, Zero(), Zero()));  // NaN as soon as one value is not finite
    const float inverse = poison == 0.0f && maximum > 0x1p-100f ? 127.0f / maximum : 0.0f;
    int8_t row[16];
    StoreInt8(row, poison == 0.0f ? Mul(values, Set1(inverse)) : Zero());
    Spread<kIsKey>(row, codes + d * kStride);
    uint16_t scale[16];
    StoreHalf(scale, Set1(maximum / 127.0f + poison));
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

}  // namespace

void kv_write(const KvWriteArgs& args, const AttentionSegment& segment, int64_t row_begin, int64_t row_end) {
  const KvView& kv = args.kv;
  if (kv.element_bytes == 4) {
    reference::kv_write(args, segment, row_begin, row_end);
    return;
  }
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t slot = segment.base_len + row;
    const int64_t lane = slot % kSlotsPerTile;
    for (int64_t head = 0; head < kv.num_kv_heads; ++head) {
      uint8_t* k_tile = KvTile(kv, segment.block_table, head, slot);
      uint8_t* v_tile = k_tile + KvValueOffset(kv);
      const int64_t offset = (segment.row_begin + row) * args.stride + head * kv.head_dim;
      if (kv.element_bytes == 2) {
        WriteHalf<true>(args.k + offset, kv.head_dim, reinterpret_cast<uint16_t*>(k_tile) + lane);
        WriteHalf<false>(args.v + offset, kv.head_dim, reinterpret_cast<uint16_t*>(v_tile) + lane * kv.head_dim);
      } else {
        WriteInt8<true>(args.k + offset, kv.head_dim, reinterpret_cast<int8_t*>(k_tile) + lane, KvTileScales(kv, k_tile) + lane);
        WriteInt8<false>(args.v + offset, kv.head_dim, reinterpret_cast<int8_t*>(v_tile) + lane * kv.head_dim,
                         KvTileScales(kv, v_tile) + lane * KvNumScales(kv.head_dim));
      }
    }
  }
}

}  // namespace llmi::LLMI_ISA_NAMESPACE
