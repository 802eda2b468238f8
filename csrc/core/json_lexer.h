// The words of JSON, strictly read: what the tree (json.h) and the cursor (json_cursor.h) share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace llmi {

class JsonLexer {
 protected:
  // text: valid UTF-8. what: of messages. Both outlive it.
  JsonLexer(std::string_view text, const std::string& what) : text_(text), what_(what) {}

  static constexpr int kMaxDepth = 32;

  [[noreturn]] void Fail(const char* problem) const;
  void SkipSpace();
  char Peek();  // fails at the end
  void Expect(std::string_view word);
  std::string ParseString();
  // The characters that a number may be made of.
  std::string_view TakeNumber();

  std::string_view text_;
  const std::string& what_;
  size_t position_ = 0;

 private:
  uint32_t ParseHex4();
};

}  // namespace llmi
