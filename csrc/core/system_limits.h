// The memory and the processors that this process may use: those of the machine, limited by its control groups and resource limits.
#pragma once

#include <cstdint>
#include <string>

namespace llmi {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// Bytes of memory that can be allocated now: the least of MemAvailable, the free part of each control group (version 1 or 2) of the
// process, and of the address-space limit. If /proc is missing, the kernel's count of free memory replaces MemAvailable. root: a path that
// replaces the root of /proc and /sys; only tests give one.
uint64_t AvailableMemoryBytes(const std::string& root = "");

// The number of processors whose time the control groups allow, rounded, at least 1; max_cpus if they set no quota.
int CgroupCpus(int max_cpus, const std::string& root = "");

}  // namespace llmi
