// What Linux says in the text files of /proc and /sys. linux.cpp uses these functions. They are declared here so that tests can give them
// another root than "", which is the real one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "os/limits.h"

namespace pumice::os {

std::optional<std::string> text_of(const std::string& path);  // nothing if the file cannot be read
// Returns the number in the line "key 123" or "key: 123 kB".
std::optional<std::uint64_t> field(const std::string& text, const std::string& key);

// The next two parse the cpu quota of a cgroup. They return a number of processors, or 0 for no limit. The first takes the text of cpu.max
// in version 2: "150000 100000" gives 1.5, "max 100000" gives 0. The second takes the two files of version 1; a quota of -1 gives 0.
double quota_from_cpu_max(const std::string& text);
double quota_from_cfs(const std::string& quota_us, const std::string& period_us);
double cpu_quota(const std::string& root);      // processors that the tightest cgroup of this process allows; 0 if there is no limit
Memory cgroup_memory(const std::string& root);  // `total` is 0 if there is no limit

std::string huge_pages(const std::string& root);

// Returns the processor's name. On 64-bit ARM /proc/cpuinfo has only numbers of its maker and its core, for which this has some names.
std::string cpu_model(const std::string& root);

}  // namespace pumice::os
