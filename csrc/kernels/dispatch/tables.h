// Chooses the kernel table.
#pragma once

#include <string>
#include <vector>

#include "kernels/dispatch/kernel_table.h"

namespace llmi {

// Names of the tables that this machine can run, slowest first.
std::vector<std::string> AvailableTables();

// The table `name`; "" means LLMI_ISA from the environment, else the fastest. Throws Error(kDevice) if the
// machine lacks it, Error(kInvalidArgument) if no table has that name.
const KernelTable& GetKernelTable(const std::string& name);

}  // namespace llmi
