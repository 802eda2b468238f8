// Which variant of StreamLinearKernel serves a layer: a table of measured ones by architecture, type, shape and rows (stream_table.h), and
// a rule for what it lacks. All variants give equal bits.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/layout/chunks.h"

namespace llmi::cuda {

// How many rows of x a warp takes: up to four, or sets of 8 or 16.
enum class StreamRowsForm : uint8_t { kFour, kEight, kSixteen };

struct StreamVariant {
  StreamRowsForm rows;
  int blocks;  // on a multiprocessor, at most
};

// A line of the table.
struct StreamChoice {
  std::string_view architecture;  // as sm_90
  std::string_view type;          // as Q4_0
  int64_t num_outputs;            // 0: any
  int64_t num_cols;               // 0: any
  int64_t first_rows;
  int64_t last_rows;
  std::string_view variant;  // as "eight x 2": sets of eight, two blocks on a multiprocessor
};

// Sets of 16 take whole chunks: units of half a chunk would share pieces of codes of 5 and 6 bits, and save nothing for types with more
// scales.
constexpr bool HasSetsOfSixteen(PackedType type) {
  return type == PackedType::kQ4 || type == PackedType::kQ4Min || type == PackedType::kQ8;
}

constexpr std::pair<std::string_view, StreamVariant> kStreamVariants[] = {
    {"four x 1", {StreamRowsForm::kFour, 1}},       {"four x 2", {StreamRowsForm::kFour, 2}},
    {"eight x 1", {StreamRowsForm::kEight, 1}},     {"eight x 2", {StreamRowsForm::kEight, 2}},
    {"sixteen x 1", {StreamRowsForm::kSixteen, 1}}, {"sixteen x 2", {StreamRowsForm::kSixteen, 2}},
};

constexpr std::pair<std::string_view, PackedType> kStreamTypes[] = {
    {"Q4_0", PackedType::kQ4},      {"Q4_1", PackedType::kQ4Min},    {"Q4_K", PackedType::kQ4K},       {"Q5_0", PackedType::kQ5},
    {"Q5_1", PackedType::kQ5Min},   {"Q5_K", PackedType::kQ5K},      {"Q6_K", PackedType::kQ6K},       {"Q8_0", PackedType::kQ8},
    {"IQ4_NL", PackedType::kTable}, {"IQ4_XS", PackedType::kTableK}, {"MXFP4", PackedType::kTableExp},
};

inline bool AllowsStreamRows(StreamRowsForm form, PackedType type, int64_t num_cols, int64_t num_rows) {
  switch (form) {
    case StreamRowsForm::kFour: return num_rows <= 4;
    case StreamRowsForm::kEight: return true;
    case StreamRowsForm::kSixteen: return HasSetsOfSixteen(type) && num_cols > 0 && num_cols % (kChunkBlocks * kBlockSize) == 0;
  }
  return false;
}

// By name; nothing for an unknown one.
inline std::optional<StreamVariant> FindStreamVariant(std::string_view name) {
  for (const auto& [variant_name, variant] : kStreamVariants) {
    if (variant_name == name) return variant;
  }
  return {};
}

inline std::optional<PackedType> FindStreamType(std::string_view name) {
  for (const auto& [type_name, type] : kStreamTypes) {
    if (type_name == name) return type;
  }
  return {};
}

// What is wrong with a line: an unknown name, or a variant that its type, columns or rows do not allow. Empty: nothing.
inline std::string WhyNoStreamChoice(const StreamChoice& choice) {
  const std::optional<StreamVariant> variant = FindStreamVariant(choice.variant);
  const std::optional<PackedType> type = FindStreamType(choice.type);
  std::string why;
  const auto say = [&why](std::string_view before, std::string_view name, std::string_view after) -> std::string& {
    return why.append(before).append(" '").append(name).append("' ").append(after);
  };
  if (!choice.architecture.starts_with("sm_")) return say("architecture", choice.architecture, "is none: as sm_90");
  if (!type) return say("type", choice.type, "has no chunks");
  if (!variant) return say("variant", choice.variant, "is unknown: as 'eight x 2'");
  if (choice.first_rows < 1 || choice.last_rows < choice.first_rows) return "the rows are none";
  if (AllowsStreamRows(variant->rows, *type, choice.num_cols, choice.last_rows)) return "";
  say("variant", choice.variant, "does not serve ").append(std::to_string(choice.last_rows)).append(" rows of ").append(choice.type);
  return why.append(" with ").append(std::to_string(choice.num_cols)).append(" columns");
}

// Of devices that are opened from now on: for measurements and tests.
inline std::optional<StreamVariant> forced_stream_variant;

class StreamChoices {
 public:
  // The lines for this architecture, unless one variant serves where it is allowed. A table with a line that is wrong is ignored, with a
  // warning once in a process.
  StreamChoices(std::span<const StreamChoice> table, std::string_view architecture, std::optional<StreamVariant> always = {})
      : always_(always) {
    for (const StreamChoice& choice : table) {
      if (const std::string why = WhyNoStreamChoice(choice); !why.empty()) {
        static std::atomic<bool> has_warned{false};
        if (!has_warned.exchange(true)) std::fprintf(stderr, "llmi: the table of variants is ignored: %s\n", why.c_str());
        choices_.clear();
        return;
      }
      if (choice.architecture == architecture) choices_.push_back(choice);
    }
  }

  StreamVariant Of(PackedType type, int64_t num_outputs, int64_t num_cols, int64_t num_rows) const {
    if (always_ && AllowsStreamRows(always_->rows, type, num_cols, num_rows)) return *always_;
    for (const StreamChoice& choice : choices_) {
      if (FindStreamType(choice.type) != type || num_rows < choice.first_rows || num_rows > choice.last_rows) continue;
      if ((choice.num_outputs == 0 || choice.num_outputs == num_outputs) && (choice.num_cols == 0 || choice.num_cols == num_cols)) {
        return *FindStreamVariant(choice.variant);
      }
    }
    if (num_rows <= 4) return {StreamRowsForm::kFour, 2};
    const bool sixteen = num_rows > 8 && AllowsStreamRows(StreamRowsForm::kSixteen, type, num_cols, num_rows);
    return {sixteen ? StreamRowsForm::kSixteen : StreamRowsForm::kEight, 2};
  }

 private:
  std::vector<StreamChoice> choices_;
  std::optional<StreamVariant> always_;
};

}  // namespace llmi::cuda
