// Packed matrices and linear layers, one by one, for the tests.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind_testing.h"
#include "bindings/keywords.h"
#include "bindings/testing_activations.h"
#include "io/model_files.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/gated_linear.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_input.h"
#include "kernels/ops/linear_step.h"
#include "model/checkpoints/checkpoint.h"
#include "model/dequantize.h"
#include "model/pack.h"
#include "model/quantize.h"

namespace py = pybind11;

namespace llmi {
namespace {

DType ParseDType(const std::string& name) {
  for (size_t i = 0; i < std::size(kDTypeInfos); ++i) {
    if (name == kDTypeInfos[i].name) return static_cast<DType>(i);
  }
  throw Error(ErrorKind::kInvalidArgument, "unknown dtype " + name);
}

// A packed matrix from raw bytes in memory.
class TestMatrix {
 public:
  TestMatrix(const std::string& table, const std::string& dtype, const py::bytes& data, int64_t rows, int64_t cols,
             const std::string& format) {
    const std::string bytes = data;
    TensorView view;
    view.name = "test";
    view.dtype = ParseDType(dtype);
    view.shape = {static_cast<uint64_t>(rows), static_cast<uint64_t>(cols)};
    view.num_bytes = bytes.size();
    const DTypeInfo& info = Info(view.dtype);
    CheckArgument(view.num_bytes == static_cast<uint64_t>(rows * cols) / info.block_size * info.block_bytes, "wrong number of bytes");
    const MemoryBytes memory(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    view.source = &memory;
    const WeightFormat weight_format = ParseWeightFormat(format);
    matrix_ = PackedMatrix(TestContext(table, 1), view, weight_format);
  }
  PackedView view() const { return matrix_.view(); }

 private:
  PackedMatrix matrix_;
};

// An RMS or a layer norm of x, for an op that reads its rows.
struct GivenNorm {
  PlacedFloats weight;
  PlacedFloats made;
  NormArgs args;

  GivenNorm(const KernelContext& context, PlacedFloats& x, const FloatArray& shape, const FloatArray& given, bool is_layer)
      : weight(Place(context, given)),
        made(context, static_cast<size_t>(shape.size())),
        args{.kind = is_layer ? NormKind::kLayer : NormKind::kRms,
             .x = x.data(),
             .x_stride = shape.shape(1),
             .out = made.data(),
             .out_stride = shape.shape(1),
             .num_rows = shape.shape(0),
             .size = shape.shape(1),
             .weight = weight.data(),
             .eps = 1e-6f} {}
};

// The forms that gated_linear makes of its output. bias: added by both layers. By name: activation, fine, num_threads, bits; norm,
// the weights of an RMS norm of x.
py::tuple TestGatedLinear(const std::string& table, const TestMatrix& gate, const TestMatrix& up, const FloatArray& x,
                          const std::vector<float>& bias, const py::kwargs& given) {
  bool fine = false;
  int num_threads = 1, bits = 8;
  Keywords keywords(given, "gated_linear_forms");
  std::string activation = "silu";
  std::optional<FloatArray> norm;
  keywords.Read("norm", &norm);
  keywords.Read("activation", &activation);
  keywords.Read("fine", &fine);
  keywords.Read("num_threads", &num_threads);
  keywords.Read("bits", &bits);
  keywords.CheckAllKnown();
  const KernelContext context = TestContext(table, num_threads);
  const int64_t num_rows = x.shape(0);
  const int64_t size = gate.view().num_rows;
  PlacedFloats placed_x = Place(context, x);
  PlacedFloats placed_bias(context, bias.data(), bias.size());
  PlacedFloats gate_up(context, static_cast<size_t>(num_rows * 2 * size));
  PlacedFloats out(context, static_cast<size_t>(num_rows * size));
  const TestActivations activations(context, num_rows, x.shape(1), false, bits);
  const TestActivations made(context, num_rows, size, fine, bits);
  ConvertInput(context, placed_x.data(), num_rows, x.shape(1), {activations.rows});
  const LinearPart parts[] = {{.weights = gate.view(), .bias = placed_bias.data()},
                              {.weights = up.view(), .bias = placed_bias.data(), .out_column = size}};
  LinearArgs args = {.parts = parts,
                     .num_parts = 2,
                     .num_rows = num_rows,
                     .x = placed_x.data(),
                     .x_stride = x.shape(1),
                     .quantized = activations.rows,
                     .out = gate_up.data(),
                     .out_stride = 2 * size};
  const ActivationArgs activate = {
      .activation = ParseActivation(activation), .gated = true, .x = gate_up.data(), .num_rows = num_rows, .size = size, .out = out.data()};
  if (norm) {
    const GivenNorm normed(context, placed_x, x, *norm, false);
    args.x = normed.args.out;
    RunLinearStep(context,
                  {.norm = &normed.args, .input = {activations.rows}, .layers = args, .activation = &activate, .forms = {made.rows}});
  } else {
    GatedLinear(context, args, activate, {made.rows});
  }
  return made.Fetch();
}

// The parts of a layer, with their biases where the context's ops read them.
struct TestParts {
  std::vector<LinearPart> list;
  std::deque<PlacedFloats> placed_biases;
  int64_t width = 0;  // outputs of all parts
  bool quantized = false;

