// All errors of the core are one Python exception, CoreError, with the fields of Error as attributes. The package turns it into its public
// classes: the core does not import the package.
#include <pybind11/pybind11.h>

#include "bindings/bindings.h"
#include "core/errors.h"

namespace py = pybind11;

namespace llmi {
namespace {

const char* KindName(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return "invalid_argument";
    case ErrorKind::kModelFile: return "model_file";
    case ErrorKind::kUnsupportedModel: return "unsupported_model";
    case ErrorKind::kOutOfMemory: return "out_of_memory";
    case ErrorKind::kNonFiniteLogits: return "non_finite_logits";
    case ErrorKind::kHook: return "hook";
    case ErrorKind::kConstraint: return "constraint";
    case ErrorKind::kDraft: return "draft";
    case ErrorKind::kBusy: return "busy";
    case ErrorKind::kDevice: return "device";
    case ErrorKind::kClosed: return "closed";
    case ErrorKind::kWorkerDied: return "worker_died";
    case ErrorKind::kInterrupted: return "interrupted";
    case ErrorKind::kInternal: return "internal";
  }
  return "internal";
}

const char* FaultName(Fault fault) {
  switch (fault) {
    case Fault::kRequest: return "request";
    case Fault::kModel: return "model";
    case Fault::kMachine: return "machine";
  }
  return "machine";
}

PyObject* core_error = nullptr;

}  // namespace

py::object PythonError(const Error& error) {
  py::object made = py::reinterpret_borrow<py::object>(core_error)(error.what());
  made.attr("kind") = KindName(error.kind());
  made.attr("fault") = FaultName(error.fault());
  made.attr("message") = error.what();
  made.attr("field") = error.field();
  made.attr("needed_bytes") = error.needed_bytes;
  made.attr("available_bytes") = error.available_bytes;
  return made;
}

void RegisterErrors(py::module_& module) {
  py::dict attributes;
  attributes["kind"] = KindName(ErrorKind::kInternal);
  attributes["fault"] = FaultName(Fault::kMachine);
  attributes["message"] = "";
  attributes["field"] = "";
  attributes["needed_bytes"] = 0;
  attributes["available_bytes"] = 0;
  core_error = PyErr_NewException("llmi._core.CoreError", PyExc_RuntimeError, attributes.ptr());
  if (core_error == nullptr) throw py::error_already_set();
  module.attr("CoreError") = py::reinterpret_borrow<py::object>(core_error);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      PyErr_SetObject(core_error, PythonError(error).ptr());
    }
  });
}

}  // namespace llmi
