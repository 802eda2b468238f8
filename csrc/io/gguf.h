// GGUF v3 (and v2, which differs in nothing we read): metadata and tensors, every size and offset checked before use. A model may be split
// into several files. Specification: ggml/docs/gguf.md; the parts: llama.cpp's gguf-split.
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

// A metadata value. Numbers are kept as integer or number, arrays in the vector of their kind; strings are kept by the GgufFile.
struct GgufValue {
  enum class Kind : uint8_t { kInteger, kNumber, kBool, kString, kIntegerArray, kNumberArray, kBoolArray, kStringArray };
  Kind kind = Kind::kInteger;
  int64_t integer = 0;  // also bools
  double number = 0;
  std::string_view string;
  std::vector<int64_t> integers;  // also bools
  std::vector<double> numbers;
  std::vector<std::string_view> strings;
};

class GgufFile : public TensorFile {
 public:
  // The parts of one model in their order, most often one: metadata is the first part's, tensors are all parts'. Throws Error(kModelFile)
  // with the field that is wrong, Error(kUnsupportedModel) for a tensor type that llmi does not read, by name.
  explicit GgufFile(const std::vector<std::shared_ptr<const InputFile>>& parts);

  const TensorView* Find(const std::string& name) const override;
  std::vector<const TensorView*> Tensors() const override;
  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  const std::string& path() const { return parts_[0]->path(); }

  // Typed metadata; throw Error(kModelFile) if the key is missing or of another kind.
  int64_t Integer(const std::string& key) const;
  std::string String(const std::string& key) const;
  bool Has(const std::string& key) const { return metadata_.contains(key); }

  struct TensorHeader {
    TensorView view;
    uint64_t offset = 0;  // in the data
  };

 private:
  const GgufValue& Value(const std::string& key) const;
  void AddPart(size_t part);
  void AddTensors(const InputFile& file, uint64_t data_begin, uint64_t alignment, std::vector<TensorHeader>* headers);
  // What a part says of the split agrees with the parts that there are.
  void CheckPart(const std::map<std::string, GgufValue>& metadata, size_t part) const;

  std::vector<std::shared_ptr<const InputFile>> parts_;
  TextArena texts_;
  std::map<std::string, GgufValue> metadata_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace llmi
