// Implements the headers of os/ for macOS 11 and later. Written from Apple's manual pages and headers. No Apple machine has compiled or run
// this file yet (docs/platforms.md).
#include <dlfcn.h>
#include <fcntl.h>
#include <mach-o/dyld.h>
#include <mach/mach.h>
#include <pthread.h>
#include <pthread/qos.h>
#include <sys/stat.h>
#include <sys/sysctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <system_error>

#include "os/files.h"
#include "os/libraries.h"
#include "os/limits.h"
#include "os/pages.h"
#include "os/threads.h"

namespace pumice::os {
namespace {

// Returns the number with this name (sysctl(3)), or 0 if the system has no such number.
std::uint64_t number_of(const char* name) {
  std::uint64_t wide = 0;
  std::uint32_t narrow = 0;
  std::size_t bytes = sizeof(wide);
  if (::sysctlbyname(name, &wide, &bytes, nullptr, 0) == 0 && bytes == sizeof(wide)) return wide;
  bytes = sizeof(narrow);
  return ::sysctlbyname(name, &narrow, &bytes, nullptr, 0) == 0 && bytes == sizeof(narrow) ? narrow : 0;
}

}  // namespace

// ---------------------------------------------------------------- limits
// macOS has neither affinity masks nor quotas of processors, so this process may use all active processors.
int allowed_cpus() { return std::max(1, static_cast<int>(number_of("hw.activecpu"))); }

int usable_cpus() { return allowed_cpus(); }

int default_threads() {
  // Apple silicon has levels of cores, and level 0 is the fastest. Intel Macs have only one kind of core.
  std::uint64_t cores = number_of("hw.perflevel0.physicalcpu");
  if (cores == 0) cores = number_of("hw.physicalcpu");
  return cores > 0 ? static_cast<int>(cores) : allowed_cpus();
}

std::string cpu_model() {
  std::array<char, 256> name{};
  std::size_t bytes = name.size() - 1;
  return ::sysctlbyname("machdep.cpu.brand_string", name.data(), &bytes, nullptr, 0) == 0 && name[0] != '\0' ? name.data() : "CPU";
}

ArmInstructions arm_instructions() {
  return {.dot_products = number_of("hw.optional.arm.FEAT_DotProd") != 0, .int8_matrices = number_of("hw.optional.arm.FEAT_I8MM") != 0};
}

Memory memory() {
  Memory memory{.total = number_of("hw.memsize")};
  memory.free = memory.total;
  const mach_port_t host = ::mach_host_self();
  vm_statistics64_data_t pages{};
  mach_msg_type_number_t words = HOST_VM_INFO64_COUNT;
  if (::host_statistics64(host, HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages), &words) == KERN_SUCCESS) {
    // Inactive pages count as free, because they are the first pages that the system reuses when it needs memory.
    const std::uint64_t count = std::uint64_t{pages.free_count} + pages.inactive_count;
    memory.free = std::min(memory.total, count * page_bytes());
  }
  ::mach_port_deallocate(::mach_task_self(), host);
  return memory;
}

// Returns an empty optional, because macOS does not enforce limits of address space.
std::optional<std::uint64_t> address_space_left() { return std::nullopt; }

std::string huge_pages() { return "none"; }

// ---------------------------------------------------------------- threads
void name_this_thread(const char* name) { ::pthread_setname_np(name); }

// Without this quality-of-service class, the system may move the thread to the efficiency cores.
void expect_work_on_this_thread() { ::pthread_set_qos_class_self_np(QOS_CLASS_USER_INITIATED, 0); }

ThreadClock ThreadClock::of_this_thread() {
  ThreadClock clock;
  clock.known_ = true;
  clock.handle_ = ::pthread_mach_thread_np(::pthread_self());
  return clock;
}
std::chrono::nanoseconds ThreadClock::used() const {
  thread_basic_info_data_t info{};
  mach_msg_type_number_t words = THREAD_BASIC_INFO_COUNT;
  const auto thread = static_cast<thread_act_t>(handle_);
  if (!known_ || ::thread_info(thread, THREAD_BASIC_INFO, reinterpret_cast<thread_info_t>(&info), &words) != KERN_SUCCESS) return {};
  return std::chrono::seconds(info.user_time.seconds + info.system_time.seconds) +
         std::chrono::microseconds(info.user_time.microseconds + info.system_time.microseconds);
}

bool on_first_thread() { return ::pthread_main_np() != 0; }

// ---------------------------------------------------------------- pages
std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

std::uint64_t huge_page_bytes() { return 0; }

void prefer_huge_pages(void*, std::uint64_t) {}

// ---------------------------------------------------------------- files
const int kOpenFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
const std::optional<int> kNameless = std::nullopt;

bool can_link_nameless(int) { return false; }

bool link_nameless(int, int, const std::string&) {
  errno = ENOTSUP;
  return false;
}

int reserve_space(int file, off_t length) {
  fstore_t space{.fst_flags = F_ALLOCATEALL, .fst_posmode = F_PEOFPOSMODE, .fst_offset = 0, .fst_length = length, .fst_bytesalloc = 0};
  return ::fcntl(file, F_PREALLOCATE, &space);
}

// fsync() only passes the bytes to the disk, which may keep them in a cache. F_FULLFSYNC also empties this cache. File systems without
// F_FULLFSYNC get fsync().
int sync(int file) {
  if (::fcntl(file, F_FULLFSYNC) == 0) return 0;
  return errno == ENOTSUP || errno == ENOTTY || errno == EINVAL ? ::fsync(file) : -1;
}

// A plain file is on another device than its folder only if something is mounted on the file.
bool is_mount_point(int folder, const std::string& name) {
  struct stat of_folder, of_file;
  return ::fstat(folder, &of_folder) == 0 && ::fstatat(folder, name.c_str(), &of_file, AT_SYMLINK_NOFOLLOW) == 0 &&
         of_folder.st_dev != of_file.st_dev;
}

timespec modified(const struct stat& status) { return status.st_mtimespec; }
timespec changed(const struct stat& status) { return status.st_ctimespec; }

// ---------------------------------------------------------------- libraries
// macOS needs no further flags, because its libraries bind each symbol to the library that they were linked with, and not to another copy
// of that library.
int open_alone_flags() { return RTLD_NOW | RTLD_LOCAL; }

std::filesystem::path program() {
  std::array<char, 4096> path{};
  auto bytes = static_cast<std::uint32_t>(path.size());
  std::error_code ignored;
  return ::_NSGetExecutablePath(path.data(), &bytes) == 0 ? std::filesystem::canonical(path.data(), ignored) : std::filesystem::path();
}

// The first three names are those of the Vulkan SDK's loader. The other three are those of MoltenVK, which works without a loader. The full
// paths are needed because dlopen() does not search Homebrew's folder on Apple silicon.
VulkanLoader vulkan_loader() {
  static constexpr const char* kNames[] = {
      "libvulkan.1.dylib", "/opt/homebrew/lib/libvulkan.1.dylib", "/usr/local/lib/libvulkan.1.dylib",
      "libMoltenVK.dylib", "/opt/homebrew/lib/libMoltenVK.dylib", "/usr/local/lib/libMoltenVK.dylib",
  };
  return {kNames, "Install the loader and MoltenVK, which runs Vulkan on Metal: brew install vulkan-loader molten-vk"};
}

// dlopen() finds this path in the cache of the system's libraries, although no such file exists.
std::optional<SystemBlas> system_blas() {
  return SystemBlas{.name = "Accelerate", .path = "/System/Library/Frameworks/Accelerate.framework/Accelerate"};
}

}  // namespace pumice::os
