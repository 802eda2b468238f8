#include "model/checkpoints/scheme.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>

#include "core/errors.h"
#include "model/inert.h"

namespace llmi::checkpoints {
namespace {

MatrixForm Form(const TensorView& codes, CodeLayout layout, int bits, uint64_t num_rows, uint64_t num_cols, int64_t group_size) {
  MatrixForm form;
  form.codes = &codes;
  form.layout = layout;
  form.bits = bits;
  form.num_rows = static_cast<int64_t>(num_rows);
  form.num_cols = static_cast<int64_t>(num_cols);
  form.group_size = group_size == 0 ? form.num_cols : group_size;
  return form;
}

int64_t GroupsOf(const MatrixForm& form) {
  return static_cast<int64_t>(Groups(static_cast<uint64_t>(form.num_cols), static_cast<uint64_t>(form.group_size)));
}

constexpr const char* kSearch = "how the weights were found";
constexpr InertKey kAutoRoundKeys[] = {
    {"autoround_version", "a note on where the file comes from"},
    {"provider", "a note on where the file comes from"},
    {"to_quant_block_names", kTensorsShowWhich},
    {"enable_quanted_input", kSearch},
    {"enable_minmax_tuning", kSearch},
    {"enable_norm_bias_tuning", kSearch},
    {"static_attention_granularity", "a type of KV cache of other engines"},
    {"static_kv_granularity", "a type of KV cache of other engines"},
    {"iters", kSearch},
    {"lr", kSearch},
    {"minmax_lr", kSearch},
    {"nsamples", kSearch},
    {"seqlen", kSearch},
    {"batch_size", kSearch},
    {"gradient_accumulate_steps", kSearch},
    {"low_gpu_mem_usage", kSearch},
    {"amp", kSearch},
};

}  // namespace

std::span<const InertKey> AutoRoundKeys() { return kAutoRoundKeys; }

SchemeConfig::SchemeConfig(const Json& object, const std::string& path, std::string method)
    : fields_(object, path + ": quantization_config"), method_(std::move(method)) {}

void SchemeConfig::Refuse(const std::string& key, const std::string& problem) const {
  throw Error(ErrorKind::kUnsupportedModel, fields_.source() + ": '" + fields_.Name(key) + "' of " + method_ + " " + problem,
              fields_.Name(key));
}

std::string SchemeConfig::Choice(const std::string& key, std::initializer_list<const char*> known, const std::string& fallback) const {
  const std::string value = fields_.OptionalString(key).value_or(fallback);
  std::string names;
  for (const char* name : known) {
    if (value == name) return value;
    names += (names.empty() ? "'" : "', '") + std::string(name);
  }
  Refuse(key, "is '" + value.substr(0, 64) + "', which llmi does not read: it reads " + names + "'");
}

int64_t SchemeConfig::Number(const std::string& key, std::initializer_list<int64_t> known, int64_t fallback) const {
  const int64_t value = fields_.OptionalInteger(key).value_or(fallback);
  std::string names;
  for (const int64_t number : known) {
    if (value == number) return value;
    names += (names.empty() ? "" : ", ") + std::to_string(number);
  }
  Refuse(key, (value == -1 ? "is missing" : "is " + std::to_string(value)) + ": llmi reads " + names);
}

int64_t SchemeConfig::GroupSize() const {
  const std::string key = "group_size";
  const std::optional<int64_t> value = fields_.OptionalInteger(key);
  if (!value) Refuse(key, "is missing");
  if (*value == -1) return 0;
  if (*value < 1 || *value > std::numeric_limits<int32_t>::max()) {
    Refuse(key, "is " + std::to_string(*value) + ": a positive number, or -1 for a whole row, is expected");
  }
  return *value;
}

std::pair<int64_t, int64_t> SchemeConfig::Block(const std::string& key) const {
  const Json* block = fields_.Find(key);
  int64_t rows = 0, cols = 0;
  if (block != nullptr && block->IsArray() && block->AsArray("").size() == 2) {
    rows = block->AsArray("")[0].AsInteger(key);
    cols = block->AsArray("")[1].AsInteger(key);
  } else if (block != nullptr && block->IsString()) {
    const std::string& text = block->AsString(key);
    const char* end = text.data() + text.size();
    const auto first = std::from_chars(text.data(), end, rows);
    const bool has_two = first.ec == std::errc() && first.ptr != end && *first.ptr == 'x';
    const auto second = has_two ? std::from_chars(first.ptr + 1, end, cols) : first;
    if (!has_two || second.ec != std::errc() || second.ptr != end) Refuse(key, "is not two numbers");
  } else {
    Refuse(key, "is not two numbers");
  }
  if (rows < 1 || cols < 1 || rows > 1 << 20 || cols > 1 << 20) Refuse(key, "is " + block->Text());
  return {rows, cols};
}

void SchemeConfig::RequireOff(const std::string& key, const char* what) const {
  const Json* value = fields_.Find(key);
  if (value == nullptr || *value == Json::Bool(false)) return;
  if (value->IsArray() && value->AsArray(key).empty()) return;
  if (value->IsObject() && value->AsObject(key).empty()) return;
  Refuse(key, "is " + value->Text() + ": llmi does not read " + what);
}

void SchemeConfig::CheckAllRead(std::initializer_list<std::span<const InertKey>> lists) const {
  for (const UnreadField& field : fields_.Unread()) {
    bool is_inert = false;
    for (const std::span<const InertKey> list : lists) {
      is_inert = is_inert || std::any_of(list.begin(), list.end(), [&](const InertKey& key) { return Matches(key.name, field.name); });
    }
    if (is_inert) continue;
    throw Error(ErrorKind::kUnsupportedModel,
                fields_.source() + ": the reader of " + method_ + " does not know '" + field.name + "' = " + field.value.Text() +
                    ": the numbers might be wrong without it",
                field.name);
  }
}

MatrixForm RowGridForm(const TensorView& codes, CodeLayout layout, int bits, uint64_t num_rows, uint64_t num_cols, int64_t group_size) {
  MatrixForm form = Form(codes, layout, bits, num_rows, num_cols, group_size);
  form.row_step = GroupsOf(form);
  form.group_step = 1;
  return form;
}

MatrixForm ColumnGridForm(const TensorView& codes, CodeLayout layout, int bits, uint64_t num_rows, uint64_t num_cols, int64_t group_size) {
  MatrixForm form = Form(codes, layout, bits, num_rows, num_cols, group_size);
  form.row_step = 1;
  form.group_step = form.num_rows;
  return form;
}

}  // namespace llmi::checkpoints
