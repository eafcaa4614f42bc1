// What Linux says in the text files of /proc and /sys. linux.cpp uses these functions. They are declared here so that tests can give them
// another root than "", which is the real one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "os/limits.h"

namespace pumice::os {

std::optional<std::string> text_of(const std::string& path);  // nothing if the file cannot be read
std::string_view take_word(std::string_view& text);           // takes the first word from `text`; "" at its end
std::optional<std::uint64_t> number(std::string_view text);   // the first word, if it is a number
// Returns the number in the line "key 123" or "key: 123 kB".
std::optional<std::uint64_t> field(std::string_view text, std::string_view key);

// The next two parse the cpu quota of a cgroup. They return a number of processors, or 0 for no limit. The first takes the text of cpu.max
// in version 2: "150000 100000" gives 1.5, "max 100000" gives 0. The second takes the two files of version 1; a quota of -1 gives 0.
double quota_from_cpu_max(std::string_view text);
double quota_from_cfs(std::string_view quota_us, std::string_view period_us);
double cpu_quota(const std::string& root);      // processors that the tightest cgroup of this process allows; 0 if there is no limit
Memory cgroup_memory(const std::string& root);  // `total` is 0 if there is no limit

std::string huge_pages(const std::string& root);

// Returns the processor's name. On 64-bit ARM /proc/cpuinfo has only numbers of its maker and its core, for which this has some names.
std::string cpu_model(const std::string& root);

}  // namespace pumice::os
