#include "bindings/gil.h"

#include <unistd.h>

#include <algorithm>
#include <unordered_map>

namespace py = pybind11;

namespace llmi {
namespace {

[[noreturn]] void SleepForEver() {
  for (;;) pause();
}

bool IsFinalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// The innermost scope of each thread. The GIL guards it.
std::unordered_map<unsigned long, HookScope*>& Scopes() {
  static auto* scopes = new std::unordered_map<unsigned long, HookScope*>();
  return *scopes;
}

}  // namespace

bool InterpreterEnds() {
  if (Py_IsInitialized() == 0) return true;
  return IsFinalizing() && PyGILState_Check() == 0;
}

// Python ends a thread by unwinding its stack. The catch blocks stop the unwinding, because they never return.
GilHeld::GilHeld() {
  if (InterpreterEnds()) SleepForEver();
  try {
    state_ = PyGILState_Ensure();
  } catch (...) {
    SleepForEver();
  }
}

GilHeld::~GilHeld() {
  try {
    PyGILState_Release(state_);
  } catch (...) {
    SleepForEver();
  }
}

GilReleased::GilReleased() : state_(PyEval_SaveThread()) {}

GilReleased::~GilReleased() {
  try {
    PyEval_RestoreThread(state_);
  } catch (...) {
    SleepForEver();
  }
}

void CheckSignals() {
  if (InterpreterEnds()) return;
  const GilHeld gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

HookScope::HookScope(std::vector<uint64_t> request_ids) : request_ids_(std::move(request_ids)), thread_(PyThread_get_thread_ident()) {
  HookScope*& top = Scopes()[thread_];
  outer_ = top;
  top = this;
}

HookScope::~HookScope() {
  if (interrupted_) PyThreadState_SetAsyncExc(thread_, nullptr);
  if (outer_ != nullptr) {
    Scopes()[thread_] = outer_;
  } else {
    Scopes().erase(thread_);
  }
}

bool HookScope::Concerns(const std::vector<uint64_t>& request_ids) const {
  return std::any_of(request_ids_.begin(), request_ids_.end(),
                     [&](uint64_t id) { return std::find(request_ids.begin(), request_ids.end(), id) != request_ids.end(); });
}

bool HookScope::Interrupt(unsigned long thread, const std::vector<uint64_t>* request_ids) {
  const auto found = Scopes().find(thread);
  if (found == Scopes().end()) return false;
  for (HookScope* scope = found->second; scope != nullptr; scope = scope->outer_) {
    if (request_ids != nullptr && !scope->Concerns(*request_ids)) continue;
    scope->interrupted_ = true;
    PyThreadState_SetAsyncExc(thread, PyExc_KeyboardInterrupt);
    return true;
  }
  return false;
}

py::object CallPython(const py::object& callable, const py::tuple& args) {
  PyObject* result = nullptr;
  try {
    result = PyObject_CallObject(callable.ptr(), args.ptr());
  } catch (...) {
    SleepForEver();
  }
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

}  // namespace llmi
