// Engines under a clock of their own.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/keywords.h"
#include "bindings/py_drafter.h"
#include "engine/options.h"
#include "engine/simulation.h"
#include "engine/sizing.h"
#include "model/spec.h"

namespace py = pybind11;

namespace llmi {
namespace {

CostCurve CurveOf(const std::vector<std::pair<int64_t, double>>& points) {
  std::vector<CostCurve::Point> found;
  for (const auto& [num_rows, seconds] : points) found.push_back({num_rows, seconds});
  return CostCurve(std::move(found));
}

// By name: those of the engine's options, the costs of a step, points (rows, seconds), kv_s, logits_s and draft_s, and drafts.
std::unique_ptr<SimulatedEngine> OpenSimulated(const std::string& spec, const std::string& source, const py::kwargs& given) {
  Keywords keywords(given, "SimulatedEngine");
  SimulatedConfig config;
  config.scheduler.policy = ParsePolicy(keywords.Take<std::string>("scheduling_policy"));
  config.scheduler.max_num_seqs = keywords.Take<int64_t>("max_num_seqs");
  config.scheduler.max_num_batched_tokens = keywords.Take<int64_t>("max_num_batched_tokens");
  config.scheduler.waiting_served_ratio = keywords.Take<double>("waiting_served_ratio");
  config.scheduler.chunked_prefill = keywords.Take<bool>("enable_chunked_prefill");
  config.prefix_caching = keywords.Take<bool>("enable_prefix_caching");
  config.streams = keywords.Take<bool>("streams");
  config.costs.rows = CurveOf(keywords.Take<std::vector<std::pair<int64_t, double>>>("points"));
  config.costs.kv_s = keywords.Take<double>("kv_s");
  config.costs.logits_s = keywords.Take<double>("logits_s");
  config.costs.draft_s = keywords.Take<double>("draft_s");
  config.drafts.num_tokens = keywords.Take<int64_t>("draft_tokens");
  config.drafts.acceptance = keywords.Take<double>("draft_acceptance");
  if (const py::object policy = keywords.Find("policy_hook"); policy && !policy.is_none()) {
    config.policy = std::make_shared<PyPolicy>(policy);
  }
  EngineConfig engine;
  engine.block_size = keywords.Take<int64_t>("block_size");
  engine.kv_type = ParseKvType(keywords.Take<std::string>("kv_cache_dtype"));
  const auto num_bytes = keywords.Take<int64_t>("kv_cache_memory_bytes");
  keywords.CheckAllKnown();
  const ModelSpec model = ParseSpec(spec, source);
  if (model.has_states()) {
    throw Error(ErrorKind::kUnsupportedModel, "models whose layers have states are not simulated so far", "model");
  }
  const KvGroups groups = GroupsOf(model, engine);
  config.num_pages = std::clamp<int64_t>(num_bytes / groups.page_bytes(), 0, INT32_MAX - 1);
  return std::make_unique<SimulatedEngine>(groups, config);
}

template <typename Value, typename Items, typename Get>
auto Column(const Items& items, const Get& get) {
  std::vector<Value> values;
  values.reserve(items.size());
  for (const auto& item : items) values.push_back(static_cast<Value>(get(item)));
  return CopyArray(values);
}

py::dict Requests(const SimulatedEngine& engine) {
  const auto& all = engine.requests();
  using R = const SimulatedRequest&;
  py::dict columns;
  columns["arrival_s"] = Column<double>(all, [](R r) { return r.arrival_s; });
  columns["first_token_s"] = Column<double>(all, [](R r) { return r.first_token_s; });
  columns["end_s"] = Column<double>(all, [](R r) { return r.end_s; });
  columns["output_tokens"] = Column<int64_t>(all, [](R r) { return r.num_output; });
  columns["cached_tokens"] = Column<int64_t>(all, [](R r) { return r.num_cached; });
  columns["n"] = Column<int64_t>(all, [](R r) { return r.num_samples; });
  columns["num_preemptions"] = Column<int64_t>(all, [](R r) { return r.num_preemptions; });
  return columns;
}

py::dict Steps(const SimulatedEngine& engine) {
  const auto& all = engine.steps();
  using S = const SimulatedStep&;
  py::dict columns;
  columns["start_s"] = Column<double>(all, [](S s) { return s.start_s; });
  columns["seconds"] = Column<double>(all, [](S s) { return s.seconds; });
  columns["rows"] = Column<int64_t>(all, [](S s) { return s.num_rows; });
  columns["decodes"] = Column<int64_t>(all, [](S s) { return s.num_decodes; });
  columns["prompt_tokens"] = Column<int64_t>(all, [](S s) { return s.num_prompt_tokens; });
  columns["kv_tokens"] = Column<int64_t>(all, [](S s) { return s.kv_tokens; });
  columns["used_pages"] = Column<int64_t>(all, [](S s) { return s.used_pages; });
  return columns;
}

// Engines whose steps go on together.
class SimulatedPool {
 public:
  explicit SimulatedPool(std::vector<std::shared_ptr<SimulatedEngine>> engines) : engines_(std::move(engines)) {}

