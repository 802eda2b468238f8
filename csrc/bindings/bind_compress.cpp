// What compression computes in the core: sums over the inputs of linear layers, and rounding with error feedback.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/engine_handle.h"
#include "bindings/gil.h"
#include "core/fp_env.h"
#include "model/error_feedback.h"
#include "model/input_sums.h"
#include "model/row_products.h"
#include "model/scale_search.h"

namespace py = pybind11;

namespace llmi {
namespace {

using FloatMatrix = py::array_t<float, py::array::c_style>;

// (readers, counts, squares [matrix, column] flat, offset of the products in the file or -1, kept rows flat) of each input.
py::list Inputs(EngineHandle& handle) {
  std::unique_ptr<InputSums> sums;
  {
    const GilReleased release;
    sums = handle.engine().TakeInputs();
  }
  py::list inputs;
  for (const InputSums::Input& input : sums->inputs()) {
    inputs.append(py::make_tuple(input.readers, CopyArray(input.counts), CopyArray(input.squares),
                                 input.products != nullptr ? input.products->offset() : int64_t{-1}, CopyArray(input.kept)));
  }
  return inputs;
}

py::tuple Factor(const FloatMatrix& products, const std::vector<int64_t>& order, double damping) {
  const auto size = static_cast<int64_t>(order.size());
  std::vector<int64_t> sorted = order;
  std::ranges::sort(sorted);
  bool is_order = products.ndim() == 2 && products.shape(0) == size && products.shape(1) == size;
  for (int64_t i = 0; is_order && i < size; ++i) is_order = sorted[static_cast<size_t>(i)] == i;
  CheckArgument(is_order, "products are [size, size], and the order is one of [0, size)");
  ProductFactor factor;
  {
    const GilReleased release;
    const FloatEnvironmentGuard guard;
    factor = FactorProducts(products.data(), order, damping);
  }
  return py::make_tuple(CopyArray(factor.upper).reshape({size, size}), CopyArray(factor.pivots));
}

py::array Feed(const FloatMatrix& values, FloatMatrix& targets, const FloatMatrix& upper, int64_t begin, int64_t count,
               const FloatMatrix& scales, const FloatMatrix& lows, int32_t least, int32_t most, const std::vector<float>& levels) {
  const bool is_matrix = values.ndim() == 2 && targets.ndim() == 2 && upper.ndim() == 2;
  CheckArgument(is_matrix && std::equal(values.shape(), values.shape() + 2, targets.shape()) && upper.shape(0) == values.shape(1) &&
                    upper.shape(1) == values.shape(1) && scales.size() == values.shape(0) && lows.size() == values.shape(0),
                "values and targets are [rows, columns], upper [columns, columns], scales and lows [rows]");
  CheckArgument(0 <= begin && 0 < count && count <= values.shape(1) - begin, "columns that are not there");
  py::array_t<int16_t> codes({values.shape(0), static_cast<py::ssize_t>(count)});
  const FeedbackArgs args = {.num_rows = values.shape(0),
                             .num_cols = values.shape(1),
                             .values = values.data(),
                             .targets = targets.mutable_data(),
                             .upper = upper.data(),
                             .begin = begin,
                             .count = count,
                             .scales = scales.data(),
                             .lows = lows.data(),
                             .least = least,
                             .most = most,
                             .levels = levels,
                             .codes = codes.mutable_data()};
  const GilReleased release;
  const FloatEnvironmentGuard guard;
  FeedErrors(args);
  return codes;
}

void FeedZeros(const FloatMatrix& values, FloatMatrix& targets, const FloatMatrix& upper, int64_t begin,
               const py::array_t<bool, py::array::c_style>& kept) {
  const bool is_matrix = values.ndim() == 2 && targets.ndim() == 2 && upper.ndim() == 2 && kept.ndim() == 2;
  CheckArgument(is_matrix && std::equal(values.shape(), values.shape() + 2, targets.shape()) && upper.shape(0) == values.shape(1) &&
                    upper.shape(1) == values.shape(1) && kept.shape(0) == values.shape(0),
                "values and targets are [rows, columns], upper [columns, columns], kept [rows, count]");
  CheckArgument(0 <= begin && 0 < kept.shape(1) && kept.shape(1) <= values.shape(1) - begin, "columns that are not there");
  const PruneArgs args = {.num_rows = values.shape(0),
                          .num_cols = values.shape(1),
                          .values = values.data(),
                          .targets = targets.mutable_data(),
                          .upper = upper.data(),
                          .begin = begin,
                          .count = kept.shape(1),
                          .kept = kept.data()};
  const GilReleased release;
  const FloatEnvironmentGuard guard;
  FeedPruned(args);
}

void AddProducts(const FloatMatrix& first, const FloatMatrix& second, py::array_t<double, py::array::c_style>& sums) {
  const bool is_matrix = first.ndim() == 2 && second.ndim() == 2 && sums.ndim() == 2;
  CheckArgument(is_matrix && first.shape(0) == second.shape(0) && sums.shape(0) == first.shape(1) && sums.shape(1) == second.shape(1),
                "first and second are [rows, columns] of equal rows, sums [columns of first, columns of second]");
  const RowProductsArgs args = {.num_rows = first.shape(0),
                                .num_first = first.shape(1),
                                .num_second = second.shape(1),
                                .first = first.data(),
                                .second = second.data(),
                                .sums = sums.mutable_data()};
  const GilReleased release;
  const FloatEnvironmentGuard guard;
  AddRowProducts(args);
}

py::tuple Scales(const FloatMatrix& values, const FloatMatrix& weights, int32_t least, int32_t most, const std::vector<float>& levels,
                 bool has_minimum, bool in_halves, bool below_zero) {
  CheckArgument(values.ndim() == 2 && weights.ndim() == 2 && values.shape(1) == weights.shape(1) && weights.shape(0) > 0,
                "values are [blocks, size], weights [any number, size]");
  CheckArgument(values.shape(1) == 16 || values.shape(1) == ScaleSearch::kMostSize, "blocks of 16 or 32 values");
  py::array_t<float> scales(values.shape(0)), lows(values.shape(0));
  const ScaleSearch search = {.num_blocks = values.shape(0),
                              .size = values.shape(1),
                              .values = values.data(),
                              .weights = weights.data(),
                              .num_weights = weights.shape(0),
                              .least = least,
                              .most = most,
                              .levels = levels,
                              .has_minimum = has_minimum,
                              .in_halves = in_halves,
                              .below_zero = below_zero,
                              .scales = scales.mutable_data(),
                              .lows = lows.mutable_data()};
  {
    const GilReleased release;
    const FloatEnvironmentGuard guard;
    SearchScales(search);
  }
  return py::make_tuple(scales, lows);
}

}  // namespace

void RegisterCompress(py::module_& module) {
  module.def(
      "gather_inputs", [](EngineHandle& handle, int file, const std::string& only) { handle.engine().GatherInputs(file, only); },
      py::arg("engine"), py::arg("file"), py::arg("only") = "",
      "From now on sums over what the linear layers read are gathered; products go into this file, of a number below 0 nowhere. Of one"
      " tensor alone the rows are kept as well.",
      py::call_guard<GilReleased>());
  module.def("gathered_inputs", &Inputs, py::arg("engine"),
             "Ends it: (readers, counts, squares, offset of the products, kept rows) of each input.");
  module.def("factor_products", &Factor, py::arg("products"), py::arg("order"), py::arg("damping"),
             "(M, D) of the products with damping on the diagonal, in this order: M D M^T, M upper triangular.");
  module.def("feed_errors", &Feed, py::arg("values"), py::arg("targets").noconvert(), py::arg("upper"), py::arg("begin"), py::arg("count"),
             py::arg("scales"), py::arg("lows"), py::arg("least"), py::arg("most"), py::arg("levels"),
             "Codes of columns [begin, begin + count); their errors are added to the targets of the columns behind.");
  module.def("feed_pruned", &FeedZeros, py::arg("values"), py::arg("targets").noconvert(), py::arg("upper"), py::arg("begin"),
             py::arg("kept"), "Targets from column begin on become 0 where kept is false; those of the columns behind make up for it.");
  module.def("add_row_products", &AddProducts, py::arg("first"), py::arg("second"), py::arg("sums").noconvert(),
             "Adds first^T second, in one order on every machine.");
  module.def("search_scales", &Scales, py::arg("values"), py::arg("weights"), py::arg("least"), py::arg("most"), py::arg("levels"),
             py::arg("has_minimum"), py::arg("in_halves"), py::arg("below_zero"), "(scales, minima) of blocks of 16 or 32 values.");
}

}  // namespace llmi
