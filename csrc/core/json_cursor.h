// Reads JSON from front to back, for long texts of a known form. It builds no tree, so a long header of small values takes no memory in
// addition to its text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/json_lexer.h"

namespace llmi {

class JsonCursor : private JsonLexer {
 public:
  // text and what (the document's name in messages) must outlive the cursor. Throws Error(kModelFile) if the text is not UTF-8. The other
  // functions throw Error(kModelFile) if the text has another form than the call expects.
  JsonCursor(std::string_view text, const std::string& what);

  // Calls member(key) for each member; `member` must read the value by one of these functions.
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
  // Calls element() for each element; `element` must read it by one of these functions.
  template <typename Element>
  void Array(const Element& element) {
    for (bool more = Begin('[', ']', "an array is expected"); more; more = Next(']')) element();
  }
  std::string String();
  // Reads an integer that is not negative.
  uint64_t Size();
  // Skips one value of any kind.
  void Skip();
  // Throws unless only white space is left.
  void End();

 private:
  bool Begin(char open, char close, const char* problem);
  bool Next(char close);
  void Skip(int depth);
};

}  // namespace llmi
