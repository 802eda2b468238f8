// The metadata of a GGUF file for the readers of a model. Each key that is looked up is noted, as in JsonFields, and a user's overrides
// replace the file's values. The tokenizer's keys (tokenizer.*) are left out: the tokenizer reads them itself.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/json_fields.h"
#include "io/gguf.h"

namespace llmi {

// A view: the file must outlive it. Only one thread may use it.
class GgufFields {
 public:
  explicit GgufFields(const GgufFile& file);

  const std::string& source() const { return source_; }
  // Set replaces the key's value; Erase removes the key.
  void Set(const std::string& key, Json value) { changes_[key] = std::move(value); }
  void Erase(const std::string& key) { changes_[key] = Json(); }

  bool Has(const std::string& key) const { return Find(key) != nullptr; }
  // The value, or nullptr when the key is absent.
  const Json* Find(const std::string& key) const;

  // Throw Error(kModelFile) naming the key if its value is of another kind, or if it is absent and there is no fallback.
  int64_t Integer(const std::string& key) const;
  int64_t Integer(const std::string& key, int64_t fallback) const;
  double Number(const std::string& key) const;
  double Number(const std::string& key, double fallback) const;
  std::string String(const std::string& key) const;
  std::string String(const std::string& key, const std::string& fallback) const;

  bool WasRead(const std::string& key) const { return read_.contains(key); }
  // Keys that were not read.
  std::vector<UnreadField> Unread() const;

 private:
  const Json& Required(const std::string& key) const;

  const GgufFile* file_;
  std::string source_;
  std::map<std::string, Json> changes_;        // overrides; null: the key is removed
  mutable std::map<std::string, Json> found_;  // the file's values that were looked up, converted to Json
  mutable std::set<std::string> read_;
};

}  // namespace llmi
