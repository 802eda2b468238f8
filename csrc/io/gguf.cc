#include "io/gguf.h"

#include <algorithm>
#include <cstring>

#include "core/checked.h"
#include "core/errors.h"
#include "core/utf8.h"
#include "io/header_reader.h"

namespace llmi {
namespace {

constexpr uint64_t kMaxTensors = 100000;
constexpr uint64_t kMaxMetadata = 65536;
constexpr uint64_t kMaxNameBytes = 1024;  // ggml's own limit for tensors is 64
constexpr uint64_t kMaxAlignment = 1 << 20;
// Gemma's vocabulary of 262,144 tokens takes 1.3 million elements and 15 MB.
constexpr uint64_t kMaxHeaderBytes = 1 << 27;
constexpr uint64_t kMaxElements = 1 << 22;

enum GgufType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
  kNumTypes
};

uint64_t ScalarBytes(uint32_t type) {
  switch (type) {
    case kUint8:
    case kInt8:
    case kBool: return 1;
    case kUint16:
    case kInt16: return 2;
    case kUint32:
    case kInt32:
    case kFloat32: return 4;
    default: return 8;
  }
}

// ggml's names of the tensor types, by number; some are of types that ggml itself no longer has.
constexpr const char* kGgmlTypeNames[] = {
    "F32",      "F16",    "Q4_0",  "Q4_1",       "Q4_2",       "Q4_3",       "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",     "Q2_K",
    "Q3_K",     "Q4_K",   "Q5_K",  "Q6_K",       "Q8_K",       "IQ2_XXS",    "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL",   "IQ3_S",
    "IQ2_S",    "IQ4_XS", "I8",    "I16",        "I32",        "I64",        "F64",    "IQ1_M",   "BF16",  "Q4_0_4_4", "Q4_0_4_8",
    "Q4_0_8_8", "TQ1_0",  "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",  "NVFP4",   "Q1_0",  "Q2_0"};

DType TensorType(const std::string& path, const std::string& tensor, uint32_t type) {
  const std::string_view name = type < std::size(kGgmlTypeNames) ? kGgmlTypeNames[type] : "";
  std::string read;
  for (size_t i = 0; i < std::size(kDTypeInfos); ++i) {
    const bool is_map = static_cast<DType>(i) == DType::kI64;  // of a drafter's vocabulary
    if (IsCheckpointPart(static_cast<DType>(i)) && !is_map) continue;
    if (name == kDTypeInfos[i].name) return static_cast<DType>(i);
    read += std::string(read.empty() ? "" : ", ") + kDTypeInfos[i].name;
  }
  const std::string shown = name.empty() ? "number " + std::to_string(type) : std::string(name);
  throw Error(ErrorKind::kUnsupportedModel,
              path + ": tensor '" + tensor + "' has type " + shown + ", which llmi does not read (it reads " + read + ")", tensor);
}

// Reads a key or a tensor name. It must not be empty or too long, and must be UTF-8; this is checked before any message shows it.
std::string ReadName(HeaderReader* reader, const std::string& path, const std::string& what) {
  const std::string_view name = reader->ReadString(what);
  if (name.empty() || name.size() > kMaxNameBytes) RefuseField(path, what, "its length is out of range");
  if (!IsUtf8(name)) RefuseField(path, what, "it is not valid UTF-8");
  return std::string(name);
}

void ReadScalar(HeaderReader* reader, const std::string& path, const std::string& key, uint32_t type, int64_t* integer, double* number) {
  switch (type) {
    case kUint8: *integer = reader->Read<uint8_t>(key); break;
    case kInt8: *integer = reader->Read<int8_t>(key); break;
    case kUint16: *integer = reader->Read<uint16_t>(key); break;
    case kInt16: *integer = reader->Read<int16_t>(key); break;
    case kUint32: *integer = reader->Read<uint32_t>(key); break;
    case kInt32: *integer = reader->Read<int32_t>(key); break;
    case kInt64: *integer = reader->Read<int64_t>(key); break;
    case kUint64: {
      const uint64_t value = reader->Read<uint64_t>(key);
      if (value > static_cast<uint64_t>(INT64_MAX)) RefuseField(path, key, "the number is too large");
      *integer = static_cast<int64_t>(value);
      break;
    }
    case kBool: {
      const uint8_t value = reader->Read<uint8_t>(key);
      if (value > 1) RefuseField(path, key, "a bool is neither 0 nor 1");
      *integer = value;
      break;
    }
    case kFloat32: *number = static_cast<double>(reader->Read<float>(key)); break;
    default: *number = reader->Read<double>(key); break;
  }
}

bool IsFloat(uint32_t type) { return type == kFloat32 || type == kFloat64; }

GgufValue ReadArray(HeaderReader* reader, const std::string& path, const std::string& key, uint64_t* elements_left) {
  const uint32_t type = reader->Read<uint32_t>(key);
  const uint64_t length = reader->Read<uint64_t>(key);
  if (type >= kNumTypes || type == kArray) RefuseField(path, key, "an array of type " + std::to_string(type) + " is not allowed");
  if (length > *elements_left) RefuseField(path, key, std::to_string(length) + " elements (all lists together may have 4,194,304)");
  *elements_left -= length;
  // A string takes at least 8 bytes, for its length. So memory is reserved only for as many elements as the file can hold.
  reader->Need((CheckedU64(length) * (type == kString ? 8 : ScalarBytes(type))).value(), key);
  GgufValue value;
  if (type == kString) {
    value.kind = GgufValue::Kind::kStringArray;
    value.strings.reserve(length);
    for (uint64_t i = 0; i < length; ++i) value.strings.push_back(reader->ReadString(key));
    return value;
  }
  value.kind = IsFloat(type) ? GgufValue::Kind::kNumberArray : type == kBool ? GgufValue::Kind::kBoolArray : GgufValue::Kind::kIntegerArray;
  if (IsFloat(type)) {
    value.numbers.reserve(length);
  } else {
    value.integers.reserve(length);
  }
  for (uint64_t i = 0; i < length; ++i) {
    int64_t integer = 0;
    double number = 0;
    ReadScalar(reader, path, key, type, &integer, &number);
    if (IsFloat(type)) {
      value.numbers.push_back(number);
    } else {
      value.integers.push_back(integer);
    }
  }
  return value;
}

GgufValue ReadValue(HeaderReader* reader, const std::string& path, const std::string& key, uint64_t* elements_left) {
  const uint32_t type = reader->Read<uint32_t>(key);
  if (type >= kNumTypes) RefuseField(path, key, "unknown value type " + std::to_string(type));
  if (type == kArray) return ReadArray(reader, path, key, elements_left);
  GgufValue value;
  if (type == kString) {
    value.kind = GgufValue::Kind::kString;
    value.string = reader->ReadString(key);
    return value;
  }
  value.kind = IsFloat(type) ? GgufValue::Kind::kNumber : type == kBool ? GgufValue::Kind::kBool : GgufValue::Kind::kInteger;
  ReadScalar(reader, path, key, type, &value.integer, &value.number);
  return value;
}

uint64_t Alignment(const std::map<std::string, GgufValue>& metadata, const std::string& path) {
  const auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return 32;
  if (found->second.kind != GgufValue::Kind::kInteger) RefuseField(path, "general.alignment", "it is not an integer");
  const auto alignment = static_cast<uint64_t>(found->second.integer);
  if (alignment == 0 || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
    RefuseField(path, "general.alignment", std::to_string(found->second.integer) + " is not a power of two up to 1,048,576");
  }
  return alignment;
}

GgufFile::TensorHeader ReadTensorHeader(HeaderReader* reader, const std::string& path) {
  GgufFile::TensorHeader header;
  TensorView& view = header.view;
  view.name = ReadName(reader, path, "tensor name");
  const uint32_t num_dims = reader->Read<uint32_t>(view.name);
  if (num_dims < 1 || num_dims > 4) RefuseField(path, view.name, std::to_string(num_dims) + " dimensions (1 to 4 are allowed)");
  CheckedU64 num_values(1);
  for (uint32_t i = 0; i < num_dims; ++i) {
    const uint64_t extent = reader->Read<uint64_t>(view.name);
    if (extent == 0) RefuseField(path, view.name, "a dimension is zero");
    num_values = num_values * extent;
    view.shape.insert(view.shape.begin(), extent);  // the file lists the fastest dimension first
  }
  view.dtype = TensorType(path, view.name, reader->Read<uint32_t>(view.name));
  header.offset = reader->Read<uint64_t>(view.name);
  const DTypeInfo& info = Info(view.dtype);
  if (view.shape.back() % info.block_size != 0) {
    RefuseField(
        path, view.name,
        "its rows of " + std::to_string(view.shape.back()) + " values do not divide into blocks of " + std::to_string(info.block_size));
  }
  view.num_bytes = (CheckedU64(num_values.value() / info.block_size) * info.block_bytes).value();
  return header;
}

}  // namespace

