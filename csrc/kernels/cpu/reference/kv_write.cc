#include "core/half.h"
#include "kernels/attention.h"
#include "kernels/cpu/reference/int8_codes.h"
#include "kernels/kernel_table.h"

namespace llmi::reference {
namespace {

void Store(uint8_t* tile, int64_t index, int32_t element_bytes, float value) {
  if (element_bytes == 4) {
    reinterpret_cast<float*>(tile)[index] = value;
  } else {
    reinterpret_cast<uint16_t*>(tile)[index] = FloatToHalf(value);
  }
}

// One head's K or V as int8: code d lies at codes[d * stride], scale b at scales[b * scale_stride].
void StoreInt8(const float* x, int64_t head_dim, int8_t* codes, int64_t stride, uint16_t* scales, int64_t scale_stride) {
  for (int64_t begin = 0; begin < head_dim; begin += kKvScaleBlock) {
    const AbsMax absmax = FindAbsMax(x + begin, kKvScaleBlock);
    for (int64_t d = begin; d < begin + kKvScaleBlock; ++d) codes[d * stride] = static_cast<int8_t>(Int8Code(absmax, x[d]));
    scales[begin / kKvScaleBlock * scale_stride] = FloatToHalf(Int8Scale(absmax));
  }
}

}  // namespace

void kv_write(const KvWriteArgs& args, const AttentionSegment& segment, int64_t row_begin, int64_t row_end) {
  const KvView& kv = args.kv;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t slot = segment.base_len + row;
    const int64_t lane = slot % kSlotsPerTile;
    for (int64_t head = 0; head < kv.num_kv_heads; ++head) {
      uint8_t* k_tile = KvTile(kv, segment.block_table, head, slot);
      uint8_t* v_tile = k_tile + KvValueOffset(kv);
      const int64_t offset = (segment.row_begin + row) * args.stride + head * kv.head_dim;
      if (kv.element_bytes == 1) {
        StoreInt8(args.k + offset, kv.head_dim, reinterpret_cast<int8_t*>(k_tile) + lane, kSlotsPerTile, KvTileScales(kv, k_tile) + lane,
                  kSlotsPerTile);
        StoreInt8(args.v + offset, kv.head_dim, reinterpret_cast<int8_t*>(v_tile) + lane * kv.head_dim, 1,
                  KvTileScales(kv, v_tile) + lane * KvNumScales(kv.head_dim), 1);
        continue;
      }
      for (int64_t d = 0; d < kv.head_dim; ++d) {
        Store(k_tile, d * kSlotsPerTile + lane, kv.element_bytes, args.k[offset + d]);
        Store(v_tile, lane * kv.head_dim + d, kv.element_bytes, args.v[offset + d]);
      }
    }
  }
}

}  // namespace llmi::reference
