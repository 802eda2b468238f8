// The one list of tensors of model files that llmi may leave unread, since they do not change what the decoder computes; each has a reason.
// A file with a tensor that is neither read nor listed, here or by the spec, is refused, and the error names it (loader.cc).
#pragma once

#include <string>
#include <string_view>

namespace llmi {

// The reason why an unread tensor changes nothing; nullptr if it may change something.
const char* InertTensorReason(const std::string& name);

// Whether `pattern`, in which * stands for any text, is the whole of `text`.
bool Matches(std::string_view pattern, std::string_view text);

}  // namespace llmi
