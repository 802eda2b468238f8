// GPTQ: codes of 4 or 8 bits along the input features, zeros along the output features, and for each input feature its group (g_idx), which
// is not in order after quantisation by activation order. Version 1 stores zeros less one.
// Source: AutoGPTQ's auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py and GPTQModel's gptqmodel/utils/model.py (the two versions).
#include <algorithm>

#include "core/errors.h"
#include "model/checkpoints/scheme.h"

namespace llmi::checkpoints {
namespace {

constexpr const char* kHow = "how the weights were found, or how other engines compute";
constexpr InertKey kGptqInert[] = {
    {"quant_method", "read before"},
    {"meta", kHow},
    {"meta.*", kHow},
    {"damp_percent", kHow},
    {"damp_auto_increment", kHow},
    {"true_sequential", kHow},
    {"static_groups", kHow},
    {"mse", kHow},
    {"dataset", kHow},
    {"tokenizer", kHow},
    {"batch_size", kHow},
    {"model_seqlen", kHow},
    {"max_input_length", kHow},
    {"cache_block_outputs", kHow},
    {"use_cuda_fp16", kHow},
    {"use_exllama", kHow},
    {"disable_exllama", kHow},
    {"exllama_config", kHow},
    {"backend", kHow},
    {"pad_token_id", kHow},
    {"hyb_act", kHow},
    {"act_group_aware", kHow},
    {"model_name_or_path", "a note on where the file comes from"},
    {"model_file_base_name", "a note on where the file comes from"},
    {"quantizer", "a note on where the file comes from"},
    {"lm_head", kTensorsShowWhich},
    {"desc_act", "g_idx says it"},
    {"block_name_to_quantize", kTensorsShowWhich},
    {"module_name_preceding_first_block", kTensorsShowWhich},
    {"modules_in_block_to_quantize", kTensorsShowWhich},
    {"modules_to_not_convert", kTensorsShowWhich},
};

// The groups of the columns; empty if they are in order.
std::vector<int32_t> GroupsOfColumns(const TensorView& view, int64_t group_size, uint64_t groups) {
  RequireType(view, {DType::kI32, DType::kI64});
  const std::vector<int64_t> values = ReadIntegers(view);
  std::vector<int32_t> group_of;
  bool in_order = true;
  for (size_t col = 0; col < values.size(); ++col) {
    if (values[col] < 0 || values[col] >= static_cast<int64_t>(groups)) {
      FailTensor(view, "names group " + std::to_string(values[col]) + " of " + std::to_string(groups));
    }
    in_order = in_order && values[col] == static_cast<int64_t>(col) / group_size;
    group_of.push_back(static_cast<int32_t>(values[col]));
  }
  return in_order ? std::vector<int32_t>() : group_of;
}

class Gptq : public Scheme {
 public:
  explicit Gptq(const SchemeConfig& config) {
    bits_ = static_cast<int>(config.Number("bits", {4, 8}));
    group_size_ = config.GroupSize();
    const std::string older = config.Choice("checkpoint_format", {"gptq", "gptq_v2"}, "gptq");
    const std::string format = config.Choice("format", {"gptq", "gptq_v2"}, older);
    const bool says_both = config.fields().Find("checkpoint_format") != nullptr;
    if (says_both && format != older) config.Refuse("checkpoint_format", "is '" + older + "', and format is '" + format + "'");
    added_ = format == "gptq" ? 1 : 0;
    config.Choice("method", {"gptq"}, "gptq");
    config.Choice("pack_dtype", {"int32"}, "int32");
    config.RequireOff("is_marlin_format", "the Marlin layout");
    config.RequireOff("dynamic", "bits that differ between modules");
    symmetric_ = config.fields().Bool("sym", false);
    desc_act_ = config.fields().Bool("desc_act", false);
    config.Choice("data_type", {"int"}, "int");
    config.CheckAllRead({kGptqInert, AutoRoundKeys()});
  }

  std::span<const char* const> parts() const override { return kParts; }

  MatrixForm Read(const ModuleParts& parts) const override {
    const TensorView& codes = parts.Required("qweight");
    const TensorView& zeros = parts.Required("qzeros");
    const TensorView& scales = parts.Required("scales");
    const TensorView* order = desc_act_ ? &parts.Required("g_idx") : parts.Optional("g_idx");
    parts.CheckAllUsed("gptq");
    RequireMatrix(codes);
    RequireType(codes, {DType::kI32});
    const auto per_word = static_cast<uint64_t>(32 / bits_);
    const uint64_t num_cols = codes.shape[0] * per_word, num_rows = codes.shape[1];
    MatrixForm form = ColumnGridForm(codes, CodeLayout::kWordsDownIn, bits_, num_rows, num_cols, group_size_);
    const uint64_t groups = Groups(num_cols, static_cast<uint64_t>(form.group_size));
    const std::string why = "bits = " + std::to_string(bits_) + " with group_size = " + std::to_string(group_size_ == 0 ? -1 : group_size_);
    RequireShape(scales, {{groups, num_rows}}, why);
    if (num_rows % per_word != 0) FailTensor(codes, "has shape " + ShapeText(codes.shape) + ": its rows do not fill the words of qzeros");
    RequireShape(zeros, {{groups, num_rows / per_word}}, why);
    RequireType(scales, {DType::kF16, DType::kBF16, DType::kF32});
    RequireType(zeros, {DType::kI32});
    if (order != nullptr) {
      RequireShape(*order, {{num_cols}}, "qweight");
      form.group_of = GroupsOfColumns(*order, form.group_size, groups);
    }
    form.zero = 1 << (bits_ - 1);
    form.same_zero = symmetric_;
    form.load_grid = [this, &scales, &zeros] { return Grid{ReadFloats(scales), Zeros(zeros)}; };
    return form;
  }

 private:
  std::vector<int32_t> Zeros(const TensorView& view) const {
    const int32_t highest = (1 << bits_) - 1, middle = 1 << (bits_ - 1);
    std::vector<int32_t> zeros = UnpackWords(ReadBytes(view), bits_, false);
    for (int32_t& zero : zeros) {
      zero += added_;
      // A zero of 0 less one has become the highest code; libraries differ in how they read it.
      if (zero > highest)
        FailTensor(view, "holds a zero of " + std::to_string(highest) + " less one, which libraries read in different ways");
      if (symmetric_ && zero != middle) {
        FailTensor(view, "holds a zero of " + std::to_string(zero) + " by the format " + (added_ == 1 ? "gptq" : "gptq_v2") +
                             ", and of symmetric codes (sym) it is " + std::to_string(middle) +
                             ": the config names the other format, or sym is wrong");
      }
    }
    return zeros;
  }

  static constexpr const char* kParts[] = {"qweight", "qzeros", "scales", "g_idx"};
  int bits_ = 4;
  int64_t group_size_ = 0;
  int32_t added_ = 0;  // to stored zeros
  bool symmetric_ = false;
  bool desc_act_ = false;
};

}  // namespace

std::unique_ptr<Scheme> ReadGptq(const SchemeConfig& config) { return std::make_unique<Gptq>(config); }

}  // namespace llmi::checkpoints
