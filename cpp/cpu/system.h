// The limits that the operating system sets for this process: processors (affinity, cgroup quota) and memory (cgroup limit).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pumice::cpu {

int allowed_cpus();     // logical processors in this process's affinity mask
int usable_cpus();      // allowed_cpus(), limited by the cgroup's cpu quota; at least 1
int default_threads();  // physical cores of allowed_cpus(), limited by the same quota; at least 1
std::string cpu_model();

struct Memory {
  std::uint64_t total = 0, free = 0;  // bytes of the machine, or of the cgroup where that is less
};
Memory memory();

// Returns the system's setting of huge pages (Linux: transparent huge pages): "always", "madvise", "never", or "unknown". See cpu_quota()
// for `root`.
std::string huge_pages(const std::string& root);

// Returns the bytes of address space that this process's limits (RLIMIT_AS, RLIMIT_DATA) leave, or nothing if there is no limit.
std::optional<std::uint64_t> address_space_left();

// The functions from here on are declared so that tests can call them.
// The next two parse the cpu quota of a cgroup. They return a number of processors, or 0 for no limit. The first takes the text of cpu.max
// in version 2: "150000 100000" gives 1.5, "max 100000" gives 0. The second takes the two files of version 1; a quota of -1 gives 0.
double quota_from_cpu_max(const std::string& text);
double quota_from_cfs(const std::string& quota_us, const std::string& period_us);
// `root` is "" for the real file system, or the folder that a test uses in its place.
double cpu_quota(const std::string& root);      // processors that the tightest cgroup of this process allows; 0 if there is no limit
Memory cgroup_memory(const std::string& root);  // `total` is 0 if there is no limit

}  // namespace pumice::cpu
