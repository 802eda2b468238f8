// Ops, sampling and the detokenizer, one by one, for the tests. Arrays are exact: float32 and C-contiguous.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <string_view>
#include <thread>

#include "bindings/bind_testing.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "core/bfloat16.h"
#include "core/float8.h"
#include "core/fp_env.h"
#include "core/philox.h"
#include "core/scalar_math.h"
#include "core/thread_pool.h"
#include "engine/detokenizer.h"
#include "engine/options.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/gated_linear.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_input.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/vocab.h"
#include "model/dequantize.h"
#include "model/pack.h"
#include "model/quantize.h"
#include "model/rope_table.h"
#include "sampling/edits.h"
#include "sampling/law.h"

namespace py = pybind11;

namespace llmi {

std::unique_ptr<Device> OpenTestDevice(const std::string& name) {
  std::string kind = name;
  const auto take = [&](std::string_view suffix) {
    const bool found = kind.ends_with(suffix);
    if (found) kind.resize(kind.size() - suffix.size());
    return found;
  };
  DeviceOptions options;
  constexpr std::string_view kLibrary = "+cublaslt:";
  if (const size_t at = kind.find(kLibrary); at != std::string::npos) {
    options.cublas_lt = kind.substr(at + kLibrary.size());
    kind.resize(at);
  }
  if (take("+tight")) options.most_partial_bytes = 1 << 16;
  options.bf16_linear = take("+bf16");
  options.f16_linear = take("+fp16");
  if (kind == "cuda") return OpenCudaDevice(options);
  CheckArgument(kind == "emulated", "a test's device must be cuda or emulated");
  return OpenEmulatedDevice(options);
}

KernelContext TestContext(const std::string& table, int num_threads) {
  if (!table.starts_with("emulated") && !table.starts_with("cuda")) {
    const size_t name_size = table.find("+bf16");
    return {&GetKernelTable(table.substr(0, name_size)), &ThreadPool::Shared(), num_threads, nullptr, name_size != std::string::npos};
  }
  static std::map<std::string, Device*> devices;  // for the process's life
  Device*& device = devices[table];
  if (device == nullptr) device = OpenTestDevice(table).release();
  return {&GetKernelTable("reference"), &ThreadPool::Shared(), num_threads, device};
}

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

using CodeBytes = py::array_t<int8_t, py::array::c_style>;

struct TestActivations {
  Placed<int8_t> codes;
  PlacedFloats scales, sums;
  Placed<int32_t> half_sums;
  std::optional<Placed<int8_t>> low;
  QuantizedRows rows;

  TestActivations(const KernelContext& context, int64_t num_rows, int64_t num_cols, bool fine, int bits)
      : codes(context, static_cast<size_t>(num_rows * num_cols)),
        scales(context, static_cast<size_t>(num_rows * num_cols / (fine ? 16 : 32))),
        sums(context, static_cast<size_t>(num_rows * num_cols / 32)),
        half_sums(context, static_cast<size_t>(num_rows * num_cols / 16)),
        rows{.num_cols = num_cols,
             .codes = codes.data(),
             .scales = scales.data(),
             .sums = sums.data(),
             .half_sums = half_sums.data(),
             .fine = fine} {
    if (HasTwoBytes(bits)) rows.low = low.emplace(context, static_cast<size_t>(num_rows * num_cols)).data();
  }

  // Takes `bytes`, high bytes first, then low ones, instead of the codes of x; the scales of x stay.
  void Replace(const KernelContext& context, const CodeBytes& bytes) {
    const size_t count = static_cast<size_t>(bytes.size()) / 2;
    CheckArgument(low && codes.Fetch().size() == static_cast<py::ssize_t>(count), "codes of 16 bits: two bytes for each value of x");
    const int8_t* high = bytes.data();
    const FloatArray scale = scales.Fetch();
    std::vector<int32_t> of_halves(count / 16);
    std::vector<float> of_blocks(count / 32);
    for (size_t i = 0; i < count; ++i) of_halves[i / 16] += 256 * high[i] + high[count + i];
    for (size_t b = 0; b < of_blocks.size(); ++b) {
      of_blocks[b] = scale.data()[b] * static_cast<float>(of_halves[2 * b] + of_halves[2 * b + 1]);
    }
    ToDevice(context, codes.data(), high, count);
    ToDevice(context, low->data(), high + count, count);
    ToDevice(context, half_sums.data(), of_halves.data(), of_halves.size() * sizeof(int32_t));
    ToDevice(context, sums.data(), of_blocks.data(), of_blocks.size() * sizeof(float));
  }

