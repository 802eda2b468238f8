// GGUF v3 (and v2, which differs in nothing we read): metadata and tensors of a mapped file, every size and
// offset checked before use. Specification: ggml/docs/gguf.md.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/tensor_file.h"

namespace llmi {

// A metadata value. Numbers are kept as integer or number, arrays in the vector of their kind; strings point
// into the mapped file.
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
  // Throws Error(kModelFile) with the field that is wrong, Error(kUnsupportedModel) for a tensor type that
  // llmi does not read, by name.
  explicit GgufFile(const std::string& path);

  const TensorView* Find(const std::string& name) const override;
  std::vector<const TensorView*> Tensors() const override;
  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  const std::string& path() const { return file_.path(); }

  // Typed metadata; throw Error(kModelFile) if the key is missing or of another kind.
  int64_t Integer(const std::string& key) const;
  double Number(const std::string& key) const;
  std::string String(const std::string& key) const;
  bool Has(const std::string& key) const { return metadata_.contains(key); }

 private:
  const GgufValue& Value(const std::string& key) const;

  MappedFile file_;
  std::map<std::string, GgufValue> metadata_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace llmi