GgufFile::GgufFile(const std::vector<std::shared_ptr<const InputFile>>& parts) : parts_(parts) {
  for (size_t part = 0; part < parts_.size(); ++part) AddPart(part);
}

void GgufFile::AddPart(size_t part) {
  const InputFile& file = *parts_[part];
  const std::string& path = file.path();
  HeaderReader reader(file, &texts_, kMaxHeaderBytes);
  char magic[4] = {};
  if (file.size() >= 4) file.Read(0, 4, magic);
  if (std::memcmp(magic, "GGUF", 4) != 0) RefuseField(path, "magic", "not a GGUF file");
  reader.Read<uint32_t>("magic");
  const uint32_t version = reader.Read<uint32_t>("version");
  if (version != 0 && (version & 0xFFFF) == 0) {
    RefuseField(
        path, "version",
        "a big-endian GGUF file, as s390x and PowerPC have them: take the little-endian one, or convert this (gguf_convert_endian.py of "
        "llama.cpp)");
  }
  if (version != 2 && version != 3) RefuseField(path, "version", "GGUF version " + std::to_string(version) + " (2 and 3 are read)");
  const uint64_t num_tensors = reader.Read<uint64_t>("tensor_count");
  const uint64_t num_metadata = reader.Read<uint64_t>("metadata_kv_count");
  if (num_tensors > kMaxTensors) RefuseField(path, "tensor_count", std::to_string(num_tensors) + " tensors (at most 100,000)");
  if (num_metadata > kMaxMetadata) RefuseField(path, "metadata_kv_count", std::to_string(num_metadata) + " entries (at most 65,536)");
  uint64_t elements_left = kMaxElements;
  std::map<std::string, GgufValue> metadata;
  for (uint64_t i = 0; i < num_metadata; ++i) {
    const std::string key = ReadName(&reader, path, "metadata key");
    if (!metadata.emplace(key, ReadValue(&reader, path, key, &elements_left)).second) RefuseField(path, key, "the key stands twice");
  }
  std::vector<TensorHeader> headers;
  for (uint64_t i = 0; i < num_tensors; ++i) headers.push_back(ReadTensorHeader(&reader, path));
  const uint64_t alignment = Alignment(metadata, path);
  AddTensors(file, CheckedU64(reader.position()).AlignUp(alignment).value(), alignment, &headers);
  CheckPart(metadata, part);
  if (part == 0) metadata_ = std::move(metadata);
}

