// bitsandbytes: nf4 in blocks over the flat tensor, whose scales may be quantised again; and int8 with a scale for each row.
// Source: bitsandbytes' functional.py (QuantState.as_dict, dequantize_4bit, int8_vectorwise_dequant).
#include <optional>

#include "core/errors.h"
#include "model/checkpoints/scheme.h"

namespace llmi::checkpoints {
namespace {

constexpr InertKey kBnbInert[] = {
    {"quant_method", "read before"},
    {"_load_in_4bit", "the same as load_in_4bit"},
    {"_load_in_8bit", "the same as load_in_8bit"},
    {"bnb_4bit_compute_dtype", "how other engines compute"},
    {"bnb_4bit_use_double_quant", "quant_state says it"},
    {"llm_int8_enable_fp32_cpu_offload", "how other engines compute"},
    {"llm_int8_has_fp16_weight", "how other engines compute"},
    {"llm_int8_threshold", "which activations other engines do not round; llmi's own rounding is activation_bits"},
    {"llm_int8_skip_modules", kTensorsShowWhich},
};

constexpr const char* kStatePart = "weight.quant_state.bitsandbytes__nf4";

// quant_state of a matrix.
struct State {
  uint64_t block_size = 0, nested_block_size = 0;  // nested: 0 if scales are floats
  float nested_offset = 0;
  uint64_t num_rows = 0, num_cols = 0;
};

State ReadState(const TensorView& view) {
  constexpr uint64_t kMaxBytes = 4096;
  if (view.num_bytes > kMaxBytes) FailTensor(view, "is longer than 4096 bytes");
  const std::vector<uint8_t> bytes = ReadBytes(view);
  const Json json = Json::Parse(std::string(bytes.begin(), bytes.end()), view.name);
  const JsonFields fields(json, view.name);
  const auto size = [&](const std::string& key, int64_t most) {
    const int64_t value = fields.Integer(key);
    if (value < 1 || value > most) FailTensor(view, "has " + key + " = " + std::to_string(value));
    return static_cast<uint64_t>(value);
  };
  State state;
  if (const std::string type = fields.String("quant_type", ""); type != "nf4") FailTensor(view, "has quant_type '" + type + "', not nf4");
  fields.Find("dtype");  // of the values when they are multiplied
  state.block_size = size("blocksize", 1 << 20);
  const Json* shape = fields.Find("shape");
  if (shape == nullptr || !shape->IsArray() || shape->AsArray("").size() != 2) FailTensor(view, "has a shape that is not two numbers");
  const int64_t rows = shape->AsArray("")[0].AsInteger("shape"), cols = shape->AsArray("")[1].AsInteger("shape");
  if (rows < 1 || cols < 1 || rows > INT32_MAX || cols > INT32_MAX) FailTensor(view, "has shape " + shape->Text());
  state.num_rows = static_cast<uint64_t>(rows);
  state.num_cols = static_cast<uint64_t>(cols);
  if (fields.Find("nested_blocksize") != nullptr) {
    state.nested_block_size = size("nested_blocksize", 1 << 20);
    state.nested_offset = static_cast<float>(fields.Number("nested_offset"));
    if (const std::string type = fields.String("nested_dtype", ""); type != "float32") FailTensor(view, "has nested_dtype '" + type + "'");
  }
  for (const UnreadField& field : fields.Unread()) FailTensor(view, "has an unknown key '" + field.name + "' = " + field.value.Text());
  return state;
}

class Bitsandbytes : public Scheme {
 public:
  explicit Bitsandbytes(const SchemeConfig& config) {
    is_nf4_ = config.fields().Bool("load_in_4bit", false);
    if (is_nf4_ == config.fields().Bool("load_in_8bit", false)) config.Refuse("load_in_4bit", "and load_in_8bit: one of them must be true");
    if (is_nf4_) config.Choice("bnb_4bit_quant_type", {"nf4"}, "fp4");
    if (!is_nf4_) config.fields().Find("bnb_4bit_quant_type");
    config.Choice("bnb_4bit_quant_storage", {"uint8"}, "uint8");
    config.CheckAllRead({kBnbInert});
  }

