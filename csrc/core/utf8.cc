#include "core/utf8.h"

namespace llmi {

Utf8Kind ClassifyUtf8(std::string_view bytes, size_t begin, size_t* length) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(begin);
  *length = 1;
  if (lead < 0x80) return Utf8Kind::kWhole;
  size_t needed = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    needed = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    needed = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    needed = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return Utf8Kind::kInvalid;
  }
  for (size_t i = 1; i < needed; ++i) {
    if (begin + i >= bytes.size()) return Utf8Kind::kPartial;
    if (byte(begin + i) < low || byte(begin + i) > high) return Utf8Kind::kInvalid;
    low = 0x80;
    high = 0xBF;
    *length = i + 1;
  }
  return Utf8Kind::kWhole;
}

int32_t DecodeUtf8(std::string_view bytes, size_t begin, size_t length) {
  const auto byte = [&](size_t i) { return static_cast<int32_t>(static_cast<unsigned char>(bytes[begin + i])); };
  int32_t point = length == 1 ? byte(0) : byte(0) & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) point = (point << 6) | (byte(i) & 0x3F);
  return point;
}

bool IsUtf8(std::string_view bytes) {
  for (size_t begin = 0; begin < bytes.size();) {
    size_t length = 0;
    if (ClassifyUtf8(bytes, begin, &length) != Utf8Kind::kWhole) return false;
    begin += length;
  }
  return true;
}

}  // namespace llmi
