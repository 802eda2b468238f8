// gpt-oss' mxfp4: blocks of 32 values of fp4 (e2m1) with a power of two each, of all experts in one tensor.
// Source: transformers' integrations/mxfp4.py.
#include "core/errors.h"
#include "model/checkpoints/scheme.h"

namespace llmi::checkpoints {
namespace {

constexpr InertKey kMxfp4Inert[] = {
    {"quant_method", "read before"},
    {"modules_to_not_convert", kTensorsShowWhich},
    {"dequantize", "how other engines compute"},
};

class Mxfp4 : public Scheme {
 public:
  explicit Mxfp4(const SchemeConfig& config) { config.CheckAllRead({kMxfp4Inert}); }

  std::span<const char* const> parts() const override { return kParts; }
  char separator() const override { return '_'; }
  std::string NameOf(const std::string& module) const override { return module; }

  MatrixForm Read(const ModuleParts& parts) const override {
    const TensorView& codes = parts.Required("blocks");
    const TensorView& scales = parts.Required("scales");
    parts.CheckAllUsed("mxfp4");
    RequireType(codes, {DType::kU8});
    RequireType(scales, {DType::kU8, DType::kF8E8M0});
    const std::vector<uint64_t>& shape = codes.shape;
    if (shape.size() != 4 || shape[3] != kBlockBytes || shape[0] * shape[1] * shape[2] == 0) {
      FailTensor(codes, "has shape " + ShapeText(shape) + ", where blocks are [experts, rows, columns / 32, 16]");
    }
    RequireShape(scales, {{shape[0], shape[1], shape[2]}}, "mxfp4");
    MatrixForm form = RowGridForm(codes, CodeLayout::kLowNibbles, 4, shape[0] * shape[1], 32 * shape[2], 32);
    form.num_experts = static_cast<int64_t>(shape[0]);
    form.table = Float4Values();
    form.load_grid = [&scales] { return Grid{ReadPowersOfTwo(scales), {}}; };
    return form;
  }

 private:
  static constexpr uint64_t kBlockBytes = 16;
  static constexpr const char* kParts[] = {"blocks", "scales"};
};

}  // namespace

std::unique_ptr<Scheme> ReadMxfp4(const SchemeConfig& config) { return std::make_unique<Mxfp4>(config); }

}  // namespace llmi::checkpoints
