// Strict UTF-8: no overlong forms, no surrogates, no code points above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace llmi {

enum class Utf8Kind : uint8_t { kWhole, kPartial, kInvalid };

// Classifies the sequence at `begin` (Unicode 15, table 3-7) and sets *length to its length, or to that of the maximal ill-formed part.
// kPartial: the text ends inside a sequence that is well-formed so far.
Utf8Kind ClassifyUtf8(std::string_view bytes, size_t begin, size_t* length);

// The code point of a whole sequence of this length at `begin`.
int32_t DecodeUtf8(std::string_view bytes, size_t begin, size_t length);

bool IsUtf8(std::string_view bytes);

}  // namespace llmi
