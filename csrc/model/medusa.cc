#include "model/medusa.h"

#include <utility>

#include "kernels/dispatch/transfer.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/row_ops.h"
#include "model/drafter_tensors.h"
#include "model/layer_pass.h"

namespace llmi {

MedusaHeads::MedusaHeads(std::vector<MedusaHead> heads, std::vector<int32_t> shortlist, PackedMatrix rows)
    : heads_(std::move(heads)), shortlist_(std::move(shortlist)), rows_(std::move(rows)) {}

uint64_t MedusaHeads::num_bytes() const {
  uint64_t bytes = rows_.num_bytes();
  for (const MedusaHead& head : heads_) {
    bytes += head.vocabulary.num_bytes();
    for (const LinearWeights& block : head.blocks) bytes += block.matrix.num_bytes();
  }
  return bytes;
}

void MedusaHeads::Logits(const KernelContext& context, Decoder& target, const std::vector<const float*>& rows, int64_t head,
                         std::vector<float>* logits) {
  const int64_t hidden = target.spec().hidden_size;
  const auto num_rows = static_cast<int64_t>(rows.size());
  const MedusaHead& own = heads_[static_cast<size_t>(head)];
  float* x = Floats(context, x_, num_rows * hidden);
  for (int64_t i = 0; i < num_rows; ++i) CopyThere(context, x + i * hidden, rows[static_cast<size_t>(i)], FloatBytes(hidden));
  for (const LinearWeights& block : own.blocks) RunBlock(context, block, num_rows, x);
  const bool has_own = own.vocabulary.num_bytes() > 0;
  HeadLogits(context, has_own ? own.vocabulary : rows_, has_own ? HeadSpec{} : target.spec().head, target, x, num_rows, {forms_, logits_},
             logits);
}

void MedusaHeads::RunBlock(const KernelContext& context, const LinearWeights& block, int64_t num_rows, float* x) {
  const int64_t hidden = block.matrix.view().num_cols;
  float* inner = Floats(context, inner_, num_rows * hidden);
  float* activated = Floats(context, activated_, num_rows * hidden);
  const LinearInput input = MakeInput(context, num_rows, {&block.matrix}, false, forms_);
  ConvertInput(context, x, num_rows, hidden, input);
  Linear(context, ArgsOf(PartsOf({&block}), x, input, num_rows, inner, hidden, false));
  Activate(context, {.activation = Activation::kSilu, .gated = false, .x = inner, .num_rows = num_rows, .size = hidden, .out = activated});
  AddScaled(context, activated, num_rows * hidden, 1.0f, x);
}

}  // namespace llmi
