// Calls into user code from the core's threads.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

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

// Drops a reference from a thread that may not hold the GIL, or after the interpreter has gone.
inline void DropObject(pybind11::object& object) {
  if (Py_IsInitialized() == 0) {
    object.release();
    return;
  }
  const pybind11::gil_scoped_acquire gil;
  object = pybind11::object();
}

template <typename T>
pybind11::array_t<T> CopyArray(const T* values, size_t size) {
  return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(size), values);
}

}  // namespace llmi
