// Sequences of the lab, and the processed law on its own.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <utility>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/engine_handle.h"
#include "bindings/gil.h"
#include "bindings/held_sequence.h"
#include "bindings/keywords.h"
#include "bindings/py_hooks.h"
#include "constraint/token_constraint.h"
#include "core/fp_env.h"
#include "sampling/law.h"

namespace py = pybind11;

namespace llmi {
namespace {

using FloatArray = py::array_t<float, py::array::c_style>;

// The array owns `values`.
py::array Matrix(std::vector<float>&& values, int64_t num_rows, int64_t num_cols) {
  auto* owned = new std::vector<float>(std::move(values));
  const py::capsule owner(owned, [](void* pointer) { delete static_cast<std::vector<float>*>(pointer); });
  py::array_t<float> array({num_rows, num_cols}, owned->data(), owner);
  array.attr("setflags")(py::arg("write") = false);
  return array;
}

py::dict Layers(std::map<int, std::vector<float>>&& layers, int64_t num_rows) {
  py::dict dict;
  for (auto& [layer, values] : layers) {
    const auto num_cols = static_cast<int64_t>(values.size()) / std::max<int64_t>(num_rows, 1);
    dict[py::int_(layer)] = Matrix(std::move(values), num_rows, num_cols);
  }
  return dict;
}

// {layer: [num_rows, num_heads, slots]}: a row's values end at its own slot, and the rest is 0.
py::dict Attention(const EngineHandle& handle, const std::map<int, std::vector<std::vector<float>>>& layers) {
  py::dict dict;
  for (const auto& [layer, rows] : layers) {
    const int64_t num_heads = handle.num_heads(layer);
    size_t longest = 0;
    for (const std::vector<float>& row : rows) longest = std::max(longest, row.size() / static_cast<size_t>(num_heads));
    std::vector<float> values(rows.size() * static_cast<size_t>(num_heads) * longest, 0.0f);
    for (size_t r = 0; r < rows.size(); ++r) {
      const size_t length = rows[r].size() / static_cast<size_t>(num_heads);
      for (size_t head = 0; head < static_cast<size_t>(num_heads); ++head) {
        const auto from = rows[r].begin() + static_cast<int64_t>(head * length);
        std::copy(from, from + static_cast<int64_t>(length),
                  values.begin() + static_cast<int64_t>((r * static_cast<size_t>(num_heads) + head) * longest));
      }
    }
    const auto num_rows = static_cast<int64_t>(rows.size());
    dict[py::int_(layer)] = Matrix(std::move(values), num_rows * num_heads, static_cast<int64_t>(longest))
                                .reshape({num_rows, num_heads, static_cast<int64_t>(longest)});
  }
  return dict;
}

// A LabResult as arrays.
struct PyLabResult {
  py::array logits;        // [num_rows, vocab_size]
  py::dict hidden_states;  // {layer: [num_rows, hidden_size]}
  py::dict layer_logits;   // {layer: [1 or num_rows, vocab_size]}
  py::dict attention;      // {layer: [num_rows, num_heads, slots]}
};

std::vector<PyLabResult> Extend(EngineHandle& handle, const std::vector<LabExtension>& extensions) {
  std::vector<LabResult> results;
  {
    const GilReleased release;
    results = handle.engine().lab().Extend(extensions);
  }
  std::vector<PyLabResult> arrays;
  for (LabResult& result : results) {
    int64_t num_layer_rows = 1;
    for (const auto& [layer, values] : result.layer_logits) num_layer_rows = static_cast<int64_t>(values.size()) / handle.vocab_size();
    arrays.push_back({.logits = Matrix(std::move(result.logits), result.num_rows, handle.vocab_size()),
                      .hidden_states = Layers(std::move(result.hidden_states), result.num_rows),
                      .layer_logits = Layers(std::move(result.layer_logits), num_layer_rows),
                      .attention = Attention(handle, result.attention)});
  }
  return arrays;
}

// {layer: [num_tokens, hidden_size]} of each prompt.
std::vector<py::dict> RowsOfPrompts(EngineHandle& handle, const std::vector<std::vector<int32_t>>& prompts, const std::vector<int>& layers,
                                    bool normed, const std::vector<std::optional<size_t>>& second_texts, const SparseView& view) {
  std::vector<std::map<int, std::vector<float>>> rows;
  {
    const GilReleased release;
    rows = handle.engine().lab().HiddenRows(prompts, second_texts, layers, normed, view);
  }
  std::vector<py::dict> dicts;
  for (size_t i = 0; i < rows.size(); ++i) dicts.push_back(Layers(std::move(rows[i]), static_cast<int64_t>(prompts[i].size())));
  return dicts;
}

// [num_rows, vocab_size or size of the shortlist].
py::array Head(EngineHandle& handle, const FloatArray& hidden, std::optional<std::vector<int32_t>> shortlist, bool in_drafter) {
  if (hidden.ndim() != 2 || hidden.shape(1) != handle.hidden_size()) {
    throw Error(ErrorKind::kInvalidArgument, "hidden must be [num_rows, " + std::to_string(handle.hidden_size()) + "]", "hidden");
  }
  const auto width = shortlist ? static_cast<int64_t>(shortlist->size()) : handle.vocab_size();
  const HeadQuery query = {{hidden.data(), static_cast<size_t>(hidden.size())}, std::move(shortlist), in_drafter};
  std::vector<float> logits;
  {
    const GilReleased release;
    logits = handle.engine().lab().Head(query);
  }
  return Matrix(std::move(logits), hidden.shape(0), width);
}

struct PyDrawnLaw {
  py::array_t<float> law;  // [vocab_size]
  int32_t token_id;
  SamplerState sampler_state;  // after that token
  SamplingParams params;
  SamplerState state_before;
  std::vector<float> row_before;  // as FilterLogits returns it

