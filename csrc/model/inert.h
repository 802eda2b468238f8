// The one list of fields and tensors of model files that llmi may leave unread, since they do not change what the decoder computes;
// each has a reason. A file with a field or tensor that is neither read nor listed is refused, and the error names it (loader.cc).
#pragma once

#include <string>
#include <string_view>

#include "core/json_fields.h"

namespace llmi {

enum class FieldSource { kConfigJson, kGguf };

// The reason why an unread field with this value changes nothing; nullptr if it may change something. architecture: the family's name.
const char* InertReason(FieldSource source, const std::string& architecture, const UnreadField& field);

// The same for a tensor.
const char* InertTensorReason(const std::string& name);

// Whether `pattern`, in which * stands for any text, is the whole of `text`.
bool Matches(std::string_view pattern, std::string_view text);

}  // namespace llmi
