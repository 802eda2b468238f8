// Turns tokens into text, one at a time. Only whole characters are added; stop strings are found across token edges; and text that a stop
// string may still cut off is not emitted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/stop_matcher.h"
#include "sampling/params.h"

namespace llmi {

// The bytes of each token id. A special token has its text in `special` and nothing in `bytes`.
struct TokenBytes {
  std::vector<std::string> bytes;
  std::vector<std::string> special;
};

// Strings and patterns that end a text.
struct TextStops {
  std::vector<std::string> strings;
  std::vector<std::string> patterns = {};  // the regular expressions of `program`
  std::vector<int32_t> program = {};       // stop_matcher.h; empty: none
};

inline TextStops StopsOf(const SamplingParams& params) { return {params.stop, params.stop_regex, params.stop_program}; }

class Detokenizer {
 public:
  Detokenizer(std::shared_ptr<const TokenBytes> tokens, bool skip_special_tokens, TextStops stops, bool include_stop);

  // Adds a token. check_stop: if the new text completes a stop string or pattern, the text is cut before it (after it, with include_stop),
  // and stopped_by() names it. If several are completed, the one that begins first counts; if they begin together, the first in the list,
  // strings before patterns.
  void Push(int32_t token_id, bool check_stop);
  // Call it after the last token: bytes that make no whole character become U+FFFD, and held text may be emitted.
  void Finish();

  const std::string& text() const { return text_; }
  const std::optional<std::string>& stopped_by() const { return stopped_by_; }
  // Text that may be shown now and was not returned before.
  std::string TakeEmittable();

 private:
  void Append(const std::string& bytes);
  std::optional<StopMatcher::Match> ReadPatterns(size_t begin, bool check_stop);
  size_t HeldBytes() const;  // length of the longest end of the text that may begin a stop string or pattern

  std::shared_ptr<const TokenBytes> tokens_;
  bool skip_special_tokens_;
  std::vector<std::string> stop_;
  std::vector<std::string> patterns_;
  StopMatcher matcher_;
  bool include_stop_;
  size_t max_stop_bytes_ = 0;
  std::string pending_;  // bytes of a character that is not complete yet
  std::string text_;
  size_t num_emitted_ = 0;
  bool finished_ = false;
  std::optional<std::string> stopped_by_;
};

}  // namespace llmi
