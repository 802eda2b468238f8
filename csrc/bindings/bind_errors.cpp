// Error kinds become one Python exception, CoreError(kind, message, field, needed, available), that the package
// turns into its public classes: the core does not import the package.
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
    case ErrorKind::kDraft: return "draft";
    case ErrorKind::kBusy: return "busy";
    case ErrorKind::kDevice: return "device";
    case ErrorKind::kClosed: return "closed";
    case ErrorKind::kInterrupted: return "interrupted";
    case ErrorKind::kInternal: return "internal";
  }
  return "internal";
}

PyObject* core_error = nullptr;

}  // namespace

py::tuple ErrorFields(const Error& error) {
  return py::make_tuple(KindName(error.kind()), error.what(), error.field(), error.needed_bytes, error.available_bytes);
}

void RegisterErrors(py::module_& module) {
  core_error = PyErr_NewException("llmi._core.CoreError", PyExc_RuntimeError, nullptr);
  module.attr("CoreError") = py::reinterpret_borrow<py::object>(core_error);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      PyErr_SetObject(core_error, ErrorFields(error).ptr());
    }
  });
}

}  // namespace llmi
