// Recurrences, for the tests.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "bindings/bind_testing.h"
#include "bindings/keywords.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/ops/recurrence.h"

namespace py = pybind11;

namespace llmi {
namespace {

const float* DataOf(const std::optional<FloatArray>& array) { return array ? array->data() : nullptr; }

// (out [rows, heads * value size], state [heads, blocks, key size, 16]). channels [rows, RecurrenceShape::channels()], time [rows, heads];
// write makes it the delta rule. The other fields of RecurrenceShape and RecurrenceArgs by name.
py::tuple TestRecurrence(const std::string& table, const FloatArray& channels, const FloatArray& time, const FloatArray& state,
                         const py::kwargs& given) {
  const KernelContext context = TestContext(table, 1);
  RecurrenceArgs args{};
  args.most_step = std::numeric_limits<float>::infinity();
  std::optional<FloatArray> write, time_bias, decay, skip;
  Keywords keywords(given, "recurrence");
  keywords.Read("num_groups", &args.shape.num_groups);
  keywords.Read("tiled_groups", &args.shape.tiled_groups);
  keywords.Read("value_size", &args.shape.value_size);
  keywords.Read("least_step", &args.least_step);
  keywords.Read("most_step", &args.most_step);
  keywords.Read("write", &write);
  keywords.Read("time_bias", &time_bias);
  keywords.Read("decay", &decay);
  keywords.Read("skip", &skip);
  keywords.CheckAllKnown();
  args.shape.is_delta = write.has_value();
  args.shape.num_heads = time.shape(1);
  args.shape.key_size = state.shape(2);
  args.num_rows = channels.shape(0);
  args.input_stride = args.shape.input_floats();
  CheckArgument(channels.shape(1) == args.shape.channels() && state.size() == args.shape.state_floats(), "recurrence: shapes do not fit");
  std::vector<float> inputs(static_cast<size_t>(args.num_rows * args.input_stride));
  for (int64_t row = 0; row < args.num_rows; ++row) {
    std::copy_n(channels.data() + row * channels.shape(1), channels.shape(1), inputs.data() + row * args.input_stride);
  }
  args.inputs = inputs.data();
  args.time = time.data();
  args.write = DataOf(write);
  args.time_stride = args.shape.num_heads;
  args.time_bias = DataOf(time_bias);
  args.decay = DataOf(decay);
  args.skip = DataOf(skip);
  context.table->recurrence_factors(args, 0, args.num_rows);
  FloatArray after(std::vector<py::ssize_t>(state.shape(), state.shape() + state.ndim()));
  std::copy_n(state.data(), state.size(), after.mutable_data());
  FloatArray out({static_cast<py::ssize_t>(args.num_rows), static_cast<py::ssize_t>(args.shape.value_floats())});
  const int64_t head_floats = state.size() / args.shape.num_heads;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    for (int64_t head = 0; head < args.shape.num_heads; ++head) {
      context.table->recurrence_step(args, {head, 0, args.shape.num_blocks()}, after.mutable_data() + head * head_floats,
                                     args.inputs + row * args.input_stride, out.mutable_data() + row * args.shape.value_floats());
    }
  }
  return py::make_tuple(out, after);
}

}  // namespace

void RegisterTestingMixers(py::module_& module) {
  module.def("recurrence", &TestRecurrence, py::arg("table"), py::arg("channels"), py::arg("time"), py::arg("state"));
}

}  // namespace llmi
