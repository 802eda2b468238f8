// Requests: their parameters, what goes in, and what comes out.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bind_constraint.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "bindings/held_sequence.h"
#include "bindings/keywords.h"
#include "bindings/py_hooks.h"
#include "constraint/thinking_budget.h"
#include "engine/engine.h"
#include "engine/rows/plan.h"
#include "sampling/steps.h"
#include "speculative/forced_drafter.h"
#include "speculative/recorded_drafter.h"

namespace py = pybind11;

namespace llmi {
namespace {

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
  columns["drawn"] = Column(rows, &TraceCandidate::drawn);
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
  columns["forbidden_mass"] = Column(rows, &TraceRow::forbidden_mass);
  columns["mask_kl"] = Column(rows, &TraceRow::mask_kl);
  return columns;
}

EarlyStopping EarlyStoppingOf(const std::string& name) {
  if (name == "no") return EarlyStopping::kNo;
  if (name == "yes") return EarlyStopping::kYes;
  if (name == "never") return EarlyStopping::kNever;
  throw py::value_error("early_stopping is \"no\", \"yes\" or \"never\", not \"" + name + "\"");
}

// A beam search from a mapping of its fields, all of which must be given.
BeamParams MakeBeams(const py::dict& given) {
  Keywords keywords(given, "beams", "field");
  BeamParams beams;
  beams.width = keywords.Take<int64_t>("width");
  beams.num_returned = keywords.Take<int64_t>("num_returned");
  beams.length_penalty = keywords.Take<double>("length_penalty");
  beams.length_includes_prompt = keywords.Take<bool>("length_includes_prompt");
  beams.early_stopping = EarlyStoppingOf(keywords.Take<std::string>("early_stopping"));
  beams.do_sample = keywords.Take<bool>("do_sample");
  beams.num_groups = keywords.Take<int64_t>("num_groups");
  beams.diversity_penalty = keywords.Take<double>("diversity_penalty");
  keywords.CheckAllKnown();
  return beams;
}

// Joins a constraint's forced tokens to the request's drafts; alone they run coupled.
void DraftForced(Request& request) {
  request.drafts_forced = true;
  if (!request.speculation) request.speculation.emplace();
  request.speculation->drafter = ForcedDrafter::With(request.speculation->drafter);
}

// A constraint around each of the request's, or a new one, from (token that begins thinking, or None; token that ends it; budget; whether
// the prompt leaves off inside a block).
void LimitThinking(Request& request, const std::tuple<std::optional<int32_t>, int32_t, int64_t, bool>& given) {
  const auto& [begins, ends, budget, is_open] = given;
  if (request.constraints.empty()) request.constraints.resize(static_cast<size_t>(request.beams ? 1 : request.num_samples));
  for (auto& constraint : request.constraints) {
    constraint = std::make_unique<ThinkingBudget>(ThinkingLimits{begins, ends, budget}, is_open, std::move(constraint));
  }
}

// Lets the recorded outputs be the drafts, where drafts are verified.
void DraftRecorded(Request& request) {
  if (static_cast<int64_t>(request.recorded.size()) != request.num_samples) throw py::value_error("recorded must hold n outputs");
  if (request.beams || request.params.contrasts()) return;
  request.drafts_forced = false;
  request.speculation.emplace();
  request.speculation->drafter = std::make_shared<RecordedDrafter>(request.recorded);
  request.speculation->num_tokens = kMaxDraftNodes;
}

// A request from its keyword arguments. All of them must be given, so that a caller forgets none.
std::shared_ptr<Request> MakeRequest(const py::kwargs& given) {
  Keywords keywords(given, "Request");
  auto request = std::make_shared<Request>();
  request->id = keywords.Take<uint64_t>("id");
  request->prompt_token_ids = keywords.Take<std::vector<int32_t>>("prompt_token_ids");
  request->params = keywords.Take<SamplingParams>("params");
  request->negative_token_ids = keywords.Take<std::vector<int32_t>>("negative_token_ids");
  request->num_samples = keywords.Take<int64_t>("n");
  const auto beams = keywords.Take<std::optional<py::dict>>("beams");
  if (beams) {
    request->beams = MakeBeams(*beams);
    request->num_samples = request->beams->width;
  }
  request->priority = keywords.Take<int64_t>("priority");
  request->stream = keywords.Take<bool>("stream");
  request->stepped = keywords.Take<bool>("stepped");
  const auto hooks = keywords.Take<py::object>("hooks");
  if (!hooks.is_none()) request->hooks = std::make_shared<PyHooks>(hooks, request->id);
  const auto constraint = keywords.Take<py::object>("constraint");
  const auto constraint_ends = keywords.Take<std::vector<int32_t>>("constraint_ends");
  request->constraints = MakeConstraints(constraint, constraint_ends, request->beams ? 1 : request->num_samples, request->id);
  const auto thinking = keywords.Take<std::optional<std::tuple<std::optional<int32_t>, int32_t, int64_t, bool>>>("thinking");
  if (thinking) LimitThinking(*request, *thinking);
  request->speculation = keywords.Take<std::optional<SpeculationConfig>>("speculation");
  if (keywords.Take<bool>("drafts_forced")) DraftForced(*request);
  request->recorded = keywords.Take<std::vector<std::vector<int32_t>>>("recorded");
  request->checks_recorded = keywords.Take<bool>("checks_recorded") && !request->recorded.empty();
  if (!request->recorded.empty()) DraftRecorded(*request);
  if (const auto* source = keywords.Take<HeldSequence*>("source")) request->source = source->sequence();
  request->cache_salt = keywords.Take<std::string>("cache_salt");
  request->steering = keywords.Take<std::shared_ptr<Steering>>("steering");
  request->view = keywords.Take<SparseView>("view");
  request->trace = keywords.Take<bool>("trace");
  keywords.CheckAllKnown();
  return request;
}

void RegisterParams(py::module_& module) {
  py::class_<SamplingParams> params(module, "SamplingParams");
  params.def(py::init<>());
  VisitSamplingParams([&](const char* name, auto member, const auto&...) { params.def_readwrite(name, member); });
  params.def(
      "steps_on_host",
      [](const SamplingParams& self) {
        std::vector<std::string> names;
        for (const SamplerStep step : StepsOnHost(self)) names.emplace_back(StepName(step));
        return names;
      },
      "The steps that no device can take, as sampler_order names them: a row with any of them is drawn on the host.");
  py::class_<SamplerState>(module, "SamplerState", "What mirostat and adaptive_p remember of a sequence; NaN before the first draw.")
      .def(py::init<>())
      .def_readwrite("mu", &SamplerState::mu)
      .def_readwrite("weighted_sum", &SamplerState::weighted_sum)
      .def_readwrite("total_weight", &SamplerState::total_weight);
}

void RegisterSamples(py::module_& module) {
  py::class_<SampleOutput>(module, "SampleOutput")
      .def_readonly("token_ids", &SampleOutput::token_ids)
      .def_property_readonly("text", [](const SampleOutput& output) { return py::str(output.text); })
      .def_readonly("cumulative_logprob", &SampleOutput::cumulative_logprob)
      .def_readonly("score", &SampleOutput::score)
      .def_readonly("beam_indices", &SampleOutput::beam_indices)
      .def_property_readonly("logprobs", [](const SampleOutput& output) { return output.logprobs; })
      .def_property_readonly("token_times_s", [](const SampleOutput& output) { return CopyArray(output.token_times_s); })
      .def_property_readonly("finish_reason", [](const SampleOutput& output) { return OptionalName(output.finish_reason); })
      .def_readonly("stop_reason", &SampleOutput::stop_reason)
      .def_property_readonly("trace", [](const SampleOutput& output) { return TraceColumns(output.trace); })
      .def_property_readonly("candidates", [](const SampleOutput& output) { return CandidateColumns(output.candidates); })
      .def_readonly("speculation", &SampleOutput::speculation);
}

void RegisterRequest(py::module_& module) {
  py::class_<Request, std::shared_ptr<Request>>(module, "Request")
      .def(py::init(&MakeRequest), "Arguments by name: the fields that a caller sets; see csrc/engine/request.h.")
      .def_readonly("id", &Request::id)
      .def_readwrite("stepped", &Request::stepped)
      .def_property_readonly("samples",
                             [](const py::object& self) {
                               py::list list;  // of views: a record is large
                               for (const SampleOutput& sample : self.cast<const Request&>().samples) {
                                 list.append(py::cast(sample, py::return_value_policy::reference_internal, self));
                               }
                               return list;
                             })
      .def(
          "beams_on_host", [](const Request& request) { return request.beams ? WhyBeamsOnHost(request) : std::vector<const char*>(); },
          "The arguments of a beam search for which a device copies its rows to the host.")
      .def_property_readonly("prompt_logprobs", [](const Request& request) { return request.prompt_logprobs; })
      .def_property_readonly(
          "prompt_token_logprobs",
          [](const Request& request) {
            std::vector<float> values;
            for (const TokenLogprobs& entry : request.prompt_logprobs) values.push_back(entry.logprobs[0]);
            return CopyArray(values);
          },
          "[prompt_len - 1] raw log-probability of each prompt token after the first.")
      .def_property_readonly("prompt_token_ranks",
                             [](const Request& request) {
                               std::vector<int32_t> values;
                               for (const TokenLogprobs& entry : request.prompt_logprobs) values.push_back(entry.ranks[0]);
                               return CopyArray(values);
                             })
      .def_property_readonly("error",
                             [](const Request& request) { return request.error ? PythonError(*request.error) : py::object(py::none()); })
      .def_readonly("num_preemptions", &Request::num_preemptions)
      .def_readonly("num_cached_tokens", &Request::num_cached_tokens)
      .def_readonly("arrival_time_s", &Request::arrival_time_s)
      .def_readonly("first_scheduled_time_s", &Request::first_scheduled_time_s)
      .def_readonly("first_token_time_s", &Request::first_token_time_s)
      .def_readonly("finish_time_s", &Request::finish_time_s)
      .def_readonly("detokenize_time_s", &Request::detokenize_time_s)
      .def_readonly("constraint_time_s", &Request::constraint_time_s);
}

void RegisterEvents(py::module_& module) {
  py::class_<OutputEvent>(module, "OutputEvent")
      .def_readonly("request", &OutputEvent::request)
      .def_property_readonly("request_id", [](const OutputEvent& event) { return event.request->id; })
      .def_readonly("finished", &OutputEvent::finished)
      .def_readonly("sample_index", &OutputEvent::sample_index)
      .def_readonly("token_ids", &OutputEvent::token_ids)
      .def_property_readonly("text", [](const OutputEvent& event) { return py::str(event.text); })
      .def_property_readonly("logprobs", [](const OutputEvent& event) { return event.logprobs; })
      .def_property_readonly("finish_reason", [](const OutputEvent& event) { return OptionalName(event.finish_reason); })
      .def_readonly("stop_reason", &OutputEvent::stop_reason)
      .def_property_readonly("prompt_logprobs", [](const OutputEvent& event) { return event.prompt_logprobs; })
      .def_readonly("num_cached_tokens", &OutputEvent::num_cached_tokens)
      .def_readonly("num_draft_tokens", &OutputEvent::num_draft_tokens)
      .def_readonly("num_accepted_tokens", &OutputEvent::num_accepted_tokens)
      .def_readonly("first_scheduled_time_s", &OutputEvent::first_scheduled_time_s)
      .def_readonly("first_token_time_s", &OutputEvent::first_token_time_s);
  py::class_<OutputChannel, std::shared_ptr<OutputChannel>>(module, "OutputChannel")
      // The child of a fork deletes no channel: a thread of the parent may have been waiting at it.
      .def(py::init([] {
        return std::shared_ptr<OutputChannel>(new OutputChannel(), [pid = getpid()](const OutputChannel* channel) {
          if (getpid() == pid) delete channel;
        });
      }))
      // Waits up to timeout_s for an event, then appends all events of the channel to `events`. An exception
      // after that loses no event, because the list holds them already. If several threads wait, the list has the channel's order.
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

void RegisterRequests(py::module_& module) {
  RegisterParams(module);
  RegisterSamples(module);
  RegisterRequest(module);
  RegisterEvents(module);
}

}  // namespace llmi
