// JSON read from front to back, for long texts of a known form: nothing is kept but what the caller keeps, so that a header of small values
// costs no more memory than its text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/json_lexer.h"

namespace llmi {

class JsonCursor : private JsonLexer {
 public:
  // Both outlive it. Throws Error(kModelFile) if the text is not UTF-8; all others throw it with `what` where the text has another form
  // than the call expects.
  JsonCursor(std::string_view text, const std::string& what);

  // Calls member(key) for each member; it takes the value by one of these functions.
  template <typename Member>
  void Object(const Member& member) {
    for (bool more = Begin('{', '}', "an object is expected"); more; more = Next('}')) {
      SkipSpace();
      const std::string key = ParseString();
      SkipSpace();
      Expect(":");
      member(key);
    }
  }
  // Calls element() for each element.
  template <typename Element>
  void Array(const Element& element) {
    for (bool more = Begin('[', ']', "an array is expected"); more; more = Next(']')) element();
  }
  std::string String();
  // An integer that is not negative.
  uint64_t Size();
  // Any value.
  void Skip();
  // Nothing but space is left.
  void End();

 private:
  bool Begin(char open, char close, const char* problem);
  bool Next(char close);
  void Skip(int depth);
};

}  // namespace llmi
