#include "bindings/engine_options.h"

#include <pybind11/stl.h>

#include <memory>
#include <set>
#include <string>

#include "bindings/gil.h"
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
  std::set<std::string> known;
  VisitOptions(options, [&](const char* name, auto& field) {
    known.insert(name);
    if (!given.contains(name)) return;
    const py::object value = given[name];
    if (value.is_none()) return;
    try {
      Read(value, &field);
    } catch (const py::cast_error&) {
      throw py::type_error("the engine's option " + std::string(name) + " has another type: " + std::string(py::repr(value)));
    }
  });
  for (const auto& entry : given) {
    const auto name = entry.first.cast<std::string>();
    if (!known.contains(name)) throw py::type_error("the engine has no option " + name);
  }
  options.check_wait = &CheckSignals;
  return options;
}

}  // namespace llmi
