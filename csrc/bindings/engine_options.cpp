#include "bindings/engine_options.h"

#include <pybind11/stl.h>

#include <functional>
#include <memory>
#include <string>

#include "bindings/gil.h"
#include "bindings/keywords.h"
#include "bindings/py_drafter.h"
#include "bindings/py_hooks.h"
#include "cache/kv_groups.h"

namespace py = pybind11;

namespace llmi {
namespace {

template <typename T>
void Read(const py::handle& value, T* field) {
  *field = value.cast<T>();
}

void Read(const py::handle& value, DeviceKind* field) { *field = ParseDeviceKind(value.cast<std::string>()); }
void Read(const py::handle& value, LinearArithmetic* field) { *field = ParseLinearArithmetic(value.cast<std::string>()); }
void Read(const py::handle& value, WeightFormat* field) { *field = ParseWeightFormat(value.cast<std::string>()); }
void Read(const py::handle& value, KvType* field) { *field = ParseKvType(value.cast<std::string>()); }
void Read(const py::handle& value, std::shared_ptr<const ModelFiles>* field) { *field = value.cast<std::shared_ptr<ModelFiles>>(); }
void Read(const py::handle& value, std::shared_ptr<RankGroup>* field) { *field = value.cast<std::shared_ptr<RankGroup>>(); }
void Read(const py::handle& value, std::function<std::shared_ptr<RankGroup>(const std::string&)>* field) {
  *field = [restart = std::make_shared<HeldObject>(py::reinterpret_borrow<py::object>(value))](const std::string& reason) {
    return CallHook(ErrorKind::kWorkerDied, {},
                    [&] { return CallPython(restart->get(), py::make_tuple(reason)).cast<std::shared_ptr<RankGroup>>(); });
  };
}
void Read(const py::handle& value, SchedulingPolicy* field) { *field = ParsePolicy(value.cast<std::string>()); }
void Read(const py::handle& value, std::shared_ptr<PolicyHook>* field) {
  *field = std::make_shared<PyPolicy>(py::reinterpret_borrow<py::object>(value));
}
void Read(const py::handle& value, std::shared_ptr<BatchHook>* field) {
  *field = std::make_shared<PyBatchHook>(py::reinterpret_borrow<py::object>(value));
}

}  // namespace

EngineOptions EngineOptionsOf(const py::dict& given) {
  EngineOptions options;
  Keywords keywords(given, "the engine", "option");
  VisitOptions(options, [&](const char* name, auto& field) {
    const py::object value = keywords.Find(name);
    if (value && !value.is_none()) keywords.Converted(name, value, [&](const py::object& found) { Read(found, &field); });
  });
  keywords.CheckAllKnown();
  options.check_wait = &CheckSignals;
  return options;
}

}  // namespace llmi
