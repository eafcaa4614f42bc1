// Implements the headers of os/ for Linux. man7.org describes the system calls and the files of /proc and /sys.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "os/files.h"
#include "os/libraries.h"
#include "os/limits.h"
#include "os/linux_files.h"
#include "os/pages.h"
#include "os/threads.h"

namespace pumice::os {
namespace {

std::vector<int> affinity() {
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {  // the kernel refuses a set with fewer bits than its own set
    constexpr auto release = [](cpu_set_t* set) { CPU_FREE(set); };
    const std::unique_ptr<cpu_set_t, decltype(release)> set(CPU_ALLOC(cpus));
    if (!set) throw std::bad_alloc();
    const std::size_t bytes = CPU_ALLOC_SIZE(cpus);
    CPU_ZERO_S(bytes, set.get());
    std::vector<int> allowed;
    const bool known = sched_getaffinity(0, bytes, set.get()) == 0;
    for (int cpu = 0; known && cpu < cpus; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set.get())) allowed.push_back(cpu);
    }
    if (!allowed.empty()) return allowed;
  }
  return {};
}

// Returns the smaller of `cpus` and the number of processors that the cgroup's quota allows.
int within_quota(int cpus) {
  const double quota = cpu_quota("");
  return quota > 0 ? std::clamp(static_cast<int>(std::min(quota, 4096.0)), 1, cpus) : cpus;
}

}  // namespace

// ---------------------------------------------------------------- limits
int allowed_cpus() {
  const int cpus = static_cast<int>(affinity().size());
  return cpus > 0 ? cpus : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

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

std::string cpu_model() { return cpu_model(""); }

ArmInstructions arm_instructions() {
  // Bits of the auxiliary vector on 64-bit ARM (docs.kernel.org/arch/arm64/elf_hwcaps.html).
  constexpr int kDotProducts = 20, kInt8Matrices = 13;
  return {.dot_products = (::getauxval(AT_HWCAP) >> kDotProducts & 1) != 0,
          .int8_matrices = (::getauxval(AT_HWCAP2) >> kInt8Matrices & 1) != 0};
}

std::string huge_pages() { return huge_pages(""); }

std::optional<std::uint64_t> address_space_left() {
  rlimit space{}, data{};
  if (::getrlimit(RLIMIT_AS, &space) != 0) space.rlim_cur = RLIM_INFINITY;
  if (::getrlimit(RLIMIT_DATA, &data) != 0) data.rlim_cur = RLIM_INFINITY;
  if (space.rlim_cur == RLIM_INFINITY && data.rlim_cur == RLIM_INFINITY) return std::nullopt;
  const std::string statm = text_of("/proc/self/statm").value_or("");
  std::string_view rest = statm;
  // proc(5) describes the fields of statm. The first is the total size, and the sixth is the size of data.
  std::array<std::uint64_t, 6> pages{};
  for (std::uint64_t& value : pages) {
    const auto found = number(take_word(rest));
    if (!found) return std::nullopt;
    value = *found;
  }
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::uint64_t left = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [limit, used] : {std::pair{space.rlim_cur, pages[0] * page}, std::pair{data.rlim_cur, pages[5] * page}})
    if (limit != RLIM_INFINITY) left = std::min<std::uint64_t>(left, limit > used ? limit - used : 0);
  return left;
}

Memory memory() {
  Memory memory;
  if (const auto text = text_of("/proc/meminfo")) {
    memory.total = field(*text, "MemTotal").value_or(0) * 1024;
    memory.free = field(*text, "MemAvailable").value_or(0) * 1024;
  }
  if (memory.total == 0) {
    const long pages = ::sysconf(_SC_PHYS_PAGES), bytes = ::sysconf(_SC_PAGESIZE);
    if (pages > 0 && bytes > 0) memory.total = memory.free = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(bytes);
  }
  if (const Memory group = cgroup_memory(""); group.total > 0) {
    memory.total = std::min(memory.total, group.total);
    memory.free = std::min(memory.free, group.free);
  }
  if (const auto left = address_space_left()) memory.free = std::min(memory.free, *left);
  return memory;
}

// ---------------------------------------------------------------- threads
void name_this_thread(const char* name) { ::pthread_setname_np(::pthread_self(), name); }

void expect_work_on_this_thread() {}

ThreadClock ThreadClock::of_this_thread() {
  ThreadClock clock;
  clockid_t id{};
  clock.known_ = ::pthread_getcpuclockid(::pthread_self(), &id) == 0;
  clock.handle_ = id;
  return clock;
}
std::chrono::nanoseconds ThreadClock::used() const {
  timespec used{};
  if (!known_ || ::clock_gettime(static_cast<clockid_t>(handle_), &used) != 0) return {};
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

bool on_first_thread() { return ::gettid() == ::getpid(); }

// ---------------------------------------------------------------- pages
std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

std::uint64_t huge_page_bytes() {
  // A huge page is one entry of the last but one level of page tables, and a page holds one table of 8-byte entries. A huge page is
  // therefore 2 MiB if pages have 4 KiB, and 512 MiB if pages have 64 KiB. A model's matrix should not be rounded up to 512 MiB, so such
  // huge pages are not used.
  const std::uint64_t bytes = page_bytes() * (page_bytes() / 8);
  constexpr std::uint64_t kMost = std::uint64_t{32} << 20;
  return bytes <= kMost ? bytes : 0;
}

void prefer_huge_pages(void* begin, std::uint64_t bytes) { ::madvise(begin, bytes, MADV_HUGEPAGE); }

// ---------------------------------------------------------------- files
const int kOpenFolder = O_PATH | O_DIRECTORY | O_CLOEXEC;
const std::optional<int> kNameless = O_TMPFILE;

namespace {
std::string path_of_open(int file) { return "/proc/self/fd/" + std::to_string(file); }
}  // namespace

bool can_link_nameless(int file) {
  struct stat open, named;
  return ::fstat(file, &open) == 0 && ::stat(path_of_open(file).c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

bool link_nameless(int file, int folder, const std::string& name) {
  return ::linkat(AT_FDCWD, path_of_open(file).c_str(), folder, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

int reserve_space(int file, off_t length) { return ::fallocate(file, FALLOC_FL_KEEP_SIZE, 0, length); }

int sync(int file) { return ::fsync(file); }

bool is_mount_point(int folder, const std::string& name) {
  struct statx found;
  if (::statx(folder, name.c_str(), AT_SYMLINK_NOFOLLOW, 0, &found) != 0) return false;
  return (found.stx_attributes_mask & found.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

timespec modified(const struct stat& status) { return status.st_mtim; }
timespec changed(const struct stat& status) { return status.st_ctim; }

// ---------------------------------------------------------------- libraries
int open_alone_flags() {
#if defined(__SANITIZE_ADDRESS__)  // AddressSanitizer ends the process if RTLD_DEEPBIND is used
  return RTLD_NOW | RTLD_LOCAL;
#else
  return RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif
}

std::filesystem::path program() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored);
}

VulkanLoader vulkan_loader() {
  static constexpr const char* kNames[] = {"libvulkan.so.1"};
  return {kNames, "Install the loader and your GPU's driver, on Debian and Ubuntu: apt-get install libvulkan1 mesa-vulkan-drivers"};
}

std::optional<SystemBlas> system_blas() { return std::nullopt; }

}  // namespace pumice::os
