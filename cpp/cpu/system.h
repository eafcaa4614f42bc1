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

// The system's setting of huge pages (Linux: transparent huge pages): "always", "madvise", "never", or "unknown". root is as in
// cpu_quota().
std::string huge_pages(const std::string& root);

// Bytes of address space left under this process's limits (RLIMIT_AS, RLIMIT_DATA); empty without a limit.
std::optional<std::uint64_t> address_space_left();

// Parsers, declared here so that tests can call them with any text.
// They return the number of processors, or 0 for no limit. v2 "cpu.max": "150000 100000" -> 1.5, "max 100000" -> 0. v1: quota -1 -> 0.
double quota_from_cpu_max(const std::string& text);
double quota_from_cfs(const std::string& quota_us, const std::string& period_us);
// root: "" for the real file system, or a test's folder.
double cpu_quota(const std::string& root);      // processors that the tightest cgroup of this process allows; 0: no limit
Memory cgroup_memory(const std::string& root);  // total 0: no limit

}  // namespace pumice::cpu
