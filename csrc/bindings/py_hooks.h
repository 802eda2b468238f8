// Hooks written in Python, behind the core's interfaces.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>

#include "bindings/gil.h"
#include "engine/request.h"

namespace llmi {

// A row for Python's hooks, and the hooks of its request. The other fields are those of HookContext; arrays are copies.
struct PyHookRow {
  pybind11::object hooks;  // Python's RequestHooks
  int64_t sample_index;
  int64_t slot;
  pybind11::array_t<int32_t> token_ids;
  int64_t prompt_len;
  pybind11::bytes output_text;
  bool batched;
};

// The hooks of one request. hooks: Python's RequestHooks.
class PyHooks : public RequestHooks {
 public:
  PyHooks(pybind11::object hooks, uint64_t request_id);

  bool HasProcessors() const override { return has_processors_; }
  bool HasOwnProcessors() const override { return has_own_processors_; }
  bool HasSampler() const override { return has_sampler_; }
  bool HasCriteria() const override { return has_criteria_; }
  void ProcessLogits(const HookContext& context, float* logits, int64_t vocab_size) override;
  int32_t Sample(const HookContext& context, const float* law, int64_t vocab_size) override;
  // Call with the GIL held.
  PyHookRow Row(const HookContext& context) const;
  uint64_t request_id() const { return request_id_; }
  void CopyState(int64_t from_slot, int64_t to_slot) override;
  void EndTrials() override;
  std::optional<std::string> ShouldStop(const HookContext& context, const float* logits, int64_t vocab_size) override;

 private:
  HeldObject hooks_;
  uint64_t request_id_;
  bool has_processors_;
  bool has_own_processors_;
  bool has_sampler_;
  bool has_criteria_;
};

// The engine-wide processors. runner: Python's BatchRunner.
class PyBatchHook : public BatchHook {
 public:
  explicit PyBatchHook(pybind11::object runner) : runner_(std::move(runner)) {}
  void Apply(std::span<Row> rows, float* logits, int64_t vocab_size) override;

 private:
  void ApplyTogether(std::span<Row> rows, float* logits, int64_t vocab_size);

  HeldObject runner_;
};

}  // namespace llmi
