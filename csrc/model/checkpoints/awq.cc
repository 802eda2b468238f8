// AWQ: 4-bit codes and zeros along the output features, eight to a word in an order of their own.
// Source: AutoAWQ's awq/modules/linear/gemm.py and awq/utils/packing_utils.py.
#include "core/errors.h"
#include "model/checkpoints/scheme.h"

namespace llmi::checkpoints {
namespace {

constexpr InertKey kAwqInert[] = {
    {"quant_method", "read before"},
    {"modules_to_not_convert", kTensorsShowWhich},
    {"sym", "the zeros are read in either case"},
    {"backend", "how other engines compute"},
    {"exllama_config", "how other engines compute"},
    {"do_fuse", "how other engines compute"},
    {"fuse_max_seq_len", "how other engines compute"},
    {"modules_to_fuse", "how other engines compute"},
};

class Awq : public Scheme {
 public:
  explicit Awq(const SchemeConfig& config) {
    config.Number("bits", {4});
    group_size_ = config.GroupSize();
    config.Choice("version", {"gemm", "GEMM"}, "gemm");
    const Json* has_zeros = config.fields().Find("zero_point");
    if (has_zeros != nullptr && *has_zeros != Json::Bool(true)) config.Refuse("zero_point", "is not true: llmi reads files with zeros");
    config.Choice("data_type", {"int"}, "int");
    config.CheckAllRead({kAwqInert, AutoRoundKeys()});
  }

  std::span<const char* const> parts() const override { return kParts; }

  MatrixForm Read(const ModuleParts& parts) const override {
    const TensorView& codes = parts.Required("qweight");
    const TensorView& zeros = parts.Required("qzeros");
    const TensorView& scales = parts.Required("scales");
    parts.CheckAllUsed("awq");
    RequireMatrix(codes);
    RequireType(codes, {DType::kI32});
    const uint64_t num_cols = codes.shape[0], num_rows = codes.shape[1] * 8;
    MatrixForm form = ColumnGridForm(codes, CodeLayout::kAwqWords, 4, num_rows, num_cols, group_size_);
    const uint64_t groups = Groups(num_cols, static_cast<uint64_t>(form.group_size));
    const std::string why = "group_size = " + std::to_string(group_size_ == 0 ? -1 : group_size_);
    RequireShape(zeros, {{groups, codes.shape[1]}}, why);
    RequireShape(scales, {{groups, num_rows}}, why);
    RequireType(zeros, {DType::kI32});
    RequireType(scales, {DType::kF16, DType::kBF16, DType::kF32});
    form.same_zero = false;
    form.load_grid = [&scales, &zeros] { return Grid{ReadFloats(scales), UnpackWords(ReadBytes(zeros), 4, true)}; };
    return form;
  }

 private:
  static constexpr const char* kParts[] = {"qweight", "qzeros", "scales"};
  int64_t group_size_ = 0;
};

}  // namespace

std::unique_ptr<Scheme> ReadAwq(const SchemeConfig& config) { return std::make_unique<Awq>(config); }

}  // namespace llmi::checkpoints
