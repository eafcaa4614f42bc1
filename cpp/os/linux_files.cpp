#include "os/linux_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <new>
#include <utility>
#include <vector>

namespace pumice::os {
namespace {

// Removes the first line from `text` and returns it without its newline. Returns an empty optional if `text` is empty. This file does not
// use streams, because they end silently if memory runs out, and a limit in a later line would then be missed.
std::optional<std::string_view> take_line(std::string_view& text) {
  if (text.empty()) return std::nullopt;
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

// Returns the folders of the cgroups that contain this process and can limit it, innermost first (cgroups(7)). In cgroup version 1, each
// controller has a hierarchy of its own, and `controller` is its name, for example "cpu". For version 2, which has one hierarchy,
// `controller` is "".
std::vector<std::string> cgroup_folders(const std::string& root, const std::string& controller) {
  std::string path;
  if (const auto groups = text_of(root + "/proc/self/cgroup")) {
    std::string_view rest = *groups;
    while (const auto line = take_line(rest)) {  // for example "4:cpu,cpuacct:/path" or "0::/path"
      const std::size_t first = line->find(':'), second = line->find(':', first + 1);
      if (first == std::string::npos || second == std::string::npos) continue;
      const std::string controllers = "," + std::string(line->substr(first + 1, second - first - 1)) + ",";
      const bool ours = controller.empty() ? controllers == ",," : controllers.find("," + controller + ",") != std::string::npos;
      if (ours) path = line->substr(second + 1);
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

// Names of ARM cores by part number. The part number is "CPU part" in /proc/cpuinfo, and the manual of each core has it under MIDR_EL1.
constexpr std::pair<std::string_view, std::string_view> kArmCores[] = {
    {"0xd03", "Cortex-A53"},  {"0xd08", "Cortex-A72"},  {"0xd0b", "Cortex-A76"},  {"0xd0c", "Neoverse N1"},
    {"0xd40", "Neoverse V1"}, {"0xd49", "Neoverse N2"}, {"0xd4f", "Neoverse V2"},
};

// Returns the value of the first line of the form "key<tabs>: value", or "" if there is none.
std::string line_of(std::string_view text, std::string_view key) {
  while (const auto line = take_line(text)) {
    const std::size_t colon = line->find(": ");
    if (line->starts_with(key) && colon != std::string::npos) return std::string(line->substr(colon + 2));
  }
  return "";
}

}  // namespace

std::optional<std::string> text_of(const std::string& path) {
  struct Closed {
    const int file;
    ~Closed() {
      if (file >= 0) ::close(file);
    }
  };
  const Closed opened{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  std::string text;
  std::array<char, 4096> piece;
  while (true) {
    const ssize_t count = opened.file < 0 ? -1 : ::read(opened.file, piece.data(), piece.size());
    if (count == 0) return text;
    if (count > 0) {
      text.append(piece.data(), static_cast<std::size_t>(count));
    } else if (errno == ENOMEM) {
      throw std::bad_alloc();
    } else if (opened.file < 0 || errno != EINTR) {
      return std::nullopt;
    }
  }
}

std::string_view take_word(std::string_view& text) {
  constexpr std::string_view kBlanks = " \t\n";
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(kBlanks)));
  const std::string_view word = text.substr(0, text.find_first_of(kBlanks));
  text.remove_prefix(word.size());
  return word;
}

std::optional<std::uint64_t> number(std::string_view text) {
  const std::string_view word = take_word(text);
  std::uint64_t value = 0;
  if (std::from_chars(word.data(), word.data() + word.size(), value).ec != std::errc()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> field(std::string_view text, std::string_view key) {
  while (const auto line = take_line(text)) {
    if (line->starts_with(key) && line->size() > key.size() && ((*line)[key.size()] == ' ' || (*line)[key.size()] == ':'))
      return number(line->substr(key.size() + 1));
  }
  return std::nullopt;
}

double quota_from_cpu_max(std::string_view text) {
  const std::string_view quota = take_word(text), period = take_word(text);
  return quota == "max" ? 0 : quota_from_cfs(quota, period.empty() ? "100000" : period);
}

double quota_from_cfs(std::string_view quota_us, std::string_view period_us) {
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
    // "max" (version 2) or a huge number (version 1) means that there is no limit
    if (!limit || !used || *limit >= std::uint64_t{1} << 60) return;
    // The cgroup counts cached file pages as used memory. They count as free here, because the system frees them on demand.
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
  // The text is, for example, "always [madvise] never".
  const std::string text = text_of(root + "/sys/kernel/mm/transparent_hugepage/enabled").value_or("");
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
