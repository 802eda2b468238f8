#include "core/json_fields.h"

#include "core/errors.h"

namespace llmi {

JsonFields::JsonFields(const Json& object, std::string source) : JsonFields(object, std::move(source), "", std::make_shared<Record>()) {}

JsonFields::JsonFields(const Json& object, std::string source, std::string prefix, std::shared_ptr<Record> record)
    : object_(&object), source_(std::move(source)), prefix_(std::move(prefix)), record_(std::move(record)) {
  if (!object.IsObject()) {
    const std::string name = prefix_.empty() ? "" : prefix_.substr(0, prefix_.size() - 1);
    throw Error(ErrorKind::kModelFile, source_ + ": " + (name.empty() ? "it" : name) + " is not an object", name);
  }
  record_->opened.emplace_back(prefix_, object_);
}

const Json* JsonFields::Note(const std::string& key) const {
  record_->read.insert(Name(key));
  const auto& members = object_->AsObject(prefix_);
  const auto found = members.find(key);
  return found == members.end() ? nullptr : &found->second;
}

const Json* JsonFields::Find(const std::string& key) const {
  const Json* value = Note(key);
  return value == nullptr || value->IsNull() ? nullptr : value;
}

const Json& JsonFields::Required(const std::string& key) const {
  const Json* value = Note(key);
  if (value == nullptr) throw Error(ErrorKind::kModelFile, source_ + ": '" + Name(key) + "' is missing", Name(key));
  return *value;
}

int64_t JsonFields::Integer(const std::string& key) const { return Required(key).AsInteger(Name(key)); }
int64_t JsonFields::Integer(const std::string& key, int64_t fallback) const {
  const Json* value = Note(key);
  return value == nullptr ? fallback : value->AsInteger(Name(key));
}
double JsonFields::Number(const std::string& key) const { return Required(key).AsNumber(Name(key)); }
double JsonFields::Number(const std::string& key, double fallback) const {
  const Json* value = Note(key);
  return value == nullptr ? fallback : value->AsNumber(Name(key));
}
bool JsonFields::Bool(const std::string& key, bool fallback) const {
  const Json* value = Note(key);
  return value == nullptr ? fallback : value->AsBool(Name(key));
}
std::string JsonFields::String(const std::string& key, const std::string& fallback) const {
  const Json* value = Note(key);
  return value == nullptr ? fallback : value->AsString(Name(key));
}

std::optional<int64_t> JsonFields::OptionalInteger(const std::string& key) const {
  const Json* value = Find(key);
  return value == nullptr ? std::nullopt : std::optional(value->AsInteger(Name(key)));
}
std::optional<std::string> JsonFields::OptionalString(const std::string& key) const {
  const Json* value = Find(key);
  return value == nullptr ? std::nullopt : std::optional(value->AsString(Name(key)));
}
std::optional<JsonFields> JsonFields::Object(const std::string& key) const {
  const Json* value = Find(key);
  return value == nullptr ? std::nullopt : std::optional(JsonFields(*value, source_, Name(key) + ".", record_));
}

std::vector<UnreadField> JsonFields::Unread() const {
  std::vector<UnreadField> unread;
  std::set<const Json*> seen;
  for (const auto& [prefix, object] : record_->opened) {
    if (!seen.insert(object).second) continue;
    for (const auto& [key, value] : object->AsObject(prefix)) {
      if (!value.IsNull() && !record_->read.contains(prefix + key)) unread.push_back({prefix + key, value});
    }
  }
  return unread;
}

}  // namespace llmi
