#include "engine/detokenizer.h"

#include <algorithm>
#include <utility>

#include "core/utf8.h"

namespace llmi {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

}  // namespace

Detokenizer::Detokenizer(std::shared_ptr<const TokenBytes> tokens, bool skip_special_tokens, TextStops stops, bool include_stop)
    : tokens_(std::move(tokens)),
      skip_special_tokens_(skip_special_tokens),
      stop_(std::move(stops.strings)),
      patterns_(std::move(stops.patterns)),
      matcher_(stops.program, patterns_.size()),
      include_stop_(include_stop) {
  for (const std::string& stop_string : stop_) max_stop_bytes_ = std::max(max_stop_bytes_, stop_string.size());
}

void Detokenizer::Append(const std::string& bytes) {
  pending_ += bytes;
  size_t begin = 0;
  while (begin < pending_.size()) {
    size_t length = 0;
    const Utf8Kind kind = ClassifyUtf8(pending_, begin, &length);
    if (kind == Utf8Kind::kPartial) break;
    if (kind == Utf8Kind::kWhole) {
      text_.append(pending_, begin, length);
    } else {
      text_ += kReplacement;
    }
    begin += length;
  }
  pending_.erase(0, begin);
}

// Reads the text from `begin` on. Returns the first match, if matches count.
std::optional<StopMatcher::Match> Detokenizer::ReadPatterns(size_t begin, bool check_stop) {
  if (matcher_.empty()) return std::nullopt;
  while (begin < text_.size()) {
    size_t length = 0;
    ClassifyUtf8(text_, begin, &length);
    const auto match = matcher_.Read(DecodeUtf8(text_, begin, length), begin, begin + length);
    if (match && check_stop) return match;
    begin += length;
  }
  return std::nullopt;
}

void Detokenizer::Push(int32_t token_id, bool check_stop) {
  const auto index = static_cast<size_t>(token_id);
  if (stopped_by_ || index >= tokens_->bytes.size()) return;
  const size_t old_size = text_.size();
  const std::string& special = tokens_->special[index];
  if (!special.empty()) {
    if (!skip_special_tokens_) Append(special);
  } else {
    Append(tokens_->bytes[index]);
  }
  if (text_.size() == old_size) return;
  const std::optional<StopMatcher::Match> match = ReadPatterns(old_size, check_stop);
  if (!check_stop) return;
  // A new match ends in the new text.
  const size_t from = old_size >= max_stop_bytes_ ? old_size - max_stop_bytes_ + 1 : 0;
  size_t best = std::string::npos;
  for (const std::string& stop_string : stop_) {
    size_t found = text_.find(stop_string, from);
    while (found != std::string::npos && found + stop_string.size() <= old_size) found = text_.find(stop_string, found + 1);
    if (found < best) {
      best = found;
      stopped_by_ = stop_string;
    }
  }
  if (match && match->begin < best) {
    stopped_by_ = patterns_[match->pattern];
    text_.resize(include_stop_ ? match->end : match->begin);
  } else if (stopped_by_) {
    text_.resize(best + (include_stop_ ? stopped_by_->size() : 0));
  }
}

void Detokenizer::Finish() {
  if (!stopped_by_ && !pending_.empty()) text_ += kReplacement;
  pending_.clear();
  finished_ = true;
}

size_t Detokenizer::HeldBytes() const {
  if (finished_ || stopped_by_) return 0;
  size_t held = text_.size() - std::min(matcher_.begin_under_way(), text_.size());
  for (const std::string& stop_string : stop_) {
    for (size_t length = std::min(stop_string.size() - 1, text_.size()); length > held; --length) {
      if (text_.compare(text_.size() - length, length, stop_string, 0, length) == 0) {
        held = length;
        break;
      }
    }
  }
  return held;
}

std::string Detokenizer::TakeEmittable() {
  size_t end = text_.size() - HeldBytes();
  while (end > num_emitted_ && end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80) --end;
  if (end <= num_emitted_) return "";
  std::string piece = text_.substr(num_emitted_, end - num_emitted_);
  num_emitted_ = end;
  return piece;
}

}  // namespace llmi
