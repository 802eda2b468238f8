// The cost of masks: a sample's place in the engine, and the library alone.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/bind_constraint.h"
#include "bindings/bind_testing.h"
#include "bindings/gil.h"
#include "constraint/grammar_constraint.h"
#include "engine/constraints/sample_constraint.h"

namespace py = pybind11;

namespace llmi {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Reads the tokens and fills a mask before each and after the last. Returns seconds, one for each mask with the token before it.
std::vector<double> TimeEngine(std::unique_ptr<TokenConstraint> start, const std::vector<int32_t>& tokens, int64_t vocab_size) {
  SampleConstraint place(std::move(start), false);
  std::vector<double> seconds;
  for (size_t i = 0; i <= tokens.size(); ++i) {
    const Clock::time_point begin = Clock::now();
    place.FillRoot(std::span(tokens).first(i), vocab_size);
    seconds.push_back(SecondsSince(begin));
  }
  return seconds;
}

std::vector<double> TimeLibrary(GrammarConstraint& start, const std::vector<int32_t>& tokens) {
  const LibraryFunctions& functions = start.vocabulary().functions();
  std::vector<uint32_t> words(functions.mask_bytes(start.matcher()) / sizeof(uint32_t));
  std::vector<double> seconds;
  for (size_t i = 0; i <= tokens.size(); ++i) {
    const Clock::time_point begin = Clock::now();
    if (i > 0) {
      const auto token = static_cast<uint32_t>(tokens[i - 1]);
      if (functions.consume(start.matcher(), &token, 1) < 0) break;
    }
    if (functions.fill_mask(start.matcher(), words.data(), words.size() * sizeof(uint32_t)) < 0) break;
    seconds.push_back(SecondsSince(begin));
  }
  return seconds;
}

}  // namespace

void RegisterTestingConstraints(py::module_& module) {
  module.def(
      "time_masks",
      [](const py::object& matcher, const std::vector<int32_t>& ends, const std::vector<int32_t>& tokens, int64_t vocab_size) {
        std::vector<std::unique_ptr<TokenConstraint>> places = MakeConstraints(matcher, ends, 2, 0);
        const GilReleased released;
        std::vector<double> library = TimeLibrary(dynamic_cast<GrammarConstraint&>(*places[0]), tokens);
        return std::pair(TimeEngine(std::move(places[1]), tokens, vocab_size), std::move(library));
      },
      py::arg("matcher"), py::arg("ends"), py::arg("tokens"), py::arg("vocab_size"),
      "(seconds of each mask along a text in the engine, in the library alone), of a grammar's matcher.");
}

}  // namespace llmi
