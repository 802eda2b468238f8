// DeepSeek's, Qwen's and Mistral's fp8: e4m3 codes with a scale for each block, or for the whole tensor. The stored scale is multiplied, in
// spite of its name weight_scale_inv, which one for the whole tensor may also have.
// Source: transformers' integrations/finegrained_fp8.py and quantizers/quantizer_finegrained_fp8.py.
#include "core/errors.h"
#include "model/checkpoints/scheme.h"

namespace llmi::checkpoints {
namespace {

constexpr InertKey kFp8Inert[] = {
    {"quant_method", "read before"},
    {"activation_scheme", "how other engines round activations; llmi's own rounding is activation_bits"},
    {"scale_fmt", "the tensor of the scales says it"},
    {"modules_to_not_convert", kTensorsShowWhich},
    {"ignored_layers", kTensorsShowWhich},
    {"dequantize", "how other engines compute"},
};

class Fp8 : public Scheme {
 public:
  explicit Fp8(const SchemeConfig& config) {
    config.Choice("fmt", {"e4m3"}, "e4m3");
    if (const Json* block = config.fields().Find("weight_block_size"); block != nullptr) {
      const auto [rows, cols] = config.Block("weight_block_size");
      block_rows_ = static_cast<uint64_t>(rows);
      block_cols_ = static_cast<uint64_t>(cols);
      name_ = "fp8 (weight_block_size " + block->Text() + ")";
    }
    config.CheckAllRead({kFp8Inert});
  }

  std::span<const char* const> parts() const override { return kParts; }
  std::span<const char* const> inert_parts() const override { return kInertParts; }

  MatrixForm Read(const ModuleParts& parts) const override {
    const bool in_blocks = block_rows_ > 0;
    const TensorView& codes = parts.Required("weight");
    const TensorView* whole = in_blocks ? nullptr : parts.Optional("weight_scale");
    const TensorView& scales = whole != nullptr ? *whole : parts.Required("weight_scale_inv");
    parts.CheckAllUsed(name_);
    RequireMatrix(codes);
    RequireType(codes, {DType::kF8E4M3});
    RequireType(scales, {DType::kF32, DType::kBF16});
    MatrixForm form = RowGridForm(codes, CodeLayout::kBytes, 8, codes.shape[0], codes.shape[1], static_cast<int64_t>(block_cols_));
    if (in_blocks) {
      RequireShape(scales, {{Groups(codes.shape[0], block_rows_), Groups(codes.shape[1], block_cols_)}}, name_);
      form.row_block = static_cast<int64_t>(block_rows_);
    } else {
      RequireShape(scales, {{}, {1}, {codes.shape[0], 1}}, name_);
      if (scales.shape.size() < 2) form.row_step = 0;
    }
    form.table = Float8Values();
    form.load_grid = [&scales] { return Grid{ReadFloats(scales), {}}; };
    return form;
  }

 private:
  static constexpr const char* kParts[] = {"weight_scale_inv", "weight_scale"};
  static constexpr const char* kInertParts[] = {"input_scale", "activation_scale", "k_scale", "v_scale"};
  uint64_t block_rows_ = 0, block_cols_ = 0;
  std::string name_ = "fp8 (a scale for each tensor)";
};

}  // namespace

std::unique_ptr<Scheme> ReadFp8(const SchemeConfig& config) { return std::make_unique<Fp8>(config); }

}  // namespace llmi::checkpoints
