// The metadata of a GGUF file as the model's readers see it: each key that is looked up is noted, as in JsonFields, and a user's
// overrides replace the file's values. The tokenizer's keys (tokenizer.*) are not among them: it has a reader of its own.
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

// A view: the file must outlive it. Not for several threads.
class GgufFields {
 public:
  explicit GgufFields(const GgufFile& file);

  const std::string& source() const { return source_; }
  // The key's value becomes another; the key is taken away.
  void Set(const std::string& key, Json value) { changes_[key] = std::move(value); }
  void Erase(const std::string& key) { changes_[key] = Json(); }

  bool Has(const std::string& key) const { return Find(key) != nullptr; }
  // The value, or nullptr when the key is absent.
  const Json* Find(const std::string& key) const;

  // Throw Error(kModelFile) naming the key when it is of another kind, or absent and there is no fallback.
  int64_t Integer(const std::string& key) const;
  int64_t Integer(const std::string& key, int64_t fallback) const;
  double Number(const std::string& key) const;
  double Number(const std::string& key, double fallback) const;
  std::string String(const std::string& key) const;
  std::string String(const std::string& key, const std::string& fallback) const;

  bool WasRead(const std::string& key) const { return read_.contains(key); }
  // Keys that nobody has read.
  std::vector<UnreadField> Unread() const;

 private:
  const Json& Required(const std::string& key) const;

  const GgufFile* file_;
  std::string source_;
  std::map<std::string, Json> changes_;        // null: taken away
  mutable std::map<std::string, Json> found_;  // values that were looked up: lists of a file are converted then
  mutable std::set<std::string> read_;
};

}  // namespace llmi
