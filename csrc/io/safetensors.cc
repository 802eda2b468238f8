#include "io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "core/checked.h"
#include "core/errors.h"
#include "core/json_cursor.h"

namespace llmi {
namespace {

constexpr uint64_t kMaxJsonBytes = uint64_t{16} << 20;  // a large MoE model's 50,000 tensors take 6 MB
constexpr size_t kMaxTensorsOfModel = 200000;           // in all files of a model, and in an index
constexpr size_t kMaxDims = 8;

DType ReadDType(const std::string& path, const std::string& tensor, const std::string& name) {
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kU8, DType::kI32, DType::kI64, DType::kF8E4M3, DType::kF8E8M0}) {
    if (name == Info(dtype).name) return dtype;
  }
  if (name == "BOOL") return DType::kU8;  // a byte each, as torch stores it
  throw Error(
      ErrorKind::kUnsupportedModel,
      path + ": tensor '" + tensor + "' has dtype " + name +
          ", which llmi does not read (it reads F32, F16, BF16, and of a quantised model also I8, U8, BOOL, I32, I64, F8_E4M3, F8_E8M0)",
      tensor);
}

// A tensor's description in the header.
struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

std::vector<uint64_t> ReadSizes(JsonCursor* header, size_t most, const std::string& path, const std::string& tensor,
                                const std::string& problem) {
  std::vector<uint64_t> sizes;
  header->Array([&] {
    if (sizes.size() == most) RefuseField(path, tensor, problem);
    sizes.push_back(header->Size());
  });
  return sizes;
}

Entry ReadEntry(JsonCursor* header, const std::string& path, const std::string& name) {
  Entry entry;
  entry.name = name;
  bool twice = false;
  header->Object([&](const std::string& key) {
    if (key == "dtype") {
      twice |= entry.dtype.has_value();
      entry.dtype = header->String();
    } else if (key == "shape") {
      twice |= entry.shape.has_value();
      entry.shape = ReadSizes(header, kMaxDims, path, name, "more than 8 dimensions");
    } else if (key == "data_offsets") {
      twice |= entry.offsets.has_value();
      entry.offsets = ReadSizes(header, 2, path, name, "data_offsets are not two numbers");
    } else {
      RefuseField(path, name, "its entry has a key besides dtype, shape and data_offsets: '" + key.substr(0, 64) + "'");
    }
  });
  if (twice) RefuseField(path, name, "a key of its entry stands twice");
  if (!entry.dtype || !entry.shape || !entry.offsets) RefuseField(path, name, "dtype, shape or data_offsets is missing");
  if (entry.offsets->size() != 2) RefuseField(path, name, "data_offsets are not two numbers");
  return entry;
}

// The text of the header, which is JSON.
std::string ReadHeader(const InputFile& file) {
  const std::string& path = file.path();
  uint64_t header_bytes = 0;
  if (file.size() < 8)
    RefuseField(path, "header length", "the file is truncated: it has " + std::to_string(file.size()) + " bytes, and 8 hold it");
  file.Read(0, 8, &header_bytes);
  if (header_bytes > kMaxJsonBytes) {
    RefuseField(path, "header length", std::to_string(header_bytes) + " bytes (at most 16 MiB): not a safetensors file, or a damaged one");
  }
  if (header_bytes > file.size() - 8) {
    RefuseField(path, "header length",
                "the file is truncated: the header ends at byte 8 + " + std::to_string(header_bytes) + ", the file has " +
                    std::to_string(file.size()) + " bytes");
  }
  std::string text(header_bytes, '\0');
  file.Read(8, header_bytes, text.data());
  return text;
}

// The data_offsets of a tensor.
struct Range {
  uint64_t begin, end;
  const std::string* name;
};

// Throws unless the tensors cover the file's data, from byte data_begin on, without overlap and gap.
void CheckRanges(const InputFile& file, uint64_t data_begin, std::vector<Range> ranges) {
  const std::string& path = file.path();
  const uint64_t data_bytes = file.size() - data_begin;
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  uint64_t expected = 0;
  for (const Range& range : ranges) {
    if (range.begin != expected) {
      RefuseField(path, *range.name,
                  range.begin < expected ? "data_offsets: tensors overlap" : "data_offsets: there is a gap before the tensor");
    }
    expected = range.end;
  }
  if (expected > data_bytes) {
    RefuseField(path, ranges.empty() ? "data" : *ranges.back().name,
                "the file is truncated: the data ends at byte " + std::to_string(data_begin) + " + " + std::to_string(expected) +
                    ", the file has " + std::to_string(file.size()) + " bytes, " + std::to_string(expected - data_bytes) +
                    " too few (a download that was not finished?)");
  }
  if (expected != data_bytes) {
    RefuseField(path, "data_offsets",
                "the tensors do not cover the file's data: " + std::to_string(expected) + " of " + std::to_string(data_bytes) + " bytes");
  }
}

