// What a model file may say without being read: the one list of fields and tensors that do not change what the decoder computes,
// each with its reason. What is neither read nor listed is refused by name (loader.cc).
#pragma once

#include <string>
#include <string_view>

#include "core/json_fields.h"

namespace llmi {

enum class FieldSource { kConfigJson, kGguf };

// Why a field that nobody has read changes nothing, at this value; nullptr if it may. architecture: the family's name.
const char* InertReason(FieldSource source, const std::string& architecture, const UnreadField& field);

// The same of a tensor.
const char* InertTensorReason(const std::string& name);

// Whether `pattern`, in which * stands for any text, is the whole of `text`.
bool Matches(std::string_view pattern, std::string_view text);

}  // namespace llmi
