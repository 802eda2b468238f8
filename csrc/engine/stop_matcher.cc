#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"

namespace llmi {
namespace {

constexpr int32_t kMostInstructions = 1024;

void Require(bool holds, const char* what) {
  if (!holds) throw Error(ErrorKind::kInvalidArgument, std::string("stop_program: ") + what, "stop_regex");
}

}  // namespace

StopProgram::StopProgram(std::span<const int32_t> given, size_t num_patterns) {
  const int32_t count = given[0];
  Require(count >= 1 && count <= kMostInstructions && given.size() > static_cast<size_t>(count) * 3, "it holds 1 to 1,024 instructions");
  const std::span<const int32_t> code = given.subspan(1, static_cast<size_t>(count) * 3);
  const std::span<const int32_t> rest = given.subspan(1 + code.size());
  ranges.assign(rest.begin(), rest.end());
  const auto num_ranges = static_cast<int64_t>(ranges.size()) / 2;
  for (size_t i = 0; i < code.size(); i += 3) {
    const Instruction instruction = {static_cast<Op>(code[i]), code[i + 1], code[i + 2]};
    const bool goes_on = instructions.size() + 1 < static_cast<size_t>(count);
    switch (instruction.op) {
      case Op::kMatch: Require(instruction.x >= 0 && static_cast<size_t>(instruction.x) < num_patterns, "no such pattern"); break;
      case Op::kSplit:
        Require(instruction.x >= 0 && instruction.x < count && instruction.y >= 0 && instruction.y < count, "no such instruction");
        break;
      case Op::kRead:
        Require(goes_on && instruction.x >= 0 && instruction.x % 2 == 0 && instruction.y >= 0 &&
                    instruction.x / 2 + static_cast<int64_t>(instruction.y) <= num_ranges,
                "no such ranges");
        break;
      case Op::kTextBegin:
      case Op::kLineBegin: Require(goes_on, "nothing follows the last instruction"); break;
      default: Require(false, "no such op");
    }
    instructions.push_back(instruction);
  }
}

bool StopProgram::Reads(const Instruction& instruction, int32_t character) const {
  int32_t low = 0;
  int32_t high = instruction.y;  // the first range that ends at the character or behind it is in [low, high]
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (ranges[static_cast<size_t>(instruction.x + 2 * middle + 1)] < character) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < instruction.y && ranges[static_cast<size_t>(instruction.x + 2 * low)] <= character;
}

StopMatcher::StopMatcher(std::span<const int32_t> program, size_t num_patterns) {
  if (program.empty()) return;
  program_ = std::make_shared<const StopProgram>(program, num_patterns);
  seen_.resize(program_->instructions.size(), 0);
}

// Adds the reads that follow `at` without a character, but those that a way which began earlier has come to.
void StopMatcher::Follow(int32_t at, size_t begin, std::vector<Way>* ways) {
  open_.assign(1, at);
  while (!open_.empty()) {
    const int32_t next = open_.back();
    open_.pop_back();
    if (std::exchange(seen_[static_cast<size_t>(next)], list_) == list_) continue;
    const StopProgram::Instruction& instruction = program_->instructions[static_cast<size_t>(next)];
    switch (instruction.op) {
      case StopProgram::Op::kMatch:
        if (!matched_) {
          matched_ = static_cast<size_t>(instruction.x);
          matched_begin_ = begin;
        }
        break;
      case StopProgram::Op::kSplit:
        open_.push_back(instruction.y);
        open_.push_back(instruction.x);
        break;
      case StopProgram::Op::kRead: ways->push_back({next, begin}); break;
      case StopProgram::Op::kTextBegin:
        if (text_begins_) open_.push_back(next + 1);
        break;
      case StopProgram::Op::kLineBegin:
        if (line_begins_) open_.push_back(next + 1);
        break;
    }
  }
}

std::optional<StopMatcher::Match> StopMatcher::Read(int32_t character, size_t begin, size_t end) {
  // Ways that begin here come last. `list_` is still that of ways_.
  Follow(0, begin, &ways_);
  text_begins_ = false;
  line_begins_ = character == '\n';
  ++list_;
  matched_.reset();
  std::vector<Way> next;
  for (const Way& way : ways_) {
    if (program_->Reads(program_->instructions[static_cast<size_t>(way.at)], character)) Follow(way.at + 1, way.begin, &next);
  }
  ways_ = std::move(next);
  if (!matched_) return std::nullopt;
  return Match{matched_begin_, end, *matched_};
}

}  // namespace llmi
