// How much memory and how many processors this process may take: what the machine has, cut by its control groups and limits.
#pragma once

#include <cstdint>
#include <string>

namespace llmi {

// Bytes of memory that can be taken now: the least of MemAvailable, the room in each control group (version 1 or 2) that the process
// is in, and the address-space limit. Where /proc is missing: what the kernel counts as free.
// `root` stands before /proc and /sys; only tests give one.
uint64_t AvailableMemoryBytes(const std::string& root = "");

// Processors whose time the control groups allow, rounded to the nearest, 1 at least; max_cpus where they set no quota.
int CgroupCpus(int max_cpus, const std::string& root = "");

}  // namespace llmi
