// Builds without LLMI_TESTING: there is no submodule `testing`.
#include "bindings/bindings.h"

namespace llmi {

void RegisterTesting(pybind11::module_& /*module*/) {}

}  // namespace llmi
