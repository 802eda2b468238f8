// Tokens to text, one at a time: whole characters only, stop strings found across token edges, and no text
// emitted that a stop string may still withdraw.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace llmi {

// The bytes of each token id. Special tokens have their text in `special` and nothing in `bytes`.
struct TokenBytes {
  std::vector<std::string> bytes;
  std::vector<std::string> special;
};

class Detokenizer {
 public:
  Detokenizer(std::shared_ptr<const TokenBytes> tokens, bool skip_special_tokens, std::vector<std::string> stop, bool include_stop);

  // Adds a token. With check_stop, a stop string that the new text completes ends it: the text is cut before it
  // (after it, if included) and stopped_by() is set. Of several, the one that begins first; then the first listed.
  void Push(int32_t token_id, bool check_stop);
  // No more tokens: bytes that make no whole character become U+FFFD, held text is let go.
  void Finish();

  const std::string& text() const { return text_; }
  const std::optional<std::string>& stopped_by() const { return stopped_by_; }
  // Text that may be shown now and has not been returned before.
  std::string TakeEmittable();

 private:
  void Append(const std::string& bytes);
  size_t HeldBytes() const;  // longest end of the text that may begin a stop string

  std::shared_ptr<const TokenBytes> tokens_;
  bool skip_special_tokens_;
  std::vector<std::string> stop_;
  bool include_stop_;
  size_t max_stop_bytes_ = 0;
  std::string pending_;  // bytes of a character that is not whole yet
  std::string text_;
  size_t num_emitted_ = 0;
  bool finished_ = false;
  std::optional<std::string> stopped_by_;
};

}  // namespace llmi
