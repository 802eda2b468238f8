// A library of NVIDIA that is opened when it is asked for: nothing is linked.
#pragma once

#include <dlfcn.h>

#include <string>

#include "core/errors.h"

namespace llmi::cuda {

// It stays loaded, as the driver may keep hooks in it.
class OpenedLibrary {
 public:
  // what: its name in errors. Throws Error(kDevice).
  OpenedLibrary(const char* what, const std::string& name) : what_(what), opened_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (opened_ == nullptr) throw Error(ErrorKind::kDevice, what_ + " cannot be loaded: " + dlerror());
  }
  OpenedLibrary(const OpenedLibrary&) = delete;
  OpenedLibrary& operator=(const OpenedLibrary&) = delete;

 protected:
  ~OpenedLibrary() = default;

  template <typename Function>
  void Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(opened_, name));
    if (*function == nullptr) throw Error(ErrorKind::kDevice, what_ + " has no " + name);
  }

 private:
  std::string what_;
  void* opened_;
};

}  // namespace llmi::cuda
