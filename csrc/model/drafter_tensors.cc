#include "model/drafter_tensors.h"

#include <memory>

#include "core/errors.h"
#include "kernels/dispatch/transfer.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/row_ops.h"
#include "kernels/ops/vocab.h"
#include "model/checkpoints/checkpoint.h"
#include "model/dequantize.h"
#include "model/layer_pass.h"

namespace llmi {

WeightFormat FormatLike(const PackedMatrix& target) {
  const PackedView view = target.view();
  if (IsQuantizedPacked(view.type)) {
    const double bits =
        8.0 * static_cast<double>(PackedTileBytes(view.type, view.num_cols)) / static_cast<double>(kTileRows * view.num_cols);
    return bits > 6.0 ? WeightFormat::kQ8_0 : WeightFormat::kQ4_0;
  }
  switch (view.type) {
    case PackedType::kF16:
    case PackedType::kF16Rows: return WeightFormat::kF16;
    case PackedType::kBF16:
    case PackedType::kBF16Rows: return WeightFormat::kBF16;
    default: return WeightFormat::kF32;
  }
}

const TensorView& FoundTensor(const std::string& path, const TensorFile& file, const std::string& name,
                              const std::vector<uint64_t>& shape) {
  const TensorView* view = file.Find(name);
  if (view == nullptr) throw Error(ErrorKind::kModelFile, path + ": tensor '" + name + "' is missing", name);
  const bool is_float = view->dtype == DType::kF32 || view->dtype == DType::kF16 || view->dtype == DType::kBF16;
  const bool is_packed = shape.size() == 2 && IsQuantized(view->dtype);
  if (view->shape == shape && (is_packed || is_float)) return *view;
  std::string wanted;
  for (uint64_t extent : shape) wanted += (wanted.empty() ? "" : ", ") + std::to_string(extent);
  throw Error(ErrorKind::kModelFile, path + ": tensor '" + name + "' must be float and have the shape [" + wanted + "]", name);
}

std::vector<float> FloatVector(const TensorView& view) {
  std::vector<uint8_t> bytes(view.num_bytes);
  view.Read(0, view.num_bytes, bytes.data());
  std::vector<float> values(view.shape[0]);
  DequantizeRow(view.dtype, bytes.data(), static_cast<int64_t>(values.size()), values.data());
  return values;
}

void RefuseUnreadDraft(const std::string& path, const RecordedTensors& tensors, const std::string& what) {
  for (const TensorView* view : tensors.Unread()) {
    throw Error(ErrorKind::kUnsupportedModel,
                path + ": tensor '" + view->name + "' has no place in " + what + ": the drafts would be wrong without it", view->name);
  }
}

void HeadLogits(const KernelContext& context, const PackedMatrix& rows, const HeadSpec& spec, Decoder& target, const float* x,
                int64_t num_rows, HeadRoom room, std::vector<float>* logits) {
  if (rows.num_bytes() == 0) {
    logits->resize(static_cast<size_t>(num_rows * target.spec().vocab_size));
    return target.LmHead(context, x, num_rows, logits->data());
  }
  const int64_t num_choices = rows.view().num_rows;
  const std::vector<LinearPart> part = {{.weights = rows.view()}};
  float* there = Floats(context, room.logits, num_rows * num_choices);
  const LinearInput input = MakeInput(context, num_rows, {&rows}, true, room.forms);
  ConvertInput(context, x, num_rows, rows.view().num_cols, input);
  Linear(context, ArgsOf(part, x, input, num_rows, there, num_choices, false));
  if (spec.scale != 1.0) Scale(context, there, num_rows * num_choices, static_cast<float>(spec.scale));
  if (spec.soft_cap > 0) SoftCap(context, there, num_rows * num_choices, static_cast<float>(spec.soft_cap));
  logits->resize(static_cast<size_t>(num_rows * num_choices));
  ToHost(context, logits->data(), there, FloatBytes(num_rows * num_choices));
}

PackedMatrix HeadRows(const KernelContext& context, const std::vector<int32_t>& shortlist, const ModelFiles& files, const Decoder& target) {
  const ModelSpec& spec = target.spec();
  const TensorBinding& binding = spec.tied_head() ? spec.embedding.weight : spec.head.weight;
  if (!(binding.order == RowOrder{}) || binding.transposed || !spec.head.bias.name.empty()) return {};
  const std::unique_ptr<Checkpoint> checkpoint = OpenCheckpoint(files, spec.quantization);
  const TensorView* view = checkpoint->Find(binding.name);
  if (view == nullptr) return {};
  const PackedMatrix& own = spec.tied_head() ? target.weights().embedding : target.weights().head;
  const WeightFormat format = view->dtype == own.source_dtype() && PackedTypeOf(view->dtype, WeightFormat::kAsStored) == own.view().type
                                  ? WeightFormat::kAsStored
                                  : FormatLike(own);
  const RowMap rows = {static_cast<int64_t>(shortlist.size()), [&](int64_t row) { return shortlist[static_cast<size_t>(row)]; }};
  return {context, *view, format, &rows};
}

}  // namespace llmi
