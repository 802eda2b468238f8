// Laws, draws, noise and the detokenizer, one by one, for the tests.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind_testing.h"
#include "core/philox.h"
#include "core/scalar_math.h"
#include "engine/beams/candidates.h"
#include "engine/beams/hypotheses.h"
#include "engine/detokenizer.h"
#include "sampling/contrast.h"
#include "sampling/edits.h"
#include "sampling/law.h"

namespace py = pybind11;

namespace llmi {
namespace {

void RegisterBeams(py::module_& module) {
  // The `count` best candidates of beams with these rows and sums, or those drawn at `position`: (score, parent, token) of each.
  module.def("beam_candidates",
             [](const FloatArray& values, const FloatArray& logits, const std::vector<float>& totals, const std::vector<double>& sums,
                int64_t count, const std::optional<std::pair<uint64_t, int64_t>>& drawn) {
               const auto size = static_cast<size_t>(values.shape(1));
               std::vector<BeamCandidate> all;
               for (size_t i = 0; i < sums.size(); ++i) {
                 const auto rank = static_cast<int64_t>(i);
                 const BeamRow row = {{values.data() + i * size, size}, {logits.data() + i * size, size}, totals[i], sums[i], rank};
                 std::vector<BeamCandidate> best =
                     drawn ? DrawnOfRow(TestContext("", 1), row, {drawn->first, drawn->second, rank, 5, 0}, count) : BestOfRow(row, count);
                 all.insert(all.end(), best.begin(), best.end());
               }
               py::list list;
               for (const BeamCandidate& candidate : BestOfAll(std::move(all), count, drawn.has_value())) {
                 list.append(py::make_tuple(candidate.score, candidate.parent, candidate.token));
               }
               return list;
             });
  // The hypotheses that are kept of these (score, step, rank), best first.
  module.def("best_finished", [](const std::vector<std::tuple<double, int64_t, int64_t>>& found, int64_t capacity) {
    FinishedBeams finished(capacity);
    for (const auto& [score, step, rank] : found) finished.Add({.score = score, .step = step, .rank = rank});
    std::vector<std::tuple<double, int64_t, int64_t>> kept;
    for (const FinishedBeam& beam : finished.beams()) kept.emplace_back(beam.score, beam.step, beam.rank);
    return kept;
  });
  module.def("length_divisor", &LengthDivisor, py::arg("length"), py::arg("penalty"));
}

// Rows that are made of several.
void RegisterContrasts(py::module_& module) {
  module.def("guide", [](const std::string& table, const FloatArray& conditional, const FloatArray& unconditional, double scale) {
    FloatArray out(unconditional.size(), unconditional.data());
    Guide(TestContext(table, 2), conditional.data(), scale, out.mutable_data(), out.size());
    return out;
  });
  // (row, index of the chosen layer).
  module.def("contrast_layers", [](const std::string& table, const FloatArray& final, const FloatArray& layers, bool by_transformers) {
    std::vector<float> rows(layers.data(), layers.data() + layers.size());
    FloatArray out(final.size());
    const int64_t chosen = ContrastLayers(TestContext(table, 2), final.data(), rows, by_transformers, out.mutable_data(), final.size());
    return std::pair(out, chosen);
  });
}

void RegisterLaws(py::module_& module) {
  module.def(
      "process_logits",
      [](const SamplingParams& params, const std::vector<int32_t>& tokens, int64_t prompt_len, const FloatArray& logits,
         int64_t sample_index) {
        FloatArray law(logits.size(), logits.data());
        Validate(params, logits.size());
        ProcessLogits(TestContext("", 1), params, {tokens, prompt_len, sample_index}, nullptr, law.mutable_data(), logits.size());
        return law;
      },
      py::arg("params"), py::arg("tokens"), py::arg("prompt_len"), py::arg("logits"), py::arg("sample_index") = 0);
  // (law, state after `token`) of a row whose sequence has `state`.
  module.def("law_and_next_state", [](const SamplingParams& params, const std::vector<int32_t>& tokens, const SamplerState& state,
                                      const FloatArray& logits, int32_t token, int64_t sample_index) {
    FloatArray law(logits.size(), logits.data());
    Validate(params, logits.size());
    const KernelContext context = TestContext("", 1);
    const TokenHistory history = {tokens, static_cast<int64_t>(tokens.size()), sample_index, state};
    const std::vector<float> before = ProcessLogits(context, params, history, nullptr, law.mutable_data(), logits.size());
    const std::span<const float> row(law.data(), static_cast<size_t>(law.size()));
    return std::pair(law, NextState(context, params, state, row, before, token));
  });
}

void RegisterDraws(py::module_& module) {
  module.def("draw_on_device",
             [](const std::string& table, const std::vector<SamplingParams>& params, const std::vector<std::vector<int32_t>>& tokens,
                int64_t prompt_len, int64_t sample_index, const FloatArray& logits) {
               const KernelContext context = TestContext(table, 1);
               PlacedFloats placed = Place(context, logits);
               DrawList draws;
               // From the last row to the first, so that a draw's position in the list is not its row.
               for (size_t i = params.size(); i-- > 0;) {
                 Validate(params[i], logits.shape(1));
                 draws.Add(params[i], {tokens[i], prompt_len}, sample_index, static_cast<int64_t>(i), logits.shape(1));
               }
               const DrawnRows drawn = context.device->TakeDrawn(context.device->Draw(draws.batch(), placed.data(), logits.shape(1)));
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
}

void RegisterNoise(py::module_& module) {
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
    if (name == "expm1_32") return py::float_(static_cast<double>(Expm1F32(static_cast<float>(x))));
    if (name == "sigmoid32") return py::float_(static_cast<double>(SigmoidF32(static_cast<float>(x))));
    if (name == "log32") return py::float_(static_cast<double>(LogF32(static_cast<float>(x))));
    if (name == "log64") return py::float_(LogF64(x));
    if (name == "log1p64") return py::float_(Log1pF64(x));
    if (name == "exp64") return py::float_(ExpF64(x));
    SinCosF64(x, &sine, &cosine);
    return py::make_tuple(sine, cosine);
  });
}

void RegisterDetokenizer(py::module_& module) {
  py::class_<Detokenizer>(module, "Detokenizer")
      .def(py::init([](const std::vector<py::bytes>& bytes, std::vector<std::string> stop, bool include_stop,
                       std::vector<std::string> patterns, std::vector<int32_t> program) {
             auto tokens = std::make_shared<TokenBytes>();
             for (const py::bytes& token : bytes) tokens->bytes.push_back(token);
             tokens->special.resize(bytes.size());
             return std::make_unique<Detokenizer>(tokens, true, TextStops{std::move(stop), std::move(patterns), std::move(program)},
                                                  include_stop);
           }),
           py::arg("token_bytes"), py::arg("stop"), py::arg("include_stop") = false, py::arg("patterns") = std::vector<std::string>(),
           py::arg("program") = std::vector<int32_t>())
      .def("push", &Detokenizer::Push, py::arg("token_id"), py::arg("check_stop") = true)
      .def("finish", &Detokenizer::Finish)
      .def("take", &Detokenizer::TakeEmittable)
      .def_property_readonly("text", &Detokenizer::text)
      .def_property_readonly("stopped_by", &Detokenizer::stopped_by);
}

}  // namespace

void RegisterTestingSampling(py::module_& module) {
  RegisterContrasts(module);
  RegisterLaws(module);
  RegisterDraws(module);
  RegisterBeams(module);
  RegisterNoise(module);
  RegisterDetokenizer(module);
}

}  // namespace llmi