  // Runs the steps that begin before this time; the sequences under way in each engine then.
  std::vector<int64_t> RunUntil(double time_s) const {
    std::vector<int64_t> loads;
    loads.reserve(engines_.size());
    for (const std::shared_ptr<SimulatedEngine>& engine : engines_) {
      engine->RunUntil(time_s);
      loads.push_back(engine->num_under_way());
    }
    return loads;
  }

 private:
  std::vector<std::shared_ptr<SimulatedEngine>> engines_;
};

}  // namespace

void RegisterSimulation(py::module_& module) {
  py::class_<SimulatedEngine, std::shared_ptr<SimulatedEngine>>(module, "SimulatedEngine")
      .def(py::init(&OpenSimulated), py::arg("spec"), py::arg("source"))
      .def(
          "add",
          [](SimulatedEngine& engine, const py::array_t<int32_t, py::array::c_style | py::array::forcecast>& tokens, int64_t num_output,
             double arrival_s, int64_t num_given, int64_t num_samples, uint64_t number) {
            SimulatedRequest request;
            request.tokens.assign(tokens.data(), tokens.data() + tokens.size());
            request.num_output = num_output;
            request.arrival_s = arrival_s;
            request.num_given = num_given;
            request.num_samples = num_samples;
            request.number = number;
            engine.Add(std::move(request));
          },
          py::arg("tokens"), py::arg("num_output"), py::arg("arrival_s"), py::arg("num_given") = 0, py::arg("num_samples") = 1,
          py::arg("number") = 0)
      .def("run_until", &SimulatedEngine::RunUntil, py::arg("time_s"), py::call_guard<py::gil_scoped_release>())
      .def("run_to_end", &SimulatedEngine::RunToEnd, py::call_guard<py::gil_scoped_release>())
      .def("block_bytes", &SimulatedEngine::BlockBytes, py::arg("num_tokens"))
      .def_property_readonly("num_under_way", &SimulatedEngine::num_under_way)
      .def_property_readonly("num_queued_tokens", &SimulatedEngine::num_queued_tokens)
      .def_property_readonly("num_pages", &SimulatedEngine::num_pages)
      .def_property_readonly("num_prefix_queries", [](const SimulatedEngine& engine) { return engine.scheduler().num_prefix_queries(); })
      .def_property_readonly("num_prefix_hits", [](const SimulatedEngine& engine) { return engine.scheduler().num_prefix_hits(); })
      .def("requests", &Requests)
      .def("steps", &Steps);
  py::class_<SimulatedPool>(module, "SimulatedPool")
      .def(py::init<std::vector<std::shared_ptr<SimulatedEngine>>>(), py::arg("engines"))
      .def(
          "run_until",
          [](const SimulatedPool& pool, double time_s) {
            std::vector<int64_t> loads;
            {
              const py::gil_scoped_release released;
              loads = pool.RunUntil(time_s);
            }
            return CopyArray(loads);
          },
          py::arg("time_s"));
}

}  // namespace llmi
