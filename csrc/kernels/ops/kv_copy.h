// Copies one slot's K and V of one layer, bit for bit. The engine uses it to move the accepted path of a draft tree to consecutive slots.
#pragma once

#include <stdint.h>

#include "kernels/layout/kv_layout.h"
#include "kernels/ops/context.h"

namespace llmi {

// from, to: slots of the sequence behind block_table; both must have their pages.
void KvCopySlot(const KernelContext& context, const KvView& kv, const int32_t* block_table, int64_t from, int64_t to);

}  // namespace llmi
