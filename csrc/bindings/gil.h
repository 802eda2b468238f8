// Calls into user code from the core's threads.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <utility>

#include "core/errors.h"

namespace llmi {

// Runs `call` with the GIL; whatever Python raises becomes an Error of this kind.
template <typename Call>
auto WithGil(ErrorKind kind, const Call& call) {
  const pybind11::gil_scoped_acquire gil;
  try {
    return call();
  } catch (pybind11::error_already_set& error) {
    throw Error(kind, error.what());
  } catch (const pybind11::cast_error& error) {
    throw Error(kind, error.what());
  }
}

// A Python object that a thread without the GIL may drop, also after the interpreter has gone. Its owner calls it
// with the GIL.
class HeldObject {
 public:
  explicit HeldObject(pybind11::object object) : object_(std::move(object)) {}
  ~HeldObject() {
    if (Py_IsInitialized() == 0) {
      object_.release();
      return;
    }
    const pybind11::gil_scoped_acquire gil;
    object_ = pybind11::object();
  }
  HeldObject(const HeldObject&) = delete;
  HeldObject& operator=(const HeldObject&) = delete;

  const pybind11::object& get() const { return object_; }
  pybind11::object attr(const char* name) const { return object_.attr(name); }

 private:
  pybind11::object object_;
};

template <typename T>
pybind11::array_t<T> CopyArray(const T* values, size_t size) {
  return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(size), values);
}

}  // namespace llmi
