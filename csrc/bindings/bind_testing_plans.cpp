// The plans of logits rows (engine/rows/plan.h), for requests and rows that a test describes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings/bind_testing.h"
#include "engine/rows/plan.h"
#include "engine/running.h"

namespace py = pybind11;

namespace llmi {
namespace {

// One row of a request, with the state that its sample has before the step.
struct RowCase {
  int64_t sample_index = 0;
  int64_t position = 0;
  int32_t node = kWalkRoot;
  bool draws = true;
  bool started = true;
  bool finished = false;
  std::vector<int32_t> draft_token_ids;
  std::vector<int32_t> draft_parents;  // as in Draft
  bool is_observed = false;            // by its drafter
  bool has_device = false;
  bool has_batch_processors = false;
};

RowPlan PlanOf(const std::shared_ptr<Request>& request, const RowCase& row) {
  Running running;
  running.request = request;
  for (int64_t i = 0; i < request->num_samples; ++i) {
    running.samples.push_back(std::make_unique<Sample>(std::make_shared<TokenBytes>(), request->params));
    running.samples.back()->running = &running;
    running.samples.back()->index = i;
    running.samples.back()->started = row.started;
    if (!request->constraints.empty()) {
      running.samples.back()->constraint = std::make_unique<SampleConstraint>(std::unique_ptr<TokenConstraint>(), false);
    }
  }
  Sample& sample = *running.samples.at(static_cast<size_t>(row.sample_index));
  sample.finished = row.finished;
  if (request->params.contrasts()) sample.drafting.BeginContrast();
  sample.walk.Begin({row.draft_token_ids, row.draft_parents}, row.is_observed);
  return PlanRow({&sample, row.position, row.node, row.draws}, {row.has_device, row.has_batch_processors});
}

const char* NameOf(RowDecider decider) {
  switch (decider) {
    case RowDecider::kNobody: return "nobody";
    case RowDecider::kDraw: return "draw";
    case RowDecider::kSampler: return "sampler";
    case RowDecider::kRule: return "rule";
    case RowDecider::kJudge: return "judge";
    case RowDecider::kBeams: return "beams";
    case RowDecider::kContrast: return "contrast";
  }
  return "";
}

}  // namespace

void RegisterTestingPlans(py::module_& module) {
  py::class_<RowEdits>(module, "RowEdits")
      .def_readonly("constraint", &RowEdits::constraint)
      .def_readonly("combined", &RowEdits::combined)
      .def_readonly("parameters", &RowEdits::parameters)
      .def_readonly("last_token", &RowEdits::last_token)
      .def_readonly("batch_processors", &RowEdits::batch_processors)
      .def_readonly("processors", &RowEdits::processors);
  py::class_<RowReaders>(module, "RowReaders")
      .def_readonly("siblings", &RowReaders::siblings)
      .def_readonly("criteria", &RowReaders::criteria)
      .def_readonly("user_rule", &RowReaders::user_rule);
  py::class_<RowKeeps>(module, "RowKeeps")
      .def_readonly("prompt_score", &RowKeeps::prompt_score)
      .def_readonly("logprobs", &RowKeeps::logprobs)
      .def_readonly("draft_logprobs", &RowKeeps::draft_logprobs)
      .def_readonly("trace", &RowKeeps::trace)
      .def_readonly("likeliest", &RowKeeps::likeliest)
      .def_readonly("hidden", &RowKeeps::hidden);
  py::class_<RowPlan>(module, "RowPlan")
      .def_property_readonly("place", [](const RowPlan& plan) { return plan.place == RowPlace::kDevice ? "device" : "host"; })
      .def_property_readonly("decider", [](const RowPlan& plan) { return NameOf(plan.decider); })
      .def_readonly("edits", &RowPlan::edits)
      .def_readonly("readers", &RowPlan::readers)
      .def_readonly("keeps", &RowPlan::keeps)
      .def_readonly("in_parallel", &RowPlan::in_parallel)
      .def_readonly("lets_run_ahead", &RowPlan::lets_run_ahead)
      .def_property_readonly("needs_logits", &RowPlan::NeedsLogits)
      .def_property_readonly("needs_whole_row", &RowPlan::NeedsWholeRow)
      .def_property_readonly("overwrites_logits", [](const RowPlan& plan) { return !plan.NeedsHost(); });
  py::class_<RowCase>(module, "RowCase")
      .def(py::init())
      .def_readwrite("sample_index", &RowCase::sample_index)
      .def_readwrite("position", &RowCase::position)
      .def_readwrite("node", &RowCase::node)
      .def_readwrite("draws", &RowCase::draws)
      .def_readwrite("started", &RowCase::started)
      .def_readwrite("finished", &RowCase::finished)
      .def_readwrite("draft_token_ids", &RowCase::draft_token_ids)
      .def_readwrite("draft_parents", &RowCase::draft_parents)
      .def_readwrite("is_observed", &RowCase::is_observed)
      .def_readwrite("has_device", &RowCase::has_device)
      .def_readwrite("has_batch_processors", &RowCase::has_batch_processors);
  module.def("plan_row", &PlanOf, py::arg("request"), py::arg("row"));
}

}  // namespace llmi
