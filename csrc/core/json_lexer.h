// Strict reading of JSON's strings, numbers and words, for the tree (json.h) and the cursor (json_cursor.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace llmi {

class JsonLexer {
 protected:
  // text: valid UTF-8. what: the document's name in messages. Both must outlive the lexer.
  JsonLexer(std::string_view text, const std::string& what) : text_(text), what_(what) {}

  static constexpr int kMaxDepth = 32;

  [[noreturn]] void Fail(const char* problem) const;
  void SkipSpace();
  char Peek();  // fails at the end
  void Expect(std::string_view word);
  std::string ParseString();
  // Takes all following characters that can be part of a number.
  std::string_view TakeNumber();

  std::string_view text_;
  const std::string& what_;
  size_t position_ = 0;

 private:
  uint32_t ParseHex4();
};

}  // namespace llmi
