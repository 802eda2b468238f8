// Ops on rows and on single values, one by one, for the tests.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind_testing.h"
#include "bindings/keywords.h"
#include "bindings/testing_activations.h"
#include "core/bfloat16.h"
#include "core/float8.h"
#include "kernels/ops/gated_linear.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/vocab.h"
#include "model/rope_table.h"

namespace py = pybind11;

namespace llmi {
namespace {

void RegisterNorms(py::module_& module) {
  module.def(
      "rms_norm",
      [](const std::string& table, const FloatArray& x, const FloatArray& weight, float eps, int64_t num_groups,
         const std::optional<FloatArray>& residual) {
        FloatArray out({x.shape(0), x.shape(1)});
        if (residual) std::memcpy(out.mutable_data(), residual->data(), static_cast<size_t>(out.nbytes()));
        const KernelContext context = TestContext(table, 1);
        PlacedFloats placed = Place(context, out);
        RmsNorm(context, {.x = Place(context, x).data(),
                          .x_stride = x.shape(1),
                          .out = placed.data(),
                          .out_stride = x.shape(1),
                          .num_rows = x.shape(0),
                          .num_groups = num_groups,
                          .size = x.shape(1) / num_groups,
                          .weight = Place(context, weight).data(),
                          .eps = eps,
                          .accumulate = residual.has_value()});
        placed.Fetch(out.mutable_data());
        return out;
      },
      py::arg("table"), py::arg("x"), py::arg("weight"), py::arg("eps"), py::arg("num_groups") = 1, py::arg("residual") = py::none());
  module.def(
      "rms_norm_forms",
      [](const std::string& table, const FloatArray& x, const FloatArray& weight, float eps, bool fine, int num_threads, int bits) {
        const KernelContext context = TestContext(table, num_threads);
        const int64_t size = x.shape(1);
        return ProducedForms(context, x.shape(0), size, fine, bits, [&](float* out, const LinearInput& input) {
          RmsNorm(context,
                  {.x = Place(context, x).data(),
                   .x_stride = size,
                   .out = out,
                   .out_stride = size,
                   .num_rows = x.shape(0),
                   .size = size,
                   .weight = Place(context, weight).data(),
                   .eps = eps},
                  input);
        });
      },
      py::arg("table"), py::arg("x"), py::arg("weight"), py::arg("eps"), py::arg("fine"), py::arg("num_threads"), py::arg("bits") = 8);
}

void RegisterRopes(py::module_& module) {
  module.def("rope", [](const std::string& table, const FloatArray& x, int64_t num_heads, int64_t rotary_dim, const FloatArray& cosine,
                        const FloatArray& sine) {
    const KernelContext context = TestContext(table, 1);
    FloatArray out({x.shape(0), x.shape(1)});
    PlacedFloats placed = Place(context, x);
    Rope(context, {.x = placed.data(),
                   .x_stride = x.shape(1),
                   .num_rows = x.shape(0),
                   .num_heads = num_heads,
                   .head_dim = x.shape(1) / num_heads,
                   .rotary_dim = rotary_dim,
                   .cosine = Place(context, cosine).data(),
                   .sine = Place(context, sine).data()});
    placed.Fetch(out.mutable_data());
    return out;
  });
  // The table of a RopeSpec whose fields are given by name: its inverse frequencies, and cosines and sines of some positions.
  module.def("rope_table", [](const std::vector<int32_t>& positions, const py::kwargs& given) {
    RopeSpec spec;
    Keywords keywords(given, "rope_table");
    keywords.Read("theta", &spec.theta);
    keywords.Read("rotary_dim", &spec.rotary_dim);
    keywords.Read("linear_factor", &spec.linear_factor);
    keywords.Read("llama3_factor", &spec.llama3_factor);
    keywords.Read("llama3_low_freq_factor", &spec.llama3_low_freq_factor);
    keywords.Read("llama3_high_freq_factor", &spec.llama3_high_freq_factor);
    keywords.Read("llama3_original_context", &spec.llama3_original_context);
    keywords.Read("yarn_factor", &spec.yarn_factor);
    keywords.Read("yarn_low", &spec.yarn_low);
    keywords.Read("yarn_high", &spec.yarn_high);
    keywords.Read("frequency_divisors", &spec.frequency_divisors);
    keywords.Read("magnitude", &spec.magnitude);
    keywords.Read("reversed", &spec.reversed);
    keywords.CheckAllKnown();
    const RopeTable table(spec);
    const auto num_rows = static_cast<int64_t>(positions.size());
    FloatArray cosine({num_rows, spec.rotary_dim / 2}), sine({num_rows, spec.rotary_dim / 2});
    table.Compute(TestContext("", 1), positions.data(), num_rows, cosine.mutable_data(), sine.mutable_data());
    return py::make_tuple(table.inverse_frequencies(), cosine, sine);
  });
}

void RegisterActivations(py::module_& module) {
  module.def("gated_activation", [](const std::string& table, const std::string& name, const FloatArray& gate_up) {
    const KernelContext context = TestContext(table, 1);
    FloatArray out({gate_up.shape(0), gate_up.shape(1) / 2});
    PlacedFloats placed(context, static_cast<size_t>(out.size()));
    GatedActivation(context, name == "silu" ? Activation::kSilu : Activation::kGeluTanh, Place(context, gate_up).data(), gate_up.shape(0),
                    gate_up.shape(1) / 2, placed.data());
    placed.Fetch(out.mutable_data());
    return out;
  });
  module.def(
      "gated_activation_forms",
      [](const std::string& table, const FloatArray& gate_up, bool fine, int num_threads, int bits) {
        const KernelContext context = TestContext(table, num_threads);
        const int64_t size = gate_up.shape(1) / 2;
        return ProducedForms(context, gate_up.shape(0), size, fine, bits, [&](float* out, const LinearInput& input) {
          GatedActivation(context, Activation::kSilu, Place(context, gate_up).data(), gate_up.shape(0), size, out, input);
        });
      },
      py::arg("table"), py::arg("gate_up"), py::arg("fine"), py::arg("num_threads"), py::arg("bits") = 8);
}

void RegisterValues(py::module_& module) {
  module.def("log_sum_exp",
             [](const std::string& table, const FloatArray& row) { return LogSumExp(TestContext(table, 1), row.data(), row.size()); });
  module.def("argmax",
             [](const std::string& table, const FloatArray& row) { return ArgMax(TestContext(table, 1), row.data(), row.size()); });
  module.def("token_masses", [](const std::string& table, const FloatArray& row, float maximum) {
    py::array_t<uint64_t> out(row.size());
    TokenMasses(TestContext(table, 1), row.data(), row.size(), maximum, out.mutable_data());
    return out;
  });
  module.def("flushing_fma", [](const FloatArray& a, const FloatArray& b, const FloatArray& c) {
    FloatArray out(a.size());
    for (int64_t i = 0; i < a.size(); ++i) out.mutable_data()[i] = FlushingFma(a.data()[i], b.data()[i], c.data()[i]);
    return out;
  });
  module.def("through_float8", [](const FloatArray& x) {
    FloatArray out(x.size());
    for (int64_t i = 0; i < x.size(); ++i) out.mutable_data()[i] = Float8ToFloat(FloatToFloat8(x.data()[i]));
    return out;
  });
  for (const auto& [name, kernel] : {std::pair{"probe_fma", &KernelTable::probe_fma}, std::pair{"probe_bf16", &KernelTable::probe_bf16}}) {
    module.def(name, [kernel](const std::string& table, int64_t iterations) {
      FloatArray out(16);
      (TestContext(table, 1).table->*kernel)(iterations, out.mutable_data());
      return out;
    });
  }
}

}  // namespace

void RegisterTestingRows(py::module_& module) {
  RegisterNorms(module);
  RegisterRopes(module);
  RegisterActivations(module);
  RegisterValues(module);
}

}  // namespace llmi