// The tensor of an entry; its data begins at byte data_begin of the file.
TensorView ViewOf(const InputFile& file, uint64_t data_begin, const std::string& name, const Entry& entry) {
  const std::string& path = file.path();
  TensorView view;
  view.name = name;
  view.dtype = ReadDType(path, name, *entry.dtype);
  view.shape = *entry.shape;
  CheckedU64 num_values(1);
  for (const uint64_t extent : view.shape) num_values = num_values * extent;
  const uint64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  if (begin > end) RefuseField(path, name, "its data ends before it begins");
  view.num_bytes = (num_values * Info(view.dtype).block_bytes).value();
  if (view.num_bytes != end - begin)
    RefuseField(path, name, "its shape needs " + std::to_string(view.num_bytes) + " bytes, it has " + std::to_string(end - begin));
  view.offset = (CheckedU64(data_begin) + begin).value();
  view.source = &file;
  return view;
}

}  // namespace

SafetensorsFiles::SafetensorsFiles(const std::vector<std::shared_ptr<const InputFile>>& files) : files_(files) {
  for (const std::shared_ptr<const InputFile>& file : files_) Add(file);
}

void SafetensorsFiles::Add(const std::shared_ptr<const InputFile>& file) {
  const std::string& path = file->path();
  const std::string text = ReadHeader(*file);
  const uint64_t data_begin = 8 + text.size();
  std::vector<Range> ranges;
  JsonCursor header(text, path);
  header.Object([&](const std::string& name) {
    if (name == "__metadata__") return header.Object([&](const std::string&) { header.String(); });
    const Entry entry = ReadEntry(&header, path, name);
    if (tensors_.size() >= kMaxTensorsOfModel) RefuseField(path, name, "more than 200,000 tensors");
    const auto [place, added] = tensors_.emplace(name, ViewOf(*file, data_begin, name, entry));
    if (!added) {
      RefuseField(path, name,
                  place->second.source == file.get() ? "duplicate key: the tensor stands twice" : "another file of the model has it, too");
    }
    ranges.push_back({(*entry.offsets)[0], (*entry.offsets)[1], &place->first});
  });
  header.End();
  CheckRanges(*file, data_begin, std::move(ranges));
}

void SafetensorsFiles::CheckIndex(const InputFile& index) const {
  std::map<std::string, const ByteSource*> sources;
  for (const std::shared_ptr<const InputFile>& file : files_) sources[file->name()] = file.get();
  for (const auto& [tensor, name] : ReadShardIndex(index)) {
    const TensorView* view = Find(tensor);
    if (view == nullptr || sources[name] != view->source) RefuseField(index.path(), tensor, "the index names " + name + ", which lacks it");
  }
}

const TensorView* SafetensorsFiles::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<const TensorView*> SafetensorsFiles::Tensors() const {
  std::vector<const TensorView*> views;
  for (const auto& [name, view] : tensors_) views.push_back(&view);
  return views;
}

std::map<std::string, std::string> ReadShardIndex(const InputFile& index) {
  const std::string text = index.ReadAll(kMaxJsonBytes);
  JsonCursor cursor(text, index.path());
  std::map<std::string, std::string> names;
  bool found = false;
  cursor.Object([&](const std::string& key) {
    if (key != "weight_map") return cursor.Skip();
    if (std::exchange(found, true)) RefuseField(index.path(), key, "the key stands twice");
    cursor.Object([&](const std::string& tensor) {
      const std::string name = cursor.String();
      if (names.size() >= kMaxTensorsOfModel) RefuseField(index.path(), key, "more than 200,000 tensors");
      if (name.empty() || name.find('/') != std::string::npos || name.find('\0') != std::string::npos || name[0] == '.')
        RefuseField(index.path(), tensor, "its file name leaves the directory");
      if (!names.emplace(tensor, name).second) RefuseField(index.path(), tensor, "the tensor stands twice");
    });
  });
  cursor.End();
  if (!found) RefuseField(index.path(), "weight_map", "the index lacks it");
  return names;
}

}  // namespace llmi