  // Codes, scales, sums and half sums; with 16 bits the low bytes, too.
  py::tuple Fetch() const {
    if (!low) return py::make_tuple(codes.Fetch(), scales.Fetch(), sums.Fetch(), half_sums.Fetch());
    return py::make_tuple(codes.Fetch(), scales.Fetch(), sums.Fetch(), half_sums.Fetch(), low->Fetch());
  }
};

// What `produce` writes, [num_rows, num_cols], and the forms of it that it made: codes, scales, sums, half sums and, on the CPU, bf16.
template <typename Produce>
py::tuple ProducedForms(const KernelContext& context, int64_t num_rows, int64_t num_cols, bool fine, int bits, const Produce& produce) {
  PlacedFloats out(context, static_cast<size_t>(num_rows * num_cols));
  const TestActivations activations(context, num_rows, num_cols, fine, bits);
  py::array_t<uint16_t> rounded(context.device == nullptr ? num_rows * num_cols : 0);
  produce(out.data(), LinearInput{activations.rows, context.device == nullptr ? rounded.mutable_data() : nullptr});
  return py::make_tuple(out.Fetch(), activations.Fetch(), rounded);
}

// The forms that gated_linear makes of its output; bias is that of both layers.
py::tuple TestGatedLinear(const std::string& table, const TestMatrix& gate, const TestMatrix& up, const FloatArray& x,
                          const std::vector<float>& bias, bool fine, int num_threads, int bits) {
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
  const LinearArgs args = {.parts = parts,
                           .num_parts = 2,
                           .num_rows = num_rows,
                           .x = placed_x.data(),
                           .x_stride = x.shape(1),
                           .quantized = activations.rows,
                           .out = gate_up.data(),
                           .out_stride = 2 * size};
  GatedLinear(context, args, Activation::kSilu, out.data(), {made.rows});
  return made.Fetch();
}

FloatArray TestLinear(const std::string& table, const std::vector<TestMatrix*>& matrices, const FloatArray& x,
                      const std::vector<std::vector<float>>& biases, const std::optional<FloatArray>& residual, int num_threads, bool fine,
                      const std::optional<std::vector<std::pair<int64_t, int64_t>>>& tiles, int bits,
                      const std::optional<CodeBytes>& codes) {
  const KernelContext context = TestContext(table, num_threads);
  std::vector<LinearPart> parts;
  std::deque<PlacedFloats> placed_biases;
  int64_t width = 0;
  bool quantized = false;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const PackedView view = matrices[i]->view();
    const bool has_bias = i < biases.size() && !biases[i].empty();
    if (has_bias) placed_biases.emplace_back(context, biases[i].data(), biases[i].size());
    parts.push_back({.weights = view, .bias = has_bias ? placed_biases.back().data() : nullptr, .out_column = width});
    width += view.num_rows;
    quantized = quantized || IsQuantizedPacked(view.type);
  }
  FloatArray out({x.shape(0), static_cast<py::ssize_t>(width)});
  if (residual) std::memcpy(out.mutable_data(), residual->data(), static_cast<size_t>(out.nbytes()));
  std::optional<TestActivations> activations;
  PlacedFloats placed_x = Place(context, x);
  PlacedFloats placed_out = Place(context, out);
  LinearInput input;
  if (quantized) input.quantized = activations.emplace(context, x.shape(0), x.shape(1), fine, bits).rows;
  std::vector<uint16_t> rounded(context.bf16_dots ? static_cast<size_t>(x.size()) : 0);
  if (context.bf16_dots) input.rounded = rounded.data();
  ConvertInput(context, placed_x.data(), x.shape(0), x.shape(1), input);
  if (codes && activations) activations->Replace(context, *codes);
  const LinearArgs args = {.parts = parts.data(),
                           .num_parts = static_cast<int64_t>(parts.size()),
                           .num_rows = x.shape(0),
                           .x = placed_x.data(),
                           .x_stride = x.shape(1),
                           .quantized = input.quantized,
                           .out = placed_out.data(),
                           .out_stride = width,
                           .accumulate = residual.has_value(),
                           .x_bf16 = input.rounded};
  if (tiles) {
    std::vector<TileRange> ranges;
    for (const auto& [begin, end] : *tiles) ranges.push_back({begin, end});
    LinearTiles(context, args, ranges);
  } else {
    Linear(context, args);
  }
  placed_out.Fetch(out.mutable_data());
  return out;
}

