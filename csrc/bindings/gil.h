// The interpreter's lock (GIL) in the core's threads: taken for user code, given back while a call waits.
//
// If a thread takes the GIL while the interpreter shuts down, Python before 3.14 ends it by unwinding its stack, which must not pass a C++
// destructor. Such a thread therefore sleeps forever here, as it does in Python from 3.14 on: the process is about to end.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "core/errors.h"

namespace llmi {

// True if the interpreter has ended, or is ending on another thread. Python objects must then be left as they are.
bool InterpreterEnds();

// Holds the GIL for a scope, on any thread.
class GilHeld {
 public:
  GilHeld();
  ~GilHeld();
  GilHeld(const GilHeld&) = delete;
  GilHeld& operator=(const GilHeld&) = delete;

 private:
  PyGILState_STATE state_;
};

// Gives up the GIL for a scope.
class GilReleased {
 public:
  GilReleased();
  ~GilReleased();
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

// Throws what a signal handler raises (Ctrl-C), for a thread that waits without the GIL. Does nothing on other threads than the main one.
void CheckSignals();

// Marks this thread as running Python code of these requests, for a scope. Create and destroy it with the GIL held, which also guards its
// fields.
class HookScope {
 public:
  explicit HookScope(std::vector<uint64_t> request_ids);
  ~HookScope();  // withdraws an interrupt that has not been raised yet, so that no later hook gets it
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

  bool interrupted() const { return interrupted_; }

  // Raises KeyboardInterrupt in the hook that runs on `thread`, if it belongs to one of these requests. request_ids: null means any
  // request. Python raises it between two bytecodes: code that is blocked in C gets it when it returns. Call with the GIL held.
  static bool Interrupt(unsigned long thread, const std::vector<uint64_t>* request_ids);

 private:
  bool Concerns(const std::vector<uint64_t>& request_ids) const;

  std::vector<uint64_t> request_ids_;
  unsigned long thread_;
  HookScope* outer_;
  bool interrupted_ = false;
};

// Calls callable(*args) from a thread of the core. If the interpreter ends during the call, the thread sleeps forever.
pybind11::object CallPython(const pybind11::object& callable, const pybind11::tuple& args);

// Runs `call` with the GIL; whatever Python raises becomes an Error of this kind, or kInterrupted after an interrupt.
template <typename Call>
auto CallHook(ErrorKind kind, std::vector<uint64_t> request_ids, const Call& call) {
  const GilHeld gil;
  const HookScope scope(std::move(request_ids));
  try {
    return call();
  } catch (pybind11::error_already_set& error) {
    const std::string type = kind == ErrorKind::kHook ? pybind11::str(error.type().attr("__name__")) : pybind11::str("");
    throw Error(scope.interrupted() ? ErrorKind::kInterrupted : kind, error.what(), type);
  } catch (const pybind11::cast_error& error) {
    throw Error(kind, error.what());
  }
}

// A Python object that a thread without the GIL may destroy, even after the interpreter has ended. Call its methods with the GIL held.
class HeldObject {
 public:
  explicit HeldObject(pybind11::object object) : object_(std::move(object)) {}
  ~HeldObject() {
    if (InterpreterEnds()) {
      object_.release();
      return;
    }
    const GilHeld gil;
    object_ = pybind11::object();
  }
  HeldObject(const HeldObject&) = delete;
  HeldObject& operator=(const HeldObject&) = delete;

  const pybind11::object& get() const { return object_; }
  pybind11::object attr(const char* name) const { return object_.attr(name); }
  // Calls the method and returns its result.
  template <typename... Args>
  pybind11::object Call(const char* name, Args&&... args) const {
    return CallPython(object_.attr(name), pybind11::make_tuple(std::forward<Args>(args)...));
  }

 private:
  pybind11::object object_;
};

}  // namespace llmi
