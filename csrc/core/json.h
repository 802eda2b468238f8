// A small strict JSON reader for hostile input. Depth, size and number of values are limited, integers are kept exactly, duplicate keys are
// refused, and recursion is bounded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace llmi {

class Json {
 public:
  enum class Kind : uint8_t { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };

  // Parses a whole document. Throws Error(kModelFile) with `what` (the document's name) and the byte offset.
  static Json Parse(std::string_view text, const std::string& what);

  Kind kind() const { return kind_; }
  bool IsNull() const { return kind_ == Kind::kNull; }
  bool IsObject() const { return kind_ == Kind::kObject; }
  bool IsArray() const { return kind_ == Kind::kArray; }
  bool IsString() const { return kind_ == Kind::kString; }

  // Return a value of one kind; throw Error(kModelFile) naming `field` if the value is of another kind.
  bool AsBool(const std::string& field) const;
  int64_t AsInteger(const std::string& field) const;  // also 3.0
  double AsNumber(const std::string& field) const;
  const std::string& AsString(const std::string& field) const;
  const std::vector<Json>& AsArray(const std::string& field) const;
  const std::map<std::string, Json>& AsObject(const std::string& field) const;

  // The member `key`, or nullptr if it is absent or null. Only for objects.
  const Json* Find(const std::string& key) const;

  // The value as JSON text for messages, cut after about 60 bytes.
  std::string Text() const;

  // Whether kinds and values are equal; an integer equals a number of the same value.
  bool operator==(const Json& other) const;

  static Json Bool(bool value);

 private:
  friend class JsonParser;
  Kind kind_ = Kind::kNull;
  bool bool_ = false;
  int64_t integer_ = 0;
  double number_ = 0;
  std::string string_;
  std::vector<Json> array_;
  std::map<std::string, Json> object_;
};

}  // namespace llmi
