// Recordings of an engine's steps, and their replay.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/engine_handle.h"
#include "bindings/gil.h"
#include "bindings/keywords.h"
#include "engine/options.h"
#include "engine/sizing.h"
#include "engine/step_replay.h"
#include "model/spec.h"

namespace py = pybind11;

namespace llmi {
namespace {

using PieceTuple = std::tuple<int64_t, int64_t, int64_t, int64_t>;

// By name: the engine's options as the recording has them.
std::unique_ptr<StepReplay> OpenReplay(const std::string& spec, const std::string& source, const py::kwargs& given) {
  Keywords keywords(given, "StepReplay");
  EngineConfig engine;
  engine.scheduler.policy = ParsePolicy(keywords.Take<std::string>("scheduling_policy"));
  engine.scheduler.max_num_seqs = keywords.Take<int64_t>("max_num_seqs");
  engine.scheduler.max_num_batched_tokens = keywords.Take<int64_t>("max_num_batched_tokens");
  engine.scheduler.waiting_served_ratio = keywords.Take<double>("waiting_served_ratio");
  engine.scheduler.chunked_prefill = keywords.Take<bool>("enable_chunked_prefill");
  engine.block_size = keywords.Take<int64_t>("block_size");
  engine.kv_type = ParseKvType(keywords.Take<std::string>("kv_cache_dtype"));
  const auto prefix_caching = keywords.Take<bool>("enable_prefix_caching");
  const auto num_pages = keywords.Take<int64_t>("num_pages");
  keywords.CheckAllKnown();
  CheckArgument(1 <= engine.block_size && engine.block_size <= 4096 && 1 <= num_pages && num_pages < INT32_MAX, "no size of a pool");
  return std::make_unique<StepReplay>(GroupsOf(ParseSpec(spec, source), engine), num_pages, engine.scheduler, prefix_caching);
}

std::vector<PieceTuple> Schedule(StepReplay& replay, int64_t prompt_budget) {
  std::vector<PieceTuple> pieces;
  for (const StepReplay::Piece& piece : replay.Schedule(prompt_budget)) {
    pieces.emplace_back(piece.id, piece.num_new, piece.num_drafted, piece.num_companion);
  }
  return pieces;
}

void Commit(StepReplay& replay, const std::vector<PieceTuple>& pieces) {
  std::vector<StepReplay::Piece> all;
  for (const auto& [id, num_new, num_drafted, num_companion] : pieces) all.push_back({id, num_new, num_drafted, num_companion});
  replay.Commit(all);
}

}  // namespace

void RegisterReplay(py::module_& module) {
  py::class_<StepReplay>(module, "StepReplay")
      .def(py::init(&OpenReplay), py::arg("spec"), py::arg("source"))
      .def("init", &StepReplay::Init)
      .def("fork", &StepReplay::Fork)
      .def("free", &StepReplay::Free)
      .def("reserve", &StepReplay::Reserve)
      .def("keep", &StepReplay::Keep)
      .def("rollback", &StepReplay::Rollback)
      .def("trim", &StepReplay::Trim)
      .def("clear", &StepReplay::Clear)
      .def("new", [](StepReplay& replay, int64_t id, const py::bytes& salt) { replay.New(id, salt); })
      .def("set", &StepReplay::Set)
      .def("tokens", &StepReplay::SetTokens)
      .def("key", &StepReplay::SetKey)
      .def("pair", &StepReplay::Pair)
      .def("add", [](StepReplay& replay, int64_t id) { replay.Add(id, false); })
      .def("run", [](StepReplay& replay, int64_t id) { replay.Add(id, true); })
      .def("remove", &StepReplay::Remove)
      .def("schedule", &Schedule)
      .def("commit", &Commit)
      .def("end", &StepReplay::EndStep)
      .def_property_readonly("num_available", &StepReplay::num_available);
  module.def(
      "record_steps",
      [](EngineHandle& handle, const std::string& path, const std::string& header) { handle.engine().RecordSteps(path, header); },
      py::arg("engine"), py::arg("path"), py::arg("header"), py::call_guard<GilReleased>());
  module.def(
      "end_recording", [](EngineHandle& handle) { handle.engine().EndRecording(); }, py::arg("engine"), py::call_guard<GilReleased>());
}

}  // namespace llmi