  std::span<const char* const> parts() const override {
    return is_nf4_ ? std::span<const char* const>(kNf4Parts) : std::span<const char* const>(kInt8Parts);
  }
  MatrixForm Read(const ModuleParts& parts) const override { return is_nf4_ ? ReadNf4(parts) : ReadInt8(parts); }

 private:
  static MatrixForm ReadNf4(const ModuleParts& parts) {
    const TensorView& codes = parts.Required("weight");
    const TensorView& table = parts.Required("weight.quant_map");
    const TensorView& scales = parts.Required("weight.absmax");
    const State state = ReadState(parts.Required(kStatePart));
    const bool nested = state.nested_block_size > 0;
    const TensorView* outer = nested ? &parts.Required("weight.nested_absmax") : nullptr;
    const TensorView* outer_table = nested ? &parts.Required("weight.nested_quant_map") : nullptr;
    parts.CheckAllUsed("bitsandbytes (nf4)");
    RequireType(codes, {DType::kU8});
    const uint64_t count = state.num_rows * state.num_cols;
    RequireShape(codes, {{Groups(count, 2), 1}}, "the shape in quant_state");
    if (state.num_cols % state.block_size != 0 || state.block_size % 2 != 0) {
      FailTensor(codes, "has rows of " + std::to_string(state.num_cols) + ", which blocks of " + std::to_string(state.block_size) +
                            " do not fill: llmi does not read blocks across rows");
    }
    RequireShape(table, {{16}}, "nf4");
    RequireType(table, {DType::kF32});
    RequireType(scales, {nested ? DType::kU8 : DType::kF32});
    const uint64_t blocks = count / state.block_size;
    RequireShape(scales, {{blocks}}, "blocksize " + std::to_string(state.block_size));
    MatrixForm form =
        RowGridForm(codes, CodeLayout::kHighNibbles, 4, state.num_rows, state.num_cols, static_cast<int64_t>(state.block_size));
    form.table = ReadFloats(table);
    form.load_grid = [&scales] { return Grid{ReadFloats(scales), {}}; };
    if (!nested) return form;
    RequireShape(*outer, {{Groups(blocks, state.nested_block_size)}}, "nested_blocksize " + std::to_string(state.nested_block_size));
    RequireShape(*outer_table, {{256}}, "nf4");
    RequireType(*outer, {DType::kF32});
    RequireType(*outer_table, {DType::kF32});
    form.load_grid = [&scales, outer, outer_table, state] {
      const std::vector<uint8_t> inner = ReadBytes(scales);
      const std::vector<float> factors = ReadFloats(*outer), map = ReadFloats(*outer_table);
      Grid grid;
      for (size_t i = 0; i < inner.size(); ++i) {
        const float unshifted = map[inner[i]] * factors[i / state.nested_block_size];
        grid.scales.push_back(unshifted + state.nested_offset);
      }
      return grid;
    };
    return form;
  }

  static MatrixForm ReadInt8(const ModuleParts& parts) {
    const TensorView& codes = parts.Required("weight");
    const TensorView& scales = parts.Required("SCB");
    const TensorView* format = parts.Optional("weight_format");
    parts.CheckAllUsed("bitsandbytes (int8)");
    RequireMatrix(codes);
    RequireType(codes, {DType::kI8});
    RequireType(scales, {DType::kF32});
    RequireShape(scales, {{codes.shape[0]}}, "weight");
    if (format != nullptr) {
      RequireType(*format, {DType::kU8});
      if (format->num_bytes != 1 || ReadBytes(*format)[0] != 0) FailTensor(*format, "names an order of the weights other than by rows");
    }
    MatrixForm form = RowGridForm(codes, CodeLayout::kSignedBytes, 8, codes.shape[0], codes.shape[1], 0);
    form.zero = 128;
    form.divisor = 127;
    form.load_grid = [&scales] { return Grid{ReadFloats(scales), {}}; };
    return form;
  }

  static constexpr const char* kNf4Parts[] = {"weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
                                              kStatePart};
  static constexpr const char* kInt8Parts[] = {"SCB", "weight_format"};
  bool is_nf4_ = false;
};

}  // namespace

std::unique_ptr<Scheme> ReadBitsandbytes(const SchemeConfig& config) { return std::make_unique<Bitsandbytes>(config); }

}  // namespace llmi::checkpoints
