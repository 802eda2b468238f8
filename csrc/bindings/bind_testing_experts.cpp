// The steps of a layer with experts, one by one, for the tests.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/bind_testing.h"
#include "bindings/keywords.h"
#include "bindings/testing_activations.h"
#include "io/byte_source.h"
#include "kernels/ops/experts.h"
#include "kernels/ops/route.h"
#include "model/pack.h"

namespace py = pybind11;

namespace llmi {
namespace {

using IntArray = py::array_t<int32_t, py::array::c_style>;

RouterScore ParseScore(const std::string& name) {
  constexpr const char* kNames[] = {"softmax", "softmax_chosen", "sigmoid", "sparse_mixer"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<RouterScore>(i);
  }
  throw Error(ErrorKind::kInvalidArgument, "unknown score " + name);
}

// (experts, weights), [rows, num_used] each, of logits [rows, experts]. The fields of RouteArgs by name; group_score: "max" or "top2".
py::tuple TestRoute(const std::string& table, const FloatArray& logits, const py::kwargs& given) {
  std::string score = "softmax", group_score = "max";
  std::optional<FloatArray> bias;
  RouteArgs args{};
  args.num_groups = args.used_groups = 1;
  args.factor = 1.0f;
  Keywords keywords(given, "route");
  keywords.Read("num_used", &args.num_used);
  keywords.Read("score", &score);
  keywords.Read("choice_bias", &bias);
  keywords.Read("num_groups", &args.num_groups);
  keywords.Read("used_groups", &args.used_groups);
  keywords.Read("group_score", &group_score);
  keywords.Read("renormalise", &args.renormalise);
  keywords.Read("least_sum", &args.least_sum);
  keywords.Read("sum_epsilon", &args.sum_epsilon);
  keywords.Read("factor", &args.factor);
  keywords.Read("mixer_threshold", &args.mixer_threshold);
  keywords.CheckAllKnown();
  const KernelContext context = TestContext(table, 2);
  args.score = ParseScore(score);
  args.group_score = group_score == "top2" ? GroupScore::kTopTwo : GroupScore::kMax;
  args.num_rows = logits.shape(0);
  args.num_experts = logits.shape(1);
  const auto num_pairs = static_cast<size_t>(args.num_rows * args.num_used);
  PlacedFloats placed = Place(context, logits), weights(context, num_pairs);
  Placed<int32_t> experts(context, num_pairs);
  std::optional<PlacedFloats> placed_bias;
  if (bias) args.choice_bias = placed_bias.emplace(Place(context, *bias)).data();
  args.logits = placed.data();
  args.experts = experts.data();
  args.weights = weights.data();
  Route(context, args);
  return py::make_tuple(experts.Fetch(), weights.Fetch());
}

// [rows, size]: the weighted sum of what the experts of each row make of it. data: the experts' matrices [experts * size, columns] of this
// type; bias [experts * size] or None. chosen [rows, used] ascending, weights the same. By name: num_threads, bits.
FloatArray TestMix(const std::string& table, const std::string& dtype, const py::bytes& data, const std::optional<FloatArray>& bias,
                   const FloatArray& x, const IntArray& chosen, const FloatArray& weights, int64_t num_experts, const py::kwargs& given) {
  int num_threads = 1, bits = 8;
  Keywords keywords(given, "mix_experts");
  keywords.Read("num_threads", &num_threads);
  keywords.Read("bits", &bits);
  keywords.CheckAllKnown();
  const KernelContext context = TestContext(table, num_threads);
  const std::string bytes = data;
  const MemoryBytes memory(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  TensorView view{"test", DType::kF32, {}, bytes.size(), 0, &memory};
  while (Info(view.dtype).name != dtype) view.dtype = static_cast<DType>(static_cast<int>(view.dtype) + 1);
  const DTypeInfo& info = Info(view.dtype);
  const int64_t num_cols = x.shape(1);
  const int64_t all_rows = static_cast<int64_t>(bytes.size()) / info.block_bytes * info.block_size / num_cols;
  const int64_t size = all_rows / num_experts;
  const int64_t padded = NumTiles(size) * kTileRows;
  view.shape = {static_cast<uint64_t>(all_rows), static_cast<uint64_t>(num_cols)};
  const RowMap rows = {num_experts * padded, [=](int64_t row) { return row % padded < size ? row / padded * size + row % padded : -1; }};
  const PackedMatrix matrix(context, view, WeightFormat::kAsStored, &rows, nullptr, true);
  std::vector<float> padded_bias(static_cast<size_t>(num_experts * padded));
  for (int64_t i = 0; bias && i < all_rows; ++i) padded_bias[static_cast<size_t>(i / size * padded + i % size)] = bias->data()[i];

  const int64_t num_rows = x.shape(0), num_used = chosen.shape(1), num_pairs = num_rows * num_used;
  const auto count = static_cast<size_t>(num_pairs);
  Placed<int32_t> experts(context, chosen.data(), count), first(context, static_cast<size_t>(num_experts + 1)), pair_rows(context, count),
      places(context, count);
  const ExpertPairs pairs = {num_experts, num_used, num_rows, experts.data(), first.data(), pair_rows.data(), places.data()};
  SortPairs(context, pairs);
  const bool is_quantized = IsQuantizedPacked(matrix.view().type);
  PlacedFloats placed_x = Place(context, x), gathered(context, static_cast<size_t>(num_pairs * num_cols));
  PlacedFloats values(context, static_cast<size_t>(num_pairs * size)), out(context, static_cast<size_t>(num_rows * size));
  PlacedFloats placed_weights = Place(context, weights), placed_bias(context, padded_bias.data(), padded_bias.size());
  const TestActivations made(context, num_rows, num_cols, false, bits), own(context, num_pairs, num_cols, false, bits);
  const LinearInput from = is_quantized ? LinearInput{made.rows} : LinearInput{}, to = is_quantized ? LinearInput{own.rows} : LinearInput{};
  ConvertInput(context, placed_x.data(), num_rows, num_cols, from);
  GatherPairs(context, pairs, placed_x.data(), from, num_cols, gathered.data(), to);
  LinearPart part = {.weights = matrix.view(), .bias = bias ? placed_bias.data() : nullptr};
  part.weights.num_rows = size;
  ExpertLinear(context, pairs,
               {.parts = &part,
                .num_parts = 1,
                .num_rows = num_pairs,
                .x = gathered.data(),
                .x_stride = num_cols,
                .quantized = to.quantized,
                .out = values.data(),
                .out_stride = size});
  MixPairs(context, pairs, placed_weights.data(), values.data(), size, out.data());
  FloatArray result({static_cast<py::ssize_t>(num_rows), static_cast<py::ssize_t>(size)});
  out.Fetch(result.mutable_data());
  return result;
}

}  // namespace

void RegisterTestingExperts(py::module_& module) {
  module.def("route", &TestRoute, py::arg("table"), py::arg("logits"));
  module.def("mix_experts", &TestMix, py::arg("table"), py::arg("dtype"), py::arg("data"), py::arg("bias").none(true), py::arg("x"),
             py::arg("chosen"), py::arg("weights"), py::arg("num_experts"));
}

}  // namespace llmi
