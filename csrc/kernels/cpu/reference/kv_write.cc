#include "kernels/cpu/kv_heads.h"
#include "kernels/cpu/reference/kv_store.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {

void kv_write(const KvWriteArgs& args, const AttentionSegment& segment, const KvRange& range) {
  ForEachKvHead(args, segment, range, [&](const KvHead& head) {
    for (int64_t part = 0; part < args.kv.head_dim / kKvScaleBlock; ++part) {
      StoreKeys(args.kv, head.k + part * kKvScaleBlock, part, head.lane, head.k_tile);
      StoreValues(args.kv, head.v + part * kKvScaleBlock, part, head.lane, head.v_tile);
    }
  });
}

}  // namespace llmi::reference
