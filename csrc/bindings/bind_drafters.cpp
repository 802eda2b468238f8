// Drafters of the core that hold more than a few numbers.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "speculative/corpus_drafter.h"
#include "speculative/corpus_table.h"
#include "speculative/lookahead.h"
#include "speculative/sized_union.h"
#include "speculative/token_recycling.h"

namespace py = pybind11;

namespace llmi {
namespace {

template <class Value>
using Array = py::array_t<Value, py::array::c_style>;

template <class Value>
std::span<const Value> SpanOf(const Array<Value>& array) {
  return {array.data(), static_cast<size_t>(array.size())};
}

template <class Value>
std::vector<Value> VectorOf(const Array<Value>& array) {
  return {array.data(), array.data() + array.size()};
}

std::shared_ptr<CorpusTable> MakeTable(int64_t vocab_size, int64_t max_order, const Array<uint16_t>& checks, const Array<uint16_t>& tokens,
                                       const Array<uint8_t>& high_tokens, const Array<uint8_t>& rates) {
  return std::make_shared<CorpusTable>(vocab_size, max_order,
                                       CorpusTable::Slots{VectorOf(checks), VectorOf(tokens), VectorOf(high_tokens), VectorOf(rates)});
}

std::shared_ptr<CorpusTable> CountTexts(const Array<int32_t>& token_ids, const Array<int64_t>& ends, int64_t vocab_size, int64_t max_order,
                                        int64_t max_bytes) {
  const GilReleased released;
  return std::make_shared<CorpusTable>(CorpusTable::Count(SpanOf(token_ids), SpanOf(ends), vocab_size, max_order, max_bytes));
}

}  // namespace

void RegisterDrafters(py::module_& module) {
  py::class_<CorpusTable, std::shared_ptr<CorpusTable>>(module, "CorpusTable")
      .def(py::init(&MakeTable), py::arg("vocab_size"), py::kw_only(), py::arg("max_order"), py::arg("checks").noconvert(),
           py::arg("tokens").noconvert(), py::arg("high_tokens").noconvert(), py::arg("rates").noconvert())
      .def_static("count", &CountTexts, py::arg("token_ids").noconvert(), py::kw_only(), py::arg("ends").noconvert(), py::arg("vocab_size"),
                  py::arg("max_order"), py::arg("max_bytes"))
      .def(
          "next",
          [](const CorpusTable& table, const Array<int32_t>& text) {
            const CorpusTable::Guess guess = table.Next(SpanOf(text));
            return py::make_tuple(guess.token, guess.rate, guess.order);
          },
          py::arg("text").noconvert())
      .def_property_readonly("vocab_size", &CorpusTable::vocab_size)
      .def_property_readonly("max_order", &CorpusTable::max_order)
      .def_property_readonly("num_entries", &CorpusTable::num_entries)
      .def_property_readonly("num_bytes", &CorpusTable::num_bytes)
      .def_property_readonly("checks", [](const CorpusTable& table) { return CopyArray(table.slots().checks); })
      .def_property_readonly("tokens", [](const CorpusTable& table) { return CopyArray(table.slots().tokens); })
      .def_property_readonly("high_tokens", [](const CorpusTable& table) { return CopyArray(table.slots().high_tokens); })
      .def_property_readonly("rates", [](const CorpusTable& table) { return CopyArray(table.slots().rates); });
  py::class_<CorpusDrafter, Drafter, std::shared_ptr<CorpusDrafter>>(module, "CorpusDrafter")
      .def(py::init([](std::shared_ptr<CorpusTable> table) { return std::make_shared<CorpusDrafter>(std::move(table)); }), py::arg("table"))
      .def(
          "propose",
          [](CorpusDrafter& drafter, const std::vector<int32_t>& token_ids, int64_t num_tokens) {
            Seat seat;
            seat.text.token_ids = token_ids;
            seat.budget.max_nodes = num_tokens;
            drafter.Propose({&seat, 1});
            return seat.draft.token_ids;
          },
          py::arg("token_ids"), py::arg("num_tokens"));
  py::class_<SizedUnion, Drafter, std::shared_ptr<SizedUnion>>(module, "SizedUnion")
      .def(py::init<std::vector<std::shared_ptr<Drafter>>>(), py::arg("drafters"));
  py::class_<TokenRecycling, Drafter, std::shared_ptr<TokenRecycling>>(module, "TokenRecycling").def(py::init<>());
  py::class_<Lookahead, Drafter, std::shared_ptr<Lookahead>>(module, "Lookahead")
      .def(py::init<int64_t, int64_t, int64_t>(), py::kw_only(), py::arg("window"), py::arg("ngram_size"), py::arg("max_ngrams"));
}

}  // namespace llmi
