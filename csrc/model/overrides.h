// The user's changes to what a model file says: LLM(hf_overrides=...).
#pragma once

#include <set>
#include <string>

#include "core/json.h"
#include "core/json_fields.h"
#include "io/gguf_fields.h"
#include "model/inert.h"

namespace llmi {

// Key by key: a value replaces the file's whole value of a key (of config.json, or of a GGUF file's metadata), null takes the key
// away. Null for a name of tensors, in which * stands for any text, leaves these tensors out.
class Overrides {
 public:
  // text: a JSON object, or empty for none. Throws Error(kInvalidArgument).
  explicit Overrides(const std::string& text);

  // Before the fields are read: changes them. `Fields` has Has, Set and Erase.
  template <typename Fields>
  void Apply(Fields* fields) {
    for (const auto& [key, value] : changes_.AsObject(kArgument)) {
      if (!value.IsNull()) {
        fields->Set(key, value);
      } else if (fields->Has(key)) {
        fields->Erase(key);
      } else {
        tensor_patterns_.insert(key);
      }
    }
  }
  // After that: throws Error(kInvalidArgument) for a value that nobody has read. `Fields` has WasRead.
  template <typename Fields>
  void CheckRead(const Fields& fields, FieldSource source, const std::string& architecture) const {
    for (const auto& [key, value] : changes_.AsObject(kArgument)) {
      if (!value.IsNull() && !fields.WasRead(key)) RefuseUseless(key, InertReason(source, architecture, {key, value}));
    }
  }

  // Whether the user leaves this tensor out.
  bool LeavesOut(const std::string& tensor);
  // After all tensors: throws Error(kInvalidArgument) for a null that met neither a key nor a tensor.
  void CheckMet() const;

 private:
  static constexpr const char* kArgument = "hf_overrides";
  [[noreturn]] static void RefuseUseless(const std::string& key, const char* reason);

  Json changes_;
  std::set<std::string> tensor_patterns_;
  std::set<std::string> met_;
};

}  // namespace llmi
