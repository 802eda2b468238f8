#include "core/json_lexer.h"

#include <charconv>

#include "core/errors.h"

namespace llmi {
namespace {
void AppendUtf8(std::string* out, uint32_t code) {
  if (code < 0x80) {
    out->push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (code >> 6)));
    out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else if (code < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (code >> 12)));
    out->push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (code >> 18)));
    out->push_back(static_cast<char>(0x80 | ((code >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
}
}  // namespace

void JsonLexer::Fail(const char* problem) const {
  throw Error(ErrorKind::kModelFile, what_ + ": not valid JSON at byte " + std::to_string(position_) + " (" + problem + ")", "json");
}
void JsonLexer::SkipSpace() {
  while (position_ < text_.size() &&
         (text_[position_] == ' ' || text_[position_] == '\n' || text_[position_] == '\r' || text_[position_] == '\t')) {
    ++position_;
  }
}
char JsonLexer::Peek() {
  if (position_ >= text_.size()) Fail("it ends too early");
  return text_[position_];
}
void JsonLexer::Expect(std::string_view word) {
  if (text_.substr(position_, word.size()) != word) Fail("unexpected character");
  position_ += word.size();
}

uint32_t JsonLexer::ParseHex4() {
  if (text_.size() - position_ < 4) Fail("short \\u escape");
  uint32_t code = 0;
  const char* begin = text_.data() + position_;
  const auto result = std::from_chars(begin, begin + 4, code, 16);
  if (result.ptr != begin + 4) Fail("bad \\u escape");
  position_ += 4;
  return code;
}

std::string JsonLexer::ParseString() {
  Expect("\"");
  std::string out;
  for (;;) {
    const char c = Peek();
    ++position_;
    if (c == '"') return out;
    if (static_cast<unsigned char>(c) < 0x20) Fail("control character in a string");
    if (c != '\\') {
      out.push_back(c);
      continue;
    }
    const char escape = Peek();
    ++position_;
    switch (escape) {
      case '"':
      case '\\':
      case '/': out.push_back(escape); break;
      case 'b': out.push_back('\b'); break;
      case 'f': out.push_back('\f'); break;
      case 'n': out.push_back('\n'); break;
      case 'r': out.push_back('\r'); break;
      case 't': out.push_back('\t'); break;
      case 'u': {
        uint32_t code = ParseHex4();
        if (code >= 0xD800 && code < 0xDC00 && text_.substr(position_, 2) == "\\u") {
          position_ += 2;
          const uint32_t low = ParseHex4();
          if (low < 0xDC00 || low > 0xDFFF) Fail("bad surrogate pair");
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        } else if (code >= 0xD800 && code < 0xE000) {
          Fail("lone surrogate");
        }
        AppendUtf8(&out, code);
        break;
      }
      default: Fail("unknown escape");
    }
  }
}

std::string_view JsonLexer::TakeNumber() {
  const size_t begin = position_;
  while (position_ < text_.size() && std::string_view("0123456789-+.eE").find(text_[position_]) != std::string_view::npos) ++position_;
  return text_.substr(begin, position_ - begin);
}

}  // namespace llmi
