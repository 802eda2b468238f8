// Drafters, and how a request's drafts are verified.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/py_drafter.h"
#include "engine/engine.h"
#include "speculative/head_drafter.h"
#include "speculative/prompt_lookup.h"

namespace py = pybind11;

namespace llmi {

namespace {

using Nodes = std::vector<std::pair<int32_t, int32_t>>;  // (parent, rank)

std::vector<TreeNode> TreeOf(const Nodes& nodes) {
  std::vector<TreeNode> tree;
  for (const auto& [parent, rank] : nodes) tree.push_back({parent, rank});
  return tree;
}

struct EagleDrafter : HeadDrafter {
  explicit EagleDrafter(const Nodes& nodes) : HeadDrafter(HeadKind::kLayer, TreeOf(nodes)) {}
};

struct MedusaDrafter : HeadDrafter {
  explicit MedusaDrafter(const Nodes& nodes) : HeadDrafter(HeadKind::kLastRow, TreeOf(nodes)) {}
};

void RegisterBasicDrafters(py::module_& module) {
  py::class_<Drafter, std::shared_ptr<Drafter>>(module, "Drafter")
      .def_property_readonly("name", [](const Drafter& drafter) { return drafter.traits().name; })
      .def_property_readonly("num_bytes", &Drafter::num_bytes);
  py::class_<PromptLookup, Drafter, std::shared_ptr<PromptLookup>>(module, "PromptLookup")
      .def(py::init<int64_t, int64_t>(), py::arg("min_ngram"), py::arg("max_ngram"))
      .def(
          "propose",
          [](PromptLookup& lookup, const std::vector<int32_t>& token_ids, int64_t num_tokens) {
            NgramIndex index = lookup.NewIndex();
            Seat seat;
            seat.text.token_ids = token_ids;
            seat.budget.max_nodes = num_tokens;
            seat.state = &index;
            lookup.Propose({&seat, 1});
            return seat.draft.token_ids;
          },
          py::arg("token_ids"), py::arg("num_tokens"));
  py::class_<EagleDrafter, Drafter, std::shared_ptr<EagleDrafter>>(module, "EagleDrafter")
      .def(py::init<const Nodes&>(), py::arg("tree"), "tree: (parent, rank) of each node.");
  py::class_<MedusaDrafter, Drafter, std::shared_ptr<MedusaDrafter>>(module, "MedusaDrafter")
      .def(py::init<const Nodes&>(), py::arg("tree"), "tree: (parent, rank) of each node.");
  py::class_<PyDrafter, Drafter, std::shared_ptr<PyDrafter>>(module, "PyDrafter")
      .def(py::init<py::object, std::string>(), py::arg("runner"), py::arg("name"));
  py::class_<UnionDrafter, Drafter, std::shared_ptr<UnionDrafter>>(module, "UnionDrafter")
      .def(py::init([](std::vector<std::shared_ptr<Drafter>> drafters) { return std::make_shared<UnionDrafter>(std::move(drafters)); }),
           py::arg("drafters"));
}

}  // namespace

void RegisterSpeculation(py::module_& module) {
  RegisterBasicDrafters(module);
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

}  // namespace llmi
