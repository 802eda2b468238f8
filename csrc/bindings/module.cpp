#include "bindings/bindings.h"

PYBIND11_MODULE(_core, module, pybind11::mod_gil_used()) {
  module.doc() = "The C++ core of llmi. Private: use the package.";
  llmi::RegisterErrors(module);
  llmi::RegisterFiles(module);
  llmi::RegisterConstraints(module);
  llmi::RegisterCompress(module);
  llmi::RegisterLab(module);
  llmi::RegisterRecords(module);
  llmi::RegisterReplay(module);
  llmi::RegisterSimulation(module);
  llmi::RegisterSpeculation(module);
  llmi::RegisterDrafters(module);
  llmi::RegisterRequests(module);
  llmi::RegisterPrefixes(module);
  llmi::RegisterRanks(module);
  llmi::RegisterEngine(module);
  llmi::RegisterSystem(module);
  llmi::RegisterTesting(module);
}
