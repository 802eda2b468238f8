// A JSON object as its readers see it. Each member that is looked up is noted, so that members without a reader can be named:
// a key that changes the model and is not read would give wrong numbers silently.
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

// A member that nobody has read. name: with the names of the objects around it, as in "rope_scaling.factor".
struct UnreadField {
  std::string name;
  Json value;
};

// A view: the JSON value must outlive it. Not for several threads.
class JsonFields {
 public:
  // Throws Error(kModelFile) if `object` is no object. source: what messages call it, a path.
  JsonFields(const Json& object, std::string source);

  const std::string& source() const { return source_; }
  // The name of a member as messages have it.
  std::string Name(const std::string& key) const { return prefix_ + key; }

  // The member `key`, or nullptr when it is absent or null.
  const Json* Find(const std::string& key) const;

  // Throw Error(kModelFile) naming the member when it is of another kind, or null, or absent and there is no fallback.
  int64_t Integer(const std::string& key) const;
  int64_t Integer(const std::string& key, int64_t fallback) const;
  double Number(const std::string& key) const;
  double Number(const std::string& key, double fallback) const;
  bool Bool(const std::string& key, bool fallback) const;
  std::string String(const std::string& key, const std::string& fallback) const;

  // For keys whose null means the same as absent.
  std::optional<int64_t> OptionalInteger(const std::string& key) const;
  std::optional<double> OptionalNumber(const std::string& key) const;
  std::optional<std::string> OptionalString(const std::string& key) const;
  // The object `key`, whose members are then noted one by one.
  std::optional<JsonFields> Object(const std::string& key) const;

  // Whether the member `key` of the outermost object has been read.
  bool WasRead(const std::string& name) const { return record_->read.contains(name); }
  // Members that nobody has read, of this object and of those that Object has opened; members that are null say nothing.
  std::vector<UnreadField> Unread() const;

 private:
  struct Record {
    std::set<std::string> read;
    std::vector<std::pair<std::string, const Json*>> opened;  // prefix, object
  };
  JsonFields(const Json& object, std::string source, std::string prefix, std::shared_ptr<Record> record);
  // The member, be it null; nullptr when it is absent.
  const Json* Note(const std::string& key) const;
  const Json& Required(const std::string& key) const;

  const Json* object_;
  std::string source_;
  std::string prefix_;
  std::shared_ptr<Record> record_;
};

}  // namespace llmi
