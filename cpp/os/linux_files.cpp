#include "os/linux_files.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace pumice::os {
namespace {

std::optional<std::uint64_t> number(const std::string& text) {
  std::istringstream in(text);
  in.exceptions(std::ios::badbit);  // or a lack of memory would be a limit that is not seen
  std::uint64_t value = 0;
  if (text.find('-') != std::string::npos || !(in >> value)) return std::nullopt;
  return value;
}

// Returns the folders of the cgroups that contain this process in the hierarchy of a controller, innermost first (cgroups(7)). Each of
// these cgroups can limit the process. If `controller` is "", the hierarchy is that of version 2.
std::vector<std::string> cgroup_folders(const std::string& root, const std::string& controller) {
  std::string path;
  if (const auto groups = text_of(root + "/proc/self/cgroup")) {
    std::istringstream lines(*groups);
    for (std::string line; std::getline(lines, line);) {  // "4:cpu,cpuacct:/path", "0::/path"
      const std::size_t first = line.find(':'), second = line.find(':', first + 1);
      if (first == std::string::npos || second == std::string::npos) continue;
      const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
      const bool ours = controller.empty() ? controllers == ",," : controllers.find("," + controller + ",") != std::string::npos;
      if (ours) path = line.substr(second + 1);
    }
  }
  const std::string mount = root + "/sys/fs/cgroup" + (controller.empty() ? "" : "/" + controller);
  std::vector<std::string> folders;
  while (path.size() > 1) {
    folders.push_back(mount + path);
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  folders.push_back(mount);  // in a container, the mount point is the container's own cgroup
  return folders;
}

void tighten(double& limit, double other) {
  if (other > 0 && (limit == 0 || other < limit)) limit = other;
}

// Names of cores by Arm's numbers (/proc/cpuinfo, "CPU part"; the Main ID Register, MIDR_EL1, in the manual of each core).
constexpr std::pair<std::string_view, std::string_view> kArmCores[] = {
    {"0xd03", "Cortex-A53"},  {"0xd08", "Cortex-A72"},  {"0xd0b", "Cortex-A76"},  {"0xd0c", "Neoverse N1"},
    {"0xd40", "Neoverse V1"}, {"0xd49", "Neoverse N2"}, {"0xd4f", "Neoverse V2"},
};

// Returns the value of the first line "key<tabs>: value", or "".
std::string line_of(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with(key) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace

std::optional<std::string> text_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

std::optional<std::uint64_t> field(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) == 0 && line.size() > key.size() && (line[key.size()] == ' ' || line[key.size()] == ':')) {
      return number(line.substr(key.size() + 1));
    }
  }
  return std::nullopt;
}

double quota_from_cpu_max(const std::string& text) {
  std::istringstream in(text);
  std::string quota, period;
  in >> quota >> period;
  return quota == "max" ? 0 : quota_from_cfs(quota, period.empty() ? "100000" : period);
}

double quota_from_cfs(const std::string& quota_us, const std::string& period_us) {
  const auto quota = number(quota_us), period = number(period_us);
  return quota && period && *quota > 0 && *period > 0 ? static_cast<double>(*quota) / static_cast<double>(*period) : 0;
}

double cpu_quota(const std::string& root) {
  double limit = 0;
  for (const std::string& folder : cgroup_folders(root, "")) {
    if (const auto text = text_of(folder + "/cpu.max")) tighten(limit, quota_from_cpu_max(*text));
  }
  for (const std::string& folder : cgroup_folders(root, "cpu")) {
    const auto quota = text_of(folder + "/cpu.cfs_quota_us"), period = text_of(folder + "/cpu.cfs_period_us");
    if (quota && period) tighten(limit, quota_from_cfs(*quota, *period));
  }
  return limit;
}

Memory cgroup_memory(const std::string& root) {
  Memory tightest;
  const auto consider = [&](const std::string& folder, const char* limit_file, const char* used_file, const char* cache_key) {
    const auto limit_text = text_of(folder + limit_file), used_text = text_of(folder + used_file);
    if (!limit_text || !used_text) return;
    const auto limit = number(*limit_text), used = number(*used_text);
    if (!limit || !used || *limit >= std::uint64_t{1} << 60) return;  // "max" (version 2) or a huge number (version 1) means no limit
    // Cached file pages count as used, but the system frees them on demand.
    std::uint64_t cached = 0;
    if (const auto stat = text_of(folder + "/memory.stat")) cached = field(*stat, cache_key).value_or(0);
    const std::uint64_t held = *used > cached ? *used - cached : 0;
    const std::uint64_t free = *limit > held ? *limit - held : 0;
    if (tightest.total == 0 || free < tightest.free) tightest.free = free;
    tightest.total = tightest.total == 0 ? *limit : std::min(tightest.total, *limit);
  };
  for (const std::string& folder : cgroup_folders(root, "")) consider(folder, "/memory.max", "/memory.current", "inactive_file");
  for (const std::string& folder : cgroup_folders(root, "memory")) {
    consider(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file");
  }
  return tightest;
}

std::string huge_pages(const std::string& root) {
  const std::string text = text_of(root + "/sys/kernel/mm/transparent_hugepage/enabled").value_or("");  // "always [madvise] never"
  for (const char* chosen : {"always", "madvise", "never"}) {
    if (text.find(std::string("[") + chosen + "]") != std::string::npos) return chosen;
  }
  return "unknown";
}

std::string cpu_model(const std::string& root) {
  const std::string text = text_of(root + "/proc/cpuinfo").value_or("");
  if (const std::string name = line_of(text, "model name"); !name.empty()) return name;
  const std::string maker = line_of(text, "CPU implementer"), part = line_of(text, "CPU part");
  if (maker.empty() || part.empty()) return "CPU";
  for (const auto& [number, name] : kArmCores) {
    if (maker == "0x41" && part == number) return std::string(name);
  }
  return "ARM processor, implementer " + maker + ", part " + part;
}

}  // namespace pumice::os
