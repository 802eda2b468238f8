#include "bindings/arrays.h"
#include "bindings/py_drafter.h"

#include <utility>

#include "bindings/gil.h"

namespace py = pybind11;

namespace llmi {
namespace {

// {layer: [num_new, hidden_size]}.
py::dict HiddenRowsOf(const HiddenView& hidden, const std::vector<int>& layers) {
  py::dict rows;
  for (int layer : layers) {
    const std::vector<float> values = hidden.Read(layer, hidden.begin(), hidden.end());
    const int64_t num_rows = hidden.end() - hidden.begin();
    const auto num_cols = num_rows == 0 ? int64_t{0} : static_cast<int64_t>(values.size()) / num_rows;
    py::array_t<float> array = CopyArray(values).reshape({num_rows, num_cols});
    rows[py::int_(layer)] = array;
  }
  return rows;
}

// Its destructor tells the runner that a sequence has ended.
class PyState : public DrafterState {
 public:
  PyState(py::object runner, const SequenceKey& sequence) : runner_(std::move(runner)), sequence_(sequence) {}
  ~PyState() override {
    if (!InterpreterEnds()) {
      const GilHeld gil;
      try {
        runner_.Call("forget", sequence_.request_id, sequence_.sample_index);
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("llmi drafter");
      }
    }
  }

