// Reads metadata and tensors of GGUF v3 files, and of v2 files, whose form is the same here. Every size and offset is checked before it is
// used. A model may be split into several files. Specification: ggml/docs/gguf.md; of split models: llama.cpp's gguf-split.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/text_arena.h"
#include "io/input_file.h"
#include "io/tensor_file.h"

namespace llmi {

// A metadata value, stored in the member of its kind. The GgufFile owns the characters of strings.
struct GgufValue {
  enum class Kind : uint8_t { kInteger, kNumber, kBool, kString, kIntegerArray, kNumberArray, kBoolArray, kStringArray };
  Kind kind = Kind::kInteger;
  int64_t integer = 0;  // kInteger and kBool
  double number = 0;
  std::string_view string;
  std::vector<int64_t> integers;  // kIntegerArray and kBoolArray
  std::vector<double> numbers;
  std::vector<std::string_view> strings;
};

class GgufFile : public TensorFile {
 public:
  // parts: the files of one model in order, mostly one. Metadata is that of the first part, tensors are those of all parts. Throws
  // Error(kModelFile) with the field that is wrong, Error(kUnsupportedModel) with the name of a tensor type that llmi does not read.
  explicit GgufFile(const std::vector<std::shared_ptr<const InputFile>>& parts);

  const TensorView* Find(const std::string& name) const override;
  std::vector<const TensorView*> Tensors() const override;
  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  const std::string& path() const { return parts_[0]->path(); }

  // Return metadata of one kind; throw Error(kModelFile) if the key is missing or of another kind.
  int64_t Integer(const std::string& key) const;
  std::string String(const std::string& key) const;
  bool Has(const std::string& key) const { return metadata_.contains(key); }

  struct TensorHeader {
    TensorView view;
    uint64_t offset = 0;  // from the start of the file's tensor data
  };

 private:
  const GgufValue& Value(const std::string& key) const;
  void AddPart(size_t part);
  void AddTensors(const InputFile& file, uint64_t data_begin, uint64_t alignment, std::vector<TensorHeader>* headers);
  // Checks that the split.* keys of a part agree with its index and the number of parts.
  void CheckPart(const std::map<std::string, GgufValue>& metadata, size_t part) const;

  std::vector<std::shared_ptr<const InputFile>> parts_;
  TextArena texts_;
  std::map<std::string, GgufValue> metadata_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace llmi
