// Records that cross between the core and Python: their fields have names on both sides.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "bindings/py_drafter.h"
#include "bindings/py_hooks.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace py = pybind11;

namespace llmi {
namespace {

void RegisterDraftQuery(py::module_& module) {
  py::class_<PyDraftQuery>(module, "DraftQuery")
      .def_readonly("request_id", &PyDraftQuery::request_id)
      .def_readonly("sample_index", &PyDraftQuery::sample_index)
      .def_readonly("token_ids", &PyDraftQuery::token_ids)
      .def_readonly("prompt_len", &PyDraftQuery::prompt_len)
      .def_readonly("max_nodes", &PyDraftQuery::max_nodes)
      .def_readonly("round", &PyDraftQuery::round)
      .def_readonly("wants_laws", &PyDraftQuery::wants_laws)
      .def_readonly("sampler_state", &PyDraftQuery::sampler_state)
      .def_readonly("hidden_states", &PyDraftQuery::hidden_states)
      .def_readonly("hidden_rows", &PyDraftQuery::hidden_rows)
      .def_readonly("first_row", &PyDraftQuery::first_row);
}

}  // namespace

void RegisterRecords(py::module_& module) {
  py::class_<PolicyRequest>(module, "PolicyRequest")
      .def_readonly("id", &PolicyRequest::id)
      .def_readonly("priority", &PolicyRequest::priority)
      .def_readonly("arrival_time_s", &PolicyRequest::arrival_time_s)
      .def_readonly("prompt_len", &PolicyRequest::prompt_len)
      .def_readonly("num_tokens", &PolicyRequest::num_tokens)
      .def_readonly("max_new_tokens", &PolicyRequest::max_new_tokens)
      .def_readonly("num_preemptions", &PolicyRequest::num_preemptions);
  RegisterDraftQuery(module);
  py::class_<PyHookRow>(module, "HookRow")
      .def_readonly("hooks", &PyHookRow::hooks)
      .def_readonly("sample_index", &PyHookRow::sample_index)
      .def_readonly("slot", &PyHookRow::slot)
      .def_readonly("token_ids", &PyHookRow::token_ids)
      .def_readonly("prompt_len", &PyHookRow::prompt_len)
      .def_readonly("output_text", &PyHookRow::output_text)
      .def_readonly("batched", &PyHookRow::batched);
  py::class_<TokenLogprobs>(module, "TokenLogprobs")
      .def_readonly("token_ids", &TokenLogprobs::token_ids)
      .def_readonly("logprobs", &TokenLogprobs::logprobs)
      .def_readonly("processed_logprobs", &TokenLogprobs::processed_logprobs)
      .def_readonly("ranks", &TokenLogprobs::ranks);
  py::class_<SequenceTables>(module, "SequenceTables")
      .def_readonly("request_id", &SequenceTables::request_id)
      .def_readonly("sample_index", &SequenceTables::sample_index)
      .def_readonly("num_tokens", &SequenceTables::num_tokens)
      .def_readonly("tables", &SequenceTables::tables);
  py::class_<MemoryTables>(module, "MemoryTables")
      .def_readonly("sequences", &MemoryTables::sequences)
      .def_readonly("prefix_shape", &MemoryTables::prefix_shape)
      .def_property_readonly("references", [](const MemoryTables& tables) { return CopyArray(tables.references); });
  py::class_<SpeculationStats>(module, "SpeculationStats")
      .def(py::init<>())
      .def_readonly("num_drafts", &SpeculationStats::num_drafts)
      .def_readonly("num_draft_tokens", &SpeculationStats::num_draft_tokens)
      .def_readonly("num_accepted_tokens", &SpeculationStats::num_accepted_tokens)
      .def_readonly("num_accepted_per_position", &SpeculationStats::num_accepted_per_position)
      .def_readonly("draft_time_s", &SpeculationStats::draft_time_s)
      .def_readonly("verify_time_s", &SpeculationStats::verify_time_s);
}

}  // namespace llmi
