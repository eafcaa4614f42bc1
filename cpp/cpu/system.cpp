#include "cpu/system.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#include <sys/resource.h>
#endif
#include <unistd.h>

namespace pumice::cpu {
namespace {

std::optional<std::string> text_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

std::optional<std::uint64_t> number(const std::string& text) {
  std::istringstream in(text);
  std::uint64_t value = 0;
  if (text.find('-') != std::string::npos || !(in >> value)) return std::nullopt;
  return value;
}

// Returns the number in the line "key 123" or "key: 123 kB".
std::optional<std::uint64_t> field(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) == 0 && line.size() > key.size() && (line[key.size()] == ' ' || line[key.size()] == ':')) {
      return number(line.substr(key.size() + 1));
    }
  }
  return std::nullopt;
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

}  // namespace

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

#if defined(__linux__)
namespace {
std::vector<int> affinity() {
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {  // the kernel refuses a set that is smaller than its own
    cpu_set_t* set = CPU_ALLOC(cpus);
    if (!set) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(cpus);
    CPU_ZERO_S(bytes, set);
    std::vector<int> allowed;
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; known && cpu < cpus; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) allowed.push_back(cpu);
    }
    CPU_FREE(set);
    if (!allowed.empty()) return allowed;
  }
  return {};
}
}  // namespace
#else
namespace {
std::vector<int> affinity() { return {}; }
}  // namespace
#endif

int allowed_cpus() {
  const int cpus = static_cast<int>(affinity().size());
  return cpus > 0 ? cpus : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

namespace {
// Returns `cpus`, or the number of processors that the cgroup's quota allows, if that is less.
int within_quota(int cpus) {
  const double quota = cpu_quota("");
  return quota > 0 ? std::clamp(static_cast<int>(std::min(quota, 4096.0)), 1, cpus) : cpus;
}
}  // namespace

int usable_cpus() { return within_quota(allowed_cpus()); }

int default_threads() {
  std::set<std::string> cores;  // a core is identified by the list of its hyperthreads
  for (const int cpu : affinity()) {
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    auto siblings = text_of(topology + "core_cpus_list");
    if (!siblings) siblings = text_of(topology + "thread_siblings_list");
    cores.insert(siblings ? *siblings : "cpu " + std::to_string(cpu));
  }
  return within_quota(cores.empty() ? allowed_cpus() : static_cast<int>(cores.size()));
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.compare(0, 10, "model name") == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

std::string huge_pages(const std::string& root) {
  const std::string text = text_of(root + "/sys/kernel/mm/transparent_hugepage/enabled").value_or("");  // "always [madvise] never"
  for (const char* chosen : {"always", "madvise", "never"}) {
    if (text.find(std::string("[") + chosen + "]") != std::string::npos) return chosen;
  }
  return "unknown";
}

std::optional<std::uint64_t> address_space_left() {
#if defined(__linux__)
  rlimit space{}, data{};
  if (::getrlimit(RLIMIT_AS, &space) != 0) space.rlim_cur = RLIM_INFINITY;
  if (::getrlimit(RLIMIT_DATA, &data) != 0) data.rlim_cur = RLIM_INFINITY;
  if (space.rlim_cur == RLIM_INFINITY && data.rlim_cur == RLIM_INFINITY) return std::nullopt;
  std::ifstream statm("/proc/self/statm");
  std::uint64_t size = 0, data_size = 0, other = 0;  // in pages; proc(5) describes the fields of statm
  if (!(statm >> size >> other >> other >> other >> other >> data_size)) return std::nullopt;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::uint64_t left = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [limit, used] : {std::pair{space.rlim_cur, size * page}, std::pair{data.rlim_cur, data_size * page}})
    if (limit != RLIM_INFINITY) left = std::min<std::uint64_t>(left, limit > used ? limit - used : 0);
  return left;
#else
  return std::nullopt;
#endif
}

Memory memory() {
  Memory memory;
  if (const auto text = text_of("/proc/meminfo")) {
    memory.total = field(*text, "MemTotal").value_or(0) * 1024;
    memory.free = field(*text, "MemAvailable").value_or(0) * 1024;
  }
#if defined(_SC_PHYS_PAGES)
  if (memory.total == 0) {
    const long pages = ::sysconf(_SC_PHYS_PAGES), bytes = ::sysconf(_SC_PAGESIZE);
    if (pages > 0 && bytes > 0) memory.total = memory.free = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(bytes);
  }
#endif
  if (const Memory group = cgroup_memory(""); group.total > 0) {
    memory.total = std::min(memory.total, group.total);
    memory.free = std::min(memory.free, group.free);
  }
  return memory;
}

}  // namespace pumice::cpu
