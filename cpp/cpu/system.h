// What the operating system lets this process use: cpus (affinity, cgroup quota) and memory (cgroup limit).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pumice::cpu {

int allowed_cpus();     // logical cpus of this process's affinity
int default_threads();  // physical cores among them, at most what the cgroup's cpu quota grants; at least 1
std::string cpu_model();

struct Memory {
  std::uint64_t total = 0, free = 0;  // bytes; the cgroup's where it is smaller
};
Memory memory();

// "always", "madvise" or "never": whether the system gives large pages to who asks for them (Linux: transparent huge pages); "unknown"
// where it does not say. root: as of cpu_quota().
std::string huge_pages(const std::string& root);

// Bytes of address space that a limit of this process (RLIMIT_AS, RLIMIT_DATA) leaves it; nothing without a limit.
std::optional<std::uint64_t> address_space_left();

// Parsers, apart so that they can be tested on any text.
// v2 "cpu.max": "150000 100000" -> 1.5, "max 100000" -> 0. v1: quota -1 -> 0. 0 means no limit.
double quota_from_cpu_max(const std::string& text);
double quota_from_cfs(const std::string& quota_us, const std::string& period_us);
// root: "" on a machine; a test's folder otherwise.
double cpu_quota(const std::string& root);      // cpus granted by the tightest cgroup above this process, 0: no limit
Memory cgroup_memory(const std::string& root);  // total 0: no limit

}  // namespace pumice::cpu
