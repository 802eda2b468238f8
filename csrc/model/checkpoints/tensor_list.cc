#include "model/checkpoints/tensor_list.h"

#include "core/errors.h"
#include "core/json.h"
#include "model/checkpoints/checkpoint.h"
#include "model/dequantize.h"
#include "model/overrides.h"

namespace llmi {

uint64_t BytesIfUnpacked(const TensorView& view) {
  if (!IsUnpacked(view.dtype) || view.shape.size() != 2) return 0;
  const auto num_tiles = static_cast<uint64_t>(NumTiles(static_cast<int64_t>(view.shape[0])));
  return num_tiles * static_cast<uint64_t>(PackedTileBytes(OwnPackedType(view.dtype), static_cast<int64_t>(view.shape[1])));
}

std::vector<ListedTensor> ListTensors(const ModelFiles& files, const std::string& overrides) {
  std::vector<ListedTensor> list;
  if (files.gguf() != nullptr) {
    for (const TensorView* view : files.tensors().Tensors())
      list.push_back(
          {view->name, view->dtype, view->shape, view->num_bytes, view->num_bytes, BytesIfUnpacked(*view), Info(view->dtype).name});
    return list;
  }
  Json config = ReadConfigJson(*files.config());
  Overrides(overrides).Apply(&config);
  const std::unique_ptr<Checkpoint> checkpoint = OpenCheckpoint(files.tensors(), config, files.config()->path());
  for (const TensorView* view : checkpoint->Tensors()) {
    const bool is_unpacked = checkpoint->IsQuantizedMatrix(view->name) && (view->dtype == DType::kF32 || view->dtype == DType::kW8);
    const std::string form = view->dtype == DType::kF32 ? " as fp32" : " as 8-bit codes with fp32 scales";
    list.push_back({view->name, view->dtype, view->shape, view->num_bytes, checkpoint->StoredBytes(view->name),
                    is_unpacked ? view->num_bytes : 0, is_unpacked ? checkpoint->method() + form : Info(view->dtype).name});
  }
  return list;
}

}  // namespace llmi
