// Builds without LLMI_TESTING have no submodule of test probes. pybind11's headers are left out: they take seconds.
namespace pybind11 {
class module_;
}

namespace llmi {

void RegisterTesting(pybind11::module_& module);
void RegisterTesting(pybind11::module_& /*module*/) {}

}  // namespace llmi
