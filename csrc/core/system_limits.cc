#include "core/system_limits.h"

#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace llmi {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// A file's first number; false if there is none ("max", "-1", an absent file).
bool ReadNumber(const std::string& path, uint64_t* value) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text) || text[0] < '0' || text[0] > '9') return false;
  return static_cast<bool>(std::istringstream(text) >> *value);
}

// The number after `name` in a file with lines "name number", such as memory.stat and meminfo; `otherwise` if there is none.
uint64_t ReadField(const std::string& path, const std::string& name, uint64_t otherwise) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key;
    uint64_t value = 0;
    if (words >> key >> value && key == name) return value;
  }
  return otherwise;
}

bool HasWord(const std::string& list, const std::string& word) {
  std::istringstream words(list);
  for (std::string entry; std::getline(words, entry, ',');) {
    if (entry == word) return true;
  }
  return false;
}

// The process's group in one hierarchy, and the groups that contain it.
struct Cgroup {
  std::vector<std::string> folders;  // the innermost first
  bool is_v2 = false;
};

// /proc/self/mountinfo gives the folder at which a hierarchy is mounted, and the group that this folder shows. In a container with its own
// cgroup namespace, the container's group is the root. Without one (Docker on version 1), /proc/self/cgroup has the path on the host, and
// the mount shows the end of that path.
struct Mount {
  std::string group;
  std::string folder;
};

bool FindMount(const std::string& root, const std::string& controller, bool v2, Mount* mount) {
  std::ifstream file(root + "/proc/self/mountinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t separator = line.find(" - ");
    if (separator == std::string::npos) continue;
    std::istringstream before(line.substr(0, separator));
    std::istringstream after(line.substr(separator + 3));
    std::string skipped, type, source, options;
    if (!(before >> skipped >> skipped >> skipped >> mount->group >> mount->folder) || !(after >> type >> source >> options)) continue;
    if (v2 ? type == "cgroup2" : type == "cgroup" && HasWord(options, controller)) return true;
  }
  return false;
}

Cgroup FindCgroup(const std::string& root, const std::string& controller) {
  Cgroup cgroup;
  std::string group;
  bool found = false;
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {  // "4:cpu,cpuacct:/path", or version 2's "0::/path"; a line of version 1 has precedence
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v1 = HasWord(controllers, controller);
    if (!is_v1 && !(controllers.empty() && !found)) continue;
    found = true;
    cgroup.is_v2 = !is_v1;
    group = line.substr(second + 1);
    if (is_v1) break;
  }
  Mount mount;
  if (!found) {  // no /proc: take the root of the hierarchy
    cgroup.is_v2 = true;
    mount.folder.append("/sys/fs/cgroup");
  } else if (!FindMount(root, controller, cgroup.is_v2, &mount)) {
    mount.group.clear();
    mount.folder = std::string("/sys/fs/cgroup").append(cgroup.is_v2 ? "" : "/" + controller);
  }
  if (group.find("..") != std::string::npos) {
    group.clear();  // outside the namespace
  } else if (mount.group.size() > 1 && group.compare(0, mount.group.size(), mount.group) == 0) {
    group.erase(0, mount.group.size());
  } else if (mount.group.size() > 1) {
    group.clear();  // the mount shows another part of the tree: take the mount's root
  }
  const std::string top = root + mount.folder;
  while (group.size() > 1) {
    cgroup.folders.push_back(top + group);
    group.erase(group.rfind('/'));
  }
  cgroup.folders.push_back(top);
  return cgroup;
}

// Bytes left in one group. The cache of files that are no longer in use (inactive_file) is freed when memory is short, so it does not count
// as used; Kubernetes does not count it either.
uint64_t GroupRoom(const std::string& folder, bool v2) {
  uint64_t limit = kNoLimit;
  uint64_t used = 0;
  for (const char* name : {"/memory.max", "/memory.high", "/memory.limit_in_bytes"}) {
    uint64_t value = 0;
    if (ReadNumber(folder + name, &value)) limit = std::min(limit, value);
  }
  const std::string stat = folder + "/memory.stat";
  if (!v2) limit = std::min(limit, ReadField(stat, "hierarchical_memory_limit", kNoLimit));
  if (limit == kNoLimit || !ReadNumber(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes"), &used)) return limit;
  used -= std::min(used, ReadField(stat, v2 ? "inactive_file" : "total_inactive_file", 0));
  return limit > used ? limit - used : 0;
}

uint64_t FreeByTheKernel() {
  struct sysinfo info = {};
  if (sysinfo(&info) != 0) return kNoLimit;
  return (uint64_t{info.freeram} + info.bufferram) * info.mem_unit;
}

}  // namespace

uint64_t AvailableMemoryBytes(const std::string& root) {
  const uint64_t kilobytes = ReadField(root + "/proc/meminfo", "MemAvailable:", kNoLimit);
  uint64_t available = kilobytes <= kNoLimit / 1024 ? kilobytes * 1024 : FreeByTheKernel();
  const Cgroup cgroup = FindCgroup(root, "memory");
  for (const std::string& folder : cgroup.folders) available = std::min(available, GroupRoom(folder, cgroup.is_v2));
  rlimit address_space{};
  if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    uint64_t in_use = 0;
    if (ReadNumber(root + "/proc/self/statm", &in_use)) {
      in_use *= kPageBytes;
    } else {
      rusage usage{};
      if (getrusage(RUSAGE_SELF, &usage) == 0) in_use = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
    }
    available = std::min<uint64_t>(available, address_space.rlim_cur > in_use ? address_space.rlim_cur - in_use : 0);
  }
  return available;
}

int CgroupCpus(int max_cpus, const std::string& root) {
  const Cgroup cgroup = FindCgroup(root, "cpu");
  double cpus = max_cpus;
  for (const std::string& folder : cgroup.folders) {
    double quota = 0;
    uint64_t period = 0;
    if (cgroup.is_v2) {
      std::ifstream file(folder + "/cpu.max");
      if (!(file >> quota >> period)) continue;  // "max 100000": no quota
    } else {
      uint64_t microseconds = 0;
      if (!ReadNumber(folder + "/cpu.cfs_quota_us", &microseconds) || !ReadNumber(folder + "/cpu.cfs_period_us", &period)) continue;
      quota = static_cast<double>(microseconds);
    }
    if (quota > 0 && period > 0) cpus = std::min(cpus, quota / static_cast<double>(period));
  }
  return std::max(1, static_cast<int>(cpus + 0.5));
}

}  // namespace llmi
