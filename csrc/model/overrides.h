// The user's changes to what a model file says: LLM(hf_overrides=...).
#pragma once

#include <set>
#include <string>

#include "core/json.h"
#include "core/json_fields.h"
#include "io/gguf_fields.h"
#include "model/inert.h"

namespace llmi {

// Keys are those of config.json or of a GGUF file's metadata: a value replaces the file's whole value, and null removes the key. A key may
// also be a name of tensors, in which * stands for any text: null leaves these tensors out.
class Overrides {
 public:
  // text: a JSON object, or empty for none. Throws Error(kInvalidArgument).
  explicit Overrides(const std::string& text);

  // Changes the fields; call it before they are read. `Fields` has Has, Set and Erase.
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
  // Call it after the fields are read. Throws Error(kInvalidArgument) for a value that was not read. `Fields` has WasRead.
  template <typename Fields>
  void CheckRead(const Fields& fields, FieldSource source, const std::string& architecture) const {
    for (const auto& [key, value] : changes_.AsObject(kArgument)) {
      if (!value.IsNull() && !fields.WasRead(key)) RefuseUseless(key, InertReason(source, architecture, {key, value}));
    }
  }

  // Whether the user leaves this tensor out.
  bool LeavesOut(const std::string& tensor);
  // Call it after all tensors. Throws Error(kInvalidArgument) for a null that matched neither a key nor a tensor.
  void CheckMet() const;

 private:
  static constexpr const char* kArgument = "hf_overrides";
  [[noreturn]] static void RefuseUseless(const std::string& key, const char* reason);

  Json changes_;
  std::set<std::string> tensor_patterns_;
  std::set<std::string> met_;
};

}  // namespace llmi
