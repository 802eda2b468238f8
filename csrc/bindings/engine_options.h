// EngineOptions from Python's named values.
#pragma once

#include <pybind11/pybind11.h>

#include "engine/options.h"

namespace llmi {

// given: values by the names in VisitOptions; None, like a name that is left out, keeps the option's default. Choices are given by their
// names, policy_hook and batch_hook as the Python objects that PyPolicy and PyBatchHook call. check_wait raises what signal handlers raise.
// Throws TypeError for an unknown name and for a value of another type, Error(kInvalidArgument) for an unknown choice.
EngineOptions EngineOptionsOf(const pybind11::dict& given);

}  // namespace llmi
