// The engine: opened, asked, closed.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/engine_handle.h"
#include "bindings/engine_options.h"
#include "bindings/gil.h"
#include "engine/engine.h"
#include "model/steering.h"

namespace py = pybind11;

namespace llmi {
namespace {

// Says that whoever loads a model has given up.
struct DropFlag {
  std::atomic<bool> value{false};
};

py::dict DictOf(const EngineStats& stats) {
  py::dict values;
  VisitMetrics(stats, [&](const char* name, const auto& value, const char* /*meaning*/) { values[name] = value; });
  if (!stats.stages_busy_s.empty()) values["stages_busy_s"] = stats.stages_busy_s;
  return values;
}

py::dict Stats(EngineHandle& handle) {
  EngineStats stats;
  {
    const GilReleased release;
    stats = handle.engine().Stats();
  }
  return DictOf(stats);
}

using EngineClass = py::class_<EngineHandle, std::unique_ptr<EngineHandle, EngineHandleDeleter>>;

// Reads that do not wait for the engine thread.
void RegisterWatching(EngineClass& engine) {
  engine.def(
            "latest_stats", [](EngineHandle& handle) { return DictOf(handle.engine().Stats(false)); }, "The counters after the last step.")
      .def_property_readonly(
          "num_queued", [](EngineHandle& handle) { return handle.engine().Stats(false).num_queued; },
          "Requests that no step has computed a token of.")
      .def_property_readonly(
          "stalled_s", [](EngineHandle& handle) { return handle.engine().Stats(false).stalled_s; },
          "Seconds since the engine thread last moved; 0 while it has nothing to do.");
}

}  // namespace

void RegisterEngine(py::module_& module) {
  py::class_<DropFlag>(module, "DropFlag")
      .def(py::init<>())
      .def("set", [](DropFlag& flag) { flag.value = true; }, "Ends the loading of the model: its caller has given up.");
  EngineClass bound(module, "Engine");
  bound
      .def(py::init([](const ModelFiles& files, const DropFlag& dropped, const py::kwargs& given) {
             const EngineOptions options = EngineOptionsOf(given);
             const GilReleased release;
             return std::unique_ptr<EngineHandle, EngineHandleDeleter>(new EngineHandle(OpenEngine(files, options, &dropped.value)));
           }),
           py::arg("files"), py::kw_only(), py::arg("dropped"), "Further arguments: the engine's options by name (engine/options.h).")
      .def(
          "start",
          [](EngineHandle& handle, const std::vector<py::bytes>& token_bytes, const std::map<int64_t, std::string>& special,
             const std::string& prefix_dir, int64_t prefix_bytes, const std::string& identity, const std::string& label, bool hands_over,
             int64_t ask_from) { handle.Start(token_bytes, special, {prefix_dir, prefix_bytes, identity, label, hands_over, ask_from}); },
          py::arg("token_bytes"), py::arg("special"), py::arg("prefix_dir") = "", py::arg("prefix_bytes") = 0, py::arg("identity") = "",
          py::arg("label") = "", py::arg("hands_over") = false, py::arg("ask_from") = 0)
      .def("info", &EngineHandle::Info)
      .def(
          "check", [](EngineHandle& handle, const Request& request) { handle.engine().Check(request); }, py::arg("request"))
      .def(
          "submit",
          [](EngineHandle& handle, const std::vector<std::shared_ptr<Request>>& requests, const std::shared_ptr<OutputChannel>& channel) {
            handle.engine().Submit(requests, channel);
          },
          py::arg("requests"), py::arg("channel"))
      .def(
          "abort", [](EngineHandle& handle, const std::vector<uint64_t>& ids) { handle.engine().Abort(ids); }, py::arg("request_ids"))
      .def("step",
           [](EngineHandle& handle) {
             Engine& engine = handle.engine();
             const GilReleased release;
             return engine.Step();
           })
      .def(
          "reset_prefix_cache", [](EngineHandle& handle) { handle.engine().ResetPrefixCache(); }, py::call_guard<GilReleased>())
      .def(
          "save_prefix",
          [](EngineHandle& handle, const std::vector<int32_t>& token_ids, const std::string& salt) {
            return handle.engine().SavePrefix(token_ids, salt.empty() ? salt : SaltWith(nullptr, {}, salt));
          },
          py::arg("token_ids"), py::arg("salt"), py::call_guard<GilReleased>())
      .def(
          "next_question",
          [](EngineHandle& handle, double timeout_s) -> std::optional<std::tuple<int64_t, std::vector<int32_t>, std::string, double>> {
            std::optional<PrefixQuestion> question = handle.engine().questions().Next(timeout_s);
            if (!question) return std::nullopt;
            return std::tuple(question->number, std::move(question->tokens), std::move(question->salt), question->seconds);
          },
          py::arg("timeout_s"), py::call_guard<GilReleased>())
      .def(
          "answer_question",
          [](EngineHandle& handle, int64_t number, const std::string& answer) {
            static const std::map<std::string, PrefixAnswer> kAnswers = {{"there", PrefixAnswer::kThere},
                                                                         {"failed", PrefixAnswer::kFailed},
                                                                         {"foreign", PrefixAnswer::kForeign},
                                                                         {"late", PrefixAnswer::kLate},
                                                                         {"unasked", PrefixAnswer::kUnasked}};
            handle.engine().questions().Answer(number, kAnswers.at(answer));
          },
          py::arg("number"), py::arg("answer"), py::call_guard<GilReleased>())
      .def("on_engine_thread", [](EngineHandle& handle) { return handle.engine().OnEngineThread(); })
      .def(
          "check_open", [](EngineHandle& handle) { handle.engine().CheckOpen(); },
          "Raises CoreError if the engine is closed, and in the child of a fork.")
      .def("interrupt_hook", &EngineHandle::InterruptHook, py::arg("request_ids"))
      .def("close", &EngineHandle::Close, py::arg("patience_s") = std::numeric_limits<double>::infinity())
      .def(
          "tables", [](EngineHandle& handle) { return handle.engine().Tables(); }, py::call_guard<GilReleased>())
      .def("stats", &Stats);
  RegisterWatching(bound);
  py::dict meanings;
  VisitMetrics({}, [&](const char* name, const auto& /*value*/, const char* meaning) { meanings[name] = meaning; });
  module.attr("METRICS") = meanings;
}

}  // namespace llmi
