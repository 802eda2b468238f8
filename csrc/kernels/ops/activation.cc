#include "kernels/ops/activation.h"

#include "kernels/dispatch/device.h"
#include "kernels/dispatch/produced_rows.h"

namespace llmi {

void Activate(const KernelContext& context, const ActivationArgs& args, const LinearInput& input) {
  CheckInput(context, args.size, input);
  if (context.device != nullptr) return context.device->Activate(args, input.quantized);
  ProduceRows(context, args.out, args.num_rows, args.size, 4096, input, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const bool has_both = args.gated && args.up == nullptr;
      const float* x = args.x + row * (has_both ? 2 : 1) * args.size;
      const float* up = has_both ? x + args.size : args.gated ? args.up + row * args.up_stride : nullptr;
      context.table->activate(args, x, up, args.size, args.out + row * args.size);
    }
  });
}

}  // namespace llmi
