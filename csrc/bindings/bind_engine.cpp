#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <atomic>
#include <limits>

#include "bindings/bindings.h"
#include "bindings/engine_handle.h"
#include "bindings/engine_options.h"
#include "bindings/gil.h"
#include "bindings/py_drafter.h"
#include "bindings/py_hooks.h"
#include "engine/engine.h"
#include "speculative/prompt_lookup.h"

namespace py = pybind11;

namespace llmi {

py::tuple ErrorFields(const Error& error);

namespace {

struct DropFlag {
  std::atomic<bool> value{false};
};

template <typename T>
py::array_t<T> ToArray(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

const char* FinishName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return nullptr;
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAbort: return "abort";
    case FinishReason::kError: return "error";
  }
  return nullptr;
}

py::object OptionalName(FinishReason reason) {
  const char* name = FinishName(reason);
  return name == nullptr ? py::object(py::none()) : py::object(py::str(name));
}

template <typename Row, typename T>
py::array_t<T> Column(const std::vector<Row>& rows, T Row::* field) {
  py::array_t<T> array(static_cast<py::ssize_t>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) array.mutable_data()[i] = rows[i].*field;
  return array;
}

py::dict CandidateColumns(const std::vector<TraceCandidate>& rows) {
  py::dict columns;
  columns["position"] = Column(rows, &TraceCandidate::position);
  columns["token_id"] = Column(rows, &TraceCandidate::token_id);
  columns["raw"] = Column(rows, &TraceCandidate::raw);
  columns["masked"] = Column(rows, &TraceCandidate::masked);
  columns["penalised"] = Column(rows, &TraceCandidate::penalised);
  columns["processed"] = Column(rows, &TraceCandidate::processed);
  columns["tempered"] = Column(rows, &TraceCandidate::tempered);
  columns["kept"] = Column(rows, &TraceCandidate::kept);
  columns["noise"] = Column(rows, &TraceCandidate::noise);
  columns["chosen"] = Column(rows, &TraceCandidate::chosen);
  return columns;
}

py::dict TraceColumns(const std::vector<TraceRow>& rows) {
  py::dict columns;
  columns["step"] = Column(rows, &TraceRow::step);
  columns["position"] = Column(rows, &TraceRow::position);
  columns["depth"] = Column(rows, &TraceRow::depth);
  columns["token_id"] = Column(rows, &TraceRow::token_id);
  columns["raw_logprob"] = Column(rows, &TraceRow::raw_logprob);
  columns["processed_logprob"] = Column(rows, &TraceRow::processed_logprob);
  columns["rank"] = Column(rows, &TraceRow::rank);
  columns["num_kept"] = Column(rows, &TraceRow::num_kept);
  columns["noise"] = Column(rows, &TraceRow::noise);
  columns["draft_prob"] = Column(rows, &TraceRow::draft_prob);
  columns["accepted"] = Column(rows, &TraceRow::accepted);
  columns["time_s"] = Column(rows, &TraceRow::time_s);
  return columns;
}

void RegisterParams(py::module_& module) {
  py::class_<SamplingParams> params(module, "SamplingParams");
  params.def(py::init<>());
  VisitSamplingParams([&](const char* name, auto member) { params.def_readwrite(name, member); });
}

void RegisterSpeculation(py::module_& module) {
  py::class_<Drafter, std::shared_ptr<Drafter>>(module, "Drafter").def_property_readonly("name", &Drafter::name);
  py::class_<PromptLookup, Drafter, std::shared_ptr<PromptLookup>>(module, "PromptLookup")
      .def(py::init<int64_t, int64_t>(), py::arg("min_ngram"), py::arg("max_ngram"))
      .def(
          "propose",
          [](PromptLookup& lookup, const std::vector<int32_t>& token_ids, int64_t num_tokens) {
            const std::unique_ptr<DrafterState> state = lookup.NewState(0, 0);
            DraftContext context;
            context.token_ids = token_ids;
            context.max_nodes = num_tokens;
            context.state = state.get();
            DraftContext* pointer = &context;
            lookup.Propose({&pointer, 1});
            return context.draft.token_ids;
          },
          py::arg("token_ids"), py::arg("num_tokens"));
  py::class_<PyDrafter, Drafter, std::shared_ptr<PyDrafter>>(module, "PyDrafter")
      .def(py::init<py::object, std::string>(), py::arg("runner"), py::arg("name"));
  py::class_<UnionDrafter, Drafter, std::shared_ptr<UnionDrafter>>(module, "UnionDrafter")
      .def(py::init<std::vector<std::shared_ptr<Drafter>>>(), py::arg("drafters"));
  py::class_<PyDraftRows>(module, "DraftRows")
      .def_property_readonly("token_ids", &PyDraftRows::token_ids)
      .def_property_readonly("parents", &PyDraftRows::parents)
      .def_property_readonly("laws", &PyDraftRows::laws)
      .def("logits", &PyDraftRows::Logits, py::arg("node"))
      .def("target", &PyDraftRows::Target, py::arg("node"))
      .def("target_token", &PyDraftRows::TargetToken, py::arg("node"))
      .def("uniform", &PyDraftRows::Coin, py::arg("node"), py::arg("lane"))
      .def("draw", &PyDraftRows::Draw, py::arg("probs"), py::arg("node"));
  py::class_<SpeculationConfig>(module, "SpeculationConfig")
      .def(py::init([](const std::shared_ptr<Drafter>& drafter, int64_t num_tokens, const py::object& length_policy,
                       const std::string& verification, const py::object& rule, uint64_t request_id) {
             SpeculationConfig config;
             config.drafter = drafter;
             config.num_tokens = num_tokens;
             if (verification == "rejection") config.rule = std::make_shared<AcceptanceRule>();
             if (verification == "rule") config.rule = std::make_shared<PyAcceptanceRule>(rule, request_id);
             if (verification == "block") config.judge = std::make_shared<BlockVerification>();
             if (verification == "judge") config.judge = std::make_shared<PyDraftJudge>(rule, request_id);
             if (config.rule != nullptr) config.verification = VerificationKind::kRule;
             if (config.judge != nullptr) config.verification = VerificationKind::kJudge;
             if (!length_policy.is_none()) config.length_policy = std::make_shared<PyLengthPolicy>(length_policy, request_id);
             return config;
           }),
           py::arg("drafter"), py::arg("num_tokens"), py::arg("length_policy"), py::arg("verification"), py::arg("rule"),
           py::arg("request_id"));
}

void RegisterRequest(py::module_& module) {
  py::class_<SampleOutput>(module, "SampleOutput")
      .def_readonly("token_ids", &SampleOutput::token_ids)
      .def_property_readonly("text", [](const SampleOutput& output) { return py::str(output.text); })
      .def_readonly("cumulative_logprob", &SampleOutput::cumulative_logprob)
      .def_property_readonly("logprobs", [](const SampleOutput& output) { return output.logprobs; })
      .def_property_readonly("token_times_s", [](const SampleOutput& output) { return ToArray(output.token_times_s); })
      .def_property_readonly("finish_reason", [](const SampleOutput& output) { return OptionalName(output.finish_reason); })
      .def_readonly("stop_reason", &SampleOutput::stop_reason)
      .def_property_readonly("trace", [](const SampleOutput& output) { return TraceColumns(output.trace); })
      .def_property_readonly("candidates", [](const SampleOutput& output) { return CandidateColumns(output.candidates); })
      .def_readonly("speculation", &SampleOutput::speculation);
  py::class_<Request, std::shared_ptr<Request>>(module, "Request")
      .def(py::init([](uint64_t id, std::vector<int32_t> prompt, const SamplingParams& params, int64_t n, int64_t priority, bool stream,
                       bool stepped, const py::object& hooks, const std::optional<SpeculationConfig>& speculation,
                       const std::shared_ptr<LabSequence>& source, std::string cache_salt, bool trace) {
             auto request = std::make_shared<Request>();
             request->id = id;
             request->prompt_token_ids = std::move(prompt);
             request->params = params;
             request->num_samples = n;
             request->priority = priority;
             request->stream = stream;
             request->stepped = stepped;
             if (!hooks.is_none()) request->hooks = std::make_shared<PyHooks>(hooks, id);
             request->speculation = speculation;
             request->source = source;
             request->cache_salt = std::move(cache_salt);
             request->trace = trace;
             return request;
           }),
           py::kw_only(), py::arg("id"), py::arg("prompt_token_ids"), py::arg("params"), py::arg("n"), py::arg("priority"),
           py::arg("stream"), py::arg("stepped"), py::arg("hooks"), py::arg("speculation"), py::arg("source"), py::arg("cache_salt"),
           py::arg("trace"))
      .def_readonly("id", &Request::id)
      .def_property_readonly("samples",
                             [](const Request& request) {
                               py::list list;
                               for (const SampleOutput& sample : request.samples) list.append(py::cast(sample));
                               return list;
                             })
      .def_property_readonly("prompt_logprobs", [](const Request& request) { return request.prompt_logprobs; })
      .def_property_readonly(
          "prompt_token_logprobs",
          [](const Request& request) {
            std::vector<float> values;
            for (const TokenLogprobs& entry : request.prompt_logprobs) values.push_back(entry.logprobs[0]);
            return ToArray(values);
          },
          "[prompt_len - 1] raw log-probability of each prompt token after the first.")
      .def_property_readonly("prompt_token_ranks",
                             [](const Request& request) {
                               std::vector<int32_t> values;
                               for (const TokenLogprobs& entry : request.prompt_logprobs) values.push_back(entry.ranks[0]);
                               return ToArray(values);
                             })
      .def_property_readonly(
          "error", [](const Request& request) { return request.error ? py::object(ErrorFields(*request.error)) : py::object(py::none()); })
      .def_readonly("num_preemptions", &Request::num_preemptions)
      .def_readonly("num_cached_tokens", &Request::num_cached_tokens)
      .def_readonly("arrival_time_s", &Request::arrival_time_s)
      .def_readonly("first_scheduled_time_s", &Request::first_scheduled_time_s)
      .def_readonly("first_token_time_s", &Request::first_token_time_s)
      .def_readonly("finish_time_s", &Request::finish_time_s);
  py::class_<OutputEvent>(module, "OutputEvent")
      .def_readonly("request", &OutputEvent::request)
      .def_readonly("finished", &OutputEvent::finished)
      .def_readonly("sample_index", &OutputEvent::sample_index)
      .def_readonly("token_ids", &OutputEvent::token_ids)
      .def_property_readonly("text", [](const OutputEvent& event) { return py::str(event.text); })
      .def_property_readonly("logprobs", [](const OutputEvent& event) { return event.logprobs; })
      .def_property_readonly("finish_reason", [](const OutputEvent& event) { return OptionalName(event.finish_reason); });
  py::class_<OutputChannel, std::shared_ptr<OutputChannel>>(module, "OutputChannel")
      // The child of a fork leaves a channel as it is: a thread of the parent's may have waited at it.
      .def(py::init([] {
        return std::shared_ptr<OutputChannel>(new OutputChannel(), [pid = getpid()](const OutputChannel* channel) {
          if (getpid() == pid) delete channel;
        });
      }))
      // Waits up to timeout_s for an event, then appends all events of the channel to `events`. An exception on the way back loses none:
      // what was taken is in the list. Several threads may wait: the list has the channel's order.
      .def(
          "wait",
          [](OutputChannel& channel, py::list events, double timeout_s) {
            {
              const GilReleased released;
              channel.Wait(timeout_s);
            }
            for (OutputEvent& event : channel.TakeAll()) events.append(std::move(event));
          },
          py::arg("events"), py::arg("timeout_s"));
}

}  // namespace

