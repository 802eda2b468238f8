// How quantised checkpoints arrange the codes of a matrix [out, in]: each code becomes one byte, rows of `out` one after the other.
#pragma once

#include <cstdint>
#include <vector>

namespace llmi::checkpoints {

enum class CodeLayout : uint8_t {
  kBytes,          // [out, in] bytes
  kSignedBytes,    // [out, in] int8; code = value + 128
  kLowNibbles,     // [out, in / 2] bytes, the low nibble first
  kHighNibbles,    // the same, the high nibble first
  kWordsAlongIn,   // [out, in / n] words of 32 bits with n codes, the lowest bits first
  kWordsDownIn,    // [in / n, out] such words: each holds n codes of a column of this shape
  kWordsAlongOut,  // [in, out / n] such words
  kAwqWords        // the same; nibble j of a word is column kAwqOrder[j]
};

constexpr int kAwqOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};

// Whether the codes of rows [begin, end) are consecutive bytes.
bool IsRowMajor(CodeLayout layout);

// Unpacks the codes of rows [begin, end) to out [end - begin][num_cols]. stored: from row `begin` on if IsRowMajor, else the whole matrix
// of num_rows rows. bits: of a code, 4 or 8.
struct CodeRows {
  CodeLayout layout;
  int bits;
  int64_t num_rows, num_cols;
  // Bytes of a row; only if IsRowMajor.
  int64_t row_bytes() const { return num_cols * bits / 8; }
};
void UnpackCodes(const CodeRows& rows, const uint8_t* stored, int64_t begin, int64_t end, uint8_t* out);

// Codes of words [num_words][n] of 32 bits in order, the lowest bits first; with `awq`, in the order of kAwqOrder.
std::vector<int32_t> UnpackWords(const std::vector<uint8_t>& words, int bits, bool awq);

}  // namespace llmi::checkpoints
