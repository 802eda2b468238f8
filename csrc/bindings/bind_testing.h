// Shared by the testing bindings.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <string>

#include "core/errors.h"
#include "core/thread_pool.h"
#include "kernels/context.h"
#include "kernels/tables.h"

namespace llmi {

using FloatArray = pybind11::array_t<float, pybind11::array::c_style>;

KernelContext TestContext(const std::string& table, int num_threads);
void RegisterTestingCache(pybind11::module_& module);
void RegisterTestingScheduler(pybind11::module_& module);
void RegisterTestingSpeculative(pybind11::module_& module);

}  // namespace llmi
