#include "core/half.h"
#include "kernels/cpu/kv_heads.h"
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
  ForEachKvHead(args, segment, row_begin, row_end, [&](const KvHead& head) {
    if (kv.element_bytes == 1) {
      StoreInt8(head.k, kv.head_dim, reinterpret_cast<int8_t*>(head.k_tile) + head.lane, kSlotsPerTile,
                KvTileScales(kv, head.k_tile) + head.lane, kSlotsPerTile);
      StoreInt8(head.v, kv.head_dim, reinterpret_cast<int8_t*>(head.v_tile) + head.lane * kv.head_dim, 1,
                KvTileScales(kv, head.v_tile) + head.lane * KvNumScales(kv.head_dim), 1);
      return;
    }
    for (int64_t d = 0; d < kv.head_dim; ++d) {
      Store(head.k_tile, d * kSlotsPerTile + head.lane, kv.element_bytes, head.k[d]);
      Store(head.v_tile, head.lane * kv.head_dim + d, kv.element_bytes, head.v[d]);
    }
  });
}

}  // namespace llmi::reference
