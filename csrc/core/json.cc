#include "core/json.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "core/errors.h"
#include "core/json_lexer.h"
#include "core/utf8.h"

namespace llmi {

namespace {
// Most configs have some hundred values; one is known that lists 150,000 labels.
constexpr int64_t kMaxValues = 1 << 18;

[[noreturn]] void WrongKind(const std::string& field, const char* expected) {
  throw Error(ErrorKind::kModelFile, "field '" + field + "' is not " + expected, field);
}

}  // namespace

class JsonParser : private JsonLexer {
 public:
  JsonParser(std::string_view text, const std::string& what) : JsonLexer(text, what) {}

  Json ParseDocument() {
    Json value = ParseValue(0);
    SkipSpace();
    if (position_ != text_.size()) Fail("text after the end");
    return value;
  }

 private:
  Json ParseValue(int depth) {
    if (depth > kMaxDepth) Fail("nested too deeply");
    if (++num_values_ > kMaxValues) Fail("more than 262,144 values");
    SkipSpace();
    Json value;
    switch (Peek()) {
      case '{': ParseObject(&value, depth); break;
      case '[': ParseArray(&value, depth); break;
      case '"':
        value.kind_ = Json::Kind::kString;
        value.string_ = ParseString();
        break;
      case 't':
        Expect("true");
        value.kind_ = Json::Kind::kBool;
        value.bool_ = true;
        break;
      case 'f':
        Expect("false");
        value.kind_ = Json::Kind::kBool;
        break;
      case 'n': Expect("null"); break;
      default: ParseNumber(&value);
    }
    return value;
  }

  void ParseObject(Json* value, int depth) {
    value->kind_ = Json::Kind::kObject;
    Expect("{");
    SkipSpace();
    if (Peek() == '}') {
      ++position_;
      return;
    }
    for (;;) {
      SkipSpace();
      std::string key = ParseString();
      SkipSpace();
      Expect(":");
      Json member = ParseValue(depth + 1);
      if (!value->object_.emplace(std::move(key), std::move(member)).second) Fail("duplicate key");
      SkipSpace();
      if (Peek() == '}') break;
      Expect(",");
    }
    ++position_;
  }

  void ParseArray(Json* value, int depth) {
    value->kind_ = Json::Kind::kArray;
    Expect("[");
    SkipSpace();
    if (Peek() == ']') {
      ++position_;
      return;
    }
    for (;;) {
      value->array_.push_back(ParseValue(depth + 1));
      SkipSpace();
      if (Peek() == ']') break;
      Expect(",");
    }
    ++position_;
  }

  void ParseNumber(Json* value) {
    const std::string_view number = TakeNumber();
    const bool integral = number.find_first_of(".eE") == std::string_view::npos;
    const char* first = number.data();
    const char* last = number.data() + number.size();
    if (integral) {
      const auto result = std::from_chars(first, last, value->integer_);
      if (result.ec == std::errc() && result.ptr == last) {
        value->kind_ = Json::Kind::kInteger;
        value->number_ = static_cast<double>(value->integer_);
        return;
      }
    }
    const auto result = std::from_chars(first, last, value->number_);
    if (result.ec != std::errc() || result.ptr != last || first == last) Fail("bad number");
    value->kind_ = Json::Kind::kNumber;
  }

  int64_t num_values_ = 0;
};

Json Json::Parse(std::string_view text, const std::string& what) {
  if (!IsUtf8(text)) throw Error(ErrorKind::kModelFile, what + ": not valid UTF-8", "json");
  return JsonParser(text, what).ParseDocument();
}

bool Json::AsBool(const std::string& field) const {
  if (kind_ != Kind::kBool) WrongKind(field, "true or false");
  return bool_;
}
int64_t Json::AsInteger(const std::string& field) const {
  if (kind_ == Kind::kInteger) return integer_;
  if (kind_ == Kind::kNumber && std::abs(number_) < 0x1p53 && number_ == std::floor(number_)) return static_cast<int64_t>(number_);
  WrongKind(field, "an integer");
}
double Json::AsNumber(const std::string& field) const {
  if (kind_ != Kind::kInteger && kind_ != Kind::kNumber) WrongKind(field, "a number");
  return number_;
}
const std::string& Json::AsString(const std::string& field) const {
  if (kind_ != Kind::kString) WrongKind(field, "a string");
  return string_;
}
const std::vector<Json>& Json::AsArray(const std::string& field) const {
  if (kind_ != Kind::kArray) WrongKind(field, "an array");
  return array_;
}
const std::map<std::string, Json>& Json::AsObject(const std::string& field) const {
  if (kind_ != Kind::kObject) WrongKind(field, "an object");
  return object_;
}
const Json* Json::Find(const std::string& key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->second.IsNull() ? nullptr : &found->second;
}

namespace {
constexpr size_t kMaxTextBytes = 60;

std::string Quoted(const std::string& text) {
  std::string out(1, '"');
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
  }
  out.push_back('"');
  return out;
}

std::string NumberText(double value) {
  char text[32];
  const auto result = std::to_chars(text, text + sizeof(text), value);
  return {text, result.ptr};
}

// Cuts between two characters of UTF-8.
void Shorten(std::string* text) {
  if (text->size() <= kMaxTextBytes) return;
  size_t end = kMaxTextBytes;
  while (end > 0 && (static_cast<unsigned char>((*text)[end]) & 0xC0) == 0x80) --end;
  text->resize(end);
  text->append("...");
}
}  // namespace

std::string Json::Text() const {
  std::string text;
  const auto next = [&text](bool first) {
    if (!first) text.append(", ");
    return text.size() <= kMaxTextBytes;
  };
  bool first = true;
  switch (kind_) {
    case Kind::kNull: text.append("null"); break;
    case Kind::kBool: text.append(bool_ ? "true" : "false"); break;
    case Kind::kInteger: text.append(std::to_string(integer_)); break;
    case Kind::kNumber: text.append(NumberText(number_)); break;
    case Kind::kString: text.append(Quoted(string_)); break;
    case Kind::kArray:
      text.push_back('[');
      for (const Json& value : array_) {
        if (!next(std::exchange(first, false))) break;
        text.append(value.Text());
      }
      text.push_back(']');
      break;
    case Kind::kObject:
      text.push_back('{');
      for (const auto& [key, value] : object_) {
        if (!next(std::exchange(first, false))) break;
        text.append(Quoted(key)).append(": ").append(value.Text());
      }
      text.push_back('}');
      break;
  }
  Shorten(&text);
  return text;
}

bool Json::operator==(const Json& other) const {
  const auto is_number = [](const Json& value) { return value.kind_ == Kind::kInteger || value.kind_ == Kind::kNumber; };
  if (kind_ == Kind::kInteger && other.kind_ == Kind::kInteger) return integer_ == other.integer_;
  if (is_number(*this) && is_number(other)) return number_ == other.number_;
  return kind_ == other.kind_ && bool_ == other.bool_ && string_ == other.string_ && array_ == other.array_ && object_ == other.object_;
}

Json Json::Bool(bool value) {
  Json json;
  json.kind_ = Kind::kBool;
  json.bool_ = value;
  return json;
}

}  // namespace llmi
