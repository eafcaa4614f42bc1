// Functions that parse the text files of /proc and /sys on Linux. linux.cpp uses these functions. `root` is the root folder. linux.cpp
// passes "" for the real one, and tests pass another one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "os/limits.h"

namespace pumice::os {

std::optional<std::string> text_of(const std::string& path);  // returns an empty optional if the file cannot be read
std::string_view take_word(std::string_view& text);  // removes the first word from `text` and returns it; returns "" if there is none
// Returns the number in the first word of `text`, or an empty optional if the word is not a number.
std::optional<std::uint64_t> number(std::string_view text);
// Returns the number in a line of the form "key 123" or "key: 123 kB".
std::optional<std::uint64_t> field(std::string_view text, std::string_view key);

// quota_from_cpu_max() and quota_from_cfs() parse the cpu quota of a cgroup. They return a number of processors, or 0 if there is no limit.
// quota_from_cpu_max() parses the text of cpu.max in cgroup version 2: "150000 100000" means 1.5 processors, and "max 100000" means no
// limit. quota_from_cfs() parses the two files of version 1; a quota of -1 means no limit.
double quota_from_cpu_max(std::string_view text);
double quota_from_cfs(std::string_view quota_us, std::string_view period_us);
// Returns the number of processors that the tightest cgroup of this process allows, or 0 if there is no limit.
double cpu_quota(const std::string& root);
Memory cgroup_memory(const std::string& root);  // `total` of the result is 0 if there is no limit

std::string huge_pages(const std::string& root);

// Returns the name of the processor. On 64-bit ARM, /proc/cpuinfo has only numbers for the maker and the core, so the names of some cores
// come from a table in linux_files.cpp.
std::string cpu_model(const std::string& root);

}  // namespace pumice::os