  // The state after another token of the law.
  SamplerState StateAfter(EngineHandle& handle, int32_t token) const {
    CheckArgument(token >= 0 && token < law.size(), "the token must be in the vocabulary");
    const FloatEnvironmentGuard guard;
    const std::span<const float> values(law.data(), static_cast<size_t>(law.size()));
    return NextState(handle.engine().context(), params, state_before, values, row_before, token);
  }
};

// The law of a row of logits, as sampling and verification process it, and the token that the sample's own noise draws from it. The
// arguments by name are the state that hooks see (HookContext), and the hooks.
PyDrawnLaw Law(EngineHandle& handle, const SamplingParams& params, const FloatArray& logits, const py::kwargs& state) {
  Keywords keywords(state, "law");
  const auto token_ids = keywords.Take<std::vector<int32_t>>("token_ids");
  const auto prompt_len = keywords.Take<int64_t>("prompt_len");
  const auto sample_index = keywords.Take<int64_t>("sample_index");
  const auto output_text = keywords.Take<std::string>("output_text");
  const auto hooks = keywords.Take<py::object>("hooks");
  const auto state_before = keywords.Take<SamplerState>("sampler_state");
  const auto allowed = keywords.Take<std::optional<py::array_t<uint32_t, py::array::c_style>>>("allowed");
  keywords.CheckAllKnown();
  const int64_t vocab_size = handle.vocab_size();
  if (logits.ndim() != 1 || logits.shape(0) != vocab_size) {
    throw Error(ErrorKind::kInvalidArgument, "logits must be [" + std::to_string(vocab_size) + "]", "logits");
  }
  Validate(params, vocab_size);
  CheckTokens(token_ids, vocab_size);
  CheckArgument(prompt_len >= 0 && prompt_len <= static_cast<int64_t>(token_ids.size()), "prompt_len must lie in [0, len(token_ids)]");
  std::vector<uint32_t> words;
  if (allowed) words.assign(allowed->data(), allowed->data() + allowed->size());
  CheckArgument(words.empty() || static_cast<int64_t>(words.size()) == MaskWords(vocab_size), "allowed must have a bit for each token");
  std::vector<float> law(logits.data(), logits.data() + vocab_size);
  const Engine& engine = handle.engine();
  std::unique_ptr<PyHooks> py_hooks;
  if (!hooks.is_none())
    py_hooks = std::make_unique<PyHooks>(hooks, UINT64_MAX);  // the id of no request: a signal interrupts this thread itself
  int32_t token = 0;
  SamplerState state_after;
  std::vector<float> row_before;
  {
    const GilReleased release;
    const FloatEnvironmentGuard guard;
    const HookContext context = {sample_index, sample_index, &token_ids, prompt_len, &output_text};
    LogitsHook process;
    if (py_hooks != nullptr && py_hooks->HasProcessors()) {
      process = [&](float* row) { py_hooks->ProcessLogits(context, row, vocab_size); };
    }
    row_before = ProcessLogits(engine.context(), params, {token_ids, prompt_len, sample_index, state_before, words}, process, law.data(),
                               vocab_size);
    if (py_hooks != nullptr && py_hooks->HasSampler()) {
      token = py_hooks->Sample(context, law.data(), vocab_size);
    } else {
      token = DrawToken(engine.context(), params, static_cast<int64_t>(token_ids.size()), sample_index, law);
    }
    state_after = NextState(engine.context(), params, state_before, law, row_before, token);
  }
  return {CopyArray(law), token, state_after, params, state_before, std::move(row_before)};
}

std::vector<int32_t> Siblings(EngineHandle& handle, const FloatArray& law, const SamplingParams& params, int64_t position,
                              int64_t sample_index, int64_t count, int64_t round) {
  // Coupled drafters draw with the target's own noise; others with noise of their own in each round.
  const NoiseKey key = {params.seed, position, sample_index, round > 0 ? 1u : 0u, static_cast<uint32_t>(round)};
  if (count == 1 && params.temperature > 0) return {Draw(handle.engine().context(), key, law.data(), law.shape(0))};
  return DrawSeveral(params.temperature == 0 ? nullptr : &key, law.data(), law.shape(0), count);
}

// {number of rows: seconds of a step}, ascending.
py::dict Costs(EngineHandle& handle) {
  CostCurve costs;
  {
    const GilReleased release;
    costs = handle.engine().Costs();
  }
  py::dict seconds;
  for (const CostCurve::Point& point : costs.points()) seconds[py::int_(point.num_rows)] = point.seconds;
  return seconds;
}

// (uses, with_last, reads) by layer, as ExpertCounts has them.
py::tuple ExpertUses(EngineHandle& handle) {
  ExpertCounts counts;
  {
    const GilReleased release;
    counts = handle.engine().ExpertUses();
  }
  py::list uses, with_last;
  for (const std::vector<int64_t>& layer : counts.uses) uses.append(CopyArray(layer));
  for (const std::vector<int64_t>& layer : counts.with_last) with_last.append(CopyArray(layer));
  return py::make_tuple(uses, with_last, counts.reads);
}

void RegisterSequence(py::module_& module) {
  py::class_<HeldSequence>(module, "LabSequence")
      .def(py::init([](EngineHandle& engine, std::vector<int32_t> token_ids, std::vector<int> hidden_states, std::vector<int> layer_logits,
                       std::vector<int> attention, std::shared_ptr<Steering> steering, const SparseView& view) {
             auto sequence = std::make_shared<LabSequence>();
             sequence->tokens = std::move(token_ids);
             sequence->capture = {std::move(hidden_states), std::move(layer_logits), std::move(attention)};
             sequence->steering = std::move(steering);
             sequence->kv.view = view;
             return std::make_unique<HeldSequence>(engine, std::move(sequence));
           }),
           py::arg("engine"), py::arg("token_ids"), py::arg("hidden_states"), py::arg("layer_logits"), py::arg("attention"),
           py::arg("steering"), py::arg("view"), py::keep_alive<1, 2>())
      .def_property_readonly("token_ids", [](const HeldSequence& held) { return CopyArray(held.sequence()->tokens); })
      .def_property_readonly("num_tokens", [](const HeldSequence& held) { return held.sequence()->tokens.size(); })
      .def_property_readonly("num_computed",
                             [](const HeldSequence& held) {
                               const LabSequence& sequence = *held.sequence();
                               return sequence.has_cache ? sequence.kv.num_tokens : int64_t{0};
                             })
      .def_property_readonly("has_tree", [](const HeldSequence& held) { return held.sequence()->tree.size() > 0; })
      .def_property_readonly("block_table",
                             [](const HeldSequence& held) {
                               const LabSequence& sequence = *held.sequence();
                               return sequence.has_cache ? sequence.kv.tables : std::vector<std::vector<int32_t>>();
                             })
      .def_property_readonly("is_closed", &HeldSequence::is_closed)
      .def("close", &HeldSequence::Close, "Gives its cache back soon, as the end of this object does.");
}

void RegisterLabClasses(py::module_& module) {
  py::class_<Steering, std::shared_ptr<Steering>>(module, "Steering", "Vectors that are added to the residual stream after layers.")
      .def(py::init([](std::vector<int> layers, const FloatArray& values, std::string digest) {
             Steering steering = {std::move(layers), {values.data(), values.data() + values.size()}, std::move(digest)};
             return std::make_shared<Steering>(std::move(steering));
           }),
           py::kw_only(), py::arg("layers"), py::arg("values"), py::arg("digest"));
  py::class_<SparseView>(module, "SparseView", "Which positions a sequence's rows see; without arguments: all up to their own.")
      .def(py::init([](int64_t sinks, int64_t recent, int64_t num_best) { return SparseView{sinks, recent, num_best}; }), py::kw_only(),
           py::arg("sinks") = 0, py::arg("recent") = 0, py::arg("num_best") = 0);
  py::class_<LabExtension>(module, "LabExtension")
      .def(py::init([](const HeldSequence& sequence, std::vector<int32_t> token_ids, std::vector<int32_t> parents, bool is_tree,
                       bool wants_last) {
             return LabExtension{sequence.sequence(), std::move(token_ids), std::move(parents), is_tree, wants_last};
           }),
           py::kw_only(), py::arg("sequence"), py::arg("token_ids"), py::arg("parents"), py::arg("is_tree"), py::arg("wants_last"))
      .def_readonly("token_ids", &LabExtension::token_ids)
      .def_readonly("is_tree", &LabExtension::is_tree);
  py::class_<PyLabResult>(module, "LabResult")
      .def_readonly("logits", &PyLabResult::logits)
      .def_readonly("hidden_states", &PyLabResult::hidden_states)
      .def_readonly("layer_logits", &PyLabResult::layer_logits)
      .def_readonly("attention", &PyLabResult::attention);
  py::class_<Shortlist>(module, "Shortlist")
      .def(py::init([](int64_t vocab_size, const std::vector<int32_t>& token_ids) {
             CheckTokens(token_ids, vocab_size);
             return Shortlist(vocab_size, token_ids);
           }),
           py::arg("vocab_size"), py::arg("token_ids"));
  py::class_<PyDrawnLaw>(module, "DrawnLaw")
      .def_readonly("law", &PyDrawnLaw::law)
      .def_readonly("token_id", &PyDrawnLaw::token_id)
      .def_readonly("sampler_state", &PyDrawnLaw::sampler_state)
      .def("state_after", &PyDrawnLaw::StateAfter, py::arg("engine"), py::arg("token_id"),
           "The sampler state after another token of the law.");
}

}  // namespace

void RegisterLab(py::module_& module) {
  RegisterLabClasses(module);
  RegisterSequence(module);
  module.def(
      "lab_restrict",
      [](EngineHandle& handle, const HeldSequence& held, const Shortlist& shortlist, const std::vector<int32_t>& more_ids) {
        CheckTokens(more_ids, handle.vocab_size());
        const std::shared_ptr<LabSequence>& sequence = held.sequence();
        sequence->shortlist = shortlist;
        sequence->shortlist->Add(more_ids);
      },
      py::arg("engine"), py::arg("sequence"), py::arg("shortlist"), py::arg("more_ids"));
  module.def("lab_extend", &Extend, py::arg("engine"), py::arg("extensions"));
  module.def("hidden_rows", &RowsOfPrompts, py::arg("engine"), py::arg("prompts"), py::arg("layers"), py::arg("normed"),
             py::arg("second_texts") = std::vector<std::optional<size_t>>(), py::arg("view") = SparseView{},
             "{layer: [num_tokens, hidden_size]} of each prompt; no head runs.");
  module.def("head", &Head, py::arg("engine"), py::arg("hidden"), py::arg("shortlist"), py::arg("in_drafter"),
             "The logits of rows [num_rows, hidden_size] that have had the final norm; with a shortlist, of these ids in their order.");
  module.def(
      "lab_fork",
      [](EngineHandle& handle, const HeldSequence& sequence) {
        auto child = std::make_unique<HeldSequence>(handle, std::make_shared<LabSequence>());
        handle.engine().lab().Fork(sequence.sequence(), child->sequence());
        return child;
      },
      py::arg("engine"), py::arg("sequence"), py::keep_alive<0, 1>(), py::call_guard<GilReleased>());
  module.def(
      "lab_rollback",
      [](EngineHandle& handle, const HeldSequence& held, int64_t num_tokens) {
        handle.engine().lab().Rollback(held.sequence(), num_tokens);
      },
      py::arg("engine"), py::arg("sequence"), py::arg("num_tokens"), py::call_guard<GilReleased>());
  module.def(
      "lab_sync",
      [](EngineHandle& handle, const HeldSequence& held, const std::vector<int32_t>& token_ids) {
        return handle.engine().lab().Sync(held.sequence(), token_ids);
      },
      py::arg("engine"), py::arg("sequence"), py::arg("token_ids"), py::call_guard<GilReleased>());
  module.def(
      "lab_commit",
      [](EngineHandle& handle, const HeldSequence& held, const std::vector<int32_t>& path) {
        handle.engine().lab().Commit(held.sequence(), path);
      },
      py::arg("engine"), py::arg("sequence"), py::arg("path"), py::call_guard<GilReleased>());
  module.def("law", &Law, py::arg("engine"), py::arg("params"), py::arg("logits"));
  module.def("draw_siblings", &Siblings, py::arg("engine"), py::arg("law"), py::arg("params"), py::arg("position"), py::arg("sample_index"),
             py::arg("count"), py::arg("round"));
  module.def("cost_curve", &Costs, py::arg("engine"));
  module.def("expert_uses", &ExpertUses, py::arg("engine"));
}

}  // namespace llmi
