#include "model/checkpoints/codes.h"

#include <cstring>

namespace llmi::checkpoints {
namespace {

uint32_t WordAt(const uint8_t* words, int64_t index) {
  uint32_t word;
  std::memcpy(&word, words + index * 4, sizeof word);
  return word;
}

// The position in a word of code j.
struct Places {
  int shifts[8];
};
Places PlacesOf(int bits, bool awq) {
  Places places{};
  for (int i = 0; i < 32 / bits; ++i) places.shifts[awq ? kAwqOrder[i] : i] = bits * i;
  return places;
}

void UnpackBytes(const CodeRows& rows, const uint8_t* stored, int64_t count, uint8_t* out) {
  switch (rows.layout) {
    case CodeLayout::kSignedBytes:
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(stored[i] ^ 0x80);
      return;
    case CodeLayout::kLowNibbles:
    case CodeLayout::kHighNibbles: {
      const int first = rows.layout == CodeLayout::kLowNibbles ? 0 : 4;
      for (int64_t i = 0; i < count; i += 2) {
        out[i] = static_cast<uint8_t>(stored[i / 2] >> first & 15);
        out[i + 1] = static_cast<uint8_t>(stored[i / 2] >> (4 - first) & 15);
      }
      return;
    }
    case CodeLayout::kWordsAlongIn: {
      const int per_word = 32 / rows.bits;
      const uint32_t mask = (1u << rows.bits) - 1;
      for (int64_t i = 0; i < count; i += per_word) {
        const uint32_t word = WordAt(stored, i / per_word);
        for (int j = 0; j < per_word; ++j) out[i + j] = static_cast<uint8_t>(word >> (j * rows.bits) & mask);
      }
      return;
    }
    default: std::memcpy(out, stored, static_cast<size_t>(count));
  }
}

void UnpackDownIn(const CodeRows& rows, const uint8_t* stored, int64_t begin, int64_t end, uint8_t* out) {
  const int per_word = 32 / rows.bits;
  const uint32_t mask = (1u << rows.bits) - 1;
  for (int64_t col = 0; col < rows.num_cols; col += per_word) {
    const int64_t first = col / per_word * rows.num_rows;
    for (int64_t row = begin; row < end; ++row) {
      const uint32_t word = WordAt(stored, first + row);
      uint8_t* codes = out + (row - begin) * rows.num_cols + col;
      for (int j = 0; j < per_word; ++j) codes[j] = static_cast<uint8_t>(word >> (j * rows.bits) & mask);
    }
  }
}

void UnpackAlongOut(const CodeRows& rows, const uint8_t* stored, int64_t begin, int64_t end, uint8_t* out) {
  const int per_word = 32 / rows.bits;
  const uint32_t mask = (1u << rows.bits) - 1;
  const Places places = PlacesOf(rows.bits, rows.layout == CodeLayout::kAwqWords);
  const int64_t words_per_col = rows.num_rows / per_word;
  for (int64_t col = 0; col < rows.num_cols; ++col) {
    for (int64_t row = begin; row < end; ++row) {
      const uint32_t word = WordAt(stored, col * words_per_col + row / per_word);
      out[(row - begin) * rows.num_cols + col] = static_cast<uint8_t>(word >> places.shifts[row % per_word] & mask);
    }
  }
}

}  // namespace

bool IsRowMajor(CodeLayout layout) { return layout < CodeLayout::kWordsDownIn; }

void UnpackCodes(const CodeRows& rows, const uint8_t* stored, int64_t begin, int64_t end, uint8_t* out) {
  if (IsRowMajor(rows.layout)) return UnpackBytes(rows, stored, (end - begin) * rows.num_cols, out);
  if (rows.layout == CodeLayout::kWordsDownIn) return UnpackDownIn(rows, stored, begin, end, out);
  UnpackAlongOut(rows, stored, begin, end, out);
}

std::vector<int32_t> UnpackWords(const std::vector<uint8_t>& words, int bits, bool awq) {
  const int per_word = 32 / bits;
  const uint32_t mask = (1u << bits) - 1;
  const Places places = PlacesOf(bits, awq);
  std::vector<int32_t> codes;
  codes.reserve(words.size() / 4 * static_cast<size_t>(per_word));
  for (size_t i = 0; i < words.size() / 4; ++i) {
    const uint32_t word = WordAt(words.data(), static_cast<int64_t>(i));
    for (int j = 0; j < per_word; ++j) codes.push_back(static_cast<int32_t>(word >> places.shifts[j] & mask));
  }
  return codes;
}

}  // namespace llmi::checkpoints