void GgufFile::AddTensors(const InputFile& file, uint64_t data_begin, uint64_t alignment, std::vector<TensorHeader>* headers) {
  const std::string& path = file.path();
  std::sort(headers->begin(), headers->end(), [](const TensorHeader& a, const TensorHeader& b) { return a.offset < b.offset; });
  uint64_t previous_end = 0;
  const std::string* cut = nullptr;  // the first tensor that ends after the file's end
  for (TensorHeader& header : *headers) {
    TensorView& view = header.view;
    if (header.offset % alignment != 0) RefuseField(path, view.name, "its offset is not aligned");
    if (header.offset < previous_end) RefuseField(path, view.name, "it overlaps another tensor");
    previous_end = (CheckedU64(header.offset) + view.num_bytes).value();
    if ((CheckedU64(data_begin) + previous_end).value() > file.size() && cut == nullptr) cut = &view.name;
    view.offset = data_begin + header.offset;
    view.source = &file;
  }
  if (cut != nullptr) {
    const uint64_t end = data_begin + previous_end;
    RefuseField(path, *cut,
                "the file is truncated: the last tensor ends at byte " + std::to_string(end) + ", the file has " +
                    std::to_string(file.size()) + " bytes, " + std::to_string(end - file.size()) +
                    " too few (a download that was not finished?)");
  }
  for (TensorHeader& header : *headers) {
    const std::string name = header.view.name;
    if (!tensors_.emplace(name, std::move(header.view)).second) RefuseField(path, name, "the tensor stands twice");
  }
}