void RegisterEngine(py::module_& module) {
  RegisterParams(module);
  RegisterSpeculation(module);
  RegisterRequest(module);
  py::class_<DropFlag>(module, "DropFlag")
      .def(py::init<>())
      .def("set", [](DropFlag& flag) { flag.value = true; }, "Ends the loading of the model: its caller has given up.");
  py::class_<EngineHandle, std::unique_ptr<EngineHandle, EngineHandleDeleter>>(module, "Engine")
      .def(py::init([](const ModelFiles& files, const DropFlag& dropped, const py::kwargs& given) {
             const EngineOptions options = EngineOptionsOf(given);
             const GilReleased release;
             return std::unique_ptr<EngineHandle, EngineHandleDeleter>(new EngineHandle(OpenEngine(files, options, &dropped.value)));
           }),
           py::arg("files"), py::kw_only(), py::arg("dropped"), "Further arguments: the engine's options by name (engine/options.h).")
      .def("start", &EngineHandle::Start, py::arg("token_bytes"), py::arg("special"))
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
      .def("on_engine_thread", [](EngineHandle& handle) { return handle.engine().OnEngineThread(); })
      // Throws Error(kClosed) if it is, and in the child of a fork.
      .def("check_open", [](EngineHandle& handle) { handle.engine().CheckOpen(); })
      .def("interrupt_hook", &EngineHandle::InterruptHook, py::arg("request_ids"))
      .def("close", &EngineHandle::Close, py::arg("patience_s") = std::numeric_limits<double>::infinity())
      .def(
          "tables", [](EngineHandle& handle) { return handle.engine().Tables(); }, py::call_guard<GilReleased>())
      .def("stats", [](EngineHandle& handle) {
        EngineStats stats;
        {
          const GilReleased release;
          stats = handle.engine().Stats();
        }
        py::dict dict;
        dict["num_steps"] = stats.num_steps;
        dict["num_prompt_tokens"] = stats.num_prompt_tokens;
        dict["num_generated_tokens"] = stats.num_generated_tokens;
        dict["num_finished_requests"] = stats.num_finished_requests;
        dict["num_preemptions"] = stats.num_preemptions;
        dict["num_recomputed_tokens"] = stats.num_recomputed_tokens;
        dict["num_restored_tokens"] = stats.num_restored_tokens;
        dict["num_copies_left_out"] = stats.num_copies_left_out;
        dict["num_device_draws"] = stats.num_device_draws;
        dict["num_steps_ahead"] = stats.num_steps_ahead;
        dict["num_graph_replays"] = stats.device.num_replays;
        dict["num_device_waits"] = stats.device.num_waits;
        dict["device_idle_s"] = stats.device.idle_s;
        dict["num_copies_on_write"] = stats.num_copies_on_write;
        dict["num_window_blocks_returned"] = stats.num_window_blocks_returned;
        dict["num_running"] = stats.num_running;
        dict["num_waiting"] = stats.num_waiting;
        dict["num_pages"] = stats.num_pages;
        dict["num_free_pages"] = stats.num_free_pages;
        dict["num_cached_pages"] = stats.num_cached_pages;
        dict["num_prefix_blocks"] = stats.num_prefix_blocks;
        dict["num_prefix_queried_tokens"] = stats.num_prefix_queried_tokens;
        dict["num_prefix_hit_tokens"] = stats.num_prefix_hit_tokens;
        dict["num_prefix_evictions"] = stats.num_prefix_evictions;
        dict["num_shared_pages"] = stats.num_shared_pages;
        dict["wasted_share"] = stats.wasted_share;
        dict["busy_time_s"] = stats.busy_time_s;
        dict["hook_time_s"] = stats.hook_time_s;
        dict["audit"] = stats.audit;
        return dict;
      });
}

}  // namespace llmi
