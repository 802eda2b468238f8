#include "core/json_cursor.h"

#include <charconv>

#include "core/errors.h"
#include "core/utf8.h"

namespace llmi {

JsonCursor::JsonCursor(std::string_view text, const std::string& what) : JsonLexer(text, what) {
  if (!IsUtf8(text)) throw Error(ErrorKind::kModelFile, what + ": not valid UTF-8", "json");
}

bool JsonCursor::Begin(char open, char close, const char* problem) {
  SkipSpace();
  if (Peek() != open) Fail(problem);
  ++position_;
  SkipSpace();
  if (Peek() != close) return true;
  ++position_;
  return false;
}

bool JsonCursor::Next(char close) {
  SkipSpace();
  if (Peek() == close) {
    ++position_;
    return false;
  }
  Expect(",");
  return true;
}

std::string JsonCursor::String() {
  SkipSpace();
  if (Peek() != '"') Fail("a string is expected");
  return ParseString();
}

uint64_t JsonCursor::Size() {
  SkipSpace();
  const std::string_view number = TakeNumber();
  uint64_t value = 0;
  const auto result = std::from_chars(number.data(), number.data() + number.size(), value);
  if (number.empty() || result.ec != std::errc() || result.ptr != number.data() + number.size()) Fail("a size is expected");
  return value;
}

void JsonCursor::Skip() { Skip(0); }

void JsonCursor::Skip(int depth) {
  if (depth > kMaxDepth) Fail("nested too deeply");
  SkipSpace();
  switch (Peek()) {
    case '{': Object([&](const std::string&) { Skip(depth + 1); }); break;
    case '[': Array([&] { Skip(depth + 1); }); break;
    case '"': ParseString(); break;
    case 't': Expect("true"); break;
    case 'f': Expect("false"); break;
    case 'n': Expect("null"); break;
    default: {
      const std::string_view number = TakeNumber();
      double value = 0;
      const auto result = std::from_chars(number.data(), number.data() + number.size(), value);
      const bool read = result.ec == std::errc() || result.ec == std::errc::result_out_of_range;
      if (number.empty() || !read || result.ptr != number.data() + number.size()) Fail("bad number");
    }
  }
}

void JsonCursor::End() {
  SkipSpace();
  if (position_ != text_.size()) Fail("text after the end");
}

}  // namespace llmi