void RegisterOps(py::module_& module) {
  py::class_<TestMatrix>(module, "PackedMatrix")
      .def(py::init<const std::string&, const std::string&, const py::bytes&, int64_t, int64_t, const std::string&>(), py::arg("table"),
           py::arg("dtype"), py::arg("data"), py::arg("rows"), py::arg("cols"), py::arg("format") = "auto");
  module.def("dequantize_row", [](const std::string& dtype, const py::bytes& data, int64_t num_values) {
    FloatArray out(num_values);
    const std::string bytes = data;
    DequantizeRow(ParseDType(dtype), reinterpret_cast<const uint8_t*>(bytes.data()), num_values, out.mutable_data());
    return out;
  });
  module.def("quantize_blocks", [](const std::string& dtype, const FloatArray& values) {
    const DType type = ParseDType(dtype);
    std::string out(static_cast<size_t>(values.size() / Info(type).block_size * Info(type).block_bytes), '\0');
    QuantizeRow(type, values.data(), values.size(), reinterpret_cast<uint8_t*>(out.data()));
    return py::bytes(out);
  });
  module.def(
      "quantize_rows",
      [](const std::string& table, const FloatArray& x, bool fine, int bits) {
        const KernelContext context = TestContext(table, 1);
        const TestActivations activations(context, x.shape(0), x.shape(1), fine, bits);
        ConvertInput(context, Place(context, x).data(), x.shape(0), x.shape(1), {activations.rows});
        return activations.Fetch();
      },
      py::arg("table"), py::arg("x"), py::arg("fine") = false, py::arg("bits") = 8);
  module.def("linear", &TestLinear, py::arg("table"), py::arg("matrices"), py::arg("x"),
             py::arg("biases") = std::vector<std::vector<float>>{}, py::arg("residual") = py::none(), py::arg("num_threads") = 1,
             py::arg("fine") = false, py::arg("tiles") = py::none(), py::arg("bits") = 8, py::arg("codes") = py::none());
  module.def("embedding", [](const std::string& table, const TestMatrix& matrix, const std::vector<int32_t>& ids, float scale) {
    const KernelContext context = TestContext(table, 1);
    FloatArray out({static_cast<py::ssize_t>(ids.size()), static_cast<py::ssize_t>(matrix.view().num_cols)});
    PlacedFloats placed(context, static_cast<size_t>(out.size()));
    Embedding(context, matrix.view(), ids.data(), static_cast<int64_t>(ids.size()), scale, placed.data());
    placed.Fetch(out.mutable_data());
    return out;
  });
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
  module.def("inverse_frequencies",
             [](double theta, int64_t rotary_dim, double linear_factor, double llama3_factor, double low, double high, int64_t original) {
               RopeConfig config;
               config.theta = theta;
               config.rotary_dim = rotary_dim;
               config.linear_factor = linear_factor;
               config.llama3_factor = llama3_factor;
               config.llama3_low_freq_factor = low;
               config.llama3_high_freq_factor = high;
               config.llama3_original_context = original;
               return RopeTable(config).inverse_frequencies();
             });
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
  module.def("gated_linear_forms", &TestGatedLinear, py::arg("table"), py::arg("gate"), py::arg("up"), py::arg("x"), py::arg("bias"),
             py::arg("fine") = false, py::arg("num_threads") = 1, py::arg("bits") = 8);
  module.def("log_sum_exp",
             [](const std::string& table, const FloatArray& row) { return LogSumExp(TestContext(table, 1), row.data(), row.size()); });
  for (const auto& [name, kernel] : {std::pair{"probe_fma", &KernelTable::probe_fma}, std::pair{"probe_bf16", &KernelTable::probe_bf16}}) {
    module.def(name, [kernel](const std::string& table, int64_t iterations) {
      FloatArray out(16);
      (TestContext(table, 1).table->*kernel)(iterations, out.mutable_data());
      return out;
    });
  }
  module.def("probe_dots", [](const std::string& table, int64_t iterations, const py::bytes& block, const FloatArray& x) {
    const KernelContext context = TestContext(table, 1);
    const TestActivations a(context, x.shape(0), x.shape(1), false, 8);
    ConvertInput(context, x.data(), x.shape(0), x.shape(1), {a.rows});
    FloatArray out({kProbeDotRows, int64_t{16}});
    const std::string bytes = block;
    TestContext(table, 1).table->probe_dots(iterations, reinterpret_cast<const uint8_t*>(bytes.data()), a.rows, out.mutable_data());
    return out;
  });
  // For each region, the thread that ran each task: -1 for a task that did not run exactly once. Task 0 waits until all other tasks have
  // run, at most first_waits_s seconds; if they have not, its entry is -1.
  module.def("threads_of_tasks", [](int num_threads, const std::vector<int64_t>& sizes, double first_waits_s) {
    const GilReleased released;
    ThreadPool pool(num_threads);
    std::vector<std::vector<int64_t>> regions;
    for (const int64_t size : sizes) {
      std::vector<std::thread::id> ran_by(static_cast<size_t>(size));
      std::vector<int64_t> counts(static_cast<size_t>(size));
      std::atomic<int64_t> num_others{0};
      pool.ParallelFor(size, num_threads, [&](int64_t task) {
        const auto start = std::chrono::steady_clock::now();
        while (first_waits_s > 0 && task == 0 && num_others < size - 1) {
          if (std::chrono::steady_clock::now() - start > std::chrono::duration<double>(first_waits_s)) return;
          std::this_thread::yield();
        }
        ran_by[static_cast<size_t>(task)] = std::this_thread::get_id();
        ++counts[static_cast<size_t>(task)];
        if (task != 0) ++num_others;
      });
      std::map<std::thread::id, int64_t> names;
      std::vector<int64_t>& threads = regions.emplace_back();
      for (size_t task = 0; task < counts.size(); ++task) {
        const int64_t name = names.emplace(ran_by[task], static_cast<int64_t>(names.size())).first->second;
        threads.push_back(counts[task] == 1 ? name : -1);
      }
    }
    return regions;
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
  module.def("argmax",
             [](const std::string& table, const FloatArray& row) { return ArgMax(TestContext(table, 1), row.data(), row.size()); });
  module.def("token_masses", [](const std::string& table, const FloatArray& row, float maximum) {
    py::array_t<uint64_t> out(row.size());
    TokenMasses(TestContext(table, 1), row.data(), row.size(), maximum, out.mutable_data());
    return out;
  });
}

void RegisterSampling(py::module_& module) {
  module.def("process_logits",
             [](const SamplingParams& params, const std::vector<int32_t>& tokens, int64_t prompt_len, const FloatArray& logits) {
               FloatArray law(logits.size(), logits.data());
               Validate(params, logits.size());
               ProcessLogits(TestContext("", 1), params, {tokens, prompt_len}, nullptr, law.mutable_data(), logits.size());
               return law;
             });
  module.def("draw_there",
             [](const std::string& table, const std::vector<SamplingParams>& params, const std::vector<std::vector<int32_t>>& tokens,
                int64_t prompt_len, int64_t sample_index, const FloatArray& logits) {
               const KernelContext context = TestContext(table, 1);
               PlacedFloats there = Place(context, logits);
               DrawList draws;
               // Rows last to first: a draw's place and its row are two things.
               for (size_t i = params.size(); i-- > 0;) {
                 Validate(params[i], logits.shape(1));
                 draws.Add(params[i], {tokens[i], prompt_len}, sample_index, static_cast<int64_t>(i), logits.shape(1));
               }
               const DrawnRows drawn = context.device->TakeDrawn(context.device->Draw(draws.batch(), there.data(), logits.shape(1)));
               return std::vector<int32_t>(drawn.tokens.rbegin(), drawn.tokens.rend());
             });
  module.def(
      "draw",
      [](uint64_t seed, int64_t position, int64_t sample_index, const FloatArray& law, const std::string& table) {
        return Draw(TestContext(table, 2), {seed, position, sample_index, 0, 0}, law.data(), law.size());
      },
      py::arg("seed"), py::arg("position"), py::arg("sample_index"), py::arg("law"), py::arg("table") = "");
  module.def("race_candidates", [](const std::string& table, uint64_t seed, int64_t position, const FloatArray& law, float limit) {
    std::vector<int32_t> ids(static_cast<size_t>(law.size()));
    int64_t count = 0;
    const RaceNoise noise = {.seed = seed, .position = static_cast<uint32_t>(position), .sample_index = 0, .purpose = 0};
    const RaceArgs race = {.noise = noise, .law = law.data(), .first_id = 0, .size = law.size(), .limit = limit};
    TestContext(table, 1).table->race_candidates(race, ids.data(), &count);
    ids.resize(static_cast<size_t>(count));
    return ids;
  });
  module.def("noise_word", [](uint64_t seed, int64_t position, int64_t sample_index, int64_t token_id) {
    return NoiseWord({seed, position, sample_index, 0, 0}, token_id);
  });
  module.def("philox", [](std::array<uint32_t, 4> counter, uint64_t key) {
    const PhiloxWords words = Philox4x32({{counter[0], counter[1], counter[2], counter[3]}}, key);
    return std::array<uint32_t, 4>{words[0], words[1], words[2], words[3]};
  });
  module.def("scalar_math", [](const std::string& name, double x) -> py::object {
    double sine = 0;
    double cosine = 0;
    if (name == "exp32") return py::float_(static_cast<double>(ExpF32(static_cast<float>(x))));
    if (name == "log64") return py::float_(LogF64(x));
    if (name == "log1p64") return py::float_(Log1pF64(x));
    if (name == "exp64") return py::float_(ExpF64(x));
    SinCosF64(x, &sine, &cosine);
    return py::make_tuple(sine, cosine);
  });
  py::class_<Detokenizer>(module, "Detokenizer")
      .def(py::init([](const std::vector<py::bytes>& bytes, std::vector<std::string> stop, bool include_stop) {
             auto tokens = std::make_shared<TokenBytes>();
             for (const py::bytes& token : bytes) tokens->bytes.push_back(token);
             tokens->special.resize(bytes.size());
             return std::make_unique<Detokenizer>(tokens, true, std::move(stop), include_stop);
           }),
           py::arg("token_bytes"), py::arg("stop"), py::arg("include_stop") = false)
      .def("push", &Detokenizer::Push, py::arg("token_id"), py::arg("check_stop") = true)
      .def("finish", &Detokenizer::Finish)
      .def("take", &Detokenizer::TakeEmittable)
      .def_property_readonly("text", &Detokenizer::text)
      .def_property_readonly("stopped_by", &Detokenizer::stopped_by);
}

}  // namespace

void RegisterTesting(py::module_& module) {
  py::module_ testing = module.def_submodule("testing", "Inner classes and ops, for tests and benchmarks.");
  RegisterOps(testing);
  RegisterSampling(testing);
  RegisterDeviceProbes(testing);
  RegisterTestingCache(testing);
  RegisterTestingScheduler(testing);
  RegisterTestingSpeculative(testing);
}

}  // namespace llmi
