#include "io/safetensors.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

#include "core/checked.h"
#include "core/errors.h"
#include "core/json.h"

namespace llmi {
namespace {

constexpr uint64_t kMaxHeaderBytes = uint64_t{16} << 20;  // 50,000 tensors of a large MoE take 6 MB
constexpr size_t kMaxDims = 8;

[[noreturn]] void Fail(const std::string& path, const std::string& field, const std::string& problem) {
  throw Error(ErrorKind::kModelFile, path + ": " + field + ": " + problem, field);
}

uint64_t NonNegative(const Json& value, const std::string& path, const std::string& field) {
  const int64_t number = value.AsInteger(field);
  if (number < 0) Fail(path, field, "a size is negative");
  return static_cast<uint64_t>(number);
}

DType ReadDType(const std::string& path, const std::string& tensor, const std::string& name) {
  if (name == "F32") return DType::kF32;
  if (name == "F16") return DType::kF16;
  if (name == "BF16") return DType::kBF16;
  throw Error(ErrorKind::kUnsupportedModel,
              path + ": tensor '" + tensor + "' has dtype " + name + ", which llmi does not read (it reads F32, F16, BF16)", tensor);
}

bool FileExists(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0;
}

// Several files behind one name space.
class ShardedFiles : public TensorFile {
 public:
  ShardedFiles(const std::string& directory, const std::string& index_path) {
    const MappedFile index_file(index_path);
    if (index_file.size() > kMaxHeaderBytes) Fail(index_path, "index", "it is larger than 16 MiB");
    const std::string_view text(reinterpret_cast<const char*>(index_file.data()), index_file.size());
    const Json index = Json::Parse(text, index_path);
    const Json* weight_map = index.IsObject() ? index.Find("weight_map") : nullptr;
    if (weight_map == nullptr) Fail(index_path, "weight_map", "the index lacks it");
    std::map<std::string, size_t> shard_of;
    for (const auto& [tensor, file] : weight_map->AsObject("weight_map")) {
      const std::string& name = file.AsString(tensor);
      if (name.empty() || name.find('/') != std::string::npos || name[0] == '.')
        Fail(index_path, tensor, "its file name leaves the directory");
      if (!shard_of.contains(name)) {
        shard_of[name] = shards_.size();
        shards_.push_back(std::make_unique<SafetensorsFile>(directory + "/" + name));
      }
      const TensorView* view = shards_[shard_of[name]]->Find(tensor);
      if (view == nullptr) Fail(index_path, tensor, "the index names " + name + ", which lacks it");
      tensors_[tensor] = view;
    }
  }

  const TensorView* Find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : found->second;
  }
  std::vector<const TensorView*> Tensors() const override {
    std::vector<const TensorView*> views;
    for (const auto& [name, view] : tensors_) views.push_back(view);
    return views;
  }

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::map<std::string, const TensorView*> tensors_;
};

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  uint64_t header_bytes = 0;
  if (file_.size() < 8) Fail(path, "header length", "the file is truncated");
  std::memcpy(&header_bytes, file_.data(), 8);
  if (header_bytes > kMaxHeaderBytes) Fail(path, "header length", std::to_string(header_bytes) + " bytes (at most 16 MiB)");
  if (header_bytes > file_.size() - 8) Fail(path, "header length", "the header ends outside the file");
  const Json header = Json::Parse(std::string_view(reinterpret_cast<const char*>(file_.data()) + 8, header_bytes), path);
  const uint64_t data_bytes = file_.size() - 8 - header_bytes;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, entry] : header.AsObject("header")) {
    if (name == "__metadata__") continue;
    if (!entry.IsObject()) Fail(path, name, "its entry is not an object");
    const Json* dtype = entry.Find("dtype");
    const Json* shape = entry.Find("shape");
    const Json* offsets = entry.Find("data_offsets");
    if (dtype == nullptr || shape == nullptr || offsets == nullptr) Fail(path, name, "dtype, shape or data_offsets is missing");
    TensorView view;
    view.name = name;
    view.dtype = ReadDType(path, name, dtype->AsString("dtype"));
    CheckedU64 num_values(1);
    if (shape->AsArray("shape").size() > kMaxDims) Fail(path, name, "more than 8 dimensions");
    for (const Json& extent : shape->AsArray("shape")) {
      view.shape.push_back(NonNegative(extent, path, name));
      num_values = num_values * view.shape.back();
    }
    if (offsets->AsArray("data_offsets").size() != 2) Fail(path, name, "data_offsets are not two numbers");
    const uint64_t begin = NonNegative(offsets->AsArray("data_offsets")[0], path, name);
    const uint64_t end = NonNegative(offsets->AsArray("data_offsets")[1], path, name);
    if (begin > end || end > data_bytes) {
      Fail(path, name,
           "its data [" + std::to_string(begin) + ", " + std::to_string(end) + ") leave the file's " + std::to_string(data_bytes) +
               " bytes");
    }
    view.num_bytes = (num_values * Info(view.dtype).block_bytes).value();
    if (view.num_bytes != end - begin)
      Fail(path, name, "its shape needs " + std::to_string(view.num_bytes) + " bytes, it has " + std::to_string(end - begin));
    view.data = file_.data() + 8 + header_bytes + begin;
    view.file = &file_;
    ranges.emplace_back(begin, end);
    tensors_.emplace(name, std::move(view));
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t expected = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != expected) Fail(path, "data_offsets", begin < expected ? "tensors overlap" : "there is a gap between tensors");
    expected = end;
  }
  if (expected != data_bytes) Fail(path, "data_offsets", "the tensors do not cover the file's data");
}

std::unique_ptr<TensorFile> SafetensorsFile::OpenDirectory(const std::string& directory) {
  const std::string index_path = directory + "/model.safetensors.index.json";
  if (FileExists(index_path)) return std::make_unique<ShardedFiles>(directory, index_path);
  return std::make_unique<SafetensorsFile>(directory + "/model.safetensors");
}

const TensorView* SafetensorsFile::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<const TensorView*> SafetensorsFile::Tensors() const {
  std::vector<const TensorView*> views;
  for (const auto& [name, view] : tensors_) views.push_back(&view);
  return views;
}

}  // namespace llmi
