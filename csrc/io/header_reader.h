// Reads a file's header from front to back and never past the file's end: little-endian numbers, and strings that follow their length.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/errors.h"
#include "core/text_arena.h"
#include "io/input_file.h"

namespace llmi {

class HeaderReader {
 public:
  // texts: keeps the strings. max_bytes: a longer header is refused. file and texts must outlive the reader.
  HeaderReader(const InputFile& file, TextArena* texts, uint64_t max_bytes) : file_(file), texts_(texts), max_bytes_(max_bytes) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return file_.size() - position_; }

  // field: its name in messages. Read, ReadString and Need throw Error(kModelFile).
  template <typename T>
  T Read(const std::string& field) {
    Need(sizeof(T), field);
    T value;
    Take(&value, sizeof(T));
    return value;
  }

  std::string_view ReadString(const std::string& field) {
    const uint64_t length = Read<uint64_t>(field);
    Need(length, field);
    char* text = texts_->Allocate(length);
    Take(text, length);
    return {text, length};
  }

  // Throws if the file has fewer than num_bytes bytes left, or if the header would be longer than max_bytes.
  void Need(uint64_t num_bytes, const std::string& field) const {
    if (num_bytes > remaining()) {
      Fail(field, "the file is truncated: " + std::to_string(num_bytes) + " bytes are needed at offset " + std::to_string(position_) +
                      ", " + std::to_string(remaining()) + " are left");
    }
    if (num_bytes > max_bytes_ - position_) Fail(field, "the header is longer than " + std::to_string(max_bytes_) + " bytes");
  }

 private:
  [[noreturn]] void Fail(const std::string& field, const std::string& problem) const { RefuseField(file_.path(), field, problem); }

  void Take(void* out, uint64_t num_bytes) {
    if (num_bytes == 0) return;  // The pointers of an empty vector and of an empty window may be null.
    if (num_bytes > window_end_ - position_) return TakeFromFile(static_cast<uint8_t*>(out), num_bytes);
    std::memcpy(out, window_.data() + window_.size() - (window_end_ - position_), num_bytes);
    position_ += num_bytes;
  }

  void TakeFromFile(uint8_t* bytes, uint64_t num_bytes) {
    while (num_bytes > 0) {
      if (position_ == window_end_) {
        constexpr uint64_t kWindowBytes = 1 << 18;
        window_.resize(std::min(kWindowBytes, remaining()));
        file_.Read(position_, window_.size(), window_.data());
        window_end_ = position_ + window_.size();
      }
      const uint64_t count = std::min(num_bytes, window_end_ - position_);
      std::memcpy(bytes, window_.data() + window_.size() - (window_end_ - position_), count);
      bytes += count;
      position_ += count;
      num_bytes -= count;
    }
  }

  const InputFile& file_;
  TextArena* texts_;
  uint64_t max_bytes_;
  uint64_t position_ = 0;
  std::vector<uint8_t> window_;  // the bytes before window_end_
  uint64_t window_end_ = 0;
};

}  // namespace llmi
