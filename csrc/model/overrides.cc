#include "model/overrides.h"

#include "core/errors.h"

namespace llmi {

Overrides::Overrides(const std::string& text) : changes_(Json::Parse(text.empty() ? "{}" : text, kArgument)) {
  if (!changes_.IsObject()) throw Error(ErrorKind::kInvalidArgument, "hf_overrides must map keys to values", kArgument);
}

bool Overrides::LeavesOut(const std::string& tensor) {
  bool leaves_out = false;
  for (const std::string& pattern : tensor_patterns_) {
    if (!Matches(pattern, tensor)) continue;
    met_.insert(pattern);
    leaves_out = true;
  }
  return leaves_out;
}

void Overrides::CheckMet() const {
  for (const std::string& pattern : tensor_patterns_) {
    if (met_.contains(pattern)) continue;
    throw Error(ErrorKind::kInvalidArgument,
                "hf_overrides takes '" + pattern + "' away, but the model has no such key, and no such tensor that it could do without",
                kArgument);
  }
}

void Overrides::RefuseUseless(const std::string& key, const char* reason) {
  throw Error(ErrorKind::kInvalidArgument,
              "hf_overrides sets '" + key + "', which no reader of this model needs" +
                  (reason == nullptr ? std::string() : std::string(" (") + reason + ")"),
              kArgument);
}

}  // namespace llmi
