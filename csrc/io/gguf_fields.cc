#include "io/gguf_fields.h"

#include "core/errors.h"
#include "core/utf8.h"

namespace llmi {
namespace {

constexpr size_t kMaxListed = 4096;  // enough for a list of layers; of longer lists only the length is kept
constexpr size_t kMaxShown = 16;

template <typename T, typename Make>
Json List(const std::vector<T>& values, size_t max_listed, const Make& make) {
  if (values.size() > max_listed) return Json::String("a list of " + std::to_string(values.size()));
  std::vector<Json> list;
  for (const T& value : values) list.push_back(make(value));
  return Json::Array(std::move(list));
}

bool IsOfTokenizer(const std::string& key) { return key.starts_with("tokenizer."); }

Json Text(std::string_view text) { return Json::String(IsUtf8(text) ? std::string(text) : "(not valid UTF-8)"); }

Json ToJson(const GgufValue& value, size_t max_listed) {
  using Kind = GgufValue::Kind;
  switch (value.kind) {
    case Kind::kInteger: return Json::Integer(value.integer);
    case Kind::kNumber: return Json::Number(value.number);
    case Kind::kBool: return Json::Bool(value.integer != 0);
    case Kind::kString: return Text(value.string);
    case Kind::kIntegerArray: return List(value.integers, max_listed, Json::Integer);
    case Kind::kBoolArray: return List(value.integers, max_listed, [](int64_t item) { return Json::Bool(item != 0); });
    case Kind::kNumberArray: return List(value.numbers, max_listed, Json::Number);
    case Kind::kStringArray: return List(value.strings, max_listed, Text);
  }
  return {};
}

}  // namespace

GgufFields::GgufFields(const GgufFile& file) : file_(&file), source_(file.path()) {}

const Json* GgufFields::Find(const std::string& key) const {
  read_.insert(key);
  if (const auto change = changes_.find(key); change != changes_.end()) return change->second.IsNull() ? nullptr : &change->second;
  const auto stored = file_->metadata().find(key);
  if (stored == file_->metadata().end() || IsOfTokenizer(key)) return nullptr;
  return &found_.try_emplace(key, ToJson(stored->second, kMaxListed)).first->second;
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
  for (const auto& [key, value] : changes_) {
    if (!value.IsNull() && !read_.contains(key)) unread.push_back({key, value});
  }
  for (const auto& [key, value] : file_->metadata()) {
    if (!IsOfTokenizer(key) && !changes_.contains(key) && !read_.contains(key)) unread.push_back({key, ToJson(value, kMaxShown)});
  }
  return unread;
}

}  // namespace llmi
