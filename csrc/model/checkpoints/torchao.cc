// torchao: int8 codes of 4 or 8 bits with scales and zeros by group or row, and e4m3 codes with scales.
// Source: torchao's quantization/quantize_/workflows (Int8Tensor, IntxUnpackedToInt8Tensor, Float8Tensor).
#include <optional>

#include "core/errors.h"
#include "model/checkpoints/scheme.h"

namespace llmi::checkpoints {
namespace {

constexpr const char* kHowFound = "how the scales were found, or how other engines compute";
constexpr InertKey kTorchAoInert[] = {
    {"quant_method", "read before"},
    {"include_input_output_embeddings", kTensorsShowWhich},
    {"modules_to_not_convert", kTensorsShowWhich},
    {"untie_embedding_weights", "tie_word_embeddings says it"},
    {"quant_type.default._version", "the tensors are checked"},
    {"quant_type.default._data.granularity*", "the shapes of the scales say it"},
    {"quant_type.default._data.group_size", "the shapes of the scales say it"},
    {"quant_type.default._data.set_inductor_config", kHowFound},
    {"quant_type.default._data.scale_dtype*", "the tensor of the scales says it"},
    {"quant_type.default._data.mapping_type*", "the zeros are read in either case"},
    {"quant_type.default._data.intx_choose_qparams_algorithm*", kHowFound},
};

class Torchao : public Scheme {
 public:
  explicit Torchao(const SchemeConfig& config) {
    const std::optional<JsonFields> type = config.fields().Object("quant_type");
    const std::optional<JsonFields> chosen = type ? type->Object("default") : std::nullopt;
    if (!chosen) config.Refuse("quant_type", "has no 'default'");
    const SchemeConfig of_default(*chosen, config.method());
    name_ = of_default.Choice("_type", {"Int8WeightOnlyConfig", "IntxWeightOnlyConfig", "Float8WeightOnlyConfig"}, "");
    const std::optional<JsonFields> data = chosen->Object("_data");
    if (!data) of_default.Refuse("_data", "is missing");
    is_float_ = name_ == "Float8WeightOnlyConfig";
    if (const std::optional<JsonFields> weights = data->Object("weight_dtype"); weights) {
      const SchemeConfig inner(*weights, config.method());
      if (is_float_) inner.Choice("_data", {"float8_e4m3fn"}, "float8_e4m3fn");
      if (!is_float_) inner.Choice("_data", {"int2", "int3", "int4", "int5", "int6", "int7", "int8"}, "int8");
      inner.Choice("_type", {"torch.dtype"}, "torch.dtype");
    }
    if (const std::optional<JsonFields> packing = data->Object("intx_packing_format"); packing) {
      SchemeConfig(*packing, config.method()).Choice("_data", {"UNPACKED_TO_INT8"}, "");
      packing->Find("_type");
    }
    for (const char* key : {"granularity", "mapping_type", "intx_choose_qparams_algorithm", "scale_dtype"}) data->Find(key);
    config.CheckAllRead({kTorchAoInert});
  }

  std::span<const char* const> parts() const override { return kParts; }

  MatrixForm Read(const ModuleParts& parts) const override {
    const TensorView& codes = parts.Required("_weight_qdata");
    const TensorView& scales = parts.Required("_weight_scale");
    const TensorView* zeros = is_float_ ? nullptr : parts.Optional("_weight_zero_point");
    parts.CheckAllUsed("torchao (" + name_ + ")");
    RequireMatrix(codes);
    RequireMatrix(scales);
    RequireType(codes, {is_float_ ? DType::kF8E4M3 : DType::kI8});
    RequireType(scales, {DType::kF32, DType::kF16, DType::kBF16});
    const uint64_t num_rows = codes.shape[0], num_cols = codes.shape[1], groups = scales.shape[1];
    if (scales.shape[0] != num_rows || num_cols % groups != 0) {
      FailTensor(scales, "has shape " + ShapeText(scales.shape) + ", which gives no equal groups of a matrix " + ShapeText(codes.shape));
    }
    MatrixForm form = RowGridForm(codes, is_float_ ? CodeLayout::kBytes : CodeLayout::kSignedBytes, 8, num_rows, num_cols,
                                  static_cast<int64_t>(num_cols / groups));
    form.zero = 128;
    if (is_float_) form.table = Float8Values();
    if (zeros != nullptr) {
      RequireType(*zeros, {DType::kI8});
      RequireShape(*zeros, {scales.shape}, "the shape of the scales");
    }
    form.same_zero = zeros == nullptr || AllZero(*zeros);
    form.load_grid = [&scales, zeros] {
      Grid grid{ReadFloats(scales), {}};
      if (zeros != nullptr) {
        for (const int64_t zero : ReadIntegers(*zeros)) grid.zeros.push_back(static_cast<int32_t>(zero + 128));
      }
      return grid;
    };
    return form;
  }

 private:
  static bool AllZero(const TensorView& view) {
    for (const int64_t zero : ReadIntegers(view)) {
      if (zero != 0) return false;
    }
    return true;
  }

  static constexpr const char* kParts[] = {"_weight_qdata", "_weight_scale", "_weight_zero_point"};
  std::string name_;
  bool is_float_ = false;
};

}  // namespace

std::unique_ptr<Scheme> ReadTorchao(const SchemeConfig& config) { return std::make_unique<Torchao>(config); }

}  // namespace llmi::checkpoints
