// Grammars of the grammar library.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind_constraint.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "bindings/py_constraint.h"
#include "constraint/grammar_constraint.h"

namespace py = pybind11;

namespace llmi {
namespace {

// tokenize: a text (bytes) to token ids.
std::shared_ptr<GrammarVocabulary> MakeVocabulary(std::shared_ptr<const GrammarLibrary> library, const std::vector<py::bytes>& tokens,
                                                  std::vector<uint32_t> ends, py::object tokenize) {
  std::vector<std::string> bytes(tokens.begin(), tokens.end());
  auto held = std::make_shared<HeldObject>(std::move(tokenize));
  const GilReleased released;
  return std::make_shared<GrammarVocabulary>(std::move(library), bytes, std::move(ends), [held](std::string_view text) {
    return CallHook(ErrorKind::kConstraint, {}, [&] {
      return CallPython(held->get(), py::make_tuple(py::bytes(text.data(), text.size()))).cast<std::vector<uint32_t>>();
    });
  });
}

// The library's Python methods by the same names (llmi.structured.library.Matcher): they do not raise, and `is_error` says that one failed.
class PyMatcher {
 public:
  PyMatcher(std::shared_ptr<GrammarVocabulary> vocabulary, const std::string& grammar, const std::string& name)
      : vocabulary_(std::move(vocabulary)), place_(std::make_shared<GrammarConstraint>(vocabulary_, grammar, name)) {}

  PyMatcher DeepCopy() const { return PyMatcher(vocabulary_, place_->Copy({})); }
  bool ConsumeTokens(const std::vector<int32_t>& tokens) {
    try {
      for (const int32_t token : tokens) place_->Advance(token);
    } catch (const Error&) {
      return false;  // the library keeps its error
    }
    return true;
  }
  bool IsError() const { return !place_->ErrorText().empty(); }
  std::string GetError() const { return place_->ErrorText(); }
  bool IsAccepting() { return place_->Accepting(); }
  void FillMask(uintptr_t address, int64_t num_bytes) {
    const std::span words(reinterpret_cast<uint32_t*>(address), static_cast<size_t>(num_bytes) / sizeof(uint32_t));
    try {
      place_->FillMask(words, num_bytes * 8);
    } catch (const Error& error) {
      if (error.field().empty()) throw;  // the tokenizer's, not the library's
    }
  }
  std::vector<int32_t> Forced(int64_t max_tokens) { return place_->Forced(max_tokens); }
  const std::shared_ptr<GrammarConstraint>& place() const { return place_; }

 private:
  PyMatcher(std::shared_ptr<GrammarVocabulary> vocabulary, std::shared_ptr<GrammarConstraint> place)
      : vocabulary_(std::move(vocabulary)), place_(std::move(place)) {}

  std::shared_ptr<GrammarVocabulary> vocabulary_;
  std::shared_ptr<GrammarConstraint> place_;
};

using Released = py::call_guard<GilReleased>;

}  // namespace

std::vector<std::unique_ptr<TokenConstraint>> MakeConstraints(const py::object& given, const std::vector<int32_t>& ends, int64_t count,
                                                              uint64_t request_id) {
  std::vector<std::unique_ptr<TokenConstraint>> made;
  if (given.is_none()) return made;
  if (py::isinstance<PyMatcher>(given)) {
    const std::shared_ptr<GrammarConstraint> first = given.cast<const PyMatcher&>().place();
    const GilReleased released;
    for (int64_t i = 0; i < count; ++i) made.push_back(first->Copy(ends));
    return made;
  }
  const auto hooks = std::make_shared<HeldObject>(given);
  for (int64_t i = 0; i < count; ++i) made.push_back(std::make_unique<PyConstraint>(hooks, request_id));
  return made;
}

void RegisterConstraints(py::module_& module) {
  py::class_<GrammarLibrary, std::shared_ptr<GrammarLibrary>>(module, "GrammarLibrary", "llguidance through its C interface.")
      .def(py::init([](const std::string& path) { return std::const_pointer_cast<GrammarLibrary>(GrammarLibrary::Open(path)); }),
           py::arg("path"))
      .def_property_readonly("version", &GrammarLibrary::version);
  py::class_<GrammarVocabulary, std::shared_ptr<GrammarVocabulary>>(module, "GrammarVocabulary", "A tokenizer in the grammar library.")
      .def(py::init([](const std::shared_ptr<GrammarLibrary>& library, const std::vector<py::bytes>& tokens, std::vector<uint32_t> ends,
                       py::object tokenize) { return MakeVocabulary(library, tokens, std::move(ends), std::move(tokenize)); }),
           py::arg("library"), py::arg("tokens"), py::arg("ends"), py::arg("tokenize"))
      .def(
          "warnings",
          [](const GrammarVocabulary& vocabulary, const std::string& grammar) { return GrammarConstraint::Warnings(vocabulary, grammar); },
          py::arg("grammar"), Released(), "What the grammar's compiler leaves out of account; \"\" if nothing.");
  py::class_<PyMatcher>(module, "GrammarMatcher",
                        "A place in a grammar's language. Its methods do not raise: is_error says that one failed.")
      .def(py::init<std::shared_ptr<GrammarVocabulary>, const std::string&, const std::string&>(), py::arg("vocabulary"),
           py::arg("grammar"), py::arg("name"), Released())
      .def("deep_copy", &PyMatcher::DeepCopy, Released())
      .def(
          "consume_token", [](PyMatcher& matcher, int32_t token) { return matcher.ConsumeTokens({token}); }, py::arg("token"), Released())
      .def("consume_tokens", &PyMatcher::ConsumeTokens, py::arg("tokens"), Released())
      .def("is_error", &PyMatcher::IsError, Released())
      .def("get_error", &PyMatcher::GetError, Released())
      .def("is_accepting", &PyMatcher::IsAccepting, Released())
      .def("forced", &PyMatcher::Forced, py::arg("max_tokens"), Released())
      .def("unsafe_compute_mask_ptr", &PyMatcher::FillMask, py::arg("address"), py::arg("num_bytes"), Released());
}

}  // namespace llmi
