// Finds the first part of a growing text that one of several regular expressions matches.
//
// All ways through the expressions are followed at once, a character at a time (Thompson, "Regular expression search algorithm", 1968),
// each with the place where it began. So a character costs at most one visit of each instruction, whatever the expression and the text.
//
// A program is made by llmi.text.stop_patterns: [number of instructions n, n times (op, x, y), ranges of code points]. Ops: 0, pattern x
// matches; 1, go on at x and, after it, at y; 2, read a character of the y ranges (low, high), ascending, that begin at ranges[x]; 3, go on
// only where the text begins; 4, go on only where a line begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace llmi {

struct StopProgram {
  enum class Op : int32_t { kMatch, kSplit, kRead, kTextBegin, kLineBegin };
  struct Instruction {
    Op op;
    int32_t x;
    int32_t y;
  };
  std::vector<Instruction> instructions;
  std::vector<int32_t> ranges;

  // Throws Error(kInvalidArgument) for what is no program of `num_patterns` patterns.
  StopProgram(std::span<const int32_t> given, size_t num_patterns);
  bool Reads(const Instruction& instruction, int32_t character) const;
};

class StopMatcher {
 public:
  struct Match {
    size_t begin;  // in bytes
    size_t end;
    size_t pattern;
  };

  StopMatcher(std::span<const int32_t> program, size_t num_patterns);
  bool empty() const { return program_ == nullptr; }
  // Reads the text's next character, of the bytes [begin, end). Returns the match that ends with it and begins first, if one does.
  std::optional<Match> Read(int32_t character, size_t begin, size_t end);
  // The beginning of the longest part that later text may still complete; SIZE_MAX if there is none.
  size_t begin_under_way() const { return ways_.empty() ? SIZE_MAX : ways_[0].begin; }

 private:
  // A way that has come to a kRead.
  struct Way {
    int32_t at;
    size_t begin;
  };
  void Follow(int32_t at, size_t begin, std::vector<Way>* ways);

  std::shared_ptr<const StopProgram> program_;  // null: none
  std::vector<Way> ways_;                       // that begin earlier come first
  std::vector<uint64_t> seen_;                  // by instruction, the number of the last list that it was added to
  uint64_t list_ = 1;
  bool line_begins_ = true;
  bool text_begins_ = true;
  std::optional<size_t> matched_;  // the pattern of the first match in the list under way
  size_t matched_begin_ = 0;
  std::vector<int32_t> open_;  // memory of Follow
};

}  // namespace llmi
