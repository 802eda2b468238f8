#include "model/checkpoints/tensor_list.h"

#include <algorithm>

#include "core/errors.h"
#include "model/checkpoints/checkpoint.h"
#include "model/dequantize.h"

namespace llmi {

uint64_t UnpackedSize(const TensorView& view) {
  if (!IsUnpacked(view.dtype) || view.shape.size() != 2) return 0;
  const auto num_tiles = static_cast<uint64_t>(NumTiles(static_cast<int64_t>(view.shape[0])));
  return num_tiles * static_cast<uint64_t>(PackedTileBytes(OwnPackedType(view.dtype), static_cast<int64_t>(view.shape[1])));
}

namespace {

std::vector<float> Values(const TensorView& view) {
  const DTypeInfo& type = Info(view.dtype);
  const uint64_t num_blocks = view.num_bytes / type.block_bytes;
  std::vector<float> values(num_blocks * type.block_size);
  constexpr uint64_t kBlocksAtOnce = 1 << 16;
  std::vector<uint8_t> bytes;
  for (uint64_t block = 0; block < num_blocks; block += kBlocksAtOnce) {
    const uint64_t count = std::min(kBlocksAtOnce, num_blocks - block);
    bytes.resize(count * type.block_bytes);
    view.Read(block * type.block_bytes, bytes.size(), bytes.data());
    DequantizeRow(view.dtype, bytes.data(), static_cast<int64_t>(count * type.block_size), values.data() + block * type.block_size);
  }
  return values;
}

}  // namespace

NamedValues ReadTensor(const ModelFiles& files, const std::string& quantization, const std::string& name) {
  const std::unique_ptr<Checkpoint> checkpoint = files.gguf() == nullptr ? OpenCheckpoint(files, quantization) : nullptr;
  const TensorView* view = checkpoint != nullptr ? checkpoint->Find(name) : files.tensors().Find(name);
  if (view == nullptr) throw Error(ErrorKind::kInvalidArgument, "the model has no tensor '" + name + "'", "name");
  if (IsCheckpointPart(view->dtype)) {
    throw Error(ErrorKind::kInvalidArgument, "tensor '" + name + "' is " + Info(view->dtype).name + ", which holds no weights", "name");
  }
  return {view->shape, Values(*view)};
}

std::vector<ListedTensor> ListTensors(const ModelFiles& files, const std::string& quantization) {
  std::vector<ListedTensor> list;
  if (files.gguf() != nullptr) {
    for (const TensorView* view : files.tensors().Tensors())
      list.push_back({view->name, view->dtype, view->shape, view->num_bytes, view->num_bytes, UnpackedSize(*view), Info(view->dtype).name});
    return list;
  }
  const std::unique_ptr<Checkpoint> checkpoint = OpenCheckpoint(files, quantization);
  for (const TensorView* view : checkpoint->Tensors()) {
    const bool is_unpacked = checkpoint->IsQuantizedMatrix(view->name) && (view->dtype == DType::kF32 || view->dtype == DType::kW8);
    const std::string form = view->dtype == DType::kF32 ? " as fp32" : " as 8-bit codes with fp32 scales";
    list.push_back({view->name, view->dtype, view->shape, view->num_bytes, checkpoint->StoredBytes(view->name),
                    is_unpacked ? view->num_bytes : 0, is_unpacked ? checkpoint->method() + form : Info(view->dtype).name});
  }
  return list;
}

}  // namespace llmi
