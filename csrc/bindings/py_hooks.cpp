#include "bindings/arrays.h"
#include "bindings/py_hooks.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <utility>

#include "bindings/gil.h"

namespace py = pybind11;

namespace llmi {
namespace {

using FloatArray = py::array_t<float, py::array::c_style>;

// A copy, not a view: user code may keep the array after the call. Copying 50,000 logits takes 10 us.
FloatArray CopyRow(const float* row, int64_t size) { return FloatArray(size, row); }

}  // namespace

PyHooks::PyHooks(py::object hooks, uint64_t request_id)
    : hooks_(std::move(hooks)),
      request_id_(request_id),
      has_processors_(hooks_.attr("has_processors").cast<bool>()),
      has_own_processors_(!hooks_.attr("processors").cast<py::list>().empty()),
      has_sampler_(hooks_.attr("has_sampler").cast<bool>()),
      has_criteria_(hooks_.attr("has_criteria").cast<bool>()) {}

PyHookRow PyHooks::Row(const HookContext& context) const {
  return {.hooks = hooks_.get(),
          .sample_index = context.sample_index,
          .slot = context.slot,
          .token_ids = CopyArray(*context.token_ids),
          .prompt_len = context.prompt_len,
          .output_text = py::bytes(*context.output_text),
          .batched = context.batched};
}

void PyHooks::ProcessLogits(const HookContext& context, float* logits, int64_t vocab_size) {
  CallHook(ErrorKind::kHook, {request_id_}, [&] {
    const py::object result = hooks_.Call("process", Row(context), CopyRow(logits, vocab_size));
    const auto row = result.cast<FloatArray>();
    if (row.ndim() != 1 || row.shape(0) != vocab_size) {
      throw Error(ErrorKind::kHook, "a logits processor returned an array that is not [vocab_size]");
    }
    std::copy(row.data(), row.data() + vocab_size, logits);
  });
}

int32_t PyHooks::Sample(const HookContext& context, const float* law, int64_t vocab_size) {
  return CallHook(ErrorKind::kHook, {request_id_}, [&] {
    const py::object result = hooks_.Call("sample", Row(context), CopyRow(law, vocab_size));
    const auto token = result.cast<int64_t>();
    if (token < 0 || token >= vocab_size) {
      throw Error(ErrorKind::kHook,
                  "the sampler returned token id " + std::to_string(token) + ", outside [0, " + std::to_string(vocab_size) + ")");
    }
    return static_cast<int32_t>(token);
  });
}

void PyHooks::CopyState(int64_t from_slot, int64_t to_slot) {
  CallHook(ErrorKind::kHook, {request_id_}, [&] { hooks_.Call("copy_state", from_slot, to_slot); });
}

void PyHooks::EndTrials() {
  try {
    CallHook(ErrorKind::kHook, {request_id_}, [&] { hooks_.Call("end_trials"); });
  } catch (const Error&) {
    // The hook was interrupted: the request ends, and its states with it.
  }
}

std::optional<std::string> PyHooks::ShouldStop(const HookContext& context, const float* logits, int64_t vocab_size) {
  return CallHook(ErrorKind::kHook, {request_id_}, [&]() -> std::optional<std::string> {
    const py::object result = hooks_.Call("should_stop", Row(context), CopyRow(logits, vocab_size));
    if (result.is_none()) return std::nullopt;
    return result.cast<std::string>();
  });
}

void PyBatchHook::Apply(std::span<Row> rows, float* logits, int64_t vocab_size) {
  try {
    ApplyTogether(rows, logits, vocab_size);
  } catch (const Error&) {
    // The call was interrupted. Each row now has a call of its own, so that an interrupt ends only the request that it is meant for.
    for (size_t i = 0; i < rows.size(); ++i) {
      try {
        ApplyTogether(rows.subspan(i, 1), logits + static_cast<int64_t>(i) * vocab_size, vocab_size);
      } catch (const Error& error) {
        rows[i].error = error;
      }
    }
  }
}

void PyBatchHook::ApplyTogether(std::span<Row> rows, float* logits, int64_t vocab_size) {
  std::vector<uint64_t> request_ids;
  for (const Row& row : rows) request_ids.push_back(static_cast<const PyHooks*>(row.hooks)->request_id());
  CallHook(ErrorKind::kHook, std::move(request_ids), [&] {
    const auto num_rows = static_cast<py::ssize_t>(rows.size());
    FloatArray matrix({num_rows, static_cast<py::ssize_t>(vocab_size)}, logits);
    // The logits as they were, as a view: for the runner alone.
    FloatArray before({num_rows, static_cast<py::ssize_t>(vocab_size)}, logits, py::capsule(logits, [](void*) {}));
    py::list list;
    for (const Row& row : rows) list.append(static_cast<const PyHooks*>(row.hooks)->Row(row.context));
    // One entry for each row: None, or the message of its error.
    const auto messages = runner_.Call("apply", list, matrix, before).cast<std::vector<std::optional<std::string>>>();
    CheckInternal(messages.size() == rows.size(), "the batch processors' runner lost a row");
    for (size_t i = 0; i < rows.size(); ++i) {
      if (messages[i]) rows[i].error = Error(ErrorKind::kHook, *messages[i]);
    }
    std::copy(matrix.data(), matrix.data() + num_rows * vocab_size, logits);
  });
}

}  // namespace llmi
