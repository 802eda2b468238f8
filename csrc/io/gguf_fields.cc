#include "io/gguf_fields.h"

#include "core/errors.h"
#include "core/utf8.h"

namespace llmi {
namespace {

constexpr size_t kMaxListed = 4096;  // longer lists are no list of layers: they are told by their length

template <typename T, typename Make>
Json List(const std::vector<T>& values, const Make& make) {
  if (values.size() > kMaxListed) return Json::String("a list of " + std::to_string(values.size()));
  std::vector<Json> list;
  for (const T& value : values) list.push_back(make(value));
  return Json::Array(std::move(list));
}

Json Text(std::string_view text) { return Json::String(IsUtf8(text) ? std::string(text) : "(not valid UTF-8)"); }

Json ToJson(const GgufValue& value) {
  using Kind = GgufValue::Kind;
  switch (value.kind) {
    case Kind::kInteger: return Json::Integer(value.integer);
    case Kind::kNumber: return Json::Number(value.number);
    case Kind::kBool: return Json::Bool(value.integer != 0);
    case Kind::kString: return Text(value.string);
    case Kind::kIntegerArray: return List(value.integers, Json::Integer);
    case Kind::kBoolArray: return List(value.integers, [](int64_t item) { return Json::Bool(item != 0); });
    case Kind::kNumberArray: return List(value.numbers, Json::Number);
    case Kind::kStringArray: return List(value.strings, Text);
  }
  return {};
}

}  // namespace

GgufFields::GgufFields(const GgufFile& file) : source_(file.path()) {
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with("tokenizer.")) values_.emplace(key, ToJson(value));
  }
}

const Json* GgufFields::Find(const std::string& key) const {
  read_.insert(key);
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

const Json& GgufFields::Required(const std::string& key) const {
  const Json* value = Find(key);
  if (value == nullptr) throw Error(ErrorKind::kModelFile, source_ + ": " + key + ": the metadata lacks this key", key);
  return *value;
}

int64_t GgufFields::Integer(const std::string& key) const { return Required(key).AsInteger(key); }
int64_t GgufFields::Integer(const std::string& key, int64_t fallback) const { return Has(key) ? Integer(key) : fallback; }
double GgufFields::Number(const std::string& key) const { return Required(key).AsNumber(key); }
double GgufFields::Number(const std::string& key, double fallback) const { return Has(key) ? Number(key) : fallback; }
std::string GgufFields::String(const std::string& key) const { return Required(key).AsString(key); }
std::string GgufFields::String(const std::string& key, const std::string& fallback) const { return Has(key) ? String(key) : fallback; }

std::vector<UnreadField> GgufFields::Unread() const {
  std::vector<UnreadField> unread;
  for (const auto& [key, value] : values_) {
    if (!read_.contains(key)) unread.push_back({key, value});
  }
  return unread;
}

}  // namespace llmi
