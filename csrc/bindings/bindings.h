// One register function per subject.
#pragma once

#include <pybind11/pybind11.h>

namespace llmi {

void RegisterErrors(pybind11::module_& module);
void RegisterFiles(pybind11::module_& module);
void RegisterRecords(pybind11::module_& module);
void RegisterEngine(pybind11::module_& module);
void RegisterLab(pybind11::module_& module);
void RegisterSystem(pybind11::module_& module);
// Adds the submodule `testing`, in builds with LLMI_TESTING.
void RegisterTesting(pybind11::module_& module);

}  // namespace llmi
