#include "core/json.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "core/errors.h"
#include "core/utf8.h"

namespace llmi {

namespace {
constexpr int kMaxDepth = 32;

[[noreturn]] void WrongKind(const std::string& field, const char* expected) {
  throw Error(ErrorKind::kModelFile, "field '" + field + "' is not " + expected, field);
}

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

class JsonParser {
 public:
  JsonParser(std::string_view text, const std::string& what) : text_(text), what_(what) {}

  Json ParseDocument() {
    Json value = ParseValue(0);
    SkipSpace();
    if (position_ != text_.size()) Fail("text after the end");
    return value;
  }

 private:
  [[noreturn]] void Fail(const char* problem) const {
    throw Error(ErrorKind::kModelFile, what_ + ": not valid JSON at byte " + std::to_string(position_) + " (" + problem + ")", "json");
  }
  void SkipSpace() {
    while (position_ < text_.size() &&
           (text_[position_] == ' ' || text_[position_] == '\n' || text_[position_] == '\r' || text_[position_] == '\t')) {
      ++position_;
    }
  }
  char Peek() {
    if (position_ >= text_.size()) Fail("it ends too early");
    return text_[position_];
  }
  void Expect(std::string_view word) {
    if (text_.substr(position_, word.size()) != word) Fail("unexpected character");
    position_ += word.size();
  }

  Json ParseValue(int depth) {
    if (depth > kMaxDepth) Fail("nested too deeply");
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

  uint32_t ParseHex4() {
    if (text_.size() - position_ < 4) Fail("short \\u escape");
    uint32_t code = 0;
    const char* begin = text_.data() + position_;
    const auto result = std::from_chars(begin, begin + 4, code, 16);
    if (result.ptr != begin + 4) Fail("bad \\u escape");
    position_ += 4;
    return code;
  }

  std::string ParseString() {
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

  void ParseNumber(Json* value) {
    const size_t begin = position_;
    bool integral = true;
    while (position_ < text_.size()) {
      const char c = text_[position_];
      if (c == '.' || c == 'e' || c == 'E') integral = false;
      if (!((c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E')) break;
      ++position_;
    }
    const char* first = text_.data() + begin;
    const char* last = text_.data() + position_;
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

  std::string_view text_;
  const std::string& what_;
  size_t position_ = 0;
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

void Json::Set(const std::string& key, Json value) {
  kind_ = Kind::kObject;
  object_[key] = std::move(value);
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
Json Json::Integer(int64_t value) {
  Json json;
  json.kind_ = Kind::kInteger;
  json.integer_ = value;
  json.number_ = static_cast<double>(value);
  return json;
}
Json Json::Number(double value) {
  Json json;
  json.kind_ = Kind::kNumber;
  json.number_ = value;
  return json;
}
Json Json::String(std::string value) {
  Json json;
  json.kind_ = Kind::kString;
  json.string_ = std::move(value);
  return json;
}
Json Json::Array(std::vector<Json> values) {
  Json json;
  json.kind_ = Kind::kArray;
  json.array_ = std::move(values);
  return json;
}

}  // namespace llmi
