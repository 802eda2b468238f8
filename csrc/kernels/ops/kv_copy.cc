#include "kernels/ops/kv_copy.h"

#include "kernels/dispatch/device.h"
#include "kernels/layout/kv_slot.h"

namespace llmi {

void KvCopySlot(const KernelContext& context, const KvView& kv, const int32_t* block_table, int64_t from, int64_t to) {
  if (context.device != nullptr) return context.device->KvCopySlot(kv, block_table, from, to);
  for (int64_t head = 0; head < kv.num_kv_heads; ++head) CopyHeadSlot(kv, block_table, head, from, to, 0, 1);
}

}  // namespace llmi
