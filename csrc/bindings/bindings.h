// One register function per subject.
#pragma once

#include <pybind11/pybind11.h>

#include "core/errors.h"

namespace llmi {

// The CoreError that Python gets for `error`.
pybind11::object PythonError(const Error& error);

void RegisterCompress(pybind11::module_& module);
void RegisterConstraints(pybind11::module_& module);
void RegisterDrafters(pybind11::module_& module);
void RegisterErrors(pybind11::module_& module);
void RegisterFiles(pybind11::module_& module);
void RegisterPrefixes(pybind11::module_& module);
void RegisterRanks(pybind11::module_& module);
void RegisterRecords(pybind11::module_& module);
void RegisterRequests(pybind11::module_& module);
void RegisterReplay(pybind11::module_& module);
void RegisterSimulation(pybind11::module_& module);
void RegisterSpeculation(pybind11::module_& module);
void RegisterEngine(pybind11::module_& module);
void RegisterLab(pybind11::module_& module);
void RegisterSystem(pybind11::module_& module);
// Adds the submodule `testing`, in builds with LLMI_TESTING.
void RegisterTesting(pybind11::module_& module);

}  // namespace llmi
