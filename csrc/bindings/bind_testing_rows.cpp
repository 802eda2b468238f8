// Ops on rows and on single values, one by one, for the tests.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind_testing.h"
#include "bindings/keywords.h"
#include "bindings/testing_activations.h"
#include "core/bfloat16.h"
#include "core/float8.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/row_ops.h"
#include "kernels/ops/top_candidates.h"
#include "kernels/ops/vocab.h"
#include "model/rope_table.h"

namespace py = pybind11;

namespace llmi {
namespace {

// weight: None, or [size] or, with own_weights, [num_groups * size]. By name: kind ("rms", "layer"), bias, eps, num_groups, group_stride,
// own_weights, residual, to which the result is added; else x is normed in place.
FloatArray TestNorm(const std::string& table, const FloatArray& x, const std::optional<FloatArray>& weight, const py::kwargs& given) {
  std::string kind = "rms";
  std::optional<FloatArray> bias, residual;
  NormArgs args{};
  args.eps = 1e-6f;
  Keywords keywords(given, "norm");
  keywords.Read("kind", &kind);
  keywords.Read("bias", &bias);
  keywords.Read("eps", &args.eps);
  keywords.Read("num_groups", &args.num_groups);
  keywords.Read("group_stride", &args.group_stride);
  keywords.Read("own_weights", &args.own_weights);
  keywords.Read("residual", &residual);
  keywords.Read("size", &args.size);
  keywords.CheckAllKnown();
  CheckArgument(kind == "rms" || kind == "layer", "norm: kind");
  args.kind = kind == "rms" ? NormKind::kRms : NormKind::kLayer;
  args.x_stride = args.out_stride = x.shape(1);
  args.num_rows = x.shape(0);
  if (args.size == 0) args.size = x.shape(1) / args.num_groups;
  args.accumulate = residual.has_value();
  const KernelContext context = TestContext(table, 1);
  PlacedFloats placed = Place(context, x), sum = Place(context, residual ? *residual : x);
  std::optional<PlacedFloats> placed_weight, placed_bias;
  if (weight) args.weight = placed_weight.emplace(Place(context, *weight)).data();
  if (bias) args.bias = placed_bias.emplace(Place(context, *bias)).data();
  args.out = residual ? sum.data() : placed.data();
  args.x = placed.data();
  Norm(context, args);
  FloatArray out({x.shape(0), x.shape(1)});
  (residual ? sum : placed).Fetch(out.mutable_data());
  return out;
}

void RegisterNorms(py::module_& module) {
  module.def("norm", &TestNorm, py::arg("table"), py::arg("x"), py::arg("weight"));
  module.def(
      "norm_forms",
      [](const std::string& table, const FloatArray& x, const FloatArray& weight, float eps, bool fine, int num_threads, int bits) {
        const KernelContext context = TestContext(table, num_threads);
        const int64_t size = x.shape(1);
        PlacedFloats placed_x = Place(context, x), placed_weight = Place(context, weight);
        return ProducedForms(context, x.shape(0), size, fine, bits, [&](float* out, const LinearInput& input) {
          Norm(context,
               {.x = placed_x.data(),
                .x_stride = size,
                .out = out,
                .out_stride = size,
                .num_rows = x.shape(0),
                .size = size,
                .weight = placed_weight.data(),
                .eps = eps},
               input);
        });
      },
      py::arg("table"), py::arg("x"), py::arg("weight"), py::arg("eps"), py::arg("fine"), py::arg("num_threads"), py::arg("bits") = 8);
}

void RegisterRopes(py::module_& module) {
  // head_dim: of heads that are followed by values which stay as they are; 0: all values of a head.
  module.def(
      "rope",
      [](const std::string& table, const FloatArray& x, int64_t num_heads, int64_t rotary_dim, const FloatArray& cosine,
         const FloatArray& sine, int64_t head_dim) {
        const KernelContext context = TestContext(table, 1);
        FloatArray out({x.shape(0), x.shape(1)});
        PlacedFloats placed = Place(context, x);
        const int64_t stride = x.shape(1) / num_heads;
        Rope(context, {.x = placed.data(),
                       .x_stride = x.shape(1),
                       .num_rows = x.shape(0),
                       .num_heads = num_heads,
                       .head_dim = head_dim > 0 ? head_dim : stride,
                       .head_stride = head_dim > 0 ? stride : 0,
                       .rotary_dim = rotary_dim,
                       .cosine = Place(context, cosine).data(),
                       .sine = Place(context, sine).data()});
        placed.Fetch(out.mutable_data());
        return out;
      },
      py::arg("table"), py::arg("x"), py::arg("num_heads"), py::arg("rotary_dim"), py::arg("cosine"), py::arg("sine"),
      py::arg("head_dim") = 0);
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
  // x [rows, size], or gated [rows, 2 * size]: gate, then up. parameters: those of xielu.
  module.def(
      "activate",
      [](const std::string& table, const std::string& name, const FloatArray& x, bool gated, const std::array<float, 4>& parameters) {
        const KernelContext context = TestContext(table, 1);
        FloatArray out({x.shape(0), x.shape(1) / (gated ? 2 : 1)});
        PlacedFloats placed(context, static_cast<size_t>(out.size())), placed_x = Place(context, x);
        ActivationArgs args = {.activation = ParseActivation(name),
                               .gated = gated,
                               .x = placed_x.data(),
                               .num_rows = out.shape(0),
                               .size = out.shape(1),
                               .out = placed.data()};
        std::copy(parameters.begin(), parameters.end(), args.parameters);
        Activate(context, args);
        placed.Fetch(out.mutable_data());
        return out;
      },
      py::arg("table"), py::arg("name"), py::arg("x"), py::arg("gated") = true, py::arg("parameters") = std::array<float, 4>{});
  // silu(x) in the forms that the next layer reads.
  module.def(
      "activate_forms",
      [](const std::string& table, const FloatArray& x, bool gated, bool fine, int num_threads, int bits) {
        const KernelContext context = TestContext(table, num_threads);
        const int64_t size = x.shape(1) / (gated ? 2 : 1);
        PlacedFloats placed_x = Place(context, x);
        return ProducedForms(context, x.shape(0), size, fine, bits, [&](float* out, const LinearInput& input) {
          Activate(
              context,
              {.activation = Activation::kSilu, .gated = gated, .x = placed_x.data(), .num_rows = x.shape(0), .size = size, .out = out},
              input);
        });
      },
      py::arg("table"), py::arg("x"), py::arg("gated"), py::arg("fine"), py::arg("num_threads"), py::arg("bits") = 8);
}

// Calls change(context, its copy in the memory of the ops) and returns what became of x.
template <typename Change>
FloatArray Changed(const std::string& table, const FloatArray& x, const Change& change) {
  const KernelContext context = TestContext(table, 2);
  PlacedFloats placed = Place(context, x);
  change(context, placed.data());
  FloatArray out({x.shape(0), x.shape(1)});
  placed.Fetch(out.mutable_data());
  return out;
}

void RegisterRowOps(py::module_& module) {
  module.def("add_scaled", [](const std::string& table, const FloatArray& x, float scale, const FloatArray& to) {
    return Changed(table, to, [&](const KernelContext& context, float* out) {
      PlacedFloats placed = Place(context, x);
      AddScaled(context, placed.data(), x.size(), scale, out);
    });
  });
  module.def("scale", [](const std::string& table, const FloatArray& x, float scale) {
    return Changed(table, x, [&](const KernelContext& context, float* out) { Scale(context, out, x.size(), scale); });
  });
  // The first `size` values of each row.
  module.def("scale_rows", [](const std::string& table, const FloatArray& x, int64_t size, const FloatArray& factors) {
    return Changed(table, x, [&](const KernelContext& context, float* out) {
      PlacedFloats placed = Place(context, factors);
      ScaleRows(context, out, x.shape(1), x.shape(0), size, placed.data());
    });
  });
  module.def("clip_rows", [](const std::string& table, const FloatArray& x, int64_t size, float limit) {
    return Changed(table, x,
                   [&](const KernelContext& context, float* out) { ClipRows(context, out, x.shape(1), x.shape(0), size, limit); });
  });
  module.def("gate", [](const std::string& table, const FloatArray& x, const FloatArray& gate, int64_t num_heads, bool per_head) {
    return Changed(table, x, [&](const KernelContext& context, float* out) {
      PlacedFloats placed = Place(context, gate);
      Gate(context, {.x = out,
                     .gate = placed.data(),
                     .gate_stride = gate.shape(1),
                     .per_head = per_head,
                     .num_rows = x.shape(0),
                     .num_heads = num_heads,
                     .head_dim = x.shape(1) / num_heads});
    });
  });
  // Heads of the first `size` values; by_head: [heads, rows, size], else [rows, heads * size].
  module.def("copy_heads", [](const std::string& table, const FloatArray& x, int64_t num_heads, int64_t size, bool by_head) {
    const KernelContext context = TestContext(table, 2);
    const int64_t num_rows = x.shape(0), row = x.shape(1);
    PlacedFloats placed = Place(context, x), out(context, static_cast<size_t>(num_rows * num_heads * size));
    CopyHeads(context, {placed.data(), row, row / num_heads, out.data(), by_head ? size : num_heads * size,
                        by_head ? num_rows * size : size, num_rows, num_heads, size});
    FloatArray copied(by_head ? std::vector<py::ssize_t>{num_heads, num_rows, size} : std::vector<py::ssize_t>{num_rows, num_heads * size});
    out.Fetch(copied.mutable_data());
    return copied;
  });
}

// values: None, or as logits. Returns values, logits and tokens, [rows, count] each.
py::tuple TestTopCandidates(const std::string& table, const FloatArray& logits, int64_t count, const std::optional<FloatArray>& values) {
  const KernelContext context = TestContext(table, 2);
  PlacedFloats placed = Place(context, logits);
  std::optional<PlacedFloats> placed_values;
  Placed<TopCandidate> out(context, static_cast<size_t>(logits.shape(0) * count));
  TopCandidatesArgs args = {
      .logits = placed.data(), .num_rows = logits.shape(0), .vocab_size = logits.shape(1), .count = count, .out = out.data()};
  if (values) args.values = placed_values.emplace(Place(context, *values)).data();
  TopCandidates(context, args);
  std::vector<TopCandidate> found(static_cast<size_t>(logits.shape(0) * count));
  out.Fetch(found.data());
  FloatArray best({logits.shape(0), count}), their_logits({logits.shape(0), count});
  py::array_t<int32_t> tokens({logits.shape(0), count});
  for (size_t i = 0; i < found.size(); ++i) {
    best.mutable_data()[i] = found[i].value;
    their_logits.mutable_data()[i] = found[i].logit;
    tokens.mutable_data()[i] = found[i].token;
  }
  return py::make_tuple(best, their_logits, tokens);
}

void RegisterValues(py::module_& module) {
  module.def("top_candidates", &TestTopCandidates, py::arg("table"), py::arg("logits"), py::arg("count"), py::arg("values") = py::none());
  module.def("log_sum_exp",
             [](const std::string& table, const FloatArray& row) { return LogSumExp(TestContext(table, 1), row.data(), row.size()); });
  module.def("layer_divergence", [](const std::string& table, const FloatArray& a, const FloatArray& b, bool of_mean) {
    return LayerDivergence(TestContext(table, 2), a.data(), b.data(), a.size(), of_mean);
  });
  module.def("argmax",
             [](const std::string& table, const FloatArray& row) { return ArgMax(TestContext(table, 1), row.data(), row.size()); });
  module.def("token_masses", [](const std::string& table, const FloatArray& row, float maximum) {
    py::array_t<uint64_t> out(row.size());
    TokenMasses(TestContext(table, 1), row.data(), row.size(), maximum, out.mutable_data());
    return out;
  });
  module.def("mass_moments", [](const std::string& table, const FloatArray& row, float maximum) {
    const MassMoments moments = MomentsOfMasses(TestContext(table, 1), row.data(), row.size(), maximum);
    return py::make_tuple(moments.total, moments.product);
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
  RegisterRowOps(module);
  RegisterValues(module);
}

}  // namespace llmi
