// A JSON object for the readers of a model. Each member that is looked up is noted, so that an error can name the unread ones: a key that
// changes the model and is not read would silently give wrong numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"

namespace llmi {

// A member that was not read. name: includes the names of the objects around it, as in "rope_scaling.factor".
struct UnreadField {
  std::string name;
  Json value;
};

// A view: the JSON value must outlive it. Only one thread may use it.
class JsonFields {
 public:
  // Throws Error(kModelFile) if `object` is no object. source: its name in messages, a path.
  JsonFields(const Json& object, std::string source);

  const std::string& source() const { return source_; }
  // The name of a member in messages.
  std::string Name(const std::string& key) const { return prefix_ + key; }

  // The member `key`, or nullptr if it is absent or null.
  const Json* Find(const std::string& key) const;

  // Throw Error(kModelFile) naming the member if it is of another kind or null, or if it is absent and there is no fallback.
  int64_t Integer(const std::string& key) const;
  int64_t Integer(const std::string& key, int64_t fallback) const;
  double Number(const std::string& key) const;
  double Number(const std::string& key, double fallback) const;
  bool Bool(const std::string& key, bool fallback) const;
  std::string String(const std::string& key, const std::string& fallback) const;

  // Values of keys whose null means the same as absent.
  std::optional<int64_t> OptionalInteger(const std::string& key) const;
  std::optional<std::string> OptionalString(const std::string& key) const;
  // The object `key`; its members are noted separately from then on.
  std::optional<JsonFields> Object(const std::string& key) const;

  // The unread members of this object and of the objects that Object has returned. Members that are null are left out.
  std::vector<UnreadField> Unread() const;

 private:
  struct Record {
    std::set<std::string> read;
    std::vector<std::pair<std::string, const Json*>> opened;  // prefix, object
  };
  JsonFields(const Json& object, std::string source, std::string prefix, std::shared_ptr<Record> record);
  // Notes and returns the member, which may be null; nullptr if it is absent.
  const Json* Note(const std::string& key) const;
  const Json& Required(const std::string& key) const;

  const Json* object_;
  std::string source_;
  std::string prefix_;
  std::shared_ptr<Record> record_;
};

}  // namespace llmi