void GgufFile::CheckPart(const std::map<std::string, GgufValue>& metadata, size_t part) const {
  const std::string& path = parts_[part]->path();
  const auto number = [&](const std::string& key, uint64_t otherwise) {
    const auto found = metadata.find(key);
    if (found == metadata.end()) return otherwise;
    if (found->second.kind != GgufValue::Kind::kInteger || found->second.integer < 0) RefuseField(path, key, "it is no count");
    return static_cast<uint64_t>(found->second.integer);
  };
  // Files of a model that was split and merged again have split.count = 0.
  const uint64_t count = std::max<uint64_t>(number("split.count", 1), 1), index = number("split.no", 0);
  if (count > 1 && parts_.size() == 1) {
    RefuseField(path, "split.count",
                "part " + std::to_string(index + 1) + " of " + std::to_string(count) +
                    " of a split model, and its name does not tell where the others are: the parts are called NAME-00001-of-" +
                    std::string(5 - std::min<size_t>(5, std::to_string(count).size()), '0') + std::to_string(count) + ".gguf and so on");
  }
  if (count != parts_.size()) {
    RefuseField(path, "split.count",
                "the file says that the model has " + std::to_string(count) + " parts, its name says " + std::to_string(parts_.size()));
  }
  if (count > 1 && index != part) {
    RefuseField(path, "split.no",
                "the file says that it is part " + std::to_string(index + 1) + ", its name says " + std::to_string(part + 1));
  }
  const uint64_t all = number("split.tensors.count", 0);
  if (count > 1 && part + 1 == parts_.size() && all != 0 && all != tensors_.size()) {
    RefuseField(path, "split.tensors.count",
                "the model has " + std::to_string(all) + " tensors, its parts hold " + std::to_string(tensors_.size()));
  }
}

const TensorView* GgufFile::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<const TensorView*> GgufFile::Tensors() const {
  std::vector<const TensorView*> views;
  for (const auto& [name, view] : tensors_) views.push_back(&view);
  return views;
}

const GgufValue& GgufFile::Value(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) RefuseField(path(), key, "the metadata lacks this key");
  return found->second;
}

int64_t GgufFile::Integer(const std::string& key) const {
  const GgufValue& value = Value(key);
  if (value.kind != GgufValue::Kind::kInteger) RefuseField(path(), key, "it is not an integer");
  return value.integer;
}

std::string GgufFile::String(const std::string& key) const {
  const GgufValue& value = Value(key);
  if (value.kind != GgufValue::Kind::kString) RefuseField(path(), key, "it is not a string");
  if (!IsUtf8(value.string)) RefuseField(path(), key, "it is not valid UTF-8");
  return std::string(value.string);
}

}  // namespace llmi
