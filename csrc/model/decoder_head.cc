// The decoder's final norm and head: hidden states to logits.
#include "kernels/dispatch/transfer.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/row_ops.h"
#include "kernels/ops/vocab.h"
#include "model/decoder.h"

namespace llmi {

void Decoder::FinalNorm(const KernelContext& context, float* rows, int64_t num_rows) {
  if (!spec_.final_norm.present) return;
  Norm(context, RowNorm(spec_.final_norm, weights_.final_norm, rows, rows, num_rows, spec_.hidden_size));
}

void Decoder::EarlyLogits(const KernelContext& context, const float* tapped, float* logits) {
  float* row = Floats(context, workspace_.hidden, spec_.hidden_size);
  ToDevice(context, row, tapped, FloatBytes(spec_.hidden_size));
  FinalNorm(context, row, 1);
  LmHead(context, row, 1, logits);
}

void Decoder::TapLogits(const KernelContext& context, const float* tapped, int64_t num_rows, bool normed, float* logits) {
  float* rows = Floats(context, workspace_.normed, num_rows * spec_.hidden_size);
  ToDevice(context, rows, tapped, FloatBytes(num_rows * spec_.hidden_size));
  if (normed) FinalNorm(context, rows, num_rows);
  LmHead(context, rows, num_rows, logits);
}

void Decoder::LmHead(const KernelContext& context, const float* hidden, int64_t num_rows, float* logits, const Shortlist* shortlist) {
  if (context.device == nullptr) return Head(context, hidden, num_rows, logits, shortlist);
  ToHost(context, logits, LogitsThere(context, hidden, num_rows, shortlist), FloatBytes(num_rows * spec_.vocab_size));
}

float* Decoder::LogitsThere(const KernelContext& context, const float* hidden, int64_t num_rows, const Shortlist* shortlist) {
  float* logits = Floats(context, workspace_.logits, num_rows * spec_.vocab_size);
  Head(context, hidden, num_rows, logits, shortlist);
  return logits;
}

// hidden and out are in the memory where the ops run. Scale and soft cap may run on logits that a shortlist leaves unspecified.
void Decoder::Head(const KernelContext& context, const float* hidden, int64_t num_rows, float* out, const Shortlist* shortlist) {
  const PackedMatrix& matrix = spec_.tied_head() ? weights_.embedding : weights_.head;
  const std::vector<LinearPart> part = {{.weights = matrix.view(), .bias = weights_.head_bias.data()}};
  const LinearInput input = MakeInput(context, num_rows, {&matrix}, true, workspace_.forms);
  ConvertInput(context, hidden, num_rows, spec_.hidden_size, input);
  const LinearArgs args = ArgsOf(part, hidden, input, num_rows, out, spec_.vocab_size, false);
  if (shortlist == nullptr) {
    Linear(context, args);
  } else {
    LinearTiles(context, args, shortlist->Tiles());
  }
  const int64_t count = num_rows * spec_.vocab_size;
  if (spec_.head.scale != 1.0) Scale(context, out, count, static_cast<float>(spec_.head.scale));
  if (spec_.head.soft_cap > 0) SoftCap(context, out, count, static_cast<float>(spec_.head.soft_cap));
}

}  // namespace llmi
