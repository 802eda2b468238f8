// compressed-tensors (llm-compressor): integers and floats of 4 and 8 bits, with scales by tensor, row, group or block.
// Source: compressed-tensors' quantization/quant_args.py and compressors/.
#include <cmath>
#include <optional>
#include <utility>

#include "core/errors.h"
#include "model/checkpoints/scheme.h"

namespace llmi::checkpoints {
namespace {

constexpr const char* kHowScaled = "how the scales were found";
constexpr const char* kActivations = "how other engines round activations; llmi's own rounding is activation_bits";
constexpr InertKey kCompressedTensorsInert[] = {
    {"quant_method", "read before"},
    {"version", "a note on where the file comes from"},
    {"global_compression_ratio", "a note on where the file comes from"},
    {"ignore", kTensorsShowWhich},
    {"config_groups.*.targets", kTensorsShowWhich},
    {"config_groups.*.input_activations", kActivations},
    {"kv_cache_scheme", "a type of KV cache of other engines; llmi's is kv_cache_dtype"},
    {"kv_cache_scheme.*", "a type of KV cache of other engines; llmi's is kv_cache_dtype"},
    {"config_groups.*.weights.observer", kHowScaled},
    {"config_groups.*.weights.observer_kwargs", kHowScaled},
    {"config_groups.*.weights.scale_dtype", "the tensor of the scales says it"},
    {"config_groups.*.weights.zp_dtype", "the tensor of the zeros says it"},
};

// kNaive: integers or fp8, as `type` says.
enum class Format : uint8_t { kPackedIntegers, kIntegers, kNaive, kFloat8, kNvFloat4, kMxFloat4 };
enum class Strategy : uint8_t { kTensor, kChannel, kGroup, kBlock };

// One of config_groups.
struct Group {
  Format format = Format::kPackedIntegers;
  Strategy strategy = Strategy::kTensor;
  int bits = 4;
  bool symmetric = true;
  bool ordered_by_activation = false;  // weight_g_idx is stored
  int64_t group_size = 0;
  uint64_t block_rows = 1, block_cols = 1;
  std::string text;  // for messages
};

Format ReadFormat(const SchemeConfig& config, const std::string& outer) {
  const std::string name = config.Choice(
      "format", {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"},
      outer);
  if (name == "pack-quantized") return Format::kPackedIntegers;
  if (name == "int-quantized") return Format::kIntegers;
  if (name == "float-quantized") return Format::kFloat8;
  if (name == "nvfp4-pack-quantized") return Format::kNvFloat4;
  if (name == "mxfp4-pack-quantized") return Format::kMxFloat4;
  return Format::kNaive;
}

void ReadNumbers(const SchemeConfig& weights, Group* group) {
  const bool is_float = weights.Choice("type", {"int", "float"}, "int") == "float";
  if (group->format == Format::kNaive) group->format = is_float ? Format::kFloat8 : Format::kIntegers;
  const bool wants_float = group->format >= Format::kFloat8;
  if (is_float != wants_float) weights.Refuse("type", "does not belong to the format");
  switch (group->format) {
    case Format::kPackedIntegers: group->bits = static_cast<int>(weights.Number("num_bits", {4, 8})); break;
    case Format::kIntegers:
    case Format::kNaive:
    case Format::kFloat8: group->bits = static_cast<int>(weights.Number("num_bits", {8})); break;
    case Format::kNvFloat4:
    case Format::kMxFloat4: group->bits = static_cast<int>(weights.Number("num_bits", {4})); break;
  }
  group->symmetric = weights.fields().Bool("symmetric", true);
  if (wants_float && !group->symmetric) weights.Refuse("symmetric", "is false: floats have no zeros");
  weights.RequireOff("dynamic", "weights whose scales are found while running");
  const std::string order = weights.Choice("actorder", {"", "group", "dynamic", "weight", "static"}, "");
  group->ordered_by_activation = order == "group" || order == "dynamic";
}

void ReadStrategy(const SchemeConfig& weights, Group* group) {
  std::string name;
  if (group->format == Format::kNvFloat4) {
    name = weights.Choice("strategy", {"tensor_group"}, "");
    weights.Number("group_size", {16});
    group->group_size = 16;
  } else if (group->format == Format::kMxFloat4) {
    name = weights.Choice("strategy", {"group"}, "");
    weights.Number("group_size", {32});
    group->group_size = 32;
  } else {
    name = weights.Choice("strategy", {"tensor", "channel", "group", "block"}, "tensor");
    if (name == "group") group->group_size = weights.GroupSize();
    if (name != "group") weights.fields().Find("group_size");
  }
  weights.fields().Find("block_structure");
  if (name == "block") {
    const auto [rows, cols] = weights.Block("block_structure");
    group->block_rows = static_cast<uint64_t>(rows);
    group->block_cols = static_cast<uint64_t>(cols);
    group->group_size = cols;
  }
  group->strategy = name == "tensor"    ? Strategy::kTensor
                    : name == "channel" ? Strategy::kChannel
                    : name == "block"   ? Strategy::kBlock
                                        : Strategy::kGroup;
  group->text = "compressed-tensors (" + std::to_string(group->bits) + " bits, strategy '" + name + "'" +
                (group->group_size > 0 ? ", groups of " + std::to_string(group->group_size) : "") + ")";
}

class CompressedTensors : public Scheme {
 public:
  explicit CompressedTensors(const SchemeConfig& config) {
    config.Choice("quantization_status", {"compressed", "frozen"}, "compressed");
    config.RequireOff("transform_config", "transforms of the activations");
    ReadSparsity(config);
    const std::string format = config.fields().String("format", "");
    const std::optional<JsonFields> groups = config.fields().Object("config_groups");
    const Json* object = config.fields().Find("config_groups");
    if (!groups || object->AsObject("config_groups").empty()) config.Refuse("config_groups", "is missing or empty");
    for (const auto& [name, unused] : object->AsObject("config_groups")) ReadGroup(config, *groups, name, format);
    config.CheckAllRead({kCompressedTensorsInert});
  }

  std::span<const char* const> parts() const override { return kParts; }
  std::span<const char* const> inert_parts() const override { return kInertParts; }

  // The first group of the config that fits; with several, modules are told apart by their tensors.
  MatrixForm Read(const ModuleParts& parts) const override {
    std::optional<Error> first;
    for (const Group& group : groups_) {
      try {
        return ReadAs(group, parts);
      } catch (const Error& error) {
        if (!first) first = error;
      }
    }
    throw *first;
  }

 private:
  static void ReadSparsity(const SchemeConfig& config) {
    const std::optional<JsonFields> sparsity = config.fields().Object("sparsity_config");
    if (!sparsity || config.fields().Find("sparsity_config")->AsObject("sparsity_config").empty()) return;
    SchemeConfig(*sparsity, config.method()).Choice("format", {"dense"}, "sparse");
    for (const char* key : {"global_sparsity", "ignore", "registry_requires_subclass", "sparsity_structure", "targets"})
      sparsity->Find(key);
  }

  void ReadGroup(const SchemeConfig& config, const JsonFields& groups, const std::string& name, const std::string& format) {
    const std::optional<JsonFields> fields = groups.Object(name);
    if (!fields) config.Refuse("config_groups", "has the empty group '" + name + "'");
    const SchemeConfig inner(*fields, config.method());
    inner.RequireOff("output_activations", "quantised outputs");
    const std::optional<JsonFields> weights = fields->Object("weights");
    if (!weights) inner.Refuse("weights", "is missing");
    const SchemeConfig of_weights(*weights, config.method());
    Group group;
    group.format = ReadFormat(inner, format);
    ReadNumbers(of_weights, &group);
    ReadStrategy(of_weights, &group);
    groups_.push_back(group);
  }

  static MatrixForm ReadAs(const Group& group, const ModuleParts& stored) {
    ModuleParts parts = stored;
    switch (group.format) {
      case Format::kPackedIntegers: return ReadPacked(group, parts);
      case Format::kIntegers:
      case Format::kNaive:
      case Format::kFloat8: return ReadBytesOf(group, parts);
      case Format::kNvFloat4:
      case Format::kMxFloat4: return ReadFloat4(group, parts);
    }
    throw Error(ErrorKind::kInternal, "a format without a reader");
  }

  // The groups of the grid, after checking its shape.
  static void CheckGrid(const Group& group, const TensorView& view, uint64_t num_rows, uint64_t num_cols) {
    switch (group.strategy) {
      case Strategy::kTensor: return RequireShape(view, {{1}, {}}, group.text);
      case Strategy::kChannel: return RequireShape(view, {{num_rows, 1}}, group.text);
      case Strategy::kGroup: {
        const uint64_t size = group.group_size == 0 ? num_cols : static_cast<uint64_t>(group.group_size);
        return RequireShape(view, {{num_rows, Groups(num_cols, size)}}, group.text);
      }
      case Strategy::kBlock:
        return RequireShape(view, {{Groups(num_rows, group.block_rows), Groups(num_cols, group.block_cols)}}, group.text);
    }
  }

  static MatrixForm FormOf(const Group& group, const TensorView& codes, CodeLayout layout, uint64_t num_rows, uint64_t num_cols) {
    MatrixForm form = RowGridForm(codes, layout, group.bits, num_rows, num_cols, group.group_size);
    if (group.strategy == Strategy::kTensor) form.row_step = form.group_step = 0;
    form.row_block = static_cast<int64_t>(group.block_rows);
    form.zero = 1 << (group.bits - 1);
    return form;
  }

  static MatrixForm ReadPacked(const Group& group, const ModuleParts& parts) {
    const TensorView& codes = parts.Required("weight_packed");
    const TensorView& scales = parts.Required("weight_scale");
    const TensorView& shape = parts.Required("weight_shape");
    const TensorView* zeros = group.symmetric ? nullptr : &parts.Required("weight_zero_point");
    const TensorView* order = group.ordered_by_activation ? &parts.Required("weight_g_idx") : nullptr;
    parts.CheckAllUsed(group.text);
    RequireMatrix(codes);
    RequireType(codes, {DType::kI32});
    RequireShape(shape, {{2}}, group.text);
    const auto per_word = static_cast<uint64_t>(32 / group.bits);
    const std::vector<int64_t> extents = ReadIntegers(shape);
    const uint64_t num_rows = codes.shape[0], num_cols = codes.shape[1] * per_word;
    if (extents[0] != static_cast<int64_t>(num_rows) || extents[1] != static_cast<int64_t>(num_cols)) {
      FailTensor(codes, "has shape " + ShapeText(codes.shape) + ": with " + std::to_string(group.bits) + " bits it holds " +
                            ShapeText({num_rows, num_cols}) + ", and weight_shape is [" + std::to_string(extents[0]) + ", " +
                            std::to_string(extents[1]) + "]");
    }
    CheckGrid(group, scales, num_rows, num_cols);
    RequireType(scales, {DType::kBF16, DType::kF16, DType::kF32});
    MatrixForm form = FormOf(group, codes, CodeLayout::kWordsAlongIn, num_rows, num_cols);
    if (order != nullptr) form.group_of = Order(*order, num_cols, form);
    form.same_zero = zeros == nullptr;
    if (zeros != nullptr) {
      RequireType(*zeros, {DType::kI32});
      RequireShape(*zeros, {{Groups(num_rows, per_word), Groups(num_cols, static_cast<uint64_t>(form.group_size))}}, group.text);
    }
    const int bits = group.bits;
    form.load_grid = [&scales, zeros, bits, num_rows] {
      return Grid{ReadFloats(scales), zeros == nullptr ? std::vector<int32_t>() : ZerosAlongOut(*zeros, bits, num_rows)};
    };
    return form;
  }

  static std::vector<int32_t> Order(const TensorView& view, uint64_t num_cols, const MatrixForm& form) {
    RequireShape(view, {{num_cols}}, "weight_packed");
    std::vector<int32_t> order;
    const auto groups = static_cast<int64_t>(Groups(num_cols, static_cast<uint64_t>(form.group_size)));
    for (const int64_t group : ReadIntegers(view)) {
      if (group < 0 || group >= groups) FailTensor(view, "names group " + std::to_string(group) + " of " + std::to_string(groups));
      order.push_back(static_cast<int32_t>(group));
    }
    return order;
  }

  // Zeros [num_rows, groups] from words [ceil(num_rows / n), groups] along the rows.
  static std::vector<int32_t> ZerosAlongOut(const TensorView& view, int bits, uint64_t num_rows) {
    const auto per_word = static_cast<uint64_t>(32 / bits);
    const uint64_t groups = view.shape[1];
    const std::vector<int32_t> codes = UnpackWords(ReadBytes(view), bits, false);
    std::vector<int32_t> zeros(num_rows * groups);
    for (uint64_t row = 0; row < num_rows; ++row) {
      for (uint64_t group = 0; group < groups; ++group) {
        zeros[row * groups + group] = codes[(row / per_word * groups + group) * per_word + row % per_word];
      }
    }
    return zeros;
  }

  static MatrixForm ReadBytesOf(const Group& group, const ModuleParts& parts) {
    const bool is_float = group.format == Format::kFloat8;
    const TensorView& codes = parts.Required("weight");
    const TensorView& scales = parts.Required("weight_scale");
    const TensorView* zeros = group.symmetric ? nullptr : &parts.Required("weight_zero_point");
    parts.CheckAllUsed(group.text);
    RequireMatrix(codes);
    RequireType(codes, {is_float ? DType::kF8E4M3 : DType::kI8});
    CheckGrid(group, scales, codes.shape[0], codes.shape[1]);
    RequireType(scales, {DType::kBF16, DType::kF16, DType::kF32});
    MatrixForm form = FormOf(group, codes, is_float ? CodeLayout::kBytes : CodeLayout::kSignedBytes, codes.shape[0], codes.shape[1]);
    if (is_float) form.table = Float8Values();
    if (zeros != nullptr) {
      RequireType(*zeros, {DType::kI8});
      CheckGrid(group, *zeros, codes.shape[0], codes.shape[1]);
      form.same_zero = false;
    }
    form.load_grid = [&scales, zeros] {
      Grid grid{ReadFloats(scales), {}};
      if (zeros != nullptr) {
        for (const int64_t zero : ReadIntegers(*zeros)) grid.zeros.push_back(static_cast<int32_t>(zero + 128));
      }
      return grid;
    };
    return form;
  }

  static MatrixForm ReadFloat4(const Group& group, const ModuleParts& parts) {
    const bool is_nv = group.format == Format::kNvFloat4;
    const TensorView& codes = parts.Required("weight_packed");
    const TensorView& scales = parts.Required("weight_scale");
    const TensorView* global = is_nv ? &parts.Required("weight_global_scale") : nullptr;
    parts.CheckAllUsed(group.text);
    RequireMatrix(codes);
    RequireType(codes, {DType::kU8});
    const uint64_t num_rows = codes.shape[0], num_cols = codes.shape[1] * 2;
    CheckGrid(group, scales, num_rows, num_cols);
    RequireType(scales, is_nv ? std::initializer_list<DType>{DType::kF8E4M3} : std::initializer_list<DType>{DType::kU8, DType::kF8E8M0});
    MatrixForm form = FormOf(group, codes, CodeLayout::kLowNibbles, num_rows, num_cols);
    form.table = Float4Values();
    if (!is_nv) {
      form.load_grid = [&scales] { return Grid{ReadPowersOfTwo(scales), {}}; };
      return form;
    }
    RequireType(*global, {DType::kF32});
    RequireShape(*global, {{1}, {}}, group.text);
    form.load_grid = [&scales, global] {
      Grid grid{ReadFloats(scales), {}};
      const float divisor = ReadFloats(*global)[0];
      for (float& scale : grid.scales) scale /= divisor;
      return grid;
    };
    return form;
  }

  static constexpr const char* kParts[] = {"weight_packed",     "weight_scale", "weight_shape",
                                           "weight_zero_point", "weight_g_idx", "weight_global_scale"};
  static constexpr const char* kInertParts[] = {"input_scale", "input_global_scale", "input_zero_point", "k_scale", "v_scale", "q_scale"};
  std::vector<Group> groups_;
};

}  // namespace

std::unique_ptr<Scheme> ReadCompressedTensors(const SchemeConfig& config) { return std::make_unique<CompressedTensors>(config); }

}  // namespace llmi::checkpoints
