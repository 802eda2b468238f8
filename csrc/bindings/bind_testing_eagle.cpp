// An EAGLE-3 layer on its own, for comparisons with the libraries that train such layers.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "bindings/bind_testing.h"
#include "bindings/engine_options.h"
#include "cache/kv_cache.h"
#include "core/fp_env.h"
#include "model/eagle.h"
#include "model/kv_layers.h"
#include "model/loader.h"

namespace py = pybind11;

namespace llmi {
namespace {

// A layer with a cache for one sequence. It sees slots 1 to the row's own.
class EagleRun {
 public:
  EagleRun(const KernelContext& context, Decoder& target, EagleDecoder& eagle, const ModelSpec& spec)
      : context_(context),
        target_(target),
        eagle_(eagle),
        hidden_(spec.hidden_size),
        cache_(KvGroups(KvLayersOf(spec), KvType::kF32, 16, {spec.num_kv_heads, PaddedHeadDim(spec.head_dim)}), 64) {
    cache_.Init(&sequence_);
  }
  ~EagleRun() { cache_.Free(&sequence_); }
  EagleRun(const EagleRun&) = delete;
  EagleRun& operator=(const EagleRun&) = delete;

  // Appends the outputs and logits of the rows of these tokens, the first of which is in `slot`, that read these hidden rows.
  void Run(int64_t slot, const std::vector<int32_t>& token_ids, const float* hidden) {
    const auto count = static_cast<int64_t>(token_ids.size());
    const int32_t* table = sequence_.tables[0].data();
    EagleRows rows = {.token_ids = token_ids, .positions = {}, .hidden = hidden, .segments = {{0, count, slot, table}}, .queries = {}};
    for (int64_t i = 0; i < count; ++i) {
      rows.positions.push_back(static_cast<int32_t>(slot + i) - 1);
      rows.queries.push_back({{static_cast<int32_t>(i)}, {0, 1, slot + i, table}, {static_cast<int32_t>(slot + i)}});
    }
    const KvView view = cache_.View(cache_.groups().draft_layer());
    const float* made = eagle_.Forward(context_, target_, view, rows);
    outputs.insert(outputs.end(), made, made + count * hidden_);
    std::vector<float> values;
    eagle_.Logits(context_, target_, outputs.data() + outputs.size() - static_cast<size_t>(count * hidden_), count, &values);
    logits.insert(logits.end(), values.begin(), values.end());
  }
  void Reserve(int64_t num_slots) { CheckArgument(cache_.TryReserve(&sequence_, num_slots), "the test cache is full"); }

  std::vector<float> outputs, logits;

 private:
  KernelContext context_;
  Decoder& target_;
  EagleDecoder& eagle_;
  const int64_t hidden_;
  KvCache cache_;
  KvSequence sequence_;
};

FloatArray Rows(const std::vector<float>& values, size_t num_rows) {
  return FloatArray({static_cast<py::ssize_t>(num_rows), static_cast<py::ssize_t>(values.size() / num_rows)}, values.data());
}

// tapped [n, taps * hidden]: of tokens 0 to n - 1. The rows of tokens 1 to n read what fc makes of them, those of later tokens the output
// of the row before. Returns the hidden rows [n, hidden], and the outputs [all rows, hidden] and logits [all rows, choices].
py::tuple LayerRows(const ModelFiles& files, const py::dict& options, const std::vector<int32_t>& token_ids, const FloatArray& tapped) {
  const EngineOptions parsed = EngineOptionsOf(options);
  const FloatEnvironmentGuard guard;
  const KernelContext context = TestContext(parsed.table, 2);
  const std::unique_ptr<Decoder> target = LoadDecoder(context, files, ParseSpec(parsed.spec, files.path()), parsed.weights);
  const std::unique_ptr<EagleDecoder> eagle = LoadEagle(context, parsed.eagle, files, *target);
  const ModelSpec spec = ParseSpec(parsed.eagle.spec, parsed.eagle.files->path());
  const auto num_given = static_cast<int64_t>(tapped.shape(0)),
             width = static_cast<int64_t>(parsed.eagle.form.taps.size()) * spec.hidden_size;
  const auto num_tokens = static_cast<int64_t>(token_ids.size());
  CheckArgument(tapped.ndim() == 2 && tapped.shape(1) == width && num_tokens > num_given,
                "tapped rows of all tokens but those that follow");
  std::vector<float> taken(tapped.data(), tapped.data() + tapped.size());
  std::vector<float> hidden(static_cast<size_t>(num_given * spec.hidden_size));
  eagle->FromTaps(context, taken.data(), num_given, hidden.data());
  EagleRun run(context, *target, *eagle, spec);
  run.Reserve(num_tokens);
  run.Run(1, {token_ids.begin() + 1, token_ids.begin() + num_given + 1}, hidden.data());
  for (int64_t slot = num_given + 1; slot < num_tokens; ++slot) {
    const std::vector<float> before(run.outputs.end() - spec.hidden_size, run.outputs.end());
    run.Run(slot, {token_ids[static_cast<size_t>(slot)]}, before.data());
  }
  const auto num_rows = static_cast<size_t>(num_tokens - 1);
  return py::make_tuple(Rows(hidden, static_cast<size_t>(num_given)), Rows(run.outputs, num_rows), Rows(run.logits, num_rows));
}

}  // namespace

void RegisterTestingEagle(py::module_& module) {
  module.def("eagle3_rows", &LayerRows, py::arg("files"), py::arg("options"), py::arg("token_ids"), py::arg("tapped"));
}

}  // namespace llmi