  TestParts(const KernelContext& context, const std::vector<TestMatrix*>& matrices, const std::vector<std::vector<float>>& biases) {
    for (size_t i = 0; i < matrices.size(); ++i) {
      const PackedView view = matrices[i]->view();
      const bool has_bias = i < biases.size() && !biases[i].empty();
      if (has_bias) placed_biases.emplace_back(context, biases[i].data(), biases[i].size());
      list.push_back({.weights = view, .bias = has_bias ? placed_biases.back().data() : nullptr, .out_column = width});
      width += view.num_rows;
      quantized = quantized || IsQuantizedPacked(view.type);
    }
  }
};

// One linear layer of several matrices. By name: biases and residual, which may be left out; num_threads; fine and bits, of the quantised
// input; tiles, the ranges to compute, all if left out; codes, which replace those of a 16-bit input; norm, the weights of an RMS norm of
// x, or, with layer_norm, of a layer norm.
FloatArray TestLinear(const std::string& table, const std::vector<TestMatrix*>& matrices, const FloatArray& x, const py::kwargs& given) {
  std::vector<std::vector<float>> biases;
  std::optional<FloatArray> residual;
  std::optional<std::vector<std::pair<int64_t, int64_t>>> tiles;
  std::optional<CodeBytes> codes;
  std::optional<FloatArray> norm;
  bool fine = false, layer_norm = false;
  int num_threads = 1, bits = 8;
  Keywords keywords(given, "linear");
  keywords.Read("biases", &biases);
  keywords.Read("residual", &residual);
  keywords.Read("tiles", &tiles);
  keywords.Read("codes", &codes);
  keywords.Read("norm", &norm);
  keywords.Read("layer_norm", &layer_norm);
  keywords.Read("fine", &fine);
  keywords.Read("num_threads", &num_threads);
  keywords.Read("bits", &bits);
  keywords.CheckAllKnown();
  const KernelContext context = TestContext(table, num_threads);
  const TestParts parts(context, matrices, biases);
  FloatArray out({x.shape(0), static_cast<py::ssize_t>(parts.width)});
  if (residual) std::memcpy(out.mutable_data(), residual->data(), static_cast<size_t>(out.nbytes()));
  std::optional<TestActivations> activations;
  PlacedFloats placed_x = Place(context, x);
  PlacedFloats placed_out = Place(context, out);
  LinearInput input;
  if (parts.quantized) input.quantized = activations.emplace(context, x.shape(0), x.shape(1), fine, bits).rows;
  std::vector<uint16_t> rounded(context.bf16_dots ? static_cast<size_t>(x.size()) : 0);
  if (context.bf16_dots) input.rounded = rounded.data();
  ConvertInput(context, placed_x.data(), x.shape(0), x.shape(1), input);
  if (codes && activations) activations->Replace(context, *codes);
  LinearArgs args = {.parts = parts.list.data(),
                     .num_parts = static_cast<int64_t>(parts.list.size()),
                     .num_rows = x.shape(0),
                     .x = placed_x.data(),
                     .x_stride = x.shape(1),
                     .quantized = input.quantized,
                     .out = placed_out.data(),
                     .out_stride = parts.width,
                     .accumulate = residual.has_value(),
                     .x_bf16 = input.rounded};
  if (norm) {
    const GivenNorm normed(context, placed_x, x, *norm, layer_norm);
    args.x = normed.args.out;
    RunLinearStep(context, {.norm = &normed.args, .input = input, .layers = args});
  } else if (tiles) {
    std::vector<TileRange> ranges;
    for (const auto& [begin, end] : *tiles) ranges.push_back({begin, end});
    LinearTiles(context, args, ranges);
  } else {
    Linear(context, args);
  }
  placed_out.Fetch(out.mutable_data());
  return out;
}

// (type, values [rows, cols] in fp32) of a tensor of the checkpoint in a directory.
std::pair<std::string, FloatArray> ReadMatrix(const std::string& path, const std::string& name, const std::string& quantization) {
  const ModelFiles files(path);
  const std::unique_ptr<Checkpoint> checkpoint = OpenCheckpoint(files, quantization);
  const TensorView* view = checkpoint->Find(name);
  if (view == nullptr || view->shape.size() != 2) throw Error(ErrorKind::kInvalidArgument, "there is no matrix '" + name + "'");
  std::vector<uint8_t> bytes(view->num_bytes);
  // In pieces that begin and end within rows.
  constexpr uint64_t kPiece = 1001;
  for (uint64_t begin = 0; begin < bytes.size(); begin += kPiece)
    view->Read(begin, std::min(kPiece, bytes.size() - begin), bytes.data() + begin);
  FloatArray values({static_cast<py::ssize_t>(view->shape[0]), static_cast<py::ssize_t>(view->shape[1])});
  DequantizeRow(view->dtype, bytes.data(), values.size(), values.mutable_data());
  return {Info(view->dtype).name, values};
}

void RegisterQuantization(py::module_& module) {
  module.def("dequantize_row", [](const std::string& dtype, const py::bytes& data, int64_t num_values) {
    FloatArray out(num_values);
    const std::string bytes = data;
    DequantizeRow(ParseDType(dtype), reinterpret_cast<const uint8_t*>(bytes.data()), num_values, out.mutable_data());
    return out;
  });
  module.def("read_matrix", &ReadMatrix, py::arg("path"), py::arg("name"), py::arg("quantization"));
  module.def("quantize_blocks", [](const std::string& dtype, const FloatArray& values) {
    const DType type = ParseDType(dtype);
    std::string out(static_cast<size_t>(values.size() / Info(type).block_size * Info(type).block_bytes), '\0');
    QuantizeRow(type, values.data(), values.size(), reinterpret_cast<uint8_t*>(out.data()));
    return py::bytes(out);
  });
  module.def("probe_dots", [](const std::string& table, int64_t iterations, const py::bytes& block, const FloatArray& x) {
    const KernelContext context = TestContext(table, 1);
    const TestActivations a(context, x.shape(0), x.shape(1), false, 8);
    ConvertInput(context, x.data(), x.shape(0), x.shape(1), {a.rows});
    FloatArray out({kProbeDotRows, int64_t{16}});
    const std::string bytes = block;
    TestContext(table, 1).table->probe_dots(iterations, reinterpret_cast<const uint8_t*>(bytes.data()), a.rows, out.mutable_data());
    return out;
  });
}

}  // namespace

void RegisterTestingLinear(py::module_& module) {
  RegisterQuantization(module);
  py::class_<TestMatrix>(module, "PackedMatrix")
      .def(py::init<const std::string&, const std::string&, const py::bytes&, int64_t, int64_t, const std::string&>(), py::arg("table"),
           py::arg("dtype"), py::arg("data"), py::arg("rows"), py::arg("cols"), py::arg("format") = "auto");
  module.def(
      "quantize_rows",
      [](const std::string& table, const FloatArray& x, bool fine, int bits) {
        const KernelContext context = TestContext(table, 1);
        const TestActivations activations(context, x.shape(0), x.shape(1), fine, bits);
        ConvertInput(context, Place(context, x).data(), x.shape(0), x.shape(1), {activations.rows});
        return activations.Fetch();
      },
      py::arg("table"), py::arg("x"), py::arg("fine") = false, py::arg("bits") = 8);
  module.def("linear", &TestLinear, py::arg("table"), py::arg("matrices"), py::arg("x"));
  module.def("embedding", [](const std::string& table, const TestMatrix& matrix, const std::vector<int32_t>& ids, float scale) {
    const KernelContext context = TestContext(table, 1);
    FloatArray out({static_cast<py::ssize_t>(ids.size()), static_cast<py::ssize_t>(matrix.view().num_cols)});
    PlacedFloats placed(context, static_cast<size_t>(out.size()));
    Embedding(context, matrix.view(), ids.data(), static_cast<int64_t>(ids.size()), scale, placed.data());
    placed.Fetch(out.mutable_data());
    return out;
  });
  module.def("gated_linear_forms", &TestGatedLinear, py::arg("table"), py::arg("gate"), py::arg("up"), py::arg("x"), py::arg("bias"));
}

}  // namespace llmi