 private:
  HeldObject runner_;
  SequenceKey sequence_;
};

}  // namespace

std::unique_ptr<DrafterState> PyDrafter::NewState(const SequenceKey& sequence, HeadSource& /*heads*/) {
  const GilHeld gil;
  return std::make_unique<PyState>(runner_.get(), sequence);
}

void PyDrafter::Propose(std::span<Seat> seats) {
  std::vector<uint64_t> request_ids;
  for (const Seat& seat : seats) request_ids.push_back(seat.sequence.request_id);
  try {
    CallHook(ErrorKind::kDraft, request_ids, [&] {
      py::list list;
      for (const Seat& seat : seats) {
        py::dict hidden;
        for (int layer : traits().hidden_layers) {
          hidden[py::int_(layer)] = CopyArray(seat.hidden.Read(layer, seat.hidden.end() - 1, seat.hidden.end()));
        }
        list.append(PyDraftQuery{.request_id = seat.sequence.request_id,
                                 .sample_index = seat.sequence.sample_index,
                                 .token_ids = CopyArray(seat.text.token_ids),
                                 .prompt_len = seat.text.prompt_len,
                                 .max_nodes = seat.budget.max_nodes,
                                 .round = seat.sampling.round,
                                 .wants_laws = seat.wants.laws,
                                 .sampler_state = seat.sampling.state,
                                 .hidden_states = hidden,
                                 .hidden_rows = HiddenRowsOf(seat.hidden, traits().hidden_layers),
                                 .first_row = seat.hidden.begin()});
      }
      const auto proposals = runner_.Call("propose", list).cast<py::list>();
      CheckInternal(proposals.size() == seats.size(), "a drafter's runner lost a context");
      for (size_t i = 0; i < seats.size(); ++i) {
        const py::object proposal = proposals[i];
        const py::object error = proposal.attr("error"), laws = proposal.attr("laws"), parents = proposal.attr("parents");
        if (!error.is_none()) {
          seats[i].error = Error(ErrorKind::kDraft, error.cast<std::string>());
          continue;
        }
        seats[i].draft.token_ids = proposal.attr("token_ids").cast<std::vector<int32_t>>();
        if (!laws.is_none()) seats[i].draft.laws = laws.cast<std::vector<std::vector<float>>>();
        if (!parents.is_none()) seats[i].draft.parents = parents.cast<std::vector<int32_t>>();
      }
    });
  } catch (const Error& error) {
    // After an interrupt nothing is drafted in this step; the requests that it was meant for are about to be aborted.
    if (error.kind() == ErrorKind::kInterrupted) return;
    for (Seat& seat : seats) seat.error = error;
  }
}

void PyDrafter::Observe(const SequenceKey& sequence, int64_t num_accepted, std::span<const float> target_logprobs) {
  CallHook(ErrorKind::kDraft, {sequence.request_id},
           [&] { runner_.Call("observe", sequence.request_id, sequence.sample_index, num_accepted, CopyArray(target_logprobs)); });
}

double PyAcceptanceRule::AcceptProbability(int32_t token, std::span<const double> target, std::span<const float> draft) const {
  return CallHook(ErrorKind::kHook, {request_id_}, [&] {
    const double probability = runner_.Call("accept_probability", token, CopyArray(target), CopyArray(draft)).cast<double>();
    if (!(probability >= 0.0 && probability <= 1.0)) {
      throw Error(ErrorKind::kHook, "accept_probability returned " + std::to_string(probability) + ", outside [0, 1]");
    }
    return probability;
  });
}

void PyAcceptanceRule::Residual(int32_t token, std::vector<double>* target, std::span<const float> draft) const {
  CallHook(ErrorKind::kHook, {request_id_}, [&] {
    const py::object result = runner_.Call("residual", token, CopyArray(*target), CopyArray(draft));
    const auto row = result.cast<py::array_t<double, py::array::c_style>>();
    if (row.ndim() != 1 || row.shape(0) != static_cast<py::ssize_t>(target->size())) {
      throw Error(ErrorKind::kHook, "residual returned an array that is not [vocab_size]");
    }
    for (size_t i = 0; i < target->size(); ++i) {
      const double value = row.data()[i];
      if (!(value >= 0.0 && value < 1e30)) throw Error(ErrorKind::kHook, "residual holds NaN, infinity or a negative number");
      (*target)[i] = value;
    }
  });
}

DraftRows& PyDraftRows::Rows() const {
  CheckArgument(rows_ != nullptr, "a VerifyContext may be used during the call of verify alone");
  return *rows_;
}

DraftRows& PyDraftRows::RowsAt(int32_t node) const {
  CheckArgument(node >= -1 && node < Rows().draft().size(), "the draft has no such row");
  return *rows_;
}

std::vector<int32_t> PyDraftRows::parents() const {
  std::vector<int32_t> parents;
  for (int64_t node = 0; node < Rows().draft().size(); ++node) parents.push_back(Rows().draft().parent(node));
  return parents;
}

py::array_t<float> PyDraftRows::Logits(int32_t node) const {
  const std::span<const float> row = RowsAt(node).Logits(node);
  return CopyArray(row);
}

py::array_t<double> PyDraftRows::Target(int32_t node) const {
  const std::span<const double> row = RowsAt(node).Target(node);
  return CopyArray(row);
}

int32_t PyDraftRows::TargetToken(int32_t node) const { return RowsAt(node).TargetToken(node); }

double PyDraftRows::Coin(int32_t node, int32_t lane) const { return RowsAt(node).Coin(node, lane); }

int32_t PyDraftRows::Draw(const py::array_t<double, py::array::c_style>& probs, int32_t node) const {
  const auto vocab_size = static_cast<py::ssize_t>(RowsAt(node).Logits(node).size());
  CheckArgument(probs.ndim() == 1 && probs.shape(0) == vocab_size, "draw: probs must be [vocab_size]");
  const std::span<const double> row(probs.data(), static_cast<size_t>(vocab_size));
  double total = 0;
  for (double value : row) {
    CheckArgument(value >= 0 && value < 1e30, "draw: probs hold NaN, infinity or a negative number");
    total += value;
  }
  CheckArgument(total > 0, "draw: probs are all zero");
  return rows_->Draw(row, node, true);
}

DraftVerdict PyDraftJudge::Judge(DraftRows& rows) const {
  return CallHook(ErrorKind::kHook, {request_id_}, [&] {
    const py::object handle = py::cast(PyDraftRows(&rows));
    DraftVerdict verdict;
    try {
      const py::object answer = runner_.Call("verify", handle, CopyArray(rows.TokenIds()));
      verdict = {answer.attr("path").cast<std::vector<int32_t>>(), answer.attr("next_token").cast<int32_t>()};
    } catch (...) {
      handle.cast<PyDraftRows&>().Close();
      throw;
    }
    handle.cast<PyDraftRows&>().Close();
    return verdict;
  });
}

std::vector<double> PyPolicy::Key(const PolicyRequest& request, double now_s) {
  return CallHook(ErrorKind::kHook, {request.id}, [&] {
    auto key = policy_.Call("key", request, now_s).cast<std::vector<double>>();
    for (double value : key) {
      if (value != value) throw Error(ErrorKind::kHook, "the scheduling policy's key holds NaN");
    }
    return key;
  });
}

int64_t PyLengthPolicy::Choose(std::span<const double> acceptance, std::span<const double> costs, int64_t num_running) {
  return CallHook(ErrorKind::kDraft, {request_id_}, [&] {
    const auto as_floats = [](std::span<const double> values) {
      py::array_t<float> array(static_cast<py::ssize_t>(values.size()));
      for (size_t i = 0; i < values.size(); ++i) array.mutable_data()[i] = static_cast<float>(values[i]);
      return array;
    };
    return policy_.Call("choose", as_floats(acceptance), as_floats(costs), num_running).cast<int64_t>();
  });
}

}  // namespace llmi
